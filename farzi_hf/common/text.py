"""Text of others: read as plain data in bounded time, and written so that no part of it is taken
for markup or code.

Reading gives plain data, or a ValueError that names the file. Writing has a function for each
language. A reader still sees the same characters; only line breaks and other control characters
become blanks, or escapes on a terminal.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import quote

import numpy as np
import yaml

# -- reading ---------------------------------------------------------------------------------------

_DEPTH = 100  # lists and mappings inside each other; ours have five levels


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few lines of them can stand for more data than fits into memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not read", self.peek_event().start_mark
            )
        return super().compose_node(parent, index)


def parse(content: bytes, path: Path, kind: str = "JSON") -> Any:
    """The value in `content`, which was read from `path`. In YAML, the other `kind`, it has to be a
    value that JSON can hold too.
    """
    try:
        text = content.decode("utf-8")
        level = [value := yaml.load(text, _PlainLoader) if kind == "YAML" else json.loads(text)]
        for _ in range(_DEPTH):
            parts = [part for part in level if isinstance(part, dict | list)]
            level = [
                child
                for part in parts
                for child in (part.values() if isinstance(part, dict) else part)
            ]
        if level:
            raise RecursionError("it is nested too deep")
        json.dumps(value)  # YAML has dates, sets, bytes, and keys such as lists
    except (ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        raise ValueError(
            f"{path} is no readable {kind}: {error}; fetch the file again, or mend it"
        ) from None
    return value


def parse_mapping(content: bytes, path: Path, kind: str = "JSON") -> dict[str, Any]:
    """As `parse`; the value has to be a mapping with strings as keys."""
    value = parse(content, path, kind)
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise ValueError(
        f"{path} holds a {type(value).__name__} where a mapping is due; fetch the file again, or"
        " mend it"
    )


# -- what is published, and where it is shown ------------------------------------------------------


def without_local_paths(value: Any) -> Any:
    """`value`, anything JSON can hold, in which absolute paths and paths from a home folder are cut
    to their last part: `/home/ann/omega` becomes `omega`, because the folders above it name users,
    machines and projects. Relative paths stay.
    """
    if isinstance(value, Mapping):
        return {name: without_local_paths(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_local_paths(part) for part in value]
    if isinstance(value, str) and "\n" not in value:
        for path in (PurePosixPath(value), PureWindowsPath(value)):
            if path.is_absolute() or value.startswith("~"):
                return path.name
    return value


# Line breaks of any kind, other controls, marks that change the direction of writing, and halves of
# surrogate pairs.
_CONTROLS = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
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


def one_line(text: str) -> str:
    """`text` without line breaks and other controls, and without blanks at its ends."""
    return _CONTROLS.sub(" ", text).strip()


def terminal_text(value: Any, most: int = 200) -> str:
    """`str(value)` in one line of at most `most` characters, without the middle of a longer text;
    what a terminal would obey or hide is escaped.
    """
    text = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )
    return text if len(text) <= most else f"{text[: most - most // 2 - 1]}…{text[-(most // 2) :]}"


def markdown_text(value: Any) -> Markdown:
    """`str(value)` in one line, for a paragraph or a table cell. `Markdown` is
    returned unchanged.
    """
    if isinstance(value, Markdown):
        return value
    return Markdown(_MARKUP.sub(lambda found: _entity(found[0]), one_line(str(value))))


def markdown_code(text: str) -> Markdown:
    """`text` in the font of code, for a paragraph or a table cell. Blanks at its ends are kept."""
    text = _CONTROLS.sub(" ", text)
    if not _PLAIN_CODE.fullmatch(
        text
    ):  # parsers differ in what a bar or a backslash between backticks means
        return Markdown(f"<code>{''.join(c if c.isalnum() else _entity(c) for c in text)}</code>")
    blank = " " if text[0] == text[-1] == " " else ""  # Markdown takes one away
    return Markdown(f"`{blank}{text}{blank}`")


def markdown_fence(text: str, language: str) -> Markdown:
    """`text`, which may have several lines, as a block of code. No line of the text can end the
    block.
    """
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    lines = "\n".join(_CONTROLS.sub(" ", line) for line in text.split("\n"))
    return Markdown(f"{fence}{language}\n{lines}\n{fence}")


def markdown_image(path: str) -> Markdown:
    """The image at a relative path."""
    name = re.sub(
        r"[\[\]]", lambda found: _entity(found[0]), markdown_text(path)
    )  # brackets end the name
    return Markdown(f"![{name}]({quote(path, errors='replace')})")


def number(value: float, digits: int = 4) -> str:
    """The value with `digits` significant digits, but with all digits before the point. Never a
    power of ten: 0.00052, 520, 1,200.
    """
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return np.format_float_positional(
        value, precision=digits, unique=False, fractional=False, trim="-"
    )


def python_literal(value: Any) -> str:
    """`value`, anything JSON can hold, as Python source in one line and without backticks."""
    source = repr(value).replace("`", "\\x60")  # or a string could end the block of code around it
    single = isinstance(value, str) and source[0] == "'" and '"' not in source
    return f'"{source[1:-1]}"' if single else source


class _Dumper(yaml.SafeDumper):
    """Writes strings of several lines in double quotes, because PyYAML's other styles lose some
    kinds of line breaks.
    """

    def represent_str(self, text: str) -> yaml.Node:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, style='"' if _CONTROLS.search(text) else None
        )


_Dumper.add_representer(str, _Dumper.represent_str)


def yaml_text(content: Mapping[str, Any]) -> str:
    """`content`, anything JSON can hold, as YAML in the same order."""
    return yaml.dump(
        json.loads(json.dumps(content)), Dumper=_Dumper, sort_keys=False, allow_unicode=True
    )


def as_written(value: Any) -> Any:
    """`value`, anything JSON can hold, as a file of JSON gives it back: NaN and infinity, which
    JSON lacks, are strings with their names.
    """
    return json.loads(json.dumps(value), parse_constant=str)


def json_text(value: Any, indent: int | None = 2, ensure_ascii: bool = True) -> str:
    """`value` as a file of JSON, see `as_written`."""
    return json.dumps(as_written(value), indent=indent, ensure_ascii=ensure_ascii) + "\n"


def numbers_of(value: Any) -> Any:
    """What `json_text` has written, with the numbers that were strings."""
    if isinstance(value, dict):
        return {key: numbers_of(x) for key, x in value.items()}
    if isinstance(value, list):
        return [numbers_of(x) for x in value]
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


def script_json(value: Any) -> str:
    """`value`, without NaN and infinity, as JSON that is safe between `<script>` tags."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # A closing tag would end the script, the start of a comment would hide it, and half a surrogate
    # pair is no UTF-8.
    return re.sub("[<\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _entity(character: str) -> str:
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, f"&#{ord(character)};")


def reason(error: BaseException) -> str:
    """The first line of an error, in which text of a file cannot control a terminal."""
    return repr(next(iter(str(error).splitlines()), type(error).__name__))[1:-1]
