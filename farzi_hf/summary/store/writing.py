"""Writing the artefact: the files of a summary on disk, and so in its dataset repository. They are written all or not at all.

```
README.md                      card; its YAML declares the tables below
latents/train-*.parquet        default config: index, latents (ξ, d) and, with a vocabulary, the greedy text
decoder/train-*.parquet        id, token where known, decoder (d,)
labels/train-*.parquet         where labels are own: index, labels (ξ, e); with ids for inputs also input_ids and text, the default config then
label_decoder/train-*.parquet  the same as decoder, of labels: id, token, decoder (e,)
tokens/train-*.parquet         sequence, position, top-k tokens with probabilities, entropy in nats; of own labels too
farzi.safetensors              the tensors as `config.storage` stores them: the source of truth; metadata: checksums, and the artefact's files
config.json                    FarziDataConfig
viewer.html                    a page to browse the sequences, which also works from file://
tokenizer files or vocabulary.json, recipe.yaml, metrics.json, plots/*: where there are any
```
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from farzi_hf.summary.store.card import Contents, greedy_texts, render_card, tables_of
from farzi_hf.summary.store.card_learner import plain_learner
from farzi_hf.summary.store.folder import (
    CARD,
    CONFIG,
    METRICS,
    PLOTS,
    PLOTS_LIMIT,
    RECIPE,
    VIEWER,
    ArtefactFolder,
    pattern_of,
    read_artefact,
    replace_files,
    size_limit,
)  # fmt: skip
from farzi_hf.summary.store.text import (
    as_mapping,
    check_results,
    json_text,
    numbers_of,
    parse_json,
    parse_yaml,
    yaml_text,
)
from farzi_hf.summary.store.viewer import render_viewer
from farzi_hf.summary.store.vocabulary_files import save_vocabulary

_AT_ONCE = 1000
"""Sequences that are decoded at the same time."""


@dataclass(frozen=True)
class Results:
    """The parts of an artefact beside the summary itself.

    Attributes:
        metrics: figures and facts, see `card.render_card`; `metrics.json`. Anything JSON can hold.
        recipe: everything needed to distil the summary again; `recipe.yaml`. Anything JSON can hold.
        plots: the contents of image files by name; the folder `plots`.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    plots: Mapping[str, bytes] = field(default_factory=dict)


def write_artefact(contents: Contents, folder: Path, results: Results) -> None:
    """Writes the whole artefact into `folder`, atomically; see `folder.replace_files`.

    Empty metrics, recipe or plots get no file.
    """

    def write(staging: Path) -> None:
        for name, table in _tables(contents).items():
            (staging / name).mkdir()
            pq.write_table(table, staging / name / "train-00000-of-00001.parquet")
        contents.config.to_json_file(staging / CONFIG)
        save_vocabulary(contents.vocabulary, staging)
        if results.recipe:
            _write_text(staging / RECIPE, yaml_text(results.recipe))
        if results.metrics:
            _write_text(staging / METRICS, json_text(results.metrics))
        for name, content in results.plots.items():
            (staging / PLOTS).mkdir(exist_ok=True)
            (staging / PLOTS / name).write_bytes(content)
        shown = [f"{PLOTS}/{name}" for name in results.plots]
        _write_text(staging / CARD, render_card(contents, results.metrics, results.recipe, shown))
        _write_text(staging / VIEWER, render_viewer(contents))

    tensors = {name: tensor.detach().cpu() for name, tensor in contents.tensors.items()}
    stored = {name: tensor.contiguous() for name, tensor in contents.storage.stored(tensors).items()}
    replace_files(folder, write, stored)


def load_results(artefact: ArtefactFolder | Path) -> Results:
    """The metrics, recipe and plots of an artefact.

    Raises:
        ValueError: a file holds something else, or it is larger than `store.folder` allows.
    """
    if not isinstance(artefact, ArtefactFolder):
        return read_artefact(artefact, load_results)

    def mapping(name: str, parse: Callable[[bytes, Path], Any]) -> dict[str, Any]:
        path = artefact.find(name)
        return {} if path is None else as_mapping(parse(artefact.read(name), path), path)

    metrics, recipe = numbers_of(mapping(METRICS, parse_json)), mapping(RECIPE, parse_yaml)
    check_results(metrics, recipe, str(artefact.folder / METRICS), str(artefact.folder / RECIPE))
    models = {
        name: plain_learner(recipe[name], f"{artefact.folder / RECIPE}: {name}")
        for name in ("learner", "teacher")
        if name in recipe
    }
    plots: dict[str, bytes] = {}
    for name in artefact.names:
        if name.startswith(f"{PLOTS}/") and artefact.find(name) is not None:
            plots[name.removeprefix(f"{PLOTS}/")] = artefact.read(name)
            check_plots(plots, str(artefact.folder / PLOTS))
    return Results(metrics, {**recipe, **models}, plots)


