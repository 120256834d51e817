"""The recommendation recipe as its user meets it: a whole run over two splits, and one of real data
alone.
"""

from __future__ import annotations

import csv
import json
import os
import shutil

import pytest
from tiny_recipes import DEMO_RECSYS

pytest.importorskip("matplotlib")
import recsys

from farzi_hf import FarziConfig, FarziData
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.report import RunSettings
from farzi_hf.tasks import Recommendation


def test_a_run_over_two_splits_leaves_one_table(finished_items):
    methods = [
        "Farzi [4×8]",
        "Farzi, 0 outer steps",
        "Farzi, stock Trainer",
        "packed teacher, made-up inputs, warm start",
        "teacher",
        "full data",
        "full data, long",
        "random, same sequences",
        "random, same bytes",
        "head (longest)",
        "popularity",
        "item bigram",
        "rules of sequences, counted",
    ]
    table = (finished_items.output / "table.md").read_text()
    assert table.partition("\n\n")[0] in finished_items.printed
    rows = list(
        csv.DictReader(
            (finished_items.output / "table.csv").read_text(encoding="utf-8").splitlines()
        )
    )
    assert [row["method"] for row in rows] == methods
    assert all(0 <= float(row[metric]) <= 1 for row in rows for metric in Recommendation.shown)
    assert "splits: [0, 1]" in table


@pytest.mark.parametrize("split", [0, 1])
def test_each_split_leaves_a_summary_that_loads_with_its_recipe(finished_items, split):
    summary = finished_items.output / f"split-{split}" / "summary"
    farzi = FarziData.from_pretrained(summary)
    assert "part 1" in json.dumps(farzi.decode(5), ensure_ascii=False)
    assert "ranks" not in (summary / "metrics.json").read_text()
    config = ["--config", str(summary / "recipe.yaml")]
    settings, _ = parse_arguments((RunSettings, FarziConfig), recsys.CONFIG, config)
    assert settings.splits == [split]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_what_is_done_stays_done_and_the_rest_goes_on(finished_items, tmp_path, small_data, capsys):
    output = shutil.copytree(finished_items.output, tmp_path / "run")
    times = {path: os.stat(path).st_mtime_ns for path in output.glob("split-*/results.json")}
    assert len(times) == 2
    recsys.main([*DEMO_RECSYS, "--output_dir", str(output), "--splits", "0", "1"])
    assert {path: os.stat(path).st_mtime_ns for path in times} == times
    recsys.main([*DEMO_RECSYS, "--output_dir", str(output), "--splits", "1", "--baselines", "head"])
    assert f"going on from {output / 'split-1' / 'checkpoint-2'}" in capsys.readouterr().out
