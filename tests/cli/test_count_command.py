"""`farzi count`: data in, a table and a folder out; and what the folder is good for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_recipes import small_text, use_small_data

pytest.importorskip("matplotlib")
from farzi_hf.cli import main
from farzi_hf.report import CountedItems, CountedText, RunSettings
from farzi_hf.report.counted import Counts


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    use_small_data(monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def of_text(capsys) -> Path:
    main(["count", "sample", "--vocab_size", "50", "--output_dir", "text"])
    capsys.readouterr()
    return Path("text")


@pytest.fixture
def of_items(capsys) -> Path:
    main(["count", "sample_interactions", "--output_dir", "items"])
    capsys.readouterr()
    return Path("items")


def test_text_is_counted_and_the_best_order_is_kept(capsys):
    main(["count", "sample", "--vocab_size", "50", "--output_dir", "out"])
    said = capsys.readouterr()
    orders = re.findall(r"^\| (order \d) +\| perplexity", said.out, re.M)
    assert orders == [f"order {n}" for n in range(1, 6)]
    counted = Counts.from_pretrained("out")
    assert isinstance(counted, CountedText)
    assert f"Best on the validation part: {counted.model.name}" in said.out
    assert "farzi count out with --score FILE or --generate N" in said.out
    data = RunSettings(dataset="sample", vocab_size=50).load()
    splits = data.splits(0)  # of `farzi distil`
    test = data.task.metrics(counted.model.statistics(splits["test"]))
    assert f"perplexity {test['perplexity']:,.1f}" in said.out
    assert counted.metrics["dataset"] == "sample"
    assert counted.table() in said.out


def test_without_a_folder_nothing_is_saved(tmp_path, capsys):
    main(["count", "sample", "--vocab_size", "50", "--order", "2"])
    said = capsys.readouterr().out
    assert "| order 2 " in said
    assert "| order 3 " not in said
    assert "Nothing was saved" in said
    assert not list(tmp_path.iterdir())


def test_a_counted_text_scores_and_generates(of_text, capsys):
    texts = small_text()["test"]["text"]
    Path("more.txt").write_text("\n".join(texts), encoding="utf-8")
    main(["count", "text", "--score", "more.txt"])
    said = capsys.readouterr().out
    expected = Counts.from_pretrained(of_text).perplexity(texts)
    assert f": perplexity {expected:.2f}, on 20 rows\n" in said
    main(["count", "text", "--generate", "4", "--prompt", "the", "--seed", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("the") for line in lines)
    main(["count", "text", "--generate", "4", "--prompt", "the", "--seed", "3", "--tokens", "4"])
    assert all(len(line.split()) <= 3 for line in capsys.readouterr().out.splitlines())
    with pytest.raises(SystemExit, match=r"no room after a prompt of \d tokens: give more \(--tok"):
        main(["count", "text", "--generate", "4", "--prompt", "the the the", "--tokens", "2"])


def test_counted_items_score_and_rank(of_items, capsys):
    counted = Counts.from_pretrained(of_items)
    assert isinstance(counted, CountedItems)
    names = counted.names
    rows = [("ann", names[5], 1), ("ann", names[7], 2), ("bob", names[9], 1), ("bob", "new", 2)]
    lines = [f'{user},"{name}",{time}' for user, name, time in rows]
    Path("more.csv").write_text("\n".join(["user,item,timestamp", *lines]), encoding="utf-8")
    main(["count", "items", "--recommend", "more.csv", "--top_k", "3"])
    said = capsys.readouterr()
    best = counted.recommend([[names[5], names[7]], [names[9]]], top_k=3)
    assert said.out.splitlines() == [
        f"ann: {names[5]} | {names[7]} -> {' | '.join(best[0])}",
        f"bob: {names[9]} -> {' | '.join(best[1])}",
    ]
    assert "1 interaction with items that were not counted, left out" in said.err
    main(["count", "items", "--recommend", "more.csv", "--top_k", "3", "--user", "bob"])
    assert capsys.readouterr().out == f"bob: {names[9]} -> {' | '.join(best[1])}\n"
    with pytest.raises(
        SystemExit, match=r"--user 'bod' has no .*: did you mean bob\?; name one of"
    ):
        main(["count", "items", "--recommend", "more.csv", "--user", "bod"])
    main(["count", "items", "--score", "more.csv"])
    assert "rules of sequences, counted: HR@10 " in capsys.readouterr().out


def test_who_has_had_all_items_is_told_so(of_items, capsys):
    names = Counts.from_pretrained(of_items).names[1:]
    lines = [f'ann,"{name}",{time}' for time, name in enumerate(names)]
    Path("all.csv").write_text("\n".join(["user,item,timestamp", *lines]), encoding="utf-8")
    main(["count", "items", "--recommend", "all.csv"])
    assert capsys.readouterr().out.endswith("-> no item is left: this user has had all\n")


def test_names_of_strangers_do_not_control_the_terminal(of_items, capsys):
    counted = Counts.from_pretrained(of_items)
    names = counted.names
    names[1] = "\x1b[31mred"
    CountedItems(counted.model, names, counted.metrics).save_pretrained("hostile")
    hostile = 'user,item,timestamp\n"\x1b[2ja","\x1b[31mred",1\n'
    Path("more.csv").write_text(hostile, encoding="utf-8")
    main(["count", "hostile", "--recommend", "more.csv"])
    said = capsys.readouterr().out
    assert said.startswith("\\x1b[2ja: \\x1b[31mred -> ")
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["text", "--generate", "0"], "--generate must be an integer of at least 1"),
        (["text", "--generate", "1", "--score", "x"], "--score and --generate are both given"),
        (["text", "--generate", "1", "--output_dir", "x"], "--output_dir 'x' is for counting"),
        (["text", "--recommend", "x"], "--recommend is for items, but 'text' counts text"),
        (["text", "--score", "no-such.txt"], "no-such.txt"),
        (["text", "--generate", "1", "--seed", "-1"], "--seed"),
        (["text", "--generate", "1", "--tokens", "1"], "--tokens must be an integer of at least 2"),
        (["sample", "--output_dir", "text"], "--output_dir 'text' exists already"),
        (["sample", "--order", "0"], "--order must be an integer of at least 1"),
        (["sample", "--order", "99"], "order must be an integer of at most 16"),
        (["sample_interactions", "--order", "2"], "--order 2 is for text"),
        (
            ["sample_interactions", "--held_out", "last_items", "--split_seed", "3"],
            "--split_seed 3, but what is held out .* is the same for all seeds",
        ),
        (["no-such.txt"], "no-such.txt"),
        (["no/such", "--generate", "1"], "is neither a folder nor a dataset repository"),
        ([__file__, "--recommend", "x"], "is a file of data: count it first"),
    ],
)
def test_wrong_words_are_named(of_text, hub, words, message):
    with pytest.raises(SystemExit, match=f"farzi count: .*{message}"):
        main(["count", *words])


def test_items_do_not_generate(of_items):
    with pytest.raises(SystemExit, match="--generate is for text, but 'items' counts items"):
        main(["count", "items", "--generate", "1"])
