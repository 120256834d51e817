"""Rows of a user's data as a model reads them: texts, prompts with completions, chats, and users'
histories.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accelerate import PartialState
from datasets import Dataset

from farzi_hf.common.text import count_of, terminal_text
from farzi_hf.data import IGNORED, Interactions, load_interactions
from farzi_hf.data.chat_template import ChatTemplate
from farzi_hf.data.files import stream_of
from farzi_hf.data.own import TEXT, TOOLS, recognise, text_of, whole_rows
from farzi_hf.data.pairs import COMPLETION, PROMPT, are_pairs, before
from farzi_hf.data.text import ids_and_places_of, ids_of

Span = tuple[int, int]
"""Where something is in a text: its first character, and the one after its last."""
_PATH = "\0path"
"""The column of a row's file while it is read. Nobody's own column is called so."""


@dataclass(frozen=True)
class OwnRows:
    """Rows that a model can train on."""

    ids: list[list[int]]
    """Of each row."""
    labels: list[list[int]] | None
    """What is predicted, −100 where nothing is; None where that is every id."""
    own: list[dict[str, Any]]
    """The rows in the columns of their owner."""
    files: list[str] | None = None
    """The file of each row; None where they are not read from files."""

    def dataset(self) -> Dataset:
        """For a Trainer."""
        columns = {"input_ids": self.ids}
        if self.labels is not None:
            columns["labels"] = self.labels
        return Dataset.from_dict(columns)

    def __getitem__(self, rows: slice) -> OwnRows:
        labels = None if self.labels is None else self.labels[rows]
        files = None if self.files is None else self.files[rows]
        return OwnRows(self.ids[rows], labels, self.own[rows], files)

    def __len__(self) -> int:
        return len(self.ids)


# -- text ------------------------------------------------------------------------------------------


class Reading(ABC):
    """How a row of text is written out, and which part of it is predicted."""

    @abstractmethod
    def __call__(
        self, row: Mapping[str, Any], template: ChatTemplate, where: str
    ) -> tuple[str, list[Span] | None]:
        """The text of a row, "" if it has none, and its answers; None where all is predicted.

        Args:
            template: of the tokenizer.
            where: names the row in an error.
        """


@dataclass(frozen=True)
class WholeText(Reading):
    """A column that is a text, or a chat of which everything is predicted."""

    column: str

    def __call__(
        self, row: Mapping[str, Any], template: ChatTemplate, where: str
    ) -> tuple[str, None]:
        return text_of(row.get(self.column), template, where, row.get(TOOLS)), None


class Completion(Reading):
    """The columns `prompt` and `completion`, of which the completion is predicted. Between two
    texts is a line break, unless one of them has a blank there. Two lists of messages are the parts
    of one chat; of the second, the messages of the assistant are predicted.
    """

    def __call__(
        self, row: Mapping[str, Any], template: ChatTemplate, where: str
    ) -> tuple[str, list[Span]]:
        parts = [row.get(PROMPT), row.get(COMPLETION)]
        if any(isinstance(part, list) for part in parts):
            prompt, completion = (_messages(part, where) for part in parts)
            if not completion:
                return "", []
            chat = [*prompt, *completion]
            return _answers(chat, len(prompt), template, where, row.get(TOOLS))
        prompt, completion = (_plain(part, where) for part in parts)
        completion = completion.rstrip()
        if not completion:
            return "", []
        prompt = before(prompt, completion)
        return prompt + completion, [(len(prompt), len(prompt) + len(completion))]


class Answers(Reading):
    """The column `messages`, a chat, of which the messages of the assistant are predicted."""

    def __call__(
        self, row: Mapping[str, Any], template: ChatTemplate, where: str
    ) -> tuple[str, list[Span]]:
        chat = _messages(row.get("messages"), where)
        return _answers(chat, 0, template, where, row.get(TOOLS))


def _answers(
    chat: list[dict[str, Any]],
    first: int,
    template: ChatTemplate,
    where: str,
    tools: Any,
) -> tuple[str, list[Span]]:
    """The text of a chat, and where the messages of the assistant are in it, from a number on.

    Args:
        chat: messages.
        first: the number of the first message that may be predicted.
        template: of the tokenizer.
        where: names the row in an error.
        tools: that the chat may call.
    """
    text = text_of(chat, template, where, tools)
    contents = [str(message.get("content") or "").strip() for message in chat]
    marks = [f"\ue000{number}\ue001" for number in range(len(chat))]
    marked = [
        {**message, "content": mark} if content else message
        for message, content, mark in zip(chat, contents, marks, strict=True)
    ]
    around = text_of(marked, template, where, tools)
    places = _places_between(text, around, contents, marks) or _places_in_order(text, contents)
    if places is None:
        raise ValueError(
            f"{where}: the tokenizer's template does not write the text of a message;"
            " name the --column, and the whole chat is predicted"
        )
    spans = [
        place
        for number, (message, place) in enumerate(zip(chat, places, strict=True))
        if message["role"] == "assistant" and number >= first
    ]
    return text, spans


def _places_between(
    text: str, around: str, contents: Sequence[str], marks: Sequence[str]
) -> list[Span] | None:
    """Where contents are in the text of a chat, by the text of the same chat with marks in their
    place. So an answer "a" is not found in the word "assistant" before it. None where the template
    writes other things around other contents.
    """
    places = []
    end = 0
    for content, mark in zip(contents, marks, strict=True):
        if not content:
            places.append((end, end))
            continue
        before, found, around = around.partition(mark)
        begin = text.find(before, end)
        if not found or begin < 0 or text[end:begin].strip():
            return None
        begin += len(before)
        begin += len(text[begin:]) - len(text[begin:].lstrip())
        if not text.startswith(content, begin):
            return None
        end = begin + len(content)
        places.append((begin, end))
    return places


def _places_in_order(text: str, contents: Sequence[str]) -> list[Span] | None:
    """Where contents are found in a text, one after the other; None if one is not."""
    places = []
    end = 0
    for content in contents:
        begin = text.find(content, end)
        if begin < 0:
            return None
        end = begin + len(content)
        places.append((begin, end))
    return places


def _plain(value: Any, where: str) -> str:
    """A text of a prompt or a completion, or a number as a text; "" of nothing."""
    if value is None:
        return ""
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(
        f"{where}: prompt and completion hold {value!r:.80}; give two texts, or two lists of"
        " messages"
    )


def _messages(value: Any, where: str) -> list[dict[str, Any]]:
    """The messages of a chat, or of a part of one; none of nothing."""
    value = [] if value is None else value
    are_messages = isinstance(value, list) and all(
        isinstance(message, dict) and "role" in message for message in value
    )
    if not are_messages:
        raise ValueError(
            f"{where}: {value!r:.80} is no list of messages, each with role and content; give one,"
            " or name the --column"
        )
    return value


def reading_of(columns: Sequence[str], column: str | None) -> Reading:
    """How rows with these columns are read.

    Args:
        column: the one that the user has named; None looks for a prompt and a completion, or for
            messages, and then takes `text`.
    """
    if column is not None:
        return WholeText(column)
    if are_pairs(columns):
        return Completion()
    if "messages" in columns and "text" not in columns:
        return Answers()
    return WholeText("text")


def text_rows(
    source: str, column: str | None, tokenizer: Any, most: int, revision: str | None = None
) -> OwnRows:
    """The rows of a text that have something to predict, of each at most the first `most` ids.

    Raises:
        ValueError: there are none.
    """
    stream = stream_of(source, revision=revision, path_column=_PATH)["train"]
    ids: list[list[int]] = []
    labels: list[list[int]] = []
    own: list[dict[str, Any]] = []
    paths: list[str] = []
    cut = 0
    reading = None
    with ChatTemplate(tokenizer) as template:
        for number, row in enumerate(whole_rows(stream, source)):
            path = row.pop(_PATH, None)
            reading = reading or reading_of(list(row), column)
            where = f"{source}: row {number} (counted from 0)"
            text, spans = reading(row, template, where)
            if not text:
                continue
            its_ids, its_labels = _example(tokenizer, text, spans)
            if any(label != IGNORED for label in its_labels[1:most]):
                ids.append(its_ids[:most])
                labels.append(its_labels[:most])
                own.append(row)
                if path is not None:
                    paths.append(path)
            elif any(label != IGNORED for label in its_labels[most:]):
                cut += 1
    after = f"what is to be predicted begins after the {most} tokens that are read of a row"
    if not ids and cut:
        raise ValueError(
            f"{source!r}: {after}, in all of {count_of(cut, 'row')}; raise --max_length, up to the"
            " positions of the model"
        )
    if reading is None:
        raise ValueError(f"{source!r} is empty: give a file with rows")
    if not ids:
        is_whole = isinstance(reading, WholeText)
        named = f"text in {column or 'text'!r}" if is_whole else "something to predict"
        raise ValueError(f"{source!r} has no rows with {named}; name the --column")
    if cut:
        say(
            f"{terminal_text(source)}: {count_of(cut, 'row')} left out, because {after}"
            " (--max_length, or the positions of the model)"
        )
    of_all = all(IGNORED not in row for row in labels)
    return OwnRows(ids, None if of_all else labels, own, _short(paths) if paths else None)


def _short(paths: Sequence[str]) -> list[str]:
    """Paths without the folder that all of them are in."""
    common = os.path.commonpath([os.path.dirname(path) for path in set(paths)])
    return [os.path.relpath(path, common) for path in paths]


def _example(tokenizer: Any, text: str, spans: list[Span] | None) -> tuple[list[int], list[int]]:
    """Ids and labels of a text. After an answer, the token that ends it is predicted too."""
    if spans is None:
        (ids,) = ids_of(tokenizer, [text])
        return ids, ids
    ids, places = ids_and_places_of(tokenizer, text)
    is_answer = [
        any(first < last and first < end and last > begin for begin, end in spans)
        for first, last in places
    ]
    predicted = [is_answer[i] or (i > 0 and is_answer[i - 1]) for i in range(len(ids))]
    return ids, [x if wanted else IGNORED for x, wanted in zip(ids, predicted, strict=True)]


def texts(source: str, column: str, tokenizer: Any, most: int) -> list[list[int]]:
    """The first ids of each row of a text that is not blank and has a token to predict."""
    return text_rows(source, column, tokenizer, most).ids


# -- histories -------------------------------------------------------------------------------------


def histories(found: Interactions, names: list[str], most: int) -> list[list[int]]:
    """The model's ids of the last items of each user."""
    vocabulary = found.vocabulary
    if vocabulary == names:  # titles may be there twice
        return [[int(i) for i in sequence[-most:]] for sequence in found.sequences]
    places = {name: i for i, name in enumerate(names)}
    times = Counter(names), Counter(vocabulary)
    wrong = [name for name in vocabulary if [count[name] for count in times] != [1, 1]]
    if wrong:
        what = f"{len(wrong)} items of {found.description}, such as {wrong[0]!r}"
        raise ValueError(f"the model lacks {what}, or has several of that name; leave them out")
    return [[places[vocabulary[i]] for i in sequence[-most:]] for sequence in found.sequences]


