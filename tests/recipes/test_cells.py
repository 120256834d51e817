"""A cell of a paper's table that a signal ends and that goes on later."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_recipes import COMPARED, GPT2, places
from tiny_trainer import SignalAt

pytest.importorskip("matplotlib")
import cells
from experiment import OWN_FORM, Experiment, changed

from farzi_hf.distillation.run import Interrupted

pytestmark = pytest.mark.usefixtures("small_data")


def experiment(folder: Path) -> Experiment:
    form = (
        "--inputs",
        "tokens",
        "--labels",
        "own",
        "--num_students",
        "1",
        "--save_strategy",
        "no",
        "--logging_steps",
        "1",
    )
    return Experiment.parse(
        "any", "Any", [*COMPARED, *form, "--learner", GPT2, *places(folder)], forms=OWN_FORM
    )


def test_a_cell_that_goes_on_counts_all_its_seconds_and_leaves_no_checkpoint(tmp_path, monkeypatch):
    """Other settings are then a new cell, and no error."""
    now, make, callbacks = [100.0], cells.trainer_of, [SignalAt("SIGINT", step=0)]
    monkeypatch.setattr(cells, "time", Namespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(
        cells, "distillation_seconds", lambda log: 50 * max((x["step"] for x in log), default=0)
    )

    def slow_trainer(*args):
        now[0] += 50
        trainer = make(*args)
        while callbacks:
            trainer.add_callback(callbacks.pop())
        return trainer

    monkeypatch.setattr(cells, "trainer_of", slow_trainer)
    e, cell = experiment(tmp_path), cells.Cell("Farzi")
    with pytest.raises(Interrupted):
        cells._run(e, cell, 0)
    folder = tmp_path / "runs" / "farzi" / "seed-0"
    assert (folder / "checkpoint-1").exists()
    now[0] = 1000.0
    assert cells._run(e, cell, 0)["seconds"] == 100
    assert {path.name for path in folder.iterdir()} == {
        "cell.json",
        "recipe.yaml",
        "summary.safetensors",
    }
    assert cells._run(replace(e, args=changed(e.args, num_sequences=5)), cell, 0)["seconds"] == 50
