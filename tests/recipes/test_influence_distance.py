"""How far scores see: a run writes its card seed by seed, and a second one trains nothing."""

from __future__ import annotations

import json

import influence
import influence_distance
import pytest
from influence_distance import EXACT, FILES, RANDOM, SHARES, DistanceProblem
from tiny_recipes import places

from farzi_hf.attribution import WeightedTraining

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_data")]
TINY = (
    "--dataset",
    "sample",
    "--num_train",
    "20",
    "--num_test",
    "4",
    "--longest",
    "8",
    "--steps",
    "8",
    "--retrainings",
    "8",
    "--batch_size",
    "3",
    "--vocab_size",
    "60",
    "--seeds",
    "0",
    "1",
)


def test_a_run_writes_its_card_and_a_second_one_trains_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        influence_distance, "SETTINGS", {"tied, lr 0.01, ε 0.01": (True, 1e-2, 1e-2, 100)}
    )
    monkeypatch.setattr(influence, "RESAMPLES", 10)
    influence_distance.main([*TINY, *places(tmp_path)])
    assert {path.name for path in (tmp_path / "card").iterdir()} == set(FILES)
    found = json.loads((tmp_path / "card" / "table.json").read_text(encoding="utf-8"))
    assert [row["left_out"] for row in found["scores"] if row["method"] == EXACT] == list(SHARES)
    used = [(row["by"], row["without"], row["seed"]) for row in found["use"]]
    assert ("all", 0.0, 1) in used
    assert (RANDOM, -0.3, 0) in used
    assert len(used) == 2 * (1 + 3 * 4)
    monkeypatch.setattr(WeightedTraining, "train", None)
    influence_distance.main([*TINY, *places(tmp_path)])


def test_what_is_chosen_is_what_the_scores_say(tmp_path, monkeypatch) -> None:
    """The lowest 5, 10 and 20 % are left out; of the highest, 30 % stay. Of 20 rows."""
    monkeypatch.setattr(
        influence_distance, "SETTINGS", {"untied, lr 0.01": (False, 1e-2, 1e-6, 100)}
    )
    problem, chosen = (
        DistanceProblem.of([*TINY[:-3], "--output_dir", str(tmp_path)], "untied, lr 0.01"),
        [],
    )
    scores = {
        name: [float(-i) for i in range(20)]
        for name in (EXACT, influence_distance.OVER_HALVES, RANDOM)
    }
    monkeypatch.setattr(DistanceProblem, "scores", lambda self, seed: scores)
    fresh = DistanceProblem._fresh

    def noted(self, rows, seed):
        chosen.append(sorted(rows.tolist()))
        return fresh(self, rows, seed)

    monkeypatch.setattr(DistanceProblem, "_fresh", noted)
    problem.use(0)
    expected = [list(range(20)), *[list(range(k)) for k in (19, 18, 16, 6)]]
    assert {tuple(x) for x in chosen} == {tuple(x) for x in expected}
