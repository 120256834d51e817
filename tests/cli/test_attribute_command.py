"""`farzi attribute`: rows of a text are scored, saved and printed; bad input ends in one line."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from tiny_models import config_of
from transformers import AutoModelForCausalLM

from farzi_hf import sample
from farzi_hf.attribution import Attribution
from farzi_hf.cli import main
from farzi_hf.cli.attribute import histories, texts
from farzi_hf.data import Interactions, load_sample_text, word_tokenizer
from farzi_hf.data.text import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with dropout and its tokenizer, data and queries."""
    folder = tmp_path_factory.mktemp("attribute")
    texts = load_sample_text(60)["train"]["text"]
    tokenizer = word_tokenizer(texts, 60)
    tokenizer.save_pretrained(folder / "model")
    AutoModelForCausalLM.from_config(
        config_of("gpt2", len(tokenizer), resid_pdrop=0.1)
    ).save_pretrained(folder / "model")
    (folder / "data.jsonl").write_text(
        "".join(json.dumps({"said": text}) + "\n" for text in texts[:12])
    )
    (folder / "test.csv").write_text("said\n" + "\n".join(f'"{text}"' for text in texts[12:20]))
    return folder


SHORT = ["--use_cpu", "True", "--disable_tqdm", "True", "--max_steps", "3"]


def attribute(folder, *more: str) -> None:
    given = ["--test", str(folder / "test.csv"), "--column", "said"]
    main(["attribute", str(folder / "model"), str(folder / "data.jsonl"), *given, *SHORT, *more])


@pytest.mark.parametrize(
    "more",
    [(), ("--lora", "2", "--learning_rate", "1e-2", "--adjoint", "reversible")],
    ids=["all", "lora"],
)
def test_rows_are_scored_saved_and_printed(folder, tmp_path, capsys, more):
    attribute(
        folder,
        "--output_dir",
        str(tmp_path / "out"),
        "--queries",
        "3",
        "--top",
        "2",
        "--check",
        *more,
    )
    printed = capsys.readouterr().out
    found = Attribution.load(tmp_path / "out")
    assert found.scores.shape == (3, 12)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "Dropout is switched off: resid_pdrop" in printed
    for row in (*found.top(2), *found.bottom(2)):
        assert f"{row.row:>7} {row.score:>+11.3e}  {row.text}" in printed
    assert "With --adam_epsilon 1e-08 these scores predict small changes only." in printed
    assert float(printed.rsplit("differ from the replay's by ", 1)[1].split()[0]) < 1e-4


def test_tokens_have_scores_that_are_printed(folder, tmp_path, capsys):
    attribute(
        folder,
        "--output_dir",
        str(tmp_path / "out"),
        "--queries",
        "1",
        "--top",
        "1",
        "--per_token",
        "--damping",
        "1",
    )
    found = Attribution.load(tmp_path / "out")
    best, worst = found.top(1)[0], found.bottom(1)[0]
    assert [name for name, _ in best.tokens if name not in SPECIAL_TOKENS] == best.text.split()
    (useful, score), (harmful, less) = (
        max(best.tokens, key=lambda x: x[1]),
        min(worst.tokens, key=lambda x: x[1]),
    )
    printed = capsys.readouterr().out
    assert "damping=0.0," not in found.facts["optimizer"]
    assert "--damping" not in printed
    assert f"  {best.text}  [{useful} {score:+.1e}]  [" in printed
    assert f"  {worst.text}  [{harmful} {less:+.1e}]  [" in printed


HISTORIES = {"ann": "abcd", "bob": "bcda", "cat": "acbd", "dan": "dcba"}


def interactions(path, histories: dict[str, str]) -> str:
    lines = [
        f"{user},{item},{time}"
        for user, items in histories.items()
        for time, item in enumerate(items)
    ]
    path.write_text("user_id,item_id,timestamp\n" + "\n".join(lines))
    return str(path)


LORA = pytest.param(("--lora", "2", "--learning_rate", "1e-2"), marks=pytest.mark.slow)


@pytest.mark.parametrize("more", [(), LORA], ids=["all", "lora"])
def test_rows_of_interactions_are_the_histories_of_users(tmp_path, capsys, more):
    AutoModelForCausalLM.from_config(
        config_of("sasrec", 5, dropout=0.1, max_length=3)
    ).save_pretrained(tmp_path / "model")
    data = interactions(tmp_path / "data.csv", HISTORIES)
    test = interactions(tmp_path / "test.csv", {"eve": "bd", "fay": "c"})
    how = ["--output_dir", str(tmp_path / "out"), "--check", *more]
    main(["attribute", str(tmp_path / "model"), data, "--test", test, *SHORT, *how])
    printed, found = capsys.readouterr().out, Attribution.load(tmp_path / "out")
    assert found.texts == [
        "b | c | d",
        "c | d | a",
        "c | b | d",
        "c | b | a",
    ]  # the last that the model can read
    assert found.queries == ["b | d"]
    assert found.scores.abs().min() > 0
    assert float(printed.rsplit("differ from the replay's by ", 1)[1].split()[0]) < 1e-4


