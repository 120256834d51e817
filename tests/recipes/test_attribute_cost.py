"""The comparison with bergson: what it compares with is a plain training, and its card."""

from __future__ import annotations

import json

import attribute_cost
import pytest
import torch
from attribute_cost import WAYS, Problem, exactness

TINY = Problem(width=8, steps=3, vocabulary=20, rows=4, length=5, batch=2)


@pytest.fixture
def double():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("tied", [False, True])
def test_scores_are_what_small_weights_do_to_a_training_by_torch_alone(tied):
    """With tied embeddings too, where bergson differentiates a training with two pairs of moments
    for one tensor.
    """
    facts = {}
    exactness(facts.update, WAYS["ours, Tape"], attribute_cost.replace(TINY, tied=tied))
    assert facts["cosine"] > 1 - 1e-9
    assert facts["error"] < 1e-5


def test_cells_that_are_there_are_not_measured_again(tmp_path, monkeypatch, capsys):
    measured = []

    def in_process(measure, cell, limits):
        measured.append(cell["way"])
        if cell["is_small"]:
            return {"status": "ok", "cosine": 1.0, "error": 1e-8}
        scores = None if "plain" in cell["way"] else [1.0, 2.0]
        return {
            "status": "ok",
            "seconds": 2.0,
            "memory_bytes": 2**20,
            "disk_bytes": 0,
            "scores": scores,
        }

    monkeypatch.setattr(attribute_cost, "in_process", in_process)
    monkeypatch.setattr(attribute_cost, "find_spec", lambda name: None)
    monkeypatch.setattr(attribute_cost, "code_hash", lambda *names: "code")
    arguments = [
        "--output_dir",
        str(tmp_path),
        "--tables",
        "Width 48, T = 100, eight queries",
        "Beside central differences",
    ]
    for _ in range(2):
        attribute_cost.main(arguments)
        assert measured == [
            "plain torch loop",
            "ours, adjoint=None",
            "ours, Tape",
            "ours, Reversible",
        ]
    assert "bergson is not installed" in capsys.readouterr().out
    assert (
        "| ours, adjoint=None | 2.0 | 1.0 |   1 |    0 | 1.000000 |"
        in (tmp_path / "table.md").read_text()
    )
    assert len(json.loads((tmp_path / "results.json").read_text())) == 4
