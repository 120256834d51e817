"""The card against hostile strings, and its Python: what it prints runs, and trains the learner of
the recipe.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from fuzzing import fuzzed
from huggingface_hub import DatasetCard
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tiny_artefacts import INNER, WORDS, tiny, word_tokenizer
from transformers import GPT2Config

from farzi_hf import SASRecConfig
from farzi_hf.common import text as escaping
from farzi_hf.models import SASRecForNextItem
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.card import render_card
from farzi_hf.summary.store.hub import PLACEHOLDER

MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "```",
    "`",
    "a|b",
    "a\\|b",
    "a\\",
    "a\rb",
    "a\r\n---\nb",
    "\n# a\n",
    "[a](javascript:alert(1))",
    "![a](https://a.example/a.png)",
    "*a*",
    "__a__",
    "$a$",
    "- a",
    "1. a",
    "&lt;",
    "'\"",
    '"); import os  #',
    "a\x85b",
    "a\u2028b",
    "a\u202eb",
    "\x00",
    "\ud800",
    "~~~",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "",
    " ",
    "# a #",
    "---",
    "=",
    "<!--",
    "]]>",
    "see http://a.example/b|c.",
    "_https://ann@a.example/\\*_ or www.a.example",
    "<HTTPS://a.example>",
    "ann@a.example",
    "mailto:ann@a.example",
)
FOLDED = {"</details>", "</details>\n"} | {
    f"<details>\n<summary>{title}</summary>\n"
    for title in (
        "All facts and figures",
        "More figures",
        "What it says",
        "The same numbers with PyTorch alone",
        "Distil it again",
        "Citation",
    )
}
"""The HTML of a card."""


def card_of(farzi: FarziData, metrics=None, recipe=None, plots=()) -> str:
    return render_card(farzi.contents(), metrics, recipe, plots)


def python_blocks(card: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", card, flags=re.S | re.M)


# -- no string is taken for markup -----------------------------------------------------------------

anything = st.sampled_from(HOSTILE) | st.text(st.characters(), max_size=20)
json_values = st.none() | st.booleans() | st.integers() | st.floats() | anything
json_trees = st.recursive(
    json_values,
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(anything, inside, max_size=3),
    max_leaves=4,
)


def hostile_metrics(text: str) -> dict[str, Any]:
    return {
        "table": [{"method": text, text: 1.5, f"{text}_std": 0.1}, {"method": "b", "other": text}],
        text: text,
        "dataset": text,
        "split": text,
        "licence": text,
        "licence_text": text,
        "command": text,
        "device": text,
        "distillation_seconds": 10.0,
        "learner_parameters": 10,
    }


def hostile_recipe(text: str) -> dict[str, Any]:
    return {text: [text], "learner": {"model_type": text, text: text, "n_embd": 3}}


def body(card: str) -> str:
    return card.split("\n---\n", 1)[1]


def structure(card: str) -> list[str]:
    """The types of the Markdown's elements, those inside paragraphs and cells too; of HTML, what it
    is.
    """
    tokens = [
        one for token in MARKDOWN.parse(body(card)) for one in (token, *(token.children or []))
    ]
    return [
        one.content if one.type.startswith("html") else one.type
        for one in tokens
        if not one.type.startswith("text")
    ]


LINKED = re.compile(r"\w://|www\.|[\w.+-]@[\w-]+\.\w", re.IGNORECASE)
"""What GitHub and others make a link of where it stands in a text: the address of a page or of
mail.
"""


def prose(source: str) -> str:
    """What a reader sees of Markdown, with a gap for each code, within which nothing is a link.
    Code of HTML is prose: some parsers make links within it.
    """
    tokens = [one for token in MARKDOWN.parse(source) for one in (token, *(token.children or []))]
    shown = (one for one in tokens if one.type in ("text", "text_special", "code_inline"))
    return "".join("\0" if one.type == "code_inline" else one.content for one in shown)


def assert_harmless(farzi: FarziData, metrics, recipe, plots) -> None:
    card = card_of(farzi, metrics, recipe, plots)
    card.encode()
    assert len(card.splitlines()) == card.count("\n") + 1 - card.endswith(
        "\n"
    )  # no other line breaks, for anyone
    parsed = DatasetCard(card)
    name = parsed.data.pretty_name
    assert name.startswith("Farzi data")
    assert name.endswith("[4×5]")
    assert len(name.splitlines()) == 1
    assert [config["config_name"] for config in parsed.data.configs] == [
        "latents",
        "decoder",
        "tokens",
    ]
    assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n")) == parsed.data.to_dict()
    for block in python_blocks(card):
        compile(block, "card", "exec")
    assert not LINKED.search(prose(body(card)))
    elements = set(structure(card))
    assert {element for element in elements if "<" in element} <= {"<code>", "</code>", *FOLDED}
    assert "link_open" not in elements


def test_a_card_and_its_page_say_what_was_distilled_and_how():
    known = {"dataset": "my notes", "licence": "cc-by-4.0", "language": "de"}
    made = {"split": "10 % by hash; seed 3", "commit": "abc1234", "farzi_hf": "1.0"}
    card = card_of(tiny(), {**known, **made})
    header = DatasetCard(card).data
    assert header.pretty_name == "Farzi data of my notes [4×5]"
    assert header.license == "cc-by-4.0"
    assert header.language == "de"
    top = body(card).split("## ")[0]
    assert "Held out: 10 % by hash; seed 3." in top
    assert "commit abc1234" in top
    unknown = DatasetCard(card_of(tiny())).data
    assert unknown.pretty_name == "Farzi data [4×5]"
    assert unknown.license == "unknown"
    assert unknown.language is None


@pytest.mark.parametrize("text", HOSTILE)
def test_no_string_breaks_the_card(text):
    farzi = tiny(inner={**INNER, "lr": text, text: text})
    farzi.processing_class = [text, *WORDS[1:]]
    torch.nn.init.zeros_(farzi.decoder)  # so that the first entry is shown
    assert_harmless(farzi, hostile_metrics(text), hostile_recipe(text), [f"plots/{text}"])


def test_figures_have_no_powers_of_ten():
    row = {
        "method": "random",
        "perplexity": 2827.4,
        "perplexity_std": 524.3,
        "perplexity_interval": [2737.0, 999.6],
    }
    cost = {
        "distillation_seconds": 9000.0,
        "student_seconds": np.float64(1.25),
        "full_data_seconds": 4321.0,
    }
    card = card_of(tiny(), {"table": [row], "data_bytes": 3, **cost})
    assert "| 2,827 ± 524 (2,737 to 999.6) |" in card
    assert "takes 1.25 s" in card
    assert "takes 4,321 s" in card
    assert not re.search(r"\de\+\d", card)


@fuzzed
@given(
    vocabulary=st.lists(anything, min_size=7, max_size=7),
    metrics=st.dictionaries(anything, json_trees, max_size=3),
    text=anything,
    recipe=st.dictionaries(anything, json_trees, max_size=3),
    learner=json_trees | st.dictionaries(anything | st.just("model_type"), json_trees, max_size=3),
    inner=st.none()
    | st.dictionaries(
        anything | st.sampled_from(["lr", "eps", "optimizer", "steps"]), json_trees, max_size=4
    ),
)
@example(
    vocabulary=["```"] * 7,
    metrics={},
    text="```\r# a",
    recipe={"a": "b\n```\nc"},
    learner=None,
    inner=None,
)
def test_no_vocabulary_licence_or_name_breaks_the_card(
    vocabulary, metrics, text, recipe, learner, inner
):
    try:
        farzi = tiny(inner=inner)
        farzi.processing_class = vocabulary
        assert_harmless(
            farzi,
            {**metrics, **hostile_metrics(text)},
            {**recipe, "learner": learner},
            [f"plots/{text}"],
        )
    except ValueError as error:  # a figure that is not a number, by chance under the name of one
        if not re.match(
            r"metrics\['\w+'\]=|inner(\['betas'\]=| must hold only what JSON can store)", str(error)
        ):
            raise


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("data_bytes", "many", "not a number"), ("licence", {"a": 1}, "no text")],
)
def test_an_entry_of_another_type_is_refused(name, value, message):
    with pytest.raises(
        ValueError,
        match=re.escape(f"metrics['{name}']={value!r} is {message}; mend it, or leave it out"),
    ):
        card_of(tiny(), {name: value})


# -- one function per language: what goes in is what a parser of that language reads ---------------

TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    "`|\\*_<>[]()&;~$#-+=.:!1a@/w \n"
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(st.characters()), inside, max_size=3)
    ),
    max_leaves=6,
)


def shown(source: str) -> tuple[set[str], str]:
    """The elements of Markdown, and what a reader sees."""
    tokens = [one for token in MARKDOWN.parse(source) for one in (token, *(token.children or []))]
    words = (one.content for one in tokens if one.type in ("text", "text_special", "code_inline"))
    return {one.content if one.type == "html_inline" else one.type for one in tokens}, "".join(
        words
    )


@fuzzed
@given(st.text(st.characters()), st.integers(2, 300))
@example("\x1b]0;title\x07", 200)
@example("\u202e\u200f\u061c\u2067\ud800", 200)
@example("x" * 5000, 40)
def test_a_terminal_gets_one_line_of_what_it_can_print(value, most):
    line = escaping.terminal_text(value, most)
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
@example("see <http://a.example/b|c>, ann@a.example")
@example("- www.a.example -")
@example("://")
def test_text_is_a_paragraph_and_a_cell_of_itself(value):
    line = escaping.one_line(value)
    elements, seen = shown(escaping.markdown_text(value))
    plain = {"paragraph_open", "paragraph_close", "inline", "text", "text_special"}
    assert elements <= ({*plain, "code_inline"} if LINKED.search(line) else plain)
    assert seen == line
    assert not LINKED.search(prose(escaping.markdown_text(value)))
    elements, seen = shown(f"| a | b |\n|---|---|\n| {escaping.markdown_text(value)} | c |")
    assert (seen, "tr_open" in elements) == (f"ab{line}c", True)
    assert "|" not in escaping.markdown_text(value)


@fuzzed
@given(TEXTS)
@example("`")
@example(" a ")
@example("  ")
@example("| |")
@example("a\\")
@example("http://a.example|b")
def test_code_is_code_in_a_cell(value):
    elements, seen = shown(f"| {escaping.markdown_code(value)} |\n|---|\n")
    assert {element for element in elements if "code" in element} <= {
        "code_inline",
        "<code>",
        "</code>",
    }
    assert not {element for element in elements if "<" in element} - {"<code>", "</code>"}
    assert seen == one_line_with_blanks(value)
    assert not LINKED.search(prose(escaping.markdown_code(value)))


def one_line_with_blanks(value: str) -> str:
    return escaping.one_line(f"|{value}|")[1:-1]


@fuzzed
@given(TEXTS)
@example("```\n# a\n````")
@example("~~~")
def test_no_line_ends_a_fence(value):
    (token,) = MARKDOWN.parse(escaping.markdown_fence(value, "text"))
    assert (token.type, token.info) == ("fence", "text")
    assert token.content == "\n".join(map(one_line_with_blanks, value.split("\n"))) + "\n"


@fuzzed
@given(TEXTS)
@example("a](b)")
def test_an_image_is_an_image(value):
    elements, _ = shown(escaping.markdown_image(f"plots/{value}"))
    assert elements <= {"paragraph_open", "paragraph_close", "inline", "image", "text"}


def test_markdown_stays_as_it_is():
    assert escaping.markdown_text(escaping.Markdown("**a**")) == "**a**"


@fuzzed
@given(JSON)
def test_python_source_evaluates_to_the_value(value):
    source = escaping.python_literal(value)
    assert ast.literal_eval(source) == value
    assert not set("`\n\r\x85\u2028") & set(source)


@fuzzed
@given(st.dictionaries(st.text(st.characters()), JSON, max_size=4))
@example({"a": "b\x85c", "d\u2028": "\ud800"})
def test_yaml_reads_back_equal(value):
    written = escaping.yaml_text(value)
    assert yaml.safe_load(written) == value
    assert escaping.read_plain(written.encode(), "YAML") == value


@fuzzed
@given(JSON)
@example("</script><!--")
def test_json_in_a_script_reads_back_equal_and_ends_nothing(value):
    assert json.loads(escaping.script_json(value).encode()) == value
    assert "<" not in escaping.script_json(value)


# -- its Python trains -----------------------------------------------------------------------------


def run_python_of(folder: Path, cache: Path) -> dict[str, Any]:
    """The names that all Python blocks of the card in a folder leave, run one after the other with
    the folder as the name.
    """
    card = (folder / "README.md").read_text(encoding="utf-8").replace(PLACEHOLDER, str(folder))
    names: dict[str, Any] = {}
    for block in python_blocks(card):
        # Into a cache of the test's own, and on this machine as it is: without progress bars.
        block = block.replace('split="train"', f'split="train", cache_dir={str(cache)!r}')
        block = block.replace(
            'farzi.trainer(model, "student"',
            'farzi.trainer(model, "student", use_cpu=True, disable_tqdm=True',
        )
        exec(compile(block, "card", "exec"), names)
    return names


def saved(folder: Path, vocabulary, recipe, **changes) -> Path:
    inner = {**INNER, "betas": [0.5, 0.999], "steps": 2}
    tiny(**{"inner": inner, **changes}).save_pretrained(folder, vocabulary, recipe=recipe)
    return folder


def learner_of(names: dict[str, Any]):
    return names["student"].model


def is_of(model, config) -> bool:
    """Whether a model was built from a config. Which attention, data type and cache it uses is not
    the learner's affair.
    """
    left = {"transformers_version", "architectures", "use_cache", "dtype", "_name_or_path"}
    found, wanted = (c.to_dict() for c in (model.config, config))
    return type(model.config) is type(config) and all(
        found[k] == v for k, v in wanted.items() if k not in left
    )


V = len(WORDS)
GPT2 = GPT2Config(
    vocab_size=V,
    n_positions=9,
    n_embd=4,
    n_layer=1,
    n_head=2,
    bos_token_id=2,
    eos_token_id=3,
    embd_pdrop=0.0,
)
SASREC = SASRecConfig(num_items=V - 1, hidden_size=4, max_length=9, dropout=0.1)


@pytest.fixture(autouse=True)
def scratch(tmp_path, monkeypatch):
    """Where "student" is written to."""
    monkeypatch.chdir(tmp_path)


SHORT = {"n_embd": 4, "n_layer": 1, "n_head": 2}
WHOLE = GPT2Config(**SHORT, vocab_size=V, pad_token_id=0, bos_token_id=None, eos_token_id=None)


@pytest.mark.parametrize(
    ("vocabulary", "learner", "config"),
    [
        (word_tokenizer(), GPT2.to_diff_dict(), GPT2),
        (WORDS, SASREC.to_diff_dict(), SASREC),
        (word_tokenizer(), {"model_type": "gpt2", **SHORT}, WHOLE),
        (
            WORDS,
            {"model_type": "sasrec", "hidden_size": 4},
            SASRecConfig(num_items=V - 1, hidden_size=4, max_length=5),
        ),
    ],
    ids=["text", "items", "text, short", "items, short"],
)
def test_the_card_trains_the_learner_of_the_recipe(tmp_path, vocabulary, learner, config):
    """What a short learner leaves out is the summary's."""
    folder = saved(tmp_path / "summary", vocabulary, {"learner": learner})
    names = run_python_of(folder, tmp_path / "cache")
    assert is_of(learner_of(names), config)
    assert len(names["tokens"]) == 4 * 5
    assert names["farzi"].nbytes == tiny().nbytes
    torch.testing.assert_close(names["probabilities"], tiny()(torch.tensor([0])).detach())
    assert names["student"].state.global_step == 2
    assert names["student"].args.learning_rate == INNER["lr"]
    rows = [{"input_ids": [2, 4, 5]}, {"input_ids": [4, 5, 6, 4, 3]}]
    assert names["student"].evaluate(rows)["eval_loss"] > 0