def test_items_have_the_numbers_that_the_model_knows_them_by(tmp_path):
    AutoModelForCausalLM.from_config(config_of("sasrec", 7)).save_pretrained(tmp_path / "model")
    names, data = ["<pad>", *"fedcba"], interactions(tmp_path / "data.csv", HISTORIES)
    command = [
        "attribute",
        str(tmp_path / "model"),
        data,
        "--test",
        data,
        "--use_cpu",
        "True",
        "--disable_tqdm",
        "True",
        "--max_steps",
        "1",
    ]
    with pytest.raises(
        SystemExit, match=r"the model has 6 items, not 4: list their names in its vocabulary\.json"
    ):
        main([*command, "--output_dir", str(tmp_path / "out")])
    (tmp_path / "model" / "vocabulary.json").write_text(json.dumps([*names[:-1], "x"]))
    with pytest.raises(
        SystemExit,
        match=r"lacks 1 items of 16 interactions of 4 users .*, such as 'a', .*; leave them out",
    ):
        main([*command, "--output_dir", str(tmp_path / "out")])
    (tmp_path / "model" / "vocabulary.json").write_text(json.dumps(names))
    main([*command, "--output_dir", str(tmp_path / "out")])
    assert Attribution.load(tmp_path / "out").texts == [
        " | ".join(items) for items in HISTORIES.values()
    ]


def with_titles(*titles: str) -> Interactions:
    """Two users with the items 1, 2 and 3."""
    return Interactions([np.array([1, 2, 3]), np.array([3, 1])], 3, list(titles))


def test_names_of_items_are_read_once_for_all_histories(monkeypatch):
    reads, names = [], Interactions.vocabulary.fget
    monkeypatch.setattr(
        Interactions, "vocabulary", property(lambda self: reads.append(1) or names(self))
    )
    assert histories(with_titles("<pad>", "a", "b", "c"), ["<pad>", "c", "b", "a"], 2) == [
        [2, 1],
        [1, 3],
    ]
    assert len(reads) == 1


def test_items_of_one_name_are_told_apart_or_refused():
    names = ["<pad>", "a", "b", "a"]
    assert histories(with_titles(*names), names, 9) == [[1, 2, 3], [3, 1]]
    message = (
        r"2 items of 5 interactions of 2 users .* such as 'a', or has several .*; leave them out"
    )
    for given, of_model in (
        (names, ["<pad>", "b", "a", "c"]),
        (["<pad>", "a", "b", "c"], ["<pad>", "c", "a", "b", "a", "c"]),
    ):
        with pytest.raises(ValueError, match=message):
            histories(with_titles(*given), of_model, 9)
    assert histories(
        with_titles("<pad>", "a", "b", "c"), ["<pad>", "x", "c", "x", "b", "a"], 9
    ) == [[5, 4, 2], [2, 5]]


@pytest.mark.parametrize("ends", [True, False])
def test_blank_rows_of_a_text_are_left_out(folder, tmp_path, ends):
    """A tokenizer without BOS and EOS makes no ids of a blank row, and a single one of a word,
    which has nothing to predict.
    """
    tokenizer = word_tokenizer(["one two"], 9)
    if not ends:
        tokenizer.bos_token = tokenizer.eos_token = None
        tokenizer.backend_tokenizer.post_processor = None
    (tmp_path / "blank.txt").write_bytes("\ufeff  one two\n\n \t \none\ntwo one  \n".encode())
    rows = texts(str(tmp_path / "blank.txt"), "text", tokenizer, 256)
    assert [tokenizer.convert_ids_to_tokens(row) for row in rows] == (
        [["<s>", *words, "</s>"] for words in (["one", "two"], ["one"], ["two", "one"])]
        if ends
        else [["one", "two"], ["two", "one"]]
    )
    (tmp_path / "blank.txt").write_text("\n \n")
    with pytest.raises(ValueError, match="has no rows"):
        texts(str(tmp_path / "blank.txt"), "text", tokenizer, 256)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--column", "text"), r"data\.jsonl' has no rows with text in 'text'; name the --column"),
        (
            ("--output_dir", "model"),
            r"--output_dir '.*model' exists already and is not empty: choose another folder",
        ),
        (("--label_smoothing_factor", "0.1"), "trainer cannot be replayed: its first gradient"),
        (("--queries", "-1"), "--queries must be an integer of at least 1, got -1"),
        (("--top", "0"), "--top must be an integer of at least 1, got 0"),
        (("--max_length", "1"), "--max_length must be an integer of at least 2, got 1"),
    ],
)
def test_bad_input_ends_in_one_line(folder, tmp_path, more, message):
    if more[0] == "--output_dir":
        more = (more[0], str(folder / more[1]))
    with pytest.raises(SystemExit, match=f"farzi attribute: .*{message}"):
        attribute(folder, "--output_dir", str(tmp_path / "out"), *more)
    assert not (tmp_path / "out" / "scores.safetensors").exists()