def history_rows(found: Interactions, names: list[str], most: int) -> OwnRows:
    """A row for each user: the items, by name in the column `items`."""
    vocabulary = found.vocabulary
    own = [{"items": [vocabulary[i] for i in sequence]} for sequence in found.sequences]
    return OwnRows(histories(found, names, most), None, own)


def groups_of(rows: OwnRows, column: str | None) -> list[str] | None:
    """The group of each row, an entry of a column; None without a column.

    Raises:
        ValueError: a row has none.
    """
    if column is None:
        return None
    lacking = [number for number, row in enumerate(rows.own) if row.get(column) is None]
    if lacking:
        raise ValueError(
            f"--group {column!r}: row {lacking[0]} has none; its columns are"
            f" {', '.join(map(repr, rows.own[lacking[0]]))}; name one that all rows have, or give"
            " each row a group, such as 'other'"
        )
    return [str(row[column]) for row in rows.own]


def files_of_rows(rows: OwnRows) -> list[str]:
    """The file of each row, as its group.

    Raises:
        ValueError: they are not of several files.
    """
    names = sorted(set(rows.files or ()))
    if len(names) < 2:
        found = f"all rows are of {names[0]!r}" if names else "these rows are not texts in files"
        raise ValueError(
            f"--by_file: {found}; give a folder with several files of text, or a pattern such as"
            " 'parts/*.jsonl'"
        )
    return list(rows.files)