@pytest.mark.parametrize(
    "vocabulary", [word_tokenizer(), WORDS, None], ids=["text", "items", "none"]
)
def test_without_a_learner_a_small_one_is_trained_and_the_card_says_so(tmp_path, vocabulary):
    folder = saved(tmp_path / "summary", vocabulary, {"learner": {"n_embd": 3}})
    assert "# The recipe names no learner. This is a small one" in (folder / "README.md").read_text(
        encoding="utf-8"
    )
    model = learner_of(run_python_of(folder, tmp_path / "cache"))
    assert isinstance(model, SASRecForNextItem) == isinstance(vocabulary, list)
    assert model.num_parameters() < 100_000


def test_the_card_of_a_known_learner_lists_only_what_differs_from_its_class(tmp_path):
    card = card_of(tiny(), recipe={"learner": GPT2.to_diff_dict()})
    source = re.search(r"^config = AutoConfig.for_model\(\n(.*?)^\)", card, flags=re.S | re.M)[1]
    given = [line.strip().split("=")[0] for line in source.splitlines()[1:]]
    assert given == [
        "vocab_size",
        "n_positions",
        "n_embd",
        "n_layer",
        "n_head",
        "embd_pdrop",
        "bos_token_id",
        "eos_token_id",
    ]
    assert "names no learner" not in card


def test_an_architecture_that_nobody_here_knows_is_printed_with_all_its_fields():
    card = card_of(
        tiny(), recipe={"learner": {"model_type": "of-tomorrow", "width": 3, "a b": 1, "lambda": 2}}
    )
    assert 'config = AutoConfig.for_model(\n    "of-tomorrow",\n    vocab_size=7,' in card
    assert "    width=3,\n    **{'a b': 1},\n    **{'lambda': 2},\n" in card


@pytest.mark.parametrize("inner", [None, {"lr": 0.02}, {"steps": 3}])
def test_what_a_summary_does_not_say_of_its_training_the_card_proposes(tmp_path, inner):
    folder = saved(tmp_path / "summary", WORDS, {"learner": SASREC.to_diff_dict()}, inner=inner)
    assert "these are values to begin with" in (folder / "README.md").read_text(encoding="utf-8")
    args = run_python_of(folder, tmp_path / "cache")["student"].args
    assert (args.learning_rate, args.max_steps) == (
        (inner or {}).get("lr", 0.01),
        (inner or {}).get("steps", 100),
    )