def read_plots(paths: Sequence[str | os.PathLike]) -> dict[str, bytes]:
    """The contents of image files by name, as `Results` has them.

    Raises:
        ValueError: a name is not that of an image, two plots have the same name, or a file is too large.
        FileNotFoundError: there is no such file.
    """
    plots: dict[str, bytes] = {}
    for path in map(Path, paths):
        name = f"{PLOTS}/{path.name}"
        if not pattern_of(name) or path.name in plots:
            reason = (
                "another plot has the same name" if path.name in plots else "it has no name of an image, like curve.png"
            )
            raise ValueError(f"plots has {str(path)!r}, which cannot go into the artefact: {reason}; rename it")
        found, limit = path.stat(), size_limit(name)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise ValueError(
                f"plots has {str(path)!r}, which is no file of at most {limit:,} bytes; give images of that size"
            )
        plots[path.name] = path.read_bytes()
        check_plots(plots, "plots")
    return plots


def check_plots(plots: Mapping[str, bytes], source: str) -> None:
    """Raises ValueError if the plots together are too large to be read."""
    if (size := sum(map(len, plots.values()))) > PLOTS_LIMIT:
        raise ValueError(
            f"{source} has images of {size:,} bytes, more than the {PLOTS_LIMIT:,} that are read; give fewer or smaller ones"
        )


def rows_table(tensors: Mapping[str, Tensor]) -> pa.Table:
    """μ rows for a Trainer: `input_ids`, latents (ξ, d) or ids (ξ,), and `labels` (ξ, e) where labels are own."""
    inputs = _latents(tensors["latents"]) if "latents" in tensors else _ids(tensors["input_ids"])
    labels = {"labels": _latents(tensors["label_latents"])} if "label_latents" in tensors else {}
    return pa.table({"input_ids": inputs, **labels})


def _latents(latents: Tensor) -> pa.Array:
    """(μ, ξ, d) as μ fixed-size float32 lists."""
    _, length, dim = latents.shape
    return pa.FixedSizeListArray.from_arrays(_float_lists(latents.flatten(0, 1), dim), length)


def _float_lists(rows: Tensor, dim: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.detach().float().cpu().reshape(-1).numpy()), dim)


def _ids(ids: Tensor) -> pa.Array:
    """(μ, ξ) as μ fixed-size lists of integers."""
    return pa.FixedSizeListArray.from_arrays(pa.array(ids.cpu().long().reshape(-1).numpy()), ids.shape[1])


def _tables(contents: Contents) -> dict[str, pa.Table]:
    """The tables by name, in the order of `card.tables_of`."""
    tensors, vocabulary, decoded = contents.tensors, contents.vocabulary, contents.decoded
    texts, parts = [], []
    for start in range(0, len(decoded), _AT_ONCE):
        sequences = decoded[start : start + _AT_ONCE]
        parts.append(_tokens(sequences, start))
        texts += greedy_texts(vocabulary, sequences) if vocabulary.named else []
    first, text = {"index": pa.array(range(len(decoded)))}, {"text": pa.array(texts)} if vocabulary.named else {}
    tables = {"tokens": pa.concat_tables(parts)}
    if "latents" in tensors:
        tables["latents"] = pa.table({**first, "latents": _latents(tensors["latents"]), **text})
        tables["decoder"] = _decoder(tensors["decoder"], contents)
    if "label_latents" in tensors:
        ids = {"input_ids": _ids(tensors["input_ids"]), **text} if "input_ids" in tensors else {}
        tables["labels"] = pa.table({**first, "labels": _latents(tensors["label_latents"]), **ids})
        tables["label_decoder"] = _decoder(tensors["label_decoder"], contents)
    return {name: tables[name] for name in tables_of(tensors)}


def _tokens(decoded: Sequence[Sequence[Mapping[str, Any]]], first: int) -> pa.Table:
    """A row for each position of these sequences; `first` is the number of the first of them."""
    rows = [
        {"sequence": i, "position": j, **position}
        for i, sequence in enumerate(decoded, first)
        for j, position in enumerate(sequence)
    ]
    return pa.Table.from_pylist(rows)


def _decoder(decoder: Tensor, contents: Contents) -> pa.Table:
    """A row for each entry of the vocabulary."""
    size, vocabulary = contents.config.vocab_size, contents.vocabulary
    names = {"token": vocabulary.names(size)} if vocabulary.named else {}
    return pa.table({"id": range(size), **names, "decoder": _float_lists(decoder.T, len(decoder))})


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
