"""Templates of chats are programs of whoever made the tokenizer: they run elsewhere, with limits."""

from __future__ import annotations

import datetime
import json
import os
import time

import pytest
from tiny_artefacts import word_tokenizer

from farzi_hf.data import chat_template, load_text
from farzi_hf.data.chat_template import ChatTemplate

CHAT = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def with_template(template: str):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_a_chat_is_written_as_transformers_writes_it():
    """Also one with values that JSON lacks."""
    tokenizer = with_template(
        PLAIN
        + "{{ pad_token }}{% generation %}{{ messages | tojson }}{% endgeneration %}{{ unk_token }}"
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{% if add_generation_prompt %}more{% endif %}"
    )
    empty = [{**message, "tool_calls": None} for message in CHAT]
    with ChatTemplate(tokenizer) as written:
        for chat in (CHAT, empty, CHAT[:1]):
            assert written.text(chat) == tokenizer.apply_chat_template(chat, tokenize=False)
        assert written.text([{**CHAT[0], "call": {"a": None, "b": [{"c": None}]}}]) == written.text(
            [{**CHAT[0], "call": {"b": [{}]}}]
        )
        dated = [{**CHAT[0], "at": datetime.datetime(2026, 1, 1)}]
        assert written.text(dated).startswith("user: the cat\n")


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
REFUSED = {
    "memory": ("{{ 'x' * 10 ** 10 }}", "takes more than 1,024 MiB"),
    "error": ("{{ raise_exception('no \x1b') }}", "no \x1b"),
    "way out": ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe"),
}
"""What a template does with a chat of one message, by its content; and what is said of it."""


@pytest.fixture
def fifth_of_a_second(monkeypatch):
    """The limit of a chat, so that these tests take a part of the time."""
    assert chat_template._SECONDS == 5
    monkeypatch.setattr(chat_template, "_SECONDS", 0.2)


def test_what_a_template_does_wrong_with_one_chat_is_said_and_the_next_one_is_written():
    parts = [
        f"{{% if messages[0].content == '{name}' %}}{part}{{% endif %}}"
        for name, (part, _) in REFUSED.items()
    ]
    before = sum(os.times()[:4])
    with ChatTemplate(with_template("".join(parts) + PLAIN)) as written:
        for name, (_, message) in REFUSED.items():
            with pytest.raises(ValueError, match=message):
                written.text([{"role": "user", "content": name}])
        assert written.text(CHAT[:1]) == "user: the cat\n"
    assert sum(os.times()[:4]) - before < 8  # with the start, of this process and its children


@pytest.mark.usefixtures("fifth_of_a_second")
@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ 10 ** (10 ** 9) }}", "takes more than 0.2 s"), ("{% for", "unexpected")],
    ids=["a power", "half"],
)
def test_a_template_that_does_not_end_or_is_none_is_refused(template, message):
    before = sum(os.times()[:4])
    with ChatTemplate(with_template(template)) as written, pytest.raises(ValueError, match=message):
        written.text(CHAT)
    assert sum(os.times()[:4]) - before < 8  # with the start, of this process and its children


@pytest.mark.usefixtures("fifth_of_a_second")
def test_after_a_chat_that_was_refused_the_next_ones_are_written():
    template = "{% if messages | length == 1 %}" + ENDLESS + "{% endif %}" + PLAIN
    with ChatTemplate(with_template(template)) as written:
        with pytest.raises(ValueError, match=r"takes more than 0\.2 s"):
            written.text(CHAT[:1])
        assert written.text(CHAT).startswith("user: the cat")


@pytest.mark.usefixtures("fifth_of_a_second")
def test_a_data_set_of_chats_names_the_row_whose_template_does_not_end(tmp_path):
    rows = [{"messages": CHAT}, {"messages": CHAT[:1]}] * 3
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    template = "{% if messages | length == 1 %}" + ENDLESS + "{% endif %}" + PLAIN
    start = time.process_time()
    with pytest.raises(ValueError, match=r"row 1 .* refuses \(it takes more than 0\.2 s.*mend the"):
        load_text(tmp_path / "chats.jsonl", tokenizer=with_template(template))
    assert time.process_time() - start < 1  # of this process
