"""Text of others: read as plain data in bounded time, and written so that no part of it is taken
for markup or code.

Reading gives plain data, or a ValueError that names the file. Writing has a function for each
language. A reader still sees the same characters; only line breaks and other control characters
become blanks, or escapes on a terminal.
"""

import json
import re
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path, PurePosixPath, PureWindowsPath
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, ClassVar, TextIO
from urllib.parse import quote

import numpy as np
import yaml

# -- reading ---------------------------------------------------------------------------------------

_DEPTH = 100  # lists and mappings inside each other; ours have five levels
YAML_BYTES = 2**17
"""The most bytes of a file of YAML that are read: PyYAML takes more than a second for as many."""
_DIGITS = 1000  # of a number in YAML, which may be written in base 60: that takes quadratic time
_YAML = "tag:yaml.org,2002:"


class _PlainLoader(yaml.SafeLoader):
    """Reads what JSON can hold too: null, truth values, numbers, texts, lists, and mappings with
    texts as keys. Dates are texts, and every other tag is refused.

    Aliases are refused: a few lines of them can stand for more data than fits into memory.
    """

    yaml_constructors: ClassVar = {
        _YAML + kind: yaml.SafeLoader.yaml_constructors[_YAML + kind]
        for kind in ("null", "bool", "int", "float", "str", "seq", "map")
    }
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != f"{_YAML}timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise _refused("aliases (*name) are not read; write the value out", mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        kind = node.tag.replace(_YAML, "!!")
        if node.tag not in self.yaml_constructors:
            raise _refused(f"the tag {kind} is not read; leave it out", node.start_mark)
        is_number = kind in ("!!int", "!!float")
        if is_number and len(node.value) > _DIGITS:
            raise _refused(f"a number has {len(node.value):,} digits", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (LookupError, AttributeError, ArithmeticError, TypeError, ValueError):
            # PyYAML lets through what fails in its own functions: `!!int ''`, `!!bool x`
            raise _refused(f"{node.value!r:.80} is no {kind}", node.start_mark) from None

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[str, Any]:
        mapping = super().construct_mapping(node, deep)
        for key in mapping:
            if not isinstance(key, str):
                raise _refused(
                    f"the key {key!r:.80} is not text; put it in quotes", node.start_mark
                )
        return mapping


def _refused(what: str, mark: yaml.Mark) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, what, mark)


