"""The recipe of model selection on tiny data: it is kept, goes on, and writes its card; its numbers are the known ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import model_selection
from model_selection_problem import (
    DISTILLED,
    LONG,
    SAME_COST,
    SAME_STEPS,
    START,
    WAYS,
    WINDOWS,
    Configuration,
    SelectionArguments,
    SelectionProblem,
    Way,
    configurations_of,
    parse,
)
from model_selection_rows import (
    Results,
    correlation,
    cost_rows,
    findings_of,
    kendall,
    ranks_better,
    regret,
    same_cost_fact,
    verdict,
)
from quick_scale import CONFIGS
from tiny_recipes import SASREC, places
from transformers import TrainerCallback

from farzi_hf import FarziTrainer
from farzi_hf.tasks.metrics import bootstrap_interval

pytestmark = pytest.mark.usefixtures("small_data")
TINY = (
    "--num_sequences", "4", "--sequence_length", "8", "--inner_steps", "4", "--synthetic_batch_size", "2", "--window", "2", "--max_steps", "1",
    "--teacher_steps", "3", "--teacher_batch_size", "4", "--per_device_train_batch_size", "4", "--learner", SASREC, "--widths", "4",
    "--layers", "1", "--learning_rates", "0.01", "--weight_decays", "0", "--per_architecture", "1", "--truth_steps", "3", "--same_cost_steps", "5",
    "--truth_batch_size", "4", "--use_cpu", "true", "--disable_tqdm", "true",
)  # fmt: skip


def problem(folder: Path, *more: str) -> SelectionProblem:
    return parse([*TINY, "--output_dir", str(folder), *more])[1]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("model_selection_*.yaml")), ids=lambda path: path.stem)
def test_every_config_can_be_read(path: Path) -> None:
    name, p, _ = parse(["--dataset", path.stem.removeprefix("model_selection_").removesuffix("_quick")])
    assert p.data.settings.dataset == name
    assert p.args.output_dir == f"outputs/{path.stem}"
    assert len(p.configurations) >= (24 if name == "ml-100k" else 3)


def test_a_run_writes_its_card_and_a_second_one_trains_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(bootstrap_interval, "__defaults__", (np.mean, 0.95, 10, 0))
    model_selection.main([*TINY, *places(tmp_path), "--splits", "0", "1"])
    assert {path.name for path in (tmp_path / "card").iterdir()} == set(model_selection.FILES)
    table = json.loads((tmp_path / "card" / "table.json").read_text(encoding="utf-8"))
    assert len(table["trainings"]) == 2 * 3 * len(WAYS)
    assert all(row["seconds"] > 0 for row in table["trainings"])
    assert {row["chosen by"] for row in table["rows"]} == {way.name for way in WAYS}
    assert all(len(row["kendall_splits"]) == 2 and row["regret"] >= 0 for row in table["rows"])
    before = {row["trained on"]: row["before"] for row in table["costs"]}
    assert before[DISTILLED] > before[START] == before[WINDOWS] > 0 == before[SAME_STEPS]
    with (tmp_path / "card" / "table.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == len(table["rows"]) + len(table["costs"])
    assert "worth it" in capsys.readouterr().out

    monkeypatch.setattr(SelectionProblem, "_train", None)
    monkeypatch.setattr(SelectionProblem, "_make_summaries", None)
    again = problem(tmp_path / "runs", "--splits", "0", "1")
    assert model_selection.trainings_of(again) == table["trainings"]
    assert again.summary_seconds(1)[DISTILLED] > 0


@pytest.mark.parametrize(
    "name", ["summaries.json", "the-summary.safetensors", "all-real-data-for-long/fmlp-4x1-0.01-0.json"]
)
def test_files_of_others_are_refused_before_the_work(tmp_path, monkeypatch, name) -> None:
    monkeypatch.setattr(model_selection, "trainings_of", None)
    path = tmp_path / "runs" / "split-0" / name
    path.parent.mkdir(parents=True)
    path.write_text("5", encoding="utf-8")
    with pytest.raises(SystemExit, match=f"{path.name}' exists already"):
        model_selection.main([*TINY, *places(tmp_path)])
    assert path.read_text(encoding="utf-8") == "5"


def test_a_distillation_that_was_interrupted_is_made_anew(tmp_path, monkeypatch) -> None:
    """Also where the user has asked for checkpoints."""
    whole = problem(tmp_path / "whole", "--max_steps", "3").summary(0, DISTILLED)

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == 2

        def on_save(self, args, state, control, **kwargs):
            raise KeyboardInterrupt

    make = SelectionProblem._trainer
    with monkeypatch.context() as patch:
        patch.setattr(SelectionProblem, "_trainer", lambda self, split: with_callback(make(self, split), Stop()))
        with pytest.raises(KeyboardInterrupt):
            problem(tmp_path / "runs", "--max_steps", "3").summary(0, DISTILLED)
    again = problem(tmp_path / "runs", "--max_steps", "3").summary(0, DISTILLED)
    assert again.fingerprint() == whole.fingerprint()


def test_files_of_an_interrupted_run_with_other_settings_are_not_taken_for_ours(tmp_path, monkeypatch) -> None:
    whole = problem(tmp_path).summary(0, START).fingerprint()

    def interrupted(trainer: FarziTrainer) -> None:
        assert not trainer.saves_on_signal  # nobody goes on from there
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FarziTrainer, "train", interrupted)
        with pytest.raises(KeyboardInterrupt):
            problem(tmp_path, "--teacher_steps", "7").summary_seconds(0)
    assert problem(tmp_path).summary(0, START).fingerprint() == whole


def with_callback(trainer: FarziTrainer, callback: TrainerCallback) -> FarziTrainer:
    trainer.add_callback(callback)
    return trainer


def test_outer_steps_change_the_labels_and_real_windows_the_ids(tmp_path) -> None:
    p = problem(tmp_path)
    distilled, start, windows = (p.summary(0, name) for name in (DISTILLED, START, WINDOWS))
    assert distilled.input_ids.equal(start.input_ids)
    assert not distilled.label_latents.equal(start.label_latents)
    assert not windows.input_ids.equal(start.input_ids)
    assert windows.label_decoder.equal(start.label_decoder)  # the same teachers
    real = p.data.splits(0)["train"]["input_ids"]
    end_to_end = " ".join(str(item) for row in real for item in row)
    assert " ".join(map(str, windows.input_ids[0, :2].tolist())) in end_to_end


def test_only_what_depends_on_a_setting_is_trained_again(tmp_path, monkeypatch) -> None:
    before = problem(tmp_path)
    for way in WAYS:
        before.trained(0, before.configurations[0], way)
    again = []

    def noted(self: SelectionProblem, split: int, configuration: Configuration, way: Way) -> dict[str, Any]:
        again.append(way.name)
        return {}

    monkeypatch.setattr(SelectionProblem, "_train", noted)
    monkeypatch.setattr(SelectionProblem, "_make_summaries", lambda self, split: {})
    for change in (("--truth_steps", "4"), ("--max_steps", "2"), ("--sequence_length", "6")):
        p = problem(tmp_path, *change)
        for way in WAYS:
            p.trained(0, p.configurations[0], way)
    summaries = [DISTILLED, START, WINDOWS]
    # The second change finds the truth of three steps no more, because the first one has replaced it.
    assert again == [LONG, *summaries, LONG, *(way.name for way in WAYS)]


def test_configurations_are_distinct_and_the_same_every_time() -> None:
    args = SelectionArguments()
    found = configurations_of(args)
    assert found == configurations_of(args)
    assert len({one.slug for one in found}) == len(found) == 24
    assert [one.architecture for one in found[:3]] == args.architectures
    assert configurations_of(SelectionArguments(per_architecture=4)) == found[:12]


# -- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [10, 4])  # without and with ties
def test_kendall_is_scipys(numbers: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = np.random.default_rng(0)
    for _ in range(20):
        x, y = generator.integers(numbers * (1000 if numbers == 10 else 1), size=(2, 12))
        np.testing.assert_allclose(kendall(x, y), stats.kendalltau(x, y).statistic, atol=1e-12)


def test_a_list_of_equal_numbers_ranks_nothing() -> None:
    assert correlation(kendall, np.ones(4), np.arange(4)) == 0
    assert correlation(kendall, np.arange(4), 2 * np.arange(4)) == 1


def test_regret_is_what_the_choice_loses_and_equal_choices_share_it() -> None:
    truth = np.array([0.5, 0.7, 0.6])
    assert regret(np.array([1, 3, 2]), truth) == 0
    assert regret(np.array([3, 1, 2]), truth) == pytest.approx(0.2)
    assert regret(np.array([3, 1, 3]), truth) == pytest.approx(0.15)


def results(**proxies: np.ndarray) -> Results:
    """Results over two splits whose truth is in rising order. All other proxies rank as the truth does."""
    rising = np.stack([np.arange(24.0)] * 2)
    values = {way.name: {"validation": proxies.get(way.name, rising), "test": rising} for way in WAYS}
    return Results(values, np.repeat(["sasrec", "fmlp", "gru4rec"], 8))


def test_a_row_tells_a_good_proxy_from_a_reversed_one() -> None:
    reversed_ = np.stack([-np.arange(24.0)] * 2)
    found = results(**{START: reversed_})
    good, bad = (found.row(way, "hr@100") for way in (DISTILLED, START))
    assert (good["kendall"], good["spearman"], good["regret"]) == (1, pytest.approx(1), 0)
    assert (bad["kendall"], bad["spearman"], bad["regret"]) == (-1, pytest.approx(-1), 23)
    assert (good["kendall_within"], bad["kendall_within"]) == (1, -1)
    assert good["kendall_interval"] == pytest.approx([1, 1])
    assert found.blind_regret() == 11.5


def test_the_findings_say_whether_the_summary_is_worth_it() -> None:
    noisy = np.stack([np.random.default_rng(seed).normal(size=24) for seed in (0, 1)])
    found = {metric: results(**{SAME_COST: noisy}) for metric in ("hr@100", "ndcg@10")}
    costs = cost_rows([{"way": way.name, "seconds": 2.0} for way in WAYS], [{DISTILLED: 5.0, START: 3.0}])
    expected = {way.name: 2.0 for way in WAYS} | {DISTILLED: 7.0, START: 5.0}
    assert {row["trained on"]: row["all"] for row in costs} == expected
    first, second, *differences = findings_of(found, costs)
    assert (
        "the summary is not worth it: beside all real data, same cost, it ranks configurations better" in first
    )  # but costs more than the truth
    assert "350% of the truth" in first
    assert "HR@100 0.0 (all real data, same cost" in first
    assert "the summary before outer steps is not worth it" in second
    assert "ranks better than all real data, same cost" in differences[0]
    assert "is not told apart from all real data, same steps" in differences[1]


def test_to_tell_architectures_apart_is_not_to_rank_within_them() -> None:
    blocks = np.repeat([[0.0, 10.0, 20.0]], 8) - np.tile(
        np.arange(8.0), 3
    )  # the right order of architectures, reversed within each
    row = results(**{START: np.stack([blocks] * 2)}).row(START, "hr@100")
    assert row["kendall"] > 0.3
    assert row["kendall_within"] == -1


def test_better_is_better_in_one_metric_and_worse_in_none() -> None:
    assert [ranks_better(signs) for signs in ([1, 0], [0, 0], [1, -1], [1, 1])] == [True, False, False, True]


@pytest.mark.parametrize(
    ("better", "more", "share", "worth"),
    [(True, False, 0.5, True), (False, False, 0.5, False), (True, True, 0.5, False), (True, False, 1.5, False)],
)
def test_worth_it_is_better_ranks_no_worse_choices_and_cheaper(
    better: bool, more: bool, share: float, worth: bool
) -> None:
    assert ("is worth it" in verdict(START, better, more, share)) == worth


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"per_architecture": 100}, "per_architecture=100, but .* 36 combinations"),
        ({"architectures": ["fmlp"], "per_architecture": 2}, "2 configurations, which no correlation"),
        ({"widths": [8, 8]}, r"widths=\[8, 8\] is not usable: give a list of different values"),
        ({"truth_steps": 0}, "truth_steps=0"),
        ({"same_cost_steps": 0}, "same_cost_steps=0"),
    ],
)
def test_unusable_settings_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SelectionArguments(**changes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--max_steps", "0"), "max_steps=0"),
        (("--inputs", "soft", "--labels", "shared"), "inputs='soft' and labels='shared'"),
    ],
)
def test_other_kinds_of_summaries_are_refused(more: tuple[str, ...], message: str, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        problem(tmp_path, *more)


def test_a_card_that_no_recipe_wrote_is_refused(tmp_path) -> None:
    (tmp_path / "card").mkdir()
    (tmp_path / "card" / "table.md").write_text("eggs: 3\n")
    with pytest.raises(SystemExit, match="choose another folder"):
        model_selection.main([*TINY, *places(tmp_path)])


@pytest.mark.parametrize(
    ("seconds", "remedy"),
    [(100.0, ""), (120.0, ""), (200.0, ": this is another cost; give --same_cost_steps 170"),
     (50.0, ": this is another cost; give --same_cost_steps 680")],
)  # fmt: skip
def test_the_card_says_what_the_same_cost_did_cost(seconds, remedy) -> None:
    costs = [{"trained on": SAME_COST, "all": seconds}, {"trained on": DISTILLED, "all": 100.0}]
    expected = f"340 steps, which were set beforehand, took {seconds:.0f}% of the summary's CPU seconds{remedy}"
    assert same_cost_fact(costs, 340) == expected
