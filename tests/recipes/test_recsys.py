"""The recommendation recipe as its user meets it: settings, rows, and a whole run over two splits."""

from __future__ import annotations

import csv
import json
import os
from typing import get_type_hints

import numpy as np
import pytest
import torch
import yaml
from datasets import load_dataset
from tiny_recipes import GRU4REC, RECIPES, TINY

pytest.importorskip("matplotlib")
import recsys
from _common import parse_arguments
from _comparison import BASELINES
from _recommendation import METRICS, count_rows, paper_rows, pooled, ranking_row, ratios, readable

from farzi_hf import FarziConfig, FarziData
from farzi_hf.data import flatten_sequences, load_sample_interactions
from farzi_hf.evaluation.metrics.ranking import rank_metrics

SIZES = {
    "magazine_10x10", "magazine_25x20", "magazine_50x20", "ml-100k_10x150", "ml-100k_25x150", "ml-100k_50x50", "ml-100k_100x100",
    "ml-1m_200x50", "netflix_500x200", "magazine_full", "ml-100k_full", "demo_recsys",
}  # fmt: skip
TYPES = (recsys.RecipeArguments, FarziConfig)
SMALL = (
    *TINY, "--config", str(RECIPES / "configs" / "demo_recsys.yaml"), "--logging_steps", "1", "--eval_steps", "2",
    "--eval_students", "1", "--long_steps", "6", "--learner", GRU4REC,
)  # fmt: skip


def parse(*argv: str) -> tuple[recsys.RecipeArguments, FarziConfig]:
    return parse_arguments(TYPES, recsys.QUICK, argv)