# -- all of them -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns that the user has named; None where they are to be found."""

    text: str | None = None
    user: str | None = None
    item: str | None = None
    time: str | None = None
    revision: str | None = None
    """Of a data set of the Hub."""

    def of_interactions(self) -> dict[str, str | None]:
        """As `load_interactions` takes them."""
        return {"user_column": self.user, "item_column": self.item, "time_column": self.time}

    def hold_text(self, source: str) -> bool:
        """Whether a data set is one of texts; otherwise it is one of interactions.

        Raises:
            ValueError: nothing says it; or a column of times is named, and it is one of texts.
        """
        are_texts = self.text is None and not (self.user or self.item) and _has_answers(source)
        if not are_texts:
            named = {"text_column": self.text, "user_column": self.user, "item_column": self.item}
            are_texts = recognise(source, **named) == TEXT
        if are_texts and self.time:
            raise ValueError(
                f"--time_column {self.time} is for interactions, and {source!r} is read as text:"
                " leave it out, or name --user_column and --item_column"
            )
        return are_texts

    def interactions(self, source: str) -> Interactions:
        """The histories of a data set."""
        return load_interactions(source, min_interactions=2, **self.of_interactions())


def _has_answers(source: str) -> bool:
    """Whether a data set has prompts and completions, or chats, in the columns of these names."""
    first = next(_first_rows(source), {})
    return not isinstance(reading_of(list(first), None), WholeText)


def _first_rows(source: str) -> Iterator[dict[str, Any]]:
    return whole_rows(stream_of(source)["train"].take(1), source)


def say(text: str) -> None:
    """Prints in one of several processes."""
    PartialState().print(text)
