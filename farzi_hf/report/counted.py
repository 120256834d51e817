"""Counting first: the models that only count, measured in seconds, and the best one in a folder of
its own.

`count` is what `farzi count DATA` does. `CountedText` and `CountedItems` are its result: a counted
model with its vocabulary. They score, generate and rank, and are saved and loaded as a summary is:
atomically, without pickle, without code of strangers, from a closed list of files.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict

from farzi_hf.common.checks import check_place, check_size
from farzi_hf.common.text import (
    json_text,
    markdown_text,
    numbers_of,
    parse_mapping,
    publishable,
)
from farzi_hf.data import Interactions, load_interactions, vocabulary_of
from farzi_hf.data.coding import stored_bytes
from farzi_hf.data.own import first_texts
from farzi_hf.data.text import ids_of
from farzi_hf.report.comparison import with_ids
from farzi_hf.report.tables import markdown
from farzi_hf.summary.store.folder import (
    CARD,
    CONFIG,
    METRICS,
    TENSORS,
    ArtefactFolder,
    read_artefact,
    replace_files,
)
from farzi_hf.summary.store.hub import fetch_artefact
from farzi_hf.summary.store.results import check_results
from farzi_hf.summary.store.tensor_file import Stored, load_tensors
from farzi_hf.summary.store.vocabulary_files import load_vocabulary, save_vocabulary
from farzi_hf.tasks import (
    CountedModel,
    KneserNey,
    LanguageModeling,
    Recommendation,
    SequenceRules,
    Task,
)
from farzi_hf.tasks.base import check_task
from farzi_hf.tasks.counted import check_room, coded, decoded

MODEL_TYPE = "farzi_counted"
_BYTES = Stored(None, frozenset({"U8"}))


class Counts(ABC):
    """A counted model with its vocabulary.

    Args:
        model: what was counted.
        processing_class: the tokenizer, or the list of item names; None: entries have no names.
        metrics: what was measured: `table`, a row for each model that was tried, and facts about
            the data.
    """

    models: ClassVar[type[CountedModel]]
    tasks: ClassVar[type[Task]]
    uses: ClassVar[str]
    """What `farzi count` does with it, in words."""
    columns: ClassVar[tuple[str, ...]]
    """The arguments of `sequences_of` that say how a file is read."""

    def __init__(
        self,
        model: CountedModel,
        processing_class: Any = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.processing_class = processing_class
        self.metrics = dict(metrics or {})

    @property
    def task(self) -> Task:
        """The task, which has the metrics."""
        return self.tasks(self.processing_class)

    @abstractmethod
    def sequences_of(self, source: str | Path, **columns: str | None) -> Dataset:
        """The rows of a file as `input_ids` of this vocabulary.

        Args:
            columns: each by its name in `columns`; what is not given is found.

        Raises:
            ValueError: the file has no row that this model can read.
        """

    def metrics_on(self, sequences: Dataset) -> dict[str, float]:
        """The task's metrics on whole rows with `input_ids`."""
        return self.task.metrics(self.model.statistics(sequences))

    def table(self) -> str:
        """What each model that was tried has, as a table; empty where nothing was measured."""
        parts = ("validation", "test")
        rows = [
            {
                "counted": row["choice"],
                **{name: row[name] for name in parts if name in row},
                "seconds": f"{row['seconds']:,.1f}",
                "bytes to keep": f"{row['bytes']:,}",
            }
            for row in self.metrics.get("table", ())
        ]
        return markdown(rows, texts=parts) if rows else ""

    def card(self) -> str:
        """The `README.md` of a saved model."""
        source = markdown_text(self.metrics.get("dataset") or "a data set")
        return "\n\n".join(
            [
                f"# {self.model.name}: {source}",
                f"A model that counts and is not trained, made by `farzi count`: {self.model.choice}."
                " Parts of the training rows can be read from its counts, so it is as private as"
                " they are.",
                self.table(),
                f"Use it with `farzi count` and the name of this folder: {self.uses}. In Python:"
                f" `farzi_hf.report.{type(self).__name__}.from_pretrained`.",
            ]
        )

    # -- saving and loading ------------------------------------------------------------------------

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        """Saves the counts, `config.json`, `metrics.json`, a card and the vocabulary's files into
        `folder`. A crash leaves the old files or the new ones whole.

        Raises:
            ValueError: the folder holds a model or a data set of somebody else.
        """
        check_place("folder", folder, "a folder to write into")
        vocabulary = vocabulary_of(self.processing_class)
        config = {
            "model_type": MODEL_TYPE,
            "kind": self.model.kind,
            "settings": self.model.settings(),
            "vocabulary": vocabulary.hash(),
        }

        def write(staging: Path) -> None:
            save_vocabulary(vocabulary, staging)
            (staging / CONFIG).write_text(json.dumps(config, indent=1), encoding="utf-8")
            metrics = json_text(publishable(self.metrics))
            (staging / METRICS).write_text(metrics, encoding="utf-8")
            (staging / CARD).write_text(self.card(), encoding="utf-8")

        content = {name: coded(array) for name, array in self.model.arrays().items()}
        tensors = {
            name: torch.frombuffer(bytearray(part), dtype=torch.uint8)
            for name, part in content.items()
        }
        replace_files(Path(folder), write, tensors)

    @classmethod
    def from_pretrained(
        cls,
        folder_or_repo: str | os.PathLike,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | os.PathLike | None = None,
    ) -> CountedText | CountedItems:
        """Loads what `save_pretrained` has written, from a folder or else a dataset repository of
        the Hub. The arguments are as in `FarziData.from_pretrained`. No code is run, and no link is
        followed.

        Raises:
            FileNotFoundError: there is neither a folder nor a repository, or a file is missing.
            ValueError: it is not a counted model, a file is damaged or a link, or the vocabulary is
                another one than was counted.
        """
        return read_artefact(fetch_artefact(folder_or_repo, revision, token, cache_dir), _loaded)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.name}, {self.model.vocab_size:,} entries)"


