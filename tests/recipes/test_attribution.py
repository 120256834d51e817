"""The attribution recipe on tiny data: it is kept, goes on, and writes its card; each way to
differentiate gives the same influence.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")
import attribution
import influence
import influence_cost
from influence import CONFIGS, EXACT, AttributionArguments, AttributionProblem, parse
from influence_cost import METHODS
from tiny_recipes import GPT2, SASREC, places

from farzi_hf.attribution import WeightedTraining

# Python compiles the library `trak` at its first import, and finds escape sequences that it does
# not know.
pytestmark = [
    pytest.mark.usefixtures("small_data"),
    pytest.mark.filterwarnings("ignore:invalid escape sequence"),
]
LEARNERS = {"sample": GPT2, "sample_interactions": SASREC}
TINY = (
    "--num_train",
    "12",
    "--num_test",
    "4",
    "--longest",
    "8",
    "--steps",
    "2",
    "3",
    "--seeds",
    "0",
    "1",
    "--retrainings",
    "8",
    "--left_out",
    "0.2",
    "--cost_steps",
    "2",
    "--batch_size",
    "3",
    "--vocab_size",
    "60",
)
TRAININGS = ("training alone", "ordinary loop")
COSTS = [
    {"method": "autograd", "steps": 2, "status": "ok", "cpu_seconds": 0.1, "memory_bytes": 2**20},
    {"method": "autograd", "steps": 3, "status": "out of memory", "note": "stopped at 2.0 GiB"},
]


def problem(dataset: str, folder: Path, *more: str) -> AttributionProblem:
    learner = ("--learner", LEARNERS[dataset])
    _, data, args, _ = parse(
        ["--dataset", dataset, *TINY, *learner, "--output_dir", str(folder), *more]
    )
    return AttributionProblem(data, args)


@pytest.mark.parametrize(
    "path", sorted(CONFIGS.glob("attribution_*.yaml")), ids=lambda path: path.stem
)
def test_every_config_can_be_read(path: Path) -> None:
    name, data, args, _ = parse(
        ["--dataset", path.stem.removeprefix("attribution_").removesuffix("_quick")]
    )
    assert data.settings.dataset == name
    assert args.output_dir == f"outputs/{path.stem}"


def test_a_run_writes_its_card_and_a_second_one_trains_nothing(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(attribution, "measured", lambda problem, argv: COSTS)
    monkeypatch.setattr(influence, "RESAMPLES", 10)
    argv = ["--dataset", "sample", *TINY, "--learner", GPT2, *places(tmp_path)]
    attribution.main(argv)
    printed = capsys.readouterr().out
    assert {path.name for path in (tmp_path / "card").iterdir()} == set(attribution.FILES)
    table = json.loads((tmp_path / "card" / "table.json").read_text(encoding="utf-8"))
    assert [row["steps"] for row in table["scores"] if row["method"] == EXACT] == [2, 3]
    assert all(
        -1 <= low <= high <= 1 for low, high in (row["lds_interval"] for row in table["scores"])
    )
    assert all(len(row["lds_seeds"]) == 2 for row in table["scores"])
    with (tmp_path / "card" / "table.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(table["scores"])
    assert "out of memory (2 GiB)" in printed

    monkeypatch.setattr(WeightedTraining, "train", None)
    attribution.main(argv)


def test_a_measurement_that_failed_is_not_kept(tmp_path, monkeypatch) -> None:
    facts = [
        {"status": "failed", "note": "others took the memory"},
        {"status": "ok", "cpu_seconds": 0.1},
    ]
    monkeypatch.setattr(influence_cost, "in_process", lambda *args: facts.pop(0))
    p = problem("sample", tmp_path, "--ways", "Tape")
    assert [influence_cost.measured(p, [])[0]["status"] for _ in range(3)] == ["failed", "ok", "ok"]


def test_the_margin_of_trak_is_the_log_odds_of_each_token(tmp_path) -> None:
    trak = pytest.importorskip("trak_scores")
    p = problem("sample", tmp_path)
    batch = [p.test[name] for name in ("input_ids", "labels", "attention_mask")]
    model = p.learner.model
    found, slope = (
        trak.Margin().get_output(model, None, None, *batch),
        trak.Margin().get_out_to_loss_grad(model, None, None, batch),
    )
    for i, row in enumerate(p.test["input_ids"]):
        length = int(p.test["attention_mask"][i].sum())
        probabilities = model(input_ids=row[None, :length]).logits[0].softmax(-1)
        true = probabilities[torch.arange(length - 1), row[1:length]]
        torch.testing.assert_close(
            found[i], torch.log(true / (1 - true)).sum(), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(slope[i, 0], (1 - true).mean())


def test_a_retraining_leaves_out_its_share_and_other_settings_are_not_found_again(tmp_path) -> None:
    p = problem("sample", tmp_path)
    assert p.left_out(0).sum(1).tolist() == [2] * 8
    assert not torch.equal(p.left_out(0), p.left_out(1))
    assert p.kept("x", lambda: 1, "left_out") == p.kept("x", lambda: 2, "left_out") == 1
    assert problem("sample", tmp_path, "--left_out", "0.3").kept("x", lambda: 3, "left_out") == 3


def test_every_way_to_differentiate_gives_the_same_influence(tmp_path) -> None:
    p = problem("sample", tmp_path)
    ways = {
        name: method
        for name, method in METHODS.items()
        if name not in TRAININGS and "compiled" not in name
    }
    found = {name: method(p.training(0, 4), p.test) for name, method in ways.items()}
    for each in found.values():
        torch.testing.assert_close(each, found["autograd"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inner_optimizer": "lion"}, "inner_optimizer='lion' is unknown"),
        ({"ways": ["Tapes"]}, "ways: 'Tapes' is unknown"),
        ({"retrainings": 2}, "retrainings=2 and left_out=0.05 give no correlation"),
        ({"ways": ["Tape", "Tape"]}, "give a list of different values"),
    ],
)
def test_unusable_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttributionArguments(**changes)


def test_equal_numbers_share_their_ranks() -> None:
    """Predictions 0 0 1 2 and losses 1 2 0 3: the ranks are 0.5 0.5 2 3 and 1 2 0 3."""
    found = influence.spearman(np.array([0.0, 0.0, 1.0, 2.0]), np.array([1.0, 2.0, 0.0, 3.0]))
    assert found == pytest.approx(1.5 / (4.5 * 5) ** 0.5)