def _yaml_value(text: str) -> Any:
    """What `text` holds. Raises ValueError, in one line that says where the error is."""
    try:
        return yaml.load(text, _PlainLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{where}{terminal_text(error.problem or error.context)}") from None
    except yaml.YAMLError as error:
        raise ValueError(terminal_text(" ".join(str(error).split()))) from None


def read_plain(content: bytes, kind: str = "JSON") -> Any:
    """The value that a file of JSON or YAML, its `kind`, holds; one that JSON can hold. Raises
    ValueError, in one line, if it holds none.
    """
    try:
        text = content.decode("utf-8")
        value = _yaml_value(text) if kind == "YAML" else json.loads(text)
        level = [value]
        for _ in range(_DEPTH):
            parts = [part for part in level if isinstance(part, dict | list)]
            level = [
                child
                for part in parts
                for child in (part.values() if isinstance(part, dict) else part)
            ]
        if level:
            raise ValueError("it is nested too deep")
        json.dumps(value)  # whose integers have a limit
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def parse(content: bytes, path: Path, kind: str = "JSON") -> Any:
    """As `read_plain`, of the file `path`, which an error names."""
    try:
        return read_plain(content, kind)
    except ValueError as error:
        raise ValueError(
            f"{path} is not a readable {kind}: {error}; fetch the file again, or mend it"
        ) from None


def parse_mapping(content: bytes, path: Path, kind: str = "JSON") -> dict[str, Any]:
    """As `parse`; the value has to be a mapping with strings as keys."""
    value = parse(content, path, kind)
    if isinstance(value, dict):
        return value
    raise ValueError(
        f"{path} holds a {type(value).__name__} where a mapping is due; fetch the file again, or"
        " mend it"
    )


# -- what is published, and where it is shown ------------------------------------------------------


_USER = re.compile(r"(\w://)[^\s/?#]*@")
_SECRET = re.compile(
    r"([?&#;][\w.-]*(?:token|key|secret|passw|pwd|sig|cred|auth)[\w.-]*=)[^\s&#;]+", re.IGNORECASE
)


def publishable(value: Any) -> Any:
    """`value`, anything JSON can hold, without what names its author's machine or gives access.

    Absolute paths and paths from a home folder are cut to their last part: `/home/ann/omega`
    becomes `omega`, because the folders above it name users, machines and projects. Relative paths
    stay. Addresses lose user names, passwords, and the values of parameters such as `token=`. Keys
    of mappings are changed likewise; two that become the same are told apart by a number.
    """
    if isinstance(value, Mapping):
        names = {name: publishable(name) for name in value}
        taken = {name for name, plain in names.items() if plain == name}
        for name, plain in names.items():
            if plain != name:
                others = (f"{plain} ({number})" for number in count(2))
                names[name] = next(free for free in chain([plain], others) if free not in taken)
                taken.add(names[name])
        return {names[name]: publishable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [publishable(part) for part in value]
    if isinstance(value, str):
        return _without_access(_without_folders(value))
    return value


def _without_folders(text: str) -> str:
    if "\n" in text:  # longer texts are their author's own
        return text
    text = re.sub(r"^file:/*(?=/)", "", text)
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if path.is_absolute() or text.startswith("~"):
            return path.name
    return text


def _without_access(text: str) -> str:
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1…", _USER.sub(r"\1", text))


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
_WORD = re.compile(r"[^\s`|\\]+")
_PAGE = re.compile(r"\w://|www\.", re.IGNORECASE)
_MAIL = re.compile(r"[\w.+-]@[\w-]+\.\w")
_PLAIN_CODE = re.compile(r"[^`|\\]*[^`|\\\s][^`|\\]*")
_PLAIN_PARTS = re.compile(r"[^`|\\]+|[`|\\]+")


class Markdown(str):
    """Text that is Markdown already: it goes into a page unchanged."""


def one_line(text: str) -> str:
    """`text` without line breaks and other controls, and without blanks at its ends."""
    return _CONTROLS.sub(" ", text).strip()


def terminal_text(value: Any, most: int = 200) -> str:
    """`str(value)` in one line of at most `most` characters, without the middle of a longer text;
    what a terminal would obey or hide is escaped.
    """
    return _shortened("".join(c if c.isprintable() else _escape(c) for c in str(value)), most)


def terminal_lines(text: str, most: int = 20_000) -> str:
    """As `terminal_text`, with line breaks and tabs."""
    shown = (c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)
    return _shortened("".join(shown), most)


def for_reader(text: str, stream: TextIO) -> str:
    """`text` as it goes to a stream: on a terminal long lines are broken between words, and go on
    indented; in a file they stay whole.
    """
    if not stream.isatty():
        return text
    width = get_terminal_size().columns
    how = {"subsequent_indent": "    ", "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(fill(line, width, **how) for line in text.splitlines())


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[: most - most // 2 - 1]}…{text[-(most // 2) :]}"


def markdown_text(value: Any) -> Markdown:
    """`str(value)` in one line, for a paragraph or a table cell. `Markdown` is
    returned unchanged. Addresses of pages and mail are in the font of code: many parsers would make
    links of them.
    """
    if isinstance(value, Markdown):
        return value
    line = one_line(str(value))
    parts = []
    end = 0  # of the last address
    for word in _WORD.finditer(line):
        if _is_address(word[0]):
            parts += [_escaped(line[end : word.start()]), f"`{word[0]}`"]
            end = word.end()
    return Markdown("".join([*parts, _escaped(line[end:])]))


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda mark: _entity(mark[0]), text)


def _is_address(word: str) -> bool:
    return _PAGE.search(word) is not None or _MAIL.search(word) is not None


def markdown_code(text: str) -> Markdown:
    """`text` in the font of code, for a paragraph or a table cell. Blanks at its ends are kept."""
    text = _CONTROLS.sub(" ", text)
    # Parsers differ in what a bar or a backslash between backticks means.
    return Markdown("".join(map(_code, _PLAIN_PARTS.findall(text) if text.strip() else [text])))


def _code(part: str) -> str:
    if _PLAIN_CODE.fullmatch(part):
        blank = " " if part[0] == part[-1] == " " else ""  # Markdown takes one away
        return f"`{blank}{part}{blank}`"
    return f"<code>{''.join(map(_entity, part))}</code>"


def markdown_fence(text: str, language: str) -> Markdown:
    """`text`, which may have several lines, as a block of code. No line of the text can end the
    block.
    """
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    lines = "\n".join(_CONTROLS.sub(" ", line) for line in text.split("\n"))
    return Markdown(f"{fence}{language}\n{lines}\n{fence}")


def markdown_image(path: str) -> Markdown:
    """The image at a relative path."""
    name = _escaped(one_line(path)).replace("[", "&#91;").replace("]", "&#93;")  # which end it
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


def count_of(count: int, noun: str) -> str:
    """A number of things in words: 1 row, 2 rows, 1,000 rows."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
    # pair is not UTF-8.
    return re.sub("[<\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _entity(character: str) -> str:
    return {"&": "&amp;", "<": "&lt;", ">": "&gt;"}.get(character, f"&#{ord(character)};")


def reason(error: BaseException) -> str:
    """The first line of an error, in which text of a file cannot control a terminal."""
    return repr(next(iter(str(error).splitlines()), type(error).__name__))[1:-1]