class CountedText(Counts):
    """A counted model of text with its tokenizer.

    ```python
    counted = CountedText.from_pretrained("counted")
    counted.log_probabilities(["a text"])      # nats of each token
    counted.generate(3, prompt="the", seed=0)
    ```
    """

    models = KneserNey
    tasks = LanguageModeling
    uses = "--score FILE or --generate N"
    columns = ("text_column", "rows")

    @property
    def tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError if there is none."""
        if self.processing_class is None:
            raise ValueError(
                "the counted model has no tokenizer: set processing_class, or use .model with ids"
            )
        return self.processing_class

    def log_probabilities(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Natural logarithms of the probability of each token but the first, for each text.

        Raises:
            ValueError: `texts` is no list of texts, or empty.
        """
        found = list(texts) if _is_list(texts) else []
        if not found or not all(isinstance(text, str) for text in found):
            raise ValueError(f"texts={texts!r:.200}: give a list of one text or more")
        return self.model.log_probabilities(ids_of(self.tokenizer, found))

    def perplexity(self, texts: Sequence[str]) -> float:
        """The perplexity over all tokens of these texts. Raises ValueError as `log_probabilities`
        does.
        """
        return float(np.exp(-np.concatenate(self.log_probabilities(texts)).mean()))

    def generate(
        self, count: int, *, prompt: str = "", max_length: int = 128, seed: int = 0
    ) -> list[str]:
        """`count` texts that go on from `prompt`, of at most `max_length` tokens."""
        tokenizer = self.tokenizer
        if not isinstance(prompt, str):
            raise ValueError(f"prompt={prompt!r:.200}: give a text")
        start = ids_of(tokenizer, [prompt])[0] if prompt else _ids(tokenizer.bos_token_id)
        if prompt and start[-1] == tokenizer.eos_token_id:  # the text goes on
            start = start[:-1]
        if check_size("max_length", max_length) <= len(start):
            raise ValueError(
                f"max_length={max_length} leaves no room after a prompt of {len(start)} tokens: give"
                " more (--tokens on the command line)"
            )
        rows = self.model.generate(
            count, start=start, end=tokenizer.eos_token_id, max_length=max_length, seed=seed
        )
        if not rows:  # of which a tokenizer makes one text
            return []
        return tokenizer.batch_decode(rows, skip_special_tokens=True)

    def sequences_of(
        self, source: str | Path, *, text_column: str | None = None, rows: str | None = None
    ) -> Dataset:
        """The rows of a text that are not blank.

        Args:
            text_column, rows: the `column` and the `rows` of `load_text`, found in the same way.

        Raises:
            ValueError: there are none, or they cannot be read.
        """
        texts = first_texts(source, self.tokenizer, text_column, rows)
        kept = [ids for ids in ids_of(self.tokenizer, texts) if len(ids) > 1]
        if not kept:
            raise ValueError(
                f"{str(source)!r} has no rows with text: give another file, or name its text_column"
            )
        return Dataset.from_dict({"input_ids": kept})


