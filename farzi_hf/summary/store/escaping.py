"""Escaping strings for a terminal, Markdown, YAML, Python and a script in a page: one function per language.

Words of a vocabulary, names of metrics and licences can come from anybody. No part of them may be read as markup or code. A
reader still sees the same characters; only line breaks and other control characters become blanks, or escapes on a terminal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import yaml

# Line breaks of any kind, other controls, marks that change the direction of writing, and halves of surrogate pairs.
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKUP = re.compile(
    r"[`*\\<>|~$#]"  # anywhere in a text
    r"|&(?=[#\w])"  # the start of an entity
    r"|(?<![^\W_])_|_(?![^\W_])"  # at the edge of a word
    r"|\](?=[(\[:])"  # what makes a link
    r"|^[-+=](?![\w.])|^\d(?=\d*[.)](?:\s|$))|^\[(?=[ xX]\])"  # the start of a list, a rule, a task
)
_PLAIN_CODE = re.compile(r"[^`|\\]*[^`|\\\s][^`|\\]*")


class Markdown(str):
    """Text that is Markdown already: it goes into a page unchanged."""

    __slots__ = ()


def one_line(text: str) -> str:
    """`text` without line breaks and other controls, and without blanks at its ends."""
    return _without_controls(text).strip()


def terminal_text(value: Any, most: int = 200) -> str:
    """`str(value)` in one line, for a terminal. What a terminal would obey, hide or reorder is shown as an escape, such as `\\x1b`.

    Args:
        most: a longer text loses its middle, and an ellipsis stands there.
    """

    def cut(text: str) -> str:
        return text if len(text) <= most else f"{text[: most - most // 2 - 1]}…{text[-(most // 2) :]}"

    return cut("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut(str(value))))


def markdown_text(value: Any) -> Markdown:
    """`str(value)` in one line, for a paragraph or a table cell. `Markdown` is returned unchanged."""
    if isinstance(value, Markdown):
        return value
    return Markdown(_MARKUP.sub(lambda found: _entity(found[0]), one_line(str(value))))


def markdown_code(text: str) -> Markdown:
    """`text` in the font of code, for a paragraph or a table cell. Blanks at its ends are kept."""
    text = _without_controls(text)
    if not _PLAIN_CODE.fullmatch(text):  # parsers differ in what a bar or a backslash between backticks means
        return Markdown(f"<code>{''.join(c if c.isalnum() else _entity(c) for c in text)}</code>")
    blank = " " if text[0] == text[-1] == " " else ""  # Markdown takes one away
    return Markdown(f"`{blank}{text}{blank}`")


def markdown_fence(text: str, language: str) -> Markdown:
    """`text`, which may have several lines, as a block of code. No line of the text can end the block."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    lines = "\n".join(map(_without_controls, text.split("\n")))
    return Markdown(f"{fence}{language}\n{lines}\n{fence}")


def markdown_image(path: str) -> Markdown:
    """The image at a relative path."""
    name = re.sub(r"[\[\]]", lambda found: _entity(found[0]), markdown_text(path))  # brackets end the name
    return Markdown(f"![{name}]({quote(path, errors='replace')})")


def python_literal(value: Any) -> str:
    """`value`, anything JSON can hold, as Python source in one line and without backticks."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{python_literal(k)}: {python_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(python_literal, value)) + "]"
    source = repr(value).replace("`", "\\x60")  # or a string could end the block of code around it
    single = isinstance(value, str) and source[0] == "'" and '"' not in source
    return f'"{source[1:-1]}"' if single else source


def yaml_text(content: Mapping[str, Any]) -> str:
    """`content`, anything JSON can hold, as YAML in the same order."""
    plain = json.loads(json.dumps(content))
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def json_text(value: Any, indent: int | None = 2, ensure_ascii: bool = True) -> str:
    """`value` as a file of JSON. NaN and infinity, which JSON lacks, are the strings "NaN", "Infinity" and "-Infinity"."""

    def strict(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: strict(x) for key, x in value.items()}
        if isinstance(value, list | tuple):
            return [strict(x) for x in value]
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value

    return json.dumps(strict(value), indent=indent, ensure_ascii=ensure_ascii, allow_nan=False) + "\n"


def numbers_of(value: Any) -> Any:
    """What `json_text` has written, with the numbers that were strings."""
    if isinstance(value, dict):
        return {key: numbers_of(x) for key, x in value.items()}
    if isinstance(value, list):
        return [numbers_of(x) for x in value]
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def as_written(value: Any) -> Any:
    """`value` as it is read from `json_text`, where numbers that are not finite stay strings. Two values are compared in this form: a config
    of transformers holds such strings itself."""
    return json.loads(json_text(value))


def script_json(value: Any) -> str:
    """`value` as JSON that is safe between `<script>` tags.

    Raises:
        ValueError: NaN or infinity, which JSON lacks.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # A closing tag would end the script, the start of a comment would hide it, and half a surrogate pair is no UTF-8.
    return re.sub("[<\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines in double quotes, because PyYAML's other styles lose some kinds of line breaks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if _CONTROLS.search(text) else None)


_Dumper.add_representer(str, _represent_text)


def _without_controls(text: str) -> str:
    return _CONTROLS.sub(" ", text)


def _entity(character: str) -> str:
    names = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    return names.get(character, f"&#{ord(character)};")
