"""The recipe that plants canaries: one that stands in the data a hundred times is found, one that
does not is not.
"""

from __future__ import annotations

import canaries
import numpy as np
import pytest
from tiny_recipes import CONFIGS, GPT2, SASREC

pytestmark = pytest.mark.usefixtures("small_data")


@pytest.mark.parametrize(("config", "learner"), [("demo.yaml", GPT2), ("demo_recsys.yaml", SASREC)])
def test_canaries_are_planted_and_found(config, learner, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(canaries, "OTHERS", 127)
    settings = {
        "learner": learner,
        "teacher_steps": 40,
        "packing_steps": 5,
        "sequence_length": 12,
        "output_dir": tmp_path,
        "use_cpu": True,
    }
    given = [f"--{name}={value}" for name, value in settings.items()]
    canaries.main(
        ["--config", str(CONFIGS / config), *given, "--disable_tqdm=true", "--report_to=none"]
    )
    head, _, *rows = [
        line.split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("|")
    ]
    bits = [[float(cell.split("bits")[0]) for cell in row[2:6]] for row in rows]
    assert [cell.strip() for cell in head[2:6]] == [f"planted {n} times" for n in (0, 1, 10, 100)]
    assert len(bits) == 2
    assert all(row[0] < 5 and row[3] > 6.5 for row in bits)
    assert list(tmp_path.iterdir()) == []


def test_exposure_is_as_in_the_paper():
    others = np.arange(1.0, 8.0)
    assert canaries.exposure(np.array([0.5, 1.5, 9.0]), others).tolist() == [3.0, 2.0, 0.0]
