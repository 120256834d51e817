"""The recipes that compare ways to choose rows, and mixtures of sources, on small pools."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import mixture
import numpy as np
import pytest
import torch
import weigh
import weigh_gains
import weigh_pretrained
import weigh_users
from tiny_models import config_of
from transformers import AutoModelForCausalLM

from farzi_hf.attribution.choice import choice_file
from farzi_hf.common.tensors import load_tensors
from farzi_hf.data import load_sample_text, word_tokenizer

TINY = (
    "--of_each 40 --target_rows 12 --test_rows 12 --keep 30 --steps 4 --batch_size 6 --width 8"
    " --trainings 2 --outer_steps 1 --quiet"
)


def test_all_ways_are_compared_and_a_run_goes_on(tmp_path, capsys):
    command = ["--pool", "sample", "--output_dir", str(tmp_path), *TINY.split()]
    weigh.main(command)
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "sample-target-0" / "table.json").read_text())["rows"]
    of = {row["method"]: row for row in rows}
    assert of["oracle"]["of the wanted kind"] == "30"
    assert of["all rows"]["rows"] == "120"
    from_choice = of.pop("shares of rows by features, 1 outer steps, from the best cheap choice")
    assert from_choice["rows"] in ("30", "120")
    shares = [name for name in of if name.startswith("shares of rows by ")]
    assert len(shares) == 10
    assert {of[name]["rows"] for name in shares} == {"120"}
    assert {row["rows"] for name, row in of.items() if name not in ("all rows", *shares)} == {"30"}
    assert len(rows) == 25
    assert "The rows are those of" in printed
    assert "Smoothness(predicted=" in printed
    weigh.main(command)
    again = json.loads((tmp_path / "sample-target-0" / "table.json").read_text())["rows"]
    assert again == rows


def test_gains_are_differences_of_losses_of_equal_starts(tmp_path, capsys):
    names = ["all rows", "n-gram importance", "influence in one training"]
    command = ["--pool", "sample", *TINY.split(), "--only", *names, "--again", "3"]
    for seed in ("0", "1"):
        weigh.main([*command, "--output_dir", str(tmp_path), "--seed", seed])
    capsys.readouterr()
    folders = [tmp_path / f"sample-target-{seed}" / "again-3" for seed in (0, 1)]
    weigh_gains.main([*map(str, folders), "--most", "30"])
    printed = capsys.readouterr().out
    kept = [
        weigh_gains.read(folder, weigh_gains.parse([str(folder), "--most", "30"]))
        for folder in folders
    ]
    assert list(kept[0]) == ["influence in one training", "n gram importance"]
    learnt, counted = kept[0].values()
    by_hand = [b - a for a, b in zip(learnt.test, counted.test, strict=True)]
    assert len(by_hand) == 3
    found = weigh_gains.gains_of(kept[0])["influence in one training"]
    assert found.test == pytest.approx(by_hand)
    assert f"| {weigh_gains.said_of(by_hand)} |" in printed
    assert "2 folders together" in printed
    assert " of 6, " in printed
    assert "all rows" not in printed
    assert weigh_gains.said_of([0.1, 0.3]).endswith("2 of 2, level")
    assert weigh_gains.said_of([0.1, 0.11, 0.1]).endswith("3 of 3, beyond")
    assert weigh_gains.said_of([-0.1, -0.11, -0.1]).endswith("0 of 3, worse")
    with pytest.raises(ValueError, match="no way to compare with among all rows, influence"):
        weigh_gains.main([str(folders[0]), "--over", "nothing"])


@pytest.mark.slow
def test_choices_train_a_wider_model_and_one_of_another_kind(tmp_path, capsys):
    command = ["--pool", "sample", "--output_dir", str(tmp_path), *TINY.split(), "--transfer"]
    names = ("all rows", "mixture, 1 outer steps, from the best shares", "random rows")
    weigh.main([*command, "--clusters", "3", "--only", *names])
    printed = capsys.readouterr().out
    folder = tmp_path / "sample-target-0"
    tables = json.loads((folder / "transfer.json").read_text())
    assert list(tables) == ["GPT-2 of width 32", "Llama of width 16"]
    small = json.loads((folder / "table.json").read_text())["rows"]
    for table in tables.values():
        assert [row["method"] for row in table] == ["oracle", *names]
        assert [row["rows"] for row in table] == ["30", "120", "120", "30"]
        assert all(row["dev"] != of["dev"] for row, of in zip(table, small, strict=True))
    assert printed.count("The rows are those of") == 3
    weigh.main([*command[:-1], "--only", "all rows"])
    assert "No verdict: --only names no way" in capsys.readouterr().out


def test_a_pool_holds_what_it_says(tmp_path):
    args = weigh.parse(["--pool", "sample", *TINY.split()])
    pool = weigh.sample(args, np.random.default_rng(0), tmp_path)
    assert pool.sources == ["clean"] * 40 + ["shuffled"] * 40 + ["others"] * 40
    texts = [row["text"] for row in pool.rows.own]
    clean = set(texts[:40])
    held_out = {row["text"] for part in (pool.target, pool.dev, pool.test) for row in part.own}
    assert len(held_out) == 36
    assert not held_out & clean
    assert all(len(set(text.split())) > 1 for text in texts[40:80])
    assert pool.is_wanted == [True] * 40 + [False] * 80


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    """A pool of instructions from three sources, and two targets."""
    folder = tmp_path_factory.mktemp("data") / "instructions"
    folder.mkdir()
    texts = load_sample_text(150)["train"]["text"]

    def write(name: str, chosen: list[str], sources: list[str]) -> None:
        rows = [
            {
                "prompt": " ".join(text.split()[:2]),
                "completion": " ".join(text.split()[2:]),
                "source": f"{sources[i % len(sources)]}_template",
            }
            for i, text in enumerate(chosen)
        ]
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    write("pool", texts[:60], ["gsm8k", "cosmos", "trec"])
    for number, name in enumerate(("gsm8k", "cosmos")):
        write(f"{name}_dev", texts[60 + 20 * number :][:10], [name])
        write(f"{name}_test", texts[70 + 20 * number :][:10], [name])
    return folder.parent


@pytest.mark.slow
def test_sources_by_targets_and_their_mixtures(data_dir, tmp_path, capsys):
    command = [
        *("--data_dir", str(data_dir), "--output_dir", str(tmp_path / "out")),
        *("--targets", "gsm8k", "cosmos", "--rows", "50", "--steps", "4", "--width", "8"),
        *("--batch_size", "4", "--vocab_size", "300", "--outer_steps", "1"),
        *("--trainings", "2"),
    ]
    mixture.main(command)
    printed = capsys.readouterr().out
    assert "| trec" in printed
    rows = json.loads((tmp_path / "out" / "cosmos.json").read_text())
    of = {row["shares"]: row for row in rows}
    assert of["its own source alone"]["share of its own source"] == "1.00"
    assert of["equal shares of groups"]["share of its own source"] == "0.33"
    assert {"mixture, 1 outer steps", "mixture, 1 outer steps, from the best shares"} < of.keys()
    assert len(rows) == 12
    assert (tmp_path / "out" / "matrix" / "groups.png").exists()
    mixture.main([*command, "--only", "equal shares of groups"])
    (again,) = json.loads((tmp_path / "out" / "cosmos.json").read_text())
    assert again == of["equal shares of groups"]


def test_shares_that_another_run_has_kept_are_measured_again(data_dir, tmp_path):
    names = ["all rows", "shares of groups by n-gram importance", "mixture, 1 outer steps"]
    command = [
        *("--data_dir", str(data_dir), "--targets", "gsm8k", "--rows", "50", "--steps", "4"),
        *("--width", "8", "--batch_size", "4", "--vocab_size", "300", "--outer_steps", "1"),
    ]
    mixture.main(
        [*command, "--trainings", "2", "--output_dir", str(tmp_path / "two"), "--only", *names]
    )
    folder = tmp_path / "two" / "mixtures-gsm8k"
    again = [*command, "--trainings", "3", "--output_dir", str(tmp_path / "three")]
    mixture.main([*again, "--kept", str(folder)])
    measured = tmp_path / "three" / "mixtures-gsm8k"
    assert len(list(measured.iterdir())) == len(names)  # nothing was learnt
    for name in names:
        before, known = load_tensors(choice_file(folder, name))
        after, later = load_tensors(choice_file(measured, name))
        assert torch.equal(after["weights"], before["weights"])
        test = [json.loads(facts["known"])["test"] for facts in (known, later)]
        assert len(test[1]) == 3
        assert test[1][:2] == pytest.approx(test[0])
    with pytest.raises(ValueError, match=r"--kept: .* has no choice of these ways"):
        mixture.main([*again, "--kept", str(tmp_path)])


# -- instructions ----------------------------------------------------------------------------------


def test_a_share_of_the_answers_is_spoilt_in_three_ways():
    rows = [
        {
            "prompt": f"p{i}",
            "completion": " ".join(f"w{i}.{j}" for j in range(6)),
            "source": "ab"[i % 2],
        }
        for i in range(60)
    ]
    rows.append({"prompt": "p", "completion": "yes", "source": "alone"})
    given = [dict(row) for row in rows]
    found = weigh.with_spoilt_answers(rows, 1.0, np.random.default_rng(0))
    assert rows == given
    kinds = Counter(row["source"].split(")")[0] for row in found)
    assert kinds.keys() == {"spoilt (another answer", "spoilt (shuffled", "spoilt (cut"}
    assert max(kinds.values()) - min(kinds.values()) <= 3  # and one word can only be another
    answers = {row["completion"] for row in rows}
    for row, other in zip(given, found, strict=True):
        assert other["prompt"] == row["prompt"]
        assert other["completion"] != row["completion"]
        words = row["completion"].split()
        if "another" in other["source"]:
            assert other["completion"] in answers
        elif "cut" in other["source"]:
            assert other["completion"].split() == words[:3]
        else:
            assert sorted(other["completion"].split()) == sorted(words)
    # Another row's answer is one of the same source, if there is one.
    for other in found[:-1]:
        if "another" in other["source"]:
            place = int(other["completion"].split(".")[0].removeprefix("w"))
            assert rows[place]["source"] == other["source"][-1]
    half = weigh.with_spoilt_answers(rows, 0.5, np.random.default_rng(0))
    assert sum(row["source"].startswith("spoilt") for row in half) == 30


def test_answers_are_learnt_by_a_model_that_other_rows_have_pretrained(data_dir, tmp_path, capsys):
    command = [
        *("--pool", "instructions", "--data_dir", str(data_dir), "--target", "gsm8k"),
        *("--output_dir", str(tmp_path), "--spoilt", "0.5", "--pretrain_steps", "6"),
        *TINY.split(),
        *("--of_each", "12", "--keep", "6", "--vocab_size", "300"),
        *("--only", "all rows", "n-gram importance", "1 outer steps, from the best cheap way"),
    ]
    weigh.main(command)
    printed = capsys.readouterr().out
    assert "pretrained on 24 rows" in printed
    folder = tmp_path / "instructions-gsm8k-0-spoilt-0.5"
    rows = json.loads((folder / "table.json").read_text())["rows"]
    of = {row["method"]: row for row in rows}
    assert of["oracle"]["spoilt ones of it"] == "0"
    assert of["1 outer steps, from the best cheap way"]["rows"] == "6"
    args = weigh.parse(command)
    pool = weigh.instructions(args, np.random.default_rng(0), folder)
    everything = of["all rows"]
    assert everything["rows"] == str(len(pool.sources))
    counted = sum(int(everything[name]) for name in ("of the wanted kind", "spoilt ones of it"))
    assert counted == sum("gsm8k" in source for source in pool.sources)
    assert sum(source.startswith("spoilt") for source in pool.sources) == 18
    start = weigh.trainer_of(pool, args, folder).model_init().state_dict()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "pretrained-0").state_dict()
    assert all(bool((start[name] == x).all()) for name, x in saved.items())
    assert "pretrained on" not in capsys.readouterr().out  # it is taken as it was saved
    predicted = [sum(label >= 0 for label in labels) for labels in pool.rows.labels]
    assert all(0 < n < len(ids) for n, ids in zip(predicted, pool.rows.ids, strict=True))


# -- a pretrained model ----------------------------------------------------------------------------


def test_the_area_under_the_curve_counts_pairs():
    draw = np.random.default_rng(0)
    scores = draw.integers(0, 5, 40)
    is_right = draw.integers(0, 2, 40) > 0
    pairs = [
        (right > wrong) + 0.5 * (right == wrong)
        for right in scores[is_right]
        for wrong in scores[~is_right]
    ]
    assert weigh_pretrained.auc(scores, is_right) == pytest.approx(np.mean(pairs))


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft 0.21 asks for it
def test_half_of_the_rows_have_the_answer_of_another_row(data_dir, tmp_path, capsys):
    texts = load_sample_text(150)["train"]["text"]
    tokenizer = word_tokenizer(texts, 300)
    tokenizer.save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_config(config_of("llama", len(tokenizer)))
    model.save_pretrained(tmp_path / "model")
    command = [
        *("--model", str(tmp_path / "model"), "--data_dir", str(data_dir), "--source", ""),
        *("--output_dir", str(tmp_path / "out"), "--rows", "20", "--target_rows", "6"),
        *("--steps", "4", "--outer_steps", "2", "--lora", "2", "--quiet"),
        *("--rivals", "loss", "n_grams", "cross_entropy", "cosine"),
    ]
    args = weigh_pretrained.parse(command)
    with gzip.open(data_dir / "instructions" / "pool.jsonl.gz", "rt") as file:
        pool = [json.loads(line) for line in file]
    rows, target, is_right = weigh_pretrained.drawn(pool, tokenizer, args)
    assert sum(is_right) == 10
    assert all(row in pool for row in target)
    own = [row in pool for row in rows]
    assert own == is_right
    assert all(row["completion"] in {each["completion"] for each in pool} for row in rows)
    weigh_pretrained.main(command)
    printed = capsys.readouterr().out
    table = json.loads((tmp_path / "out" / "table.json").read_text())["table"]
    assert [row["way"].split(" (")[0] for row in table] == [
        "the pretrained model's own loss of the answer",
        "n-gram importance",
        "cross-entropy difference",
        "gradient cosine",
        "weights after 1 outer steps",
        "weights after 2 outer steps",
    ]
    assert "| way" in printed
    weigh_pretrained.main([*command, "--prior", "cosine"])
    table = json.loads((tmp_path / "out" / "table.json").read_text())["table"]
    assert table[-1]["way"].startswith("weights after 2 outer steps from gradient cosine")
    with pytest.raises(ValueError, match="--rows and --target_rows ask for 86 rows"):
        weigh_pretrained.drawn(pool, tokenizer, weigh_pretrained.parse([*command, "--rows", "80"]))


# -- users' histories ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", weigh_users.BOTS)
def test_bots_make_histories_up(kind):
    draw = np.random.default_rng(0)
    real = [draw.integers(1, 40, 5 + i % 3).tolist() for i in range(100)]
    made_up = weigh_users.BOTS[kind](real, 30, np.random.default_rng(1))
    assert len(made_up) == 30
    assert {len(row) for row in made_up} <= {5, 6, 7}
    assert {item for row in made_up for item in row} <= set(range(1, 40))
    different = {tuple(row) for row in made_up}
    assert (len(different) == 1) == (kind == "copied")


@pytest.mark.usefixtures("small_data")
def test_histories_are_chosen_and_hit_rates_measured(tmp_path, capsys):
    weigh_users.main(
        [
            *("--dataset", "sample_interactions", "--output_dir", str(tmp_path)),
            *("--steps", "3", "--outer_steps", "1", "--trainings", "2", "--splits", "0", "1"),
            *("--only", "real histories alone (oracle)", "all rows", "random rows"),
            *("n-gram importance", "1 outer steps, from the best cheap way"),
        ]
    )
    printed = capsys.readouterr().out
    splits = json.loads((tmp_path / "table.json").read_text())["splits"]
    assert len(splits) == 2
    of = {row["method"]: row for row in splits[0]}
    assert len(of) == 5
    oracle = of["real histories alone (oracle)"]
    assert (oracle["rows"], oracle["bots"]) == (80, 0)
    assert (of["all rows"]["rows"], of["all rows"]["bots"]) == (100, 20)
    assert all(row["rows"] == 80 for name, row in of.items() if name != "all rows")
    assert all(0 <= each["hr@10"] <= each["hr@100"] <= 1 for each in oracle["measured"])
    assert printed.count("| chosen by the dev part") == 2