class CountedItems(Counts):
    """A counted recommender with the names of its items.

    ```python
    counted = CountedItems.from_pretrained("counted")
    counted.recommend([["Heat", "Alien"]], top_k=10)      # by the items' names
    ```
    """

    models = SequenceRules
    tasks = Recommendation
    uses = "--score FILE or --recommend FILE"
    columns = ("user_column", "item_column", "time_column")

    @property
    def names(self) -> list[str]:
        """The names of padding and items. Raises ValueError if there are none."""
        if self.processing_class is None:
            raise ValueError(
                "the counted model has no names of items: set processing_class, or use .model"
            )
        return list(self.processing_class)

    def recommend(self, histories: Sequence[Sequence[str]], top_k: int = 10) -> list[list[str]]:
        """The names of the best items after histories of names, oldest first, without those that
        the user has had.

        Raises:
            ValueError: an item is unknown, or a history is no list.
        """
        if not _is_list(histories) or not all(map(_is_list, histories)):
            raise ValueError(
                f"histories={histories!r:.200}: give a list of items for each user, such as"
                f" {[self.names[1:3]]}"
            )
        places = _first_places(self.names)
        for name in chain.from_iterable(histories):
            if not isinstance(name, str) or name not in places:
                raise ValueError(f"histories have the item {name!r:.200}, which was not counted")
        ids = [[places[name] for name in history] for history in histories]
        return [[self.names[item] for item in row] for row in self.model.recommend(ids, top_k)]

    def sequences_of(self, source: str | Path, **columns: str | None) -> Dataset:
        """The histories of a file of interactions, without items that were not counted.

        Args:
            columns: `user_column`, `item_column`, `time_column`.
        """
        found = load_interactions(str(source), min_interactions=1, **columns)
        rows = [row for row in self.histories_of(found) if row]
        if not rows:
            raise ValueError(f"{str(source)!r} has no item that was counted; give other data")
        return Dataset.from_dict({"input_ids": rows})

    def histories_of(self, interactions: Interactions) -> list[list[int]]:
        """The histories of interactions in this model's ids, without items that were not counted."""
        places = _first_places(self.names)
        names = interactions.vocabulary
        if names == self.names:  # several items may have one name
            return [[int(item) for item in row] for row in interactions.sequences]
        return [
            [places[names[item]] for item in row if names[item] in places]
            for row in interactions.sequences
        ]


def _is_list(values: Any) -> bool:
    """Whether these are several values: a text is one."""
    return isinstance(values, Iterable) and not isinstance(values, str)


KINDS: dict[str, type[CountedText] | type[CountedItems]] = {
    counts.models.kind: counts for counts in (CountedText, CountedItems)
}
"""By the kind of the model."""


