"""One function per language: what goes in is what a parser of that language reads."""

from __future__ import annotations

import ast
import json

import yaml
from fuzzing import fuzzed
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from farzi_hf.summary.store import text

MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text("`|\\*_<>[]()&;~$#-+=.:!1a \n")
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(st.characters()), inside, max_size=3),
    max_leaves=6,
)


def shown(source: str) -> tuple[set[str], str]:
    """The elements of Markdown, and what a reader sees."""
    tokens = [one for token in MARKDOWN.parse(source) for one in (token, *(token.children or []))]
    words = (one.content for one in tokens if one.type in ("text", "text_special", "code_inline"))
    return {one.content if one.type == "html_inline" else one.type for one in tokens}, "".join(words)


@fuzzed
@given(st.text(st.characters()), st.integers(2, 300))
@example("\x1b]0;title\x07", 200)
@example("\u202e\u200f\u061c\u2067\ud800", 200)
@example("x" * 5000, 40)
def test_a_terminal_gets_one_line_of_what_it_can_print(value, most):
    line = text.terminal_text(value, most)
    assert line.isprintable()
    assert len(line) <= most
    if value.isprintable() and len(value) <= most:
        assert line == value


@fuzzed
@given(TEXTS)
@example("1) a")
@example("+")
@example("[x]: https://a.example")
@example("[x] done")
@example("a\\|b")
@example("&#124;")
def test_text_is_a_paragraph_and_a_cell_of_itself(value):
    line = text.one_line(value)
    elements, seen = shown(text.markdown_text(value))
    assert elements <= {"paragraph_open", "paragraph_close", "inline", "text", "text_special"}
    assert seen == line
    elements, seen = shown(f"| a | b |\n|---|---|\n| {text.markdown_text(value)} | c |")
    assert (seen, "tr_open" in elements) == (f"ab{line}c", True)
    assert "|" not in text.markdown_text(value)


@fuzzed
@given(TEXTS)
@example("`")
@example(" a ")
@example("  ")
@example("a\\")
def test_code_is_code_in_a_cell(value):
    elements, seen = shown(f"| {text.markdown_code(value)} |\n|---|\n")
    assert {element for element in elements if "code" in element} <= {"code_inline", "<code>", "</code>"}
    assert not {element for element in elements if "<" in element} - {"<code>", "</code>"}
    assert seen == one_line_with_blanks(value)


def one_line_with_blanks(value: str) -> str:
    return text.one_line(f"|{value}|")[1:-1]


@fuzzed
@given(TEXTS)
@example("```\n# a\n````")
@example("~~~")
def test_no_line_ends_a_fence(value):
    (token,) = MARKDOWN.parse(text.markdown_fence(value, "text"))
    assert (token.type, token.info) == ("fence", "text")
    assert token.content == "\n".join(map(one_line_with_blanks, value.split("\n"))) + "\n"


@fuzzed
@given(TEXTS)
@example("a](b)")
def test_an_image_is_an_image(value):
    elements, _ = shown(text.markdown_image(f"plots/{value}"))
    assert elements <= {"paragraph_open", "paragraph_close", "inline", "image", "text"}


def test_markdown_stays_as_it_is():
    assert text.markdown_text(text.Markdown("**a**")) == "**a**"


@fuzzed
@given(json_values)
def test_python_source_evaluates_to_the_value(value):
    source = text.python_literal(value)
    assert ast.literal_eval(source) == value
    assert not set("`\n\r\x85\u2028") & set(source)


@fuzzed
@given(st.dictionaries(st.text(st.characters()), json_values, max_size=4))
@example({"a": "b\x85c", "d\u2028": "\ud800"})
def test_yaml_reads_back_equal(value):
    assert yaml.safe_load(text.yaml_text(value)) == value
    text.yaml_text(value).encode()


@fuzzed
@given(json_values)
@example("</script><!--")
def test_json_in_a_script_reads_back_equal_and_ends_nothing(value):
    assert json.loads(text.script_json(value).encode()) == value
    assert "<" not in text.script_json(value)