@pytest.fixture
def comparison(tmp_path):
    recipe, args = parse(*SMALL, "--output_dir", str(tmp_path))
    args.label_names = ["labels", "seen"]
    return recsys.comparison_of(recipe, args, load_sample_interactions(100), split=0)


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SIZES))
def test_a_config_gives_every_field_its_type_and_a_model(name):
    path = RECIPES / "configs" / f"{name}.yaml"
    recipe, args = parse("--config", str(path))
    for kind, values in zip(TYPES, (recipe, args), strict=True):
        for field, hint in get_type_hints(kind).items():
            value = getattr(values, field, None)
            for number, allowed in ((float, (float, int)), (int, int)):
                if hint in (number, number | None) and value is not None:
                    assert isinstance(value, allowed), field
    in_file = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {k: v for k, v in in_file.items() if k != "inner_epsilon"}.items() <= {**vars(recipe), **vars(args)}.items()
    if "full" not in name and name != "demo_recsys":
        assert name.endswith(f"_{args.num_sequences}x{args.sequence_length}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("splits: []", "splits is empty"),
        ("baselines: [none]", f"'none' is unknown; choose from {', '.join(BASELINES)}"),
        ("learner: {hidden_size: 8}", "has no model_type"),
        ("learner: sasrec", "learner='sasrec' is not JSON"),
        ("long_training: 5", "long_training=5 is no mapping"),
        ("num_students: 0", "give at least 1"),
        ("dataset: ml-100k\ndata_dir: nowhere", "data_dir='nowhere' lacks u.data"),
        ("dataset: sample\nsequence_length: 1", "sequence_length=1 is not usable"),
    ],
)
def test_a_config_that_is_wrong_ends_in_one_line(tmp_path, content, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop:
        recsys.main(["--config", str(path), "--output_dir", str(tmp_path / "out")])
    assert message in stop.value.code


# -- rows ------------------------------------------------------------------------------------------------------------


def test_students_are_measured_as_the_trainer_does(comparison):
    student = comparison.student(comparison.trainer.train_student(0))
    expected = comparison.trainer.evaluate()
    measured = rank_metrics(comparison.statistics(student, comparison.splits["validation"]))
    assert measured == pytest.approx({name: expected[f"eval_{name}"] for name in measured})
    assert comparison.validation_error(student) == -measured["hr@100"]


def test_students_on_real_data_learn_from_whole_histories(comparison):
    train, few = comparison.splits["train"], comparison.draw_sequences(0)
    assert len(few) == 4
    assert flatten_sequences(few)[1].max() > comparison.config.max_length  # so they are cut into windows
    before, after = (
        rank_metrics(comparison.statistics(comparison.train_on_real(train, n, 0), train))["auc"] for n in (1, 60)
    )
    assert after > before + 0.05
    long = comparison.long_student(0)
    assert long({"input_ids": torch.ones(1, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3)}).shape == (
        1,
        3,
        220,
    )


def test_popularity_and_item_pairs_are_counted(comparison):
    rows = {row["method"]: row for row in count_rows(comparison)}
    test, counts = comparison.splits["test"]["input_ids"], np.zeros(220)
    for history in comparison.splits["train"]["input_ids"]:
        np.add.at(counts, history, 1)
    ranks = []
    for *seen, target in test:
        others = set(range(1, 220)) - set(seen) - {target}
        ranks.append(1 + sum((counts[i], -i) > (counts[target], -target) for i in others))
    assert np.array(rows["popularity"]["ranks"])[0, :, 0].tolist() == ranks
    assert rows["item bigram"]["hr@10"] > 2 * rows["popularity"]["hr@10"]


def statistics(users: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.stack([generator.integers(1, 200, (2, users)), generator.random((2, users))], axis=-1).astype(float)


def test_splits_are_put_together_by_their_users():
    a, b = statistics(30, 0), statistics(50, 1)
    splits = [[{**ranking_row("x", values, nbytes), "steps": 5}] for values, nbytes in ((a, 10), (b, 20))]
    (row,) = pooled(splits)
    together = [rank_metrics(np.concatenate([a[i], b[i]])) for i in range(2)]
    means = [rank_metrics(values)["hr@100"] for split in (a, b) for values in split]
    assert row["hr@100"] == pytest.approx(np.mean(means))
    assert row["hr@100_std"] == pytest.approx(np.std(means, ddof=1))
    assert row["hr@100_interval"][0] < np.mean([m["hr@100"] for m in together]) < row["hr@100_interval"][1]
    assert (row["bytes"], row["steps"]) == (15, 5)
    assert pooled(splits[:1]) == splits[0]


def test_the_papers_figures_stand_beside_ours():
    ours = [
        {"method": name, **dict.fromkeys(METRICS, value)}
        for name, value in (("Farzi [50×50]", 0.2), ("full data, long", 0.25))
    ]
    rows = [*ours, *paper_rows("ml-100k", "[50×50]")]
    assert [row["method"] for row in rows[2:]] == ["the paper, 50×50", "the paper, full data"]
    facts = ratios(rows, "Farzi [50×50]")
    assert facts["Farzi / full data, long"].startswith("HR@10 80.0 %")
    assert facts["the paper's"].startswith("HR@10 107.7 %")
    assert paper_rows("sample", "[50×50]") == []
    assert readable(rows[2])["HR@100, %"] == "62.9"


# -- whole runs ------------------------------------------------------------------------------------------------------


def test_a_run_over_two_splits_leaves_one_table_and_summaries_that_load(tmp_path, capsys):
    output = tmp_path / "run"
    recsys.main([*SMALL, "--output_dir", str(output), "--splits", "0", "1"])
    said = capsys.readouterr().out
    methods = [
        "Farzi [4×8]", "Farzi, 0 outer steps", "Farzi, stock Trainer", "full data", "full data, long", "random, same sequences",
        "random, same bytes", "head (longest)", "popularity", "item bigram",
    ]  # fmt: skip
    table = (output / "table.md").read_text()
    assert table in said
    rows = list(csv.DictReader((output / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["method"] for row in rows] == methods
    assert all(0 <= float(row[metric]) <= 1 for row in rows for metric in METRICS)
    assert "splits: [0, 1]" in table
    for split in (0, 1):
        summary = output / f"split-{split}" / "summary"
        farzi = FarziData.from_pretrained(summary)
        data = load_dataset(str(summary), split="train", cache_dir=str(tmp_path / f"cache-{split}"))
        np.testing.assert_array_equal(np.array(data["latents"]), farzi.latents.detach().numpy())
        assert "part 1" in json.dumps(farzi.decode(5), ensure_ascii=False)
        assert "ranks" not in (summary / "metrics.json").read_text()
        recipe, _ = parse("--config", str(summary / "recipe.yaml"))
        assert recipe.splits == [split]

    times = {path: os.stat(path).st_mtime_ns for path in output.glob("split-*/results.json")}
    recsys.main([*SMALL, "--output_dir", str(output), "--splits", "0", "1"])
    assert {path: os.stat(path).st_mtime_ns for path in times} == times  # done stays done
    recsys.main([*SMALL, "--output_dir", str(output), "--splits", "1", "--baselines", "head"])
    assert f"going on from {output / 'split-1' / 'checkpoint-2'}" in capsys.readouterr().out


def test_real_data_alone(tmp_path, capsys):
    recsys.main([*SMALL, "--output_dir", str(tmp_path), "--distil", "false", "--baselines", "full_long"])
    table = (tmp_path / "table.md").read_text()
    assert "full data, long" in table
    assert "Farzi" not in table.split("\n\n")[0]
    assert not (tmp_path / "split-0" / "summary").exists()