def count(
    dataset: DatasetDict,
    task: Task,
    *,
    show: Callable[[str], None] = lambda line: None,
    **settings: Any,
) -> CountedText | CountedItems:
    """Counts the training rows, and takes what does best on the validation rows.

    Args:
        dataset: whole rows in `input_ids`, or in `text` for the task's tokenizer, with the splits
            train and validation, and test if there is one.
        task: `LanguageModeling(tokenizer)` or `Recommendation(vocabulary)`.
        show: is called with a line for each model as soon as it is measured.
        settings: of `task.counts.candidates`: `orders` of text, `kinds` of items.

    Returns:
        The best model with the task's vocabulary. Its `metrics["table"]` has a row for each model.

    Raises:
        ValueError: an argument is of another kind, there are no rows to count, or a setting cannot
            be used.
    """
    check_task(task)
    is_mapping = isinstance(dataset, Mapping)
    missing = [name for name in ("train", "validation") if not is_mapping or name not in dataset]
    if missing:
        raise ValueError(
            f"dataset is a {type(dataset).__name__} without {' and '.join(missing)}; give a"
            " DatasetDict with both"
        )
    splits = {name: with_ids(task, rows) for name, rows in dataset.items()}
    vocab_size = task.learner_config(task.learners[0], 8).vocab_size
    best = None
    table = []
    parts = (splits["train"], vocab_size, splits["validation"])
    for model in task.counts.candidates(*parts, **settings):
        row = {"method": model.name, "choice": model.choice}
        for name in ("validation", "test"):
            if name in splits:
                figures = task.metrics(model.statistics(splits[name]))
                row |= {f"{name} {metric}": value for metric, value in figures.items()}
                row[name] = task.headline(figures)
        table.append({**row, "seconds": round(model.seconds, 2), "bytes": model.nbytes})
        shown = (f"{name} {row[name]}" for name in ("validation", "test") if name in row)
        show(f"{model.choice}: {'; '.join(shown)}; {model.seconds:.1f} s")
        if best is None or model.error < best.error:
            best = model
    stored = stored_bytes(splits["train"], vocab_size)
    facts = {
        "chosen": best.choice,
        "data_bytes": stored.least,
        "data_bytes_flat": stored.flat,
        "data_sequences": len(splits["train"]),
    }
    return KINDS[best.kind](best, task.processing_class, {"table": table, **facts})


def _loaded(artefact: ArtefactFolder) -> CountedText | CountedItems:
    path = artefact.path(CONFIG)
    config = parse_mapping(artefact.read(CONFIG), path)
    if (given := config.get("model_type")) != MODEL_TYPE:
        raise ValueError(
            f"{path} is the config of a {given!r:.80}, not of a counted model; name one that farzi"
            " count has written"
        )
    kind = config.get("kind")
    settings = config.get("settings")
    if not isinstance(kind, str) or kind not in KINDS or not isinstance(settings, dict):
        raise ValueError(
            f"{path} has kind={kind!r:.80}: choose a file with one of {', '.join(KINDS)}, and its"
            " settings"
        )
    counts = KINDS[kind]
    file = artefact.path(TENSORS)
    try:
        sizes = counts.models.sizes(settings)
        content = load_tensors(file, dict.fromkeys(sizes, _BYTES))
        check_room(sum(sizes.values()), sum(part.numel() for part in content.values()))
        arrays = {
            name: decoded(part.numpy().tobytes(), sizes[name], name)
            for name, part in content.items()
        }
        model = counts.models.restored(settings, arrays)
    except ValueError as error:
        raise ValueError(f"{file.parent}: {error}") from None
    processing_class = load_vocabulary(artefact, model.vocab_size)
    vocabulary = vocabulary_of(processing_class)
    if vocabulary.hash() != config.get("vocabulary") or len(vocabulary) > model.vocab_size:
        raise ValueError(
            f"{file.parent} has another vocabulary than was counted; fetch all of its files again"
        )
    metrics = {}
    if (path := artefact.find(METRICS)) is not None:
        metrics = numbers_of(parse_mapping(artefact.read(METRICS), path))
        check_results(metrics, {}, str(path), "recipe")
    return counts(model, processing_class, metrics)


def _first_places(names: Sequence[str]) -> dict[str, int]:
    """The id of each name; of equal names, the first."""
    return {name: i for i, name in reversed(list(enumerate(names)))}


def _ids(one: int | None) -> list[int]:
    return [] if one is None else [one]
