"""The outer loop over the start of students: rates and maps are learnt, and measured on fresh
seeds.
"""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

pytest.importorskip("matplotlib")
import warm_outer

from farzi_hf import FarziData, InnerAdam
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.summary.start import start_values


@pytest.mark.usefixtures("small_data")
def test_rates_and_maps_are_learnt_and_compared(carried_summary, tmp_path, monkeypatch):
    card = tmp_path / "card"
    argv = [
        str(carried_summary),
        "--student",
        "RNN 64",
        "--inputs",
        "drawn",
        "--card_dir",
        str(card),
    ]
    argv += ["--steps", "2", "--rows", "4", "--outer_steps", "2", "--num_students", "2"]
    warm_outer.main(argv)
    found = json.loads((card / "table.json").read_text(encoding="utf-8"))
    names = [row["method"] for row in found["rows"]]
    assert names[0].startswith("the best fixed rate")
    assert names[1:] == ["learnt rates", "learnt rates and maps"]
    assert len(found["findings"]) == 2
    learnt = json.loads((card / "kept" / "learnt_rates.json").read_text(encoding="utf-8"))["value"]
    both = json.loads((card / "kept" / "learnt_rates_and_maps.json").read_text(encoding="utf-8"))
    for rows in learnt["numbers"]["maps"].values():
        torch.testing.assert_close(torch.tensor(rows), torch.eye(len(rows)))
    for rows in both["value"]["numbers"]["maps"].values():
        assert not torch.equal(torch.tensor(rows), torch.eye(len(rows)))

    def fails(*args: object) -> None:
        raise AssertionError("it learns again")

    monkeypatch.setattr(warm_outer, "learn", fails)
    warm_outer.main(argv)


def test_a_factor_on_all_rates_is_another_rate_and_the_gradient_is_that_of_differences():
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "initializer_range": 0.3}
    teacher = AutoModelForCausalLM.from_config(AutoConfig.for_model("farzi_rnn", **sizes))
    farzi = FarziData.from_teacher(teacher, sequence_length=6, storage="exact")
    learner = Learner(AutoConfig.for_model("farzi_rnn", hidden_size=8, **sizes))
    tables = start_values(farzi.teacher, learner.model)
    matrices = {name: x for name, x in tables.items() if x.dim() > 1}

    def training(rate: float) -> warm_outer.WarmTraining:
        inner = SyntheticTraining(InnerAdam(lr=rate, eps=1e-12), farzi.forms, batch_size=2)
        return warm_outer.WarmTraining(inner, learner, farzi, tables, 3)

    half = training(0.004)(warm_outer.Numbers.neutral(matrices, 0.5), seed=1)
    other = training(0.002)(warm_outer.Numbers.neutral(matrices), seed=1)
    for name, x in half.items():
        torch.testing.assert_close(x, other[name], rtol=1e-3, atol=1e-4)

    ids = torch.arange(6)[None]
    batch = {"input_ids": ids, "labels": ids}
    numbers = warm_outer.Numbers.neutral(matrices).learnable()
    learner.hard_loss(training(0.004)(numbers, seed=1), batch).backward()
    gradient = numbers.rates[warm_outer.TABLES].grad.item()

    def loss(change: float) -> float:
        changed = warm_outer.Numbers.neutral(matrices)
        changed.rates[warm_outer.TABLES].add_(change)
        return learner.hard_loss(training(0.004)(changed, seed=1), batch).item()

    difference = (loss(0.05) - loss(-0.05)) / 0.1
    assert abs(difference) > 1e-4
    assert gradient == pytest.approx(difference, rel=0.05)
