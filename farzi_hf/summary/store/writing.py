"""Writing the artefact: the files of a summary on disk, and so in its dataset repository. They are
written all or not at all.

The page "The artefact" of the documentation lists them.
"""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from farzi_hf.common.text import (
    json_text,
    numbers_of,
    parse_mapping,
    script_json,
    terminal_text,
    yaml_text,
)
from farzi_hf.data.vocabulary import Vocabulary
from farzi_hf.summary.origins import FIGURE_OF_ROWS, shows_rows
from farzi_hf.summary.store import folder as layout
from farzi_hf.summary.store.card import SHOWN, Contents, greedy_texts, render_card, tables_of
from farzi_hf.summary.store.folder import ArtefactFolder, pattern_of, replace_files
from farzi_hf.summary.store.results import check_results
from farzi_hf.summary.store.tensor_file import STORAGES
from farzi_hf.summary.store.untrusted import plain_learner, save_vocabulary

logger = logging.getLogger(__name__)

_AT_ONCE = 1000  # sequences that are decoded at the same time
_LIKELIEST = 12  # entries of each position of the page to browse


@dataclass(frozen=True)
class Results:
    """The parts of an artefact beside the summary itself.

    Attributes:
        metrics: figures and facts, see `card.render_card`; `metrics.json`. Anything JSON can hold.
        recipe: everything needed to distil the summary again; `recipe.yaml`. Anything JSON can
            hold.
        plots: the contents of image files by name; the folder `plots`.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    plots: Mapping[str, bytes] = field(default_factory=dict)

    def published(self) -> Results:
        """What goes to others: of the plots those that are plain images. A warning names the rest.
        Other kinds of files, such as SVG, can hold programs.
        """
        plots = {name: content for name, content in self.plots.items() if is_image(name, content)}
        if left_out := sorted(self.plots.keys() - plots.keys()):
            logger.warning(
                "%s: not published; only images in PNG and JPEG are.", terminal_text(left_out)
            )
        return replace(self, plots=plots)


_PNG = (b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR", b"IEND\xaeB`\x82")
_JPEG = (b"\xff\xd8\xff", b"\xff\xd9")
_IMAGES = {"png": _PNG, "jpg": _JPEG, "jpeg": _JPEG}
"""How a file with such an ending begins and ends."""
_PIXELS = 10**8


def is_image(name: str, content: bytes) -> bool:
    """Whether this is a whole PNG or JPEG, by its name and by its first and last bytes; a PNG of a
    size that can be shown.
    """
    first, last = _IMAGES.get(name.rpartition(".")[2].lower(), (None, None))
    if first is None or not (content.startswith(first) and content.endswith(last)):
        return False
    if first is not _PNG[0]:
        return True
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    return width * height <= _PIXELS


def write_artefact(
    contents: Contents, folder: Path, results: Results, show_rows: bool = False
) -> None:
    """Writes the whole artefact into `folder`, atomically; see `folder.replace_files`. Empty
    metrics, recipe or plots get no file. Where no rows are shown, there is neither a page to browse
    them nor the figure of one.

    Args:
        show_rows: see `farzi_hf.summary.origins.shows_rows`, which raises ValueError for it.
    """
    shown = shows_rows(contents.origin, results.metrics, show_rows)

    def write(staging: Path) -> None:
        save_vocabulary(contents.vocabulary, staging)
        for name, table in _tables(contents).items():
            (staging / name).mkdir()
            pq.write_table(table, staging / name / "train-00000-of-00001.parquet")
        contents.config.to_json_file(staging / layout.CONFIG)
        plots = {
            f"{layout.PLOTS}/{name}": content
            for name, content in results.plots.items()
            if shown or name != FIGURE_OF_ROWS
        }
        for name, content in plots.items():
            (staging / layout.PLOTS).mkdir(exist_ok=True)
            (staging / name).write_bytes(content)
        texts = {
            layout.CARD: render_card(
                contents, results.metrics, results.recipe, list(plots), show_rows
            ),
            layout.VIEWER: render_viewer(contents) if shown else "",
            layout.RECIPE: yaml_text(results.recipe) if results.recipe else "",
            layout.METRICS: json_text(results.metrics) if results.metrics else "",
        }
        for name, text in texts.items():
            if text:
                (staging / name).write_text(text, encoding="utf-8")

    tensors = {name: tensor.detach().cpu() for name, tensor in contents.tensors.items()}
    stored = {
        name: tensor.contiguous()
        for name, tensor in STORAGES[contents.config.storage].stored(tensors).items()
    }
    replace_files(folder, write, stored)


def load_results(artefact: ArtefactFolder) -> Results:
    """The metrics, recipe and plots of an artefact; a ValueError where a file holds something else,
    or is too large.
    """
    metrics, recipe = (
        (
            {}
            if (path := artefact.find(name)) is None
            else parse_mapping(artefact.read(name), path, kind)
        )
        for name, kind in ((layout.METRICS, "JSON"), (layout.RECIPE, "YAML"))
    )
    metrics, of_recipe = numbers_of(metrics), str(artefact.folder / layout.RECIPE)
    check_results(metrics, recipe, str(artefact.folder / layout.METRICS), of_recipe)
    for name in {"learner", "teacher"} & recipe.keys():
        recipe[name] = plain_learner(recipe[name], f"{of_recipe}: {name}")
    paths = {
        name: artefact.find(name) for name in artefact.names if name.startswith(f"{layout.PLOTS}/")
    }
    _check_plots(filter(None, paths.values()), str(artefact.folder / layout.PLOTS))
    plots = {
        name.removeprefix(f"{layout.PLOTS}/"): artefact.read(name)
        for name, path in paths.items()
        if path
    }
    return Results(metrics, recipe, plots)


def read_plots(paths: Sequence[str | os.PathLike]) -> dict[str, bytes]:
    """The contents of image files by name, as `Results` has them; a ValueError where one is no
    image, has a name of another, or is too large.
    """
    plots: dict[str, bytes] = {}
    _check_plots(map(Path, paths), "plots")
    for path in map(Path, paths):
        if (
            not pattern_of(f"{layout.PLOTS}/{path.name}")
            or path.name in plots
            or not path.is_file()
        ):
            raise ValueError(
                f"plots has {str(path)!r}; give image files, each with a name of its own, like"
                " curve.png"
            )
        plots[path.name] = path.read_bytes()
    return plots


def _check_plots(paths: Iterable[Path], source: str) -> None:
    """Raises ValueError if images are together too large to be read."""
    if (size := sum(path.stat().st_size for path in paths)) > layout.PLOTS_LIMIT:
        raise ValueError(
            f"{source} has images of {size:,} bytes, more than the {layout.PLOTS_LIMIT:,} that are"
            " read; give fewer"
        )


def rows_table(tensors: Mapping[str, Tensor]) -> pa.Table:
    """μ rows for a Trainer: `input_ids`, latents (ξ, d) or ids (ξ,), and `labels` (ξ, e) where
    labels are own, (ξ, 0) where a teacher labels.
    """
    inputs = tensors["latents"] if "latents" in tensors else tensors["input_ids"]
    labels = tensors.get(
        "label_latents", torch.empty(*inputs.shape[:2], 0) if "latents" not in tensors else None
    )
    return pa.table(
        {"input_ids": _lists(inputs)} | ({} if labels is None else {"labels": _lists(labels)})
    )


def _lists(numbers: Tensor) -> pa.Array:
    """(n, …) as n fixed-size lists, of lists where there are more axes; in float32 or int64."""
    numbers = numbers.detach().cpu()
    found = pa.array(
        (numbers.float() if numbers.is_floating_point() else numbers.long()).reshape(-1).numpy()
    )
    for axis in reversed(range(1, numbers.dim())):
        if numbers.shape[axis] == 0:
            found = pa.array([[]] * numbers.shape[:axis].numel(), pa.list_(pa.float32(), 0))
        else:
            found = pa.FixedSizeListArray.from_arrays(found, numbers.shape[axis])
    return found


def _tables(contents: Contents) -> dict[str, pa.Table]:
    """The tables by name, in the order of `card.tables_of`."""
    tensors, vocabulary, decoded = contents.tensors, contents.vocabulary, contents.decoded
    if contents.fixed is not None:
        return {"tokens": _rows_shown(contents.fixed)}
    texts, parts = [], []
    for start in range(0, len(decoded), _AT_ONCE):
        sequences = decoded[start : start + _AT_ONCE]
        rows = [
            {"sequence": i, "position": j, **x}
            for i, row in enumerate(sequences, start)
            for j, x in enumerate(row)
        ]
        parts.append(pa.Table.from_pylist(rows))
        texts += greedy_texts(vocabulary, sequences) if vocabulary.named else []
    first, text = (
        {"index": pa.array(range(len(decoded)))},
        {"text": pa.array(texts)} if vocabulary.named else {},
    )
    entries = {"id": range(size := contents.config.vocab_size)}
    entries |= {"token": vocabulary.names(size)} if vocabulary.named else {}
    tables = {"tokens": pa.concat_tables(parts)}
    if "latents" in tensors:
        tables["latents"] = pa.table({**first, "latents": _lists(tensors["latents"]), **text})
        tables["decoder"] = pa.table({**entries, "decoder": _lists(tensors["decoder"].T)})
    if "label_latents" in tensors:
        ids = {"input_ids": _lists(tensors["input_ids"]), **text} if "input_ids" in tensors else {}
        tables["labels"] = pa.table({**first, "labels": _lists(tensors["label_latents"]), **ids})
        tables["label_decoder"] = pa.table(
            {**entries, "decoder": _lists(tensors["label_decoder"].T)}
        )
    return {name: tables[name] for name in tables_of(tensors)}


def _rows_shown(contents: Contents) -> pa.Table:
    """The first rows of a summary that carries a teacher: ids, their text, and the likeliest labels
    of each position.
    """
    ids, vocabulary = contents.tensors["input_ids"], contents.vocabulary
    texts = {"text": greedy_texts(vocabulary, contents.decoded)} if vocabulary.named else {}
    found = {"index": range(len(ids)), "input_ids": ids.tolist(), **texts}
    for name in ("label_tokens", "label_probabilities"):
        found[name] = [[position[name] for position in sequence] for sequence in contents.decoded]
    return pa.table(found)


def render_viewer(contents: Contents) -> str:
    """`viewer.html` of a summary: of its first `SHOWN` sequences, and of each position the
    likeliest entries of the soft inputs, or else of the labels. The numbers behind them stay away:
    those of a wide teacher take more than ten times the summary's bytes.
    """
    contents = contents.fixed or contents
    config, tensors, of = (
        contents.config,
        contents.tensors,
        "" if "latents" in contents.tensors else "label_",
    )
    decoded = replace(contents.decoded, vocabulary=Vocabulary(), top_k=_LIKELIEST)[
        :SHOWN
    ]  # without names, tokens are ids

    def of_positions(name: str, kind: str = "<f4") -> str:
        numbers = [[position[of + name] for position in sequence] for sequence in decoded]
        return base64.b64encode(np.asarray(numbers, dtype=kind).tobytes()).decode()

    data = {
        "sequence_length": config.sequence_length,
        "vocab_size": config.vocab_size,
        "num_sequences": len(decoded),
        "all_sequences": config.num_sequences,
        "latent_dim": tensors[f"{of}latents"].shape[-1],
        "tau": 1.0 if of else config.tau,
        "tokens": contents.vocabulary.readable.names(config.vocab_size),
        "likeliest": min(_LIKELIEST, config.vocab_size),
        "ids": of_positions("tokens", "<u4"),
        "probabilities": of_positions("probabilities"),
        "entropy": of_positions("entropy"),
        "input_ids": tensors["input_ids"][:SHOWN].tolist() if "input_ids" in tensors else None,
    }
    template = (Path(__file__).parent / "templates" / "viewer.html").read_text(encoding="utf-8")
    return template.replace("__SUMMARY__", script_json(data))
