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


@pytest.mark.parametrize(
    "template",
    [
        PLAIN,
        "{{ pad_token }}{% generation %}{{ messages | tojson }}{% endgeneration %}{{ unk_token }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{% if add_generation_prompt %}more{% endif %}",
    ],
    ids=["loop", "tokens", "namespace"],
)
def test_a_chat_is_written_as_transformers_writes_it(template):
    tokenizer = with_template(template)
    empty = [{**message, "tool_calls": None} for message in CHAT]
    with ChatTemplate(tokenizer) as written:
        for chat in (CHAT, empty, CHAT[:1]):
            assert written.text(chat) == tokenizer.apply_chat_template(chat, tokenize=False)


def test_values_that_json_lacks_hinder_no_template():
    dated = [{**CHAT[0], "at": datetime.datetime(2026, 1, 1)}]
    with ChatTemplate(with_template(PLAIN)) as written:
        assert written.text(dated) == "user: the cat\n"


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HUGE = "{{ 'x' * 10 ** 10 }}"


@pytest.fixture
def fifth_of_a_second(monkeypatch):
    """The limit of a chat, so that these tests take a part of the time."""
    assert chat_template._SECONDS == 5
    monkeypatch.setattr(chat_template, "_SECONDS", 0.2)


@pytest.mark.usefixtures("fifth_of_a_second")
@pytest.mark.parametrize(
    ("template", "message"),
    [
        (ENDLESS, "takes more than 0.2 s"),
        ("{{ 10 ** (10 ** 9) }}", "takes more than 0.2 s"),
        (HUGE, "takes more than 1,024 MiB"),
        ("{{ raise_exception('no \x1b') }}", "no \x1b"),
        ("{{ ().__class__.__base__.__subclasses__() }}", "unsafe"),
        ("{% for", "unexpected"),
    ],
    ids=["loops", "a power", "memory", "an error", "a way out", "half"],
)
def test_a_template_that_does_not_end_or_breaks_out_is_refused(template, message):
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