# -- a folder of somebody else ---------------------------------------------------------------------


@pytest.fixture
def stranger(folder, tmp_path):
    """A copy of the model's folder, to be spoilt."""
    shutil.copytree(folder / "model", tmp_path / "model")
    for name in ("data.jsonl", "test.csv"):
        shutil.copy(folder / name, tmp_path / name)
    return tmp_path


def refusal(folder, *more: str) -> str:
    with pytest.raises(SystemExit) as stop:
        attribute(folder, "--output_dir", str(folder / "out"), *more)
    assert stop.value.code.isprintable()
    assert len(stop.value.code) < 1000
    return stop.value.code


@pytest.mark.parametrize("key", ["vocab_file", "vocab"])
def test_a_tokenizer_reads_no_file_that_its_settings_name(stranger, key):
    (stranger / "secret").write_text("SECRET\n[UNK]\n")
    (stranger / "model" / "tokenizer.json").unlink()
    settings = {"tokenizer_class": "BertTokenizer", key: str(stranger / "secret")}
    (stranger / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "has no tokenizer.json: give a fast one" in refusal(stranger)


def test_an_escape_in_the_name_of_a_setting_is_not_printed(stranger, capsys):
    config = json.loads((stranger / "model" / "config.json").read_text())
    (stranger / "model" / "config.json").write_text(
        json.dumps({**config, "a\x1b[2J_dropout": 0.5, "b\u202e_drop": 0.1})
    )
    attribute(stranger, "--output_dir", str(stranger / "out"), "--queries", "1", "--top", "1")
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if "Dropout is switched off" in line]
    assert r"a\x1b[2J_dropout" in line
    assert r"b\u202e_drop" in line
    assert line.isprintable()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "\x1b[2J.bin"])
def test_weights_in_a_pickle_are_refused_in_one_clear_line(stranger, name):
    (stranger / "model" / "model.safetensors").unlink()
    (stranger / "model" / name).write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    assert "a pickle, which is not read: save the model with save_pretrained" in refusal(stranger)


def test_damaged_weights_and_another_kind_of_model_end_in_one_line(stranger):
    weights = stranger / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "is not a causal language model within reach (SafetensorError" in refusal(stranger)
    (stranger / "model" / "config.json").write_text('{"model_type": "\\u001b[2J"}')
    assert "is not a causal language model within reach" in refusal(stranger)


def test_a_summary_in_place_of_a_model_is_told_how_to_make_one(stranger):
    shutil.rmtree(stranger / "model")
    shutil.copytree(sample(), stranger / "model" / "summary")
    assert "is a summary, not a model: farzi train " in refusal(stranger)


def test_the_names_of_items_are_a_plain_list_in_a_plain_file(tmp_path):
    AutoModelForCausalLM.from_config(config_of("sasrec", 5)).save_pretrained(tmp_path / "model")
    data = interactions(tmp_path / "data.csv", HISTORIES)
    command = ["attribute", str(tmp_path / "model"), data, "--test", data, *SHORT]
    path = tmp_path / "model" / "vocabulary.json"
    pieces = {
        "is a link, which is not followed": lambda: path.symlink_to("/dev/zero"),
        "is not a plain file": lambda: os.mkfifo(path),
        "is not a list of strings": lambda: path.write_text("5"),
        "is not a readable JSON": lambda: path.write_text("["),
        "far more than the 5 entries": lambda: path.write_text(json.dumps(["a"] * 100)),
        "is larger than the": lambda: os.truncate(path, 2**27),
    }
    for message, make in pieces.items():
        path.unlink(missing_ok=True)
        if message == "is larger than the":
            path.touch()
        make()
        with pytest.raises(SystemExit, match=f"farzi attribute: .*vocabulary.json.*{message}"):
            main([*command, "--output_dir", str(tmp_path / "out")])
