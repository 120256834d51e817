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
import pyarrow.parquet as pq

from farzi_hf.common.text import (
    json_text,
    numbers_of,
    parse_mapping,
    script_json,
    terminal_text,
    yaml_text,
)
from farzi_hf.data.vocabulary import Vocabulary
from farzi_hf.summary.forms import SHOWN
from farzi_hf.summary.origins import FIGURE_OF_ROWS, shows_rows
from farzi_hf.summary.store import folder as layout
from farzi_hf.summary.store.card import name_of, render_card, tables_of
from farzi_hf.summary.store.contents import Contents
from farzi_hf.summary.store.folder import ArtefactFolder, pattern_of, replace_files
from farzi_hf.summary.store.results import check_results
from farzi_hf.summary.store.tensor_file import STORAGES
from farzi_hf.summary.store.untrusted import plain_learner
from farzi_hf.summary.store.vocabulary_files import save_vocabulary

logger = logging.getLogger(__name__)

_LIKELIEST = 12  # entries of each position of the page to browse


@dataclass(frozen=True)
class Results:
    """The parts of an artefact beside the summary itself."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Figures and facts, see `card.render_card`; `metrics.json`. Anything JSON can hold."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Everything needed to distil the summary again; `recipe.yaml`. Anything JSON can hold."""

    plots: Mapping[str, bytes] = field(default_factory=dict)
    """The contents of image files by name; the folder `plots`."""

    def published(self) -> Results:
        """What goes to others: of the plots those that are plain images. A warning names the rest.
        Other kinds of files, such as SVG, can hold programs.
        """
        plots = {name: content for name, content in self.plots.items() if is_image(name, content)}
        left_out = sorted(self.plots.keys() - plots.keys())
        if left_out:
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
    shown = shows_rows(contents.forms.inputs.origin, results.metrics, show_rows)

    def write(staging: Path) -> None:
        save_vocabulary(contents.vocabulary, staging)
        for table in tables_of(contents):
            (staging / table.name).mkdir()
            pq.write_table(table.rows(), staging / table.name / "train-00000-of-00001.parquet")
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
            layout.VIEWER: render_viewer(contents, name_of(contents, results.metrics))
            if shown
            else "",
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

    def mapping(name: str, kind: str) -> dict[str, Any]:
        path = artefact.find(name)
        return {} if path is None else parse_mapping(artefact.read(name), path, kind)

    metrics = numbers_of(mapping(layout.METRICS, "JSON"))
    recipe = mapping(layout.RECIPE, "YAML")
    of_recipe = str(artefact.folder / layout.RECIPE)
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
    size = sum(path.stat().st_size for path in paths)
    if size > layout.PLOTS_LIMIT:
        raise ValueError(
            f"{source} has images of {size:,} bytes, more than the {layout.PLOTS_LIMIT:,} that are"
            " read; give fewer"
        )


def render_viewer(contents: Contents, title: str = "Farzi data") -> str:
    """`viewer.html` of a summary: of its first `SHOWN` sequences, and of each position the
    likeliest entries of its input or of its label, as the form of the inputs says; "" where that
    has no page. The numbers behind them stay away: those of a wide teacher take more than ten times
    the summary's bytes.
    """
    inputs = contents.forms.inputs
    config = contents.config
    if inputs.browsed is None:
        return ""
    words = inputs.words(contents.vocabulary)
    # Without names, tokens are ids.
    nameless = replace(contents.decoded, vocabulary=Vocabulary(), top_k=_LIKELIEST)
    decoded = nameless[:SHOWN]

    def of_positions(name: str, kind: str = "<f4") -> str:
        numbers = [
            [position[inputs.browsed + name] for position in sequence] for sequence in decoded
        ]
        return base64.b64encode(np.asarray(numbers, dtype=kind).tobytes()).decode()

    data = {
        "title": title,
        "sequence_length": config.sequence_length,
        "vocab_size": config.vocab_size,
        "num_sequences": len(decoded),
        "all_sequences": config.num_sequences,
        "figures": words.figures,
        "legend": words.legend,
        "tokens": contents.vocabulary.readable.names(config.vocab_size),
        "likeliest": min(_LIKELIEST, config.vocab_size),
        "ids": of_positions("tokens", "<u4"),
        "probabilities": of_positions("probabilities"),
        "entropy": of_positions("entropy"),
        "input_ids": inputs.browsed_ids(decoded),
    }
    template = (Path(__file__).parent / "templates" / "viewer.html").read_text(encoding="utf-8")
    return template.replace("__SUMMARY__", script_json(data))
