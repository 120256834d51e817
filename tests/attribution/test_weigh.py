"""`weigh`: rows are read as their weights say, their influence moves the weights, and a target is
predicted better.
"""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from process_jobs import weighed
from scipy.stats import ttest_1samp
from test_attribute import trainer
from tiny_models import V, arguments, config_of, tiny_model
from tqdm import tqdm
from trainer_runs import run
from transformers import AutoModelForCausalLM, Trainer

from farzi_hf import FarziData
from farzi_hf.attribution import influence, weigh
from farzi_hf.attribution.choice import Choice, Chosen, choose, interval
from farzi_hf.attribution.choosers import (
    AllRows,
    BestOf,
    CalibratedScores,
    CrossEntropyDifference,
    EqualWeights,
    GradientCosine,
    InfluenceOfOne,
    NGramImportance,
    OuterSteps,
    RandomRows,
    Ranked,
    SelectionProblem,
    calibrated,
    graded,
)
from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.mixtures import (
    BestMixture,
    EqualShares,
    MixtureSteps,
    SharesByScores,
    SharesBySize,
    mixtures_of,
)
from farzi_hf.attribution.outer_steps import (
    Evidence,
    GroupWeights,
    RowWeights,
    highest_weights,
    outer_steps,
)
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.smoothness import Smoothness, smooth_enough, smoothness
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.attribution.weighing import number_kept
from farzi_hf.data import SequenceCollator

GOOD, BAD = 12, 24


def counting(count: int, seed: int, step: int) -> list[list[int]]:
    """Rows whose ids grow by a step, from any id on."""
    first = np.random.default_rng(seed).integers(1, V, count)
    return [[int(1 + (i + step * j - 1) % (V - 1)) for j in range(6)] for i in first]


def pool() -> Dataset:
    """Rows that count by one, and more that count by four."""
    ids = [*counting(GOOD, 0, 1), *counting(BAD, 1, 4)]
    texts = [" ".join(map(str, row)) for row in ids]
    kinds = ["good"] * GOOD + ["bad"] * BAD
    return Dataset.from_dict({"input_ids": ids, "text": texts, "kind": kinds})


def target(seed: int = 2) -> Dataset:
    return target_of(counting(8, seed, 1))


def target_of(ids: list[list[int]]) -> Dataset:
    return Dataset.from_dict({"input_ids": ids})


def stock(folder, **changes) -> Trainer:
    settings = {
        "max_steps": 20,
        "per_device_train_batch_size": 6,
        "learning_rate": 5e-3,
        "adam_epsilon": 1e-2,
        "max_grad_norm": 0.0,
        "lr_scheduler_type": "constant",
        "logging_strategy": "no",
        "disable_tqdm": True,
    }
    return Trainer(
        model_init=lambda: AutoModelForCausalLM.from_config(config_of("gpt2")),
        args=arguments(folder, **{**settings, **changes}),
        data_collator=SequenceCollator(0),
        train_dataset=pool(),
    )


def problem_of(folder, **changes) -> SelectionProblem:
    trainings = Trainings.of(stock(folder, **changes))
    return SelectionProblem(trainings, {"target": target()}, GOOD, trainings)


# -- trainings on weighed rows ---------------------------------------------------------------------


def test_rows_are_read_as_often_as_their_weights_say(tmp_path):
    trainings = Trainings.of(stock(tmp_path))
    weights = torch.zeros(GOOD + BAD)
    weights[:10] = 1
    weights[3] = 3
    training = trainings.training(weights, 0)
    reads = trainings.reads_of(training)
    assert reads.sum() == 20 * 6
    assert not reads[10:].any()
    expected = 120 * weights[:10] / weights.sum()
    torch.testing.assert_close(reads[:10].float(), expected, rtol=0, atol=8)
    assert [[len(rows) for rows in step] for step in training.order] == [[6]] * 20
    assert trainings.training(weights, 0).order == training.order
    assert trainings.training(weights, 1).order != training.order


def test_each_training_has_a_start_of_its_own_if_the_trainer_makes_models(tmp_path):
    ones = torch.ones(GOOD + BAD)
    trainings = Trainings.of(stock(tmp_path))
    first, again, other = (trainings.training(ones, number).start for number in (0, 0, 1))
    name = "transformer.wte.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])
    given = Trainings.of(trainer(tmp_path))
    starts = [given.training(torch.ones(10), number).start for number in (0, 1)]
    assert torch.equal(starts[0][name], starts[1][name])


def test_a_training_on_some_rows_is_the_stock_trainers_on_them(tmp_path):
    """The replay of a training that reads some rows ends where the stock Trainer does, if it reads
    the same rows in the same order.
    """
    trainings = Trainings.of(stock(tmp_path))
    training = trainings.training(highest_weights(torch.ones(36), torch.zeros(36), 5), 3)
    order = [row for step in training.order for batch in step for row in batch]
    model = tiny_model("gpt2")
    model.load_state_dict({**model.state_dict(), **training.start}, strict=True)
    again = Trainer(
        model,
        stock(tmp_path, train_sampling_strategy="sequential").args,
        SequenceCollator(0),
        pool().select(order),
    )
    again.train()
    theta = training.train()
    for name, x in again.model.named_parameters():
        torch.testing.assert_close(theta[name], x.detach(), rtol=1e-4, atol=1e-5)


# -- outer steps -----------------------------------------------------------------------------------


def test_an_outer_step_is_the_rule_of_the_exact_influence(tmp_path):
    trainings = Trainings.of(stock(tmp_path))
    begin = torch.ones(GOOD + BAD)
    begin[5] = 0.1
    state = outer_steps(trainings, {"target": target()}, RowWeights(begin), 1)
    training = trainings.training(begin, 0)
    batch = SequenceCollator(0)(list(target()))
    scores = influence(training, batch)
    reads = torch.bincount(
        torch.tensor([row for step in training.order for rows in step for row in rows]),
        minlength=len(begin),
    )
    per_read = scores / reads.clamp(min=1)
    z = per_read / per_read[reads > 0].std()
    expected = (begin + 0.3 * z.clamp(-1, 1)).clamp(0, 3)
    torch.testing.assert_close(state.learnt.weights(), expected, rtol=1e-3, atol=1e-4)
    loss = training.learner.hard_loss(training.train(), batch)
    assert state.history[0]["loss"] == pytest.approx(float(loss), abs=1e-5)


def test_weights_stay_between_0_and_3_and_rows_that_were_not_read_where_they_are():
    reads = torch.tensor([2, 2, 0, 1])
    scores = torch.tensor([5.0, -5.0, 0.0, 0.1])
    weights = RowWeights(torch.tensor([2.9, 0.1, 0.7, 1.0]))
    moved = weights.stepped(Evidence(scores, reads)).weights()
    assert moved[:3].tolist() == pytest.approx([3.0, 0.0, 0.7])
    assert 1.0 < moved[3] < 1.1


def test_where_all_rows_harm_the_target_those_that_harm_least_stay():
    learnt = RowWeights(torch.tensor([1.0, 0.2, 0.3, 0.0]))
    scores = torch.tensor([-10.0, -10.1, -10.2, 0.0])
    reads = torch.tensor([1, 1, 1, 0])
    for _ in range(8):
        learnt = learnt.stepped(Evidence(scores, reads))
        assert bool(learnt.weights().sum() > 0)
    assert learnt.weights()[0] > 0
    assert learnt.weights()[3] == 0


def test_of_one_row_that_was_read_nothing_is_learnt():
    learnt = RowWeights(torch.tensor([1.0, 0.0]))
    evidence = Evidence(torch.tensor([-0.2, 0.0]), torch.tensor([3, 0]))
    assert learnt.stepped(evidence).weights().tolist() == [1.0, 0.0]


def test_a_mixture_moves_to_the_groups_that_help_and_less_where_their_rows_disagree():
    groups = Groups(["a"] * 4 + ["b"] * 4 + ["c"] * 4)
    begin = GroupWeights(torch.zeros(3), groups)
    assert begin.mixture == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    torch.testing.assert_close(begin.weights(), torch.ones(12))
    agreed = torch.tensor([1.0, 1.1, 0.9, 1.0, 0.0, 0.1, 0.0, -0.1, -1.0, -1.1, -0.9, -1.0])
    reads = torch.full((12,), 2)
    moved = begin.stepped(Evidence(agreed, reads))
    assert moved.mixture["a"] > moved.mixture["b"] > moved.mixture["c"]
    assert sum(moved.mixture.values()) == pytest.approx(1)
    torch.testing.assert_close(moved.weights().sum(), torch.tensor(12.0))
    noise = torch.tensor([9.0, -7.0, 9.0, -7.0] * 2 + [1.0, -3.0, -1.0, -1.0])
    unsure = begin.stepped(Evidence(noise, reads))
    assert unsure.mixture["a"] - 1 / 3 < 0.5 * (moved.mixture["a"] - 1 / 3)
    unread = begin.stepped(Evidence(agreed, torch.tensor([0] * 4 + [2] * 8)))
    assert unread.numbers[0] == 0


def test_rows_like_the_target_stay(tmp_path):
    how = {"outer_steps": 4, "keep": GOOD, "warm": False, "check_smoothness": False}
    farzi = weigh(stock(tmp_path), target(), **how)
    assert isinstance(farzi, FarziData)
    assert farzi.weights.shape == (GOOD + BAD,)
    assert int((farzi.weights[:GOOD] > 0).sum()) >= 10
    assert int((farzi.weights > 0).sum()) == GOOD
    assert farzi.as_dataset().column_names == ["input_ids", "text", "kind", "weight"]
    farzi.save_pretrained(tmp_path / "summary")
    loaded = FarziData.from_pretrained(tmp_path / "summary")
    assert torch.equal(loaded.weights, farzi.weights)
    assert loaded.results.recipe["outer_steps"] == 4


def test_a_mixture_of_the_target_s_kind_is_learnt(tmp_path):
    farzi = weigh(
        stock(tmp_path),
        {"one": target(), "two": target(3)},
        outer_steps=3,
        groups="kind",
        check_smoothness=False,
        rows=[{"text": text} for text in pool()["text"]],
    )
    mixture = farzi.results.metrics["mixture"]
    assert mixture["good"] > 0.5 > GOOD / (GOOD + BAD)
    assert farzi.as_dataset().column_names == ["text", "weight"]
    assert farzi.weights[0] / farzi.weights[-1] == pytest.approx(
        mixture["good"] / mixture["bad"] * BAD / GOOD, rel=1e-4
    )


def test_outer_steps_go_on_where_they_were(tmp_path):
    def state(steps: int, folder):
        trainings = Trainings.of(stock(tmp_path))
        begin = RowWeights(torch.ones(GOOD + BAD))
        return outer_steps(trainings, {"target": target()}, begin, steps, folder=folder)

    whole = state(3, None)
    first = state(2, tmp_path / "parts")
    resumed = state(3, tmp_path / "parts")
    assert torch.equal(resumed.learnt.weights(), whole.learnt.weights())
    assert torch.equal(resumed.evidence, whole.evidence)
    assert resumed.history == whole.history
    assert resumed.history[:2] == first.history
    with pytest.raises(ValueError, match=r"resume_dir: .* is of another training"):
        outer_steps(
            Trainings.of(stock(tmp_path, learning_rate=1e-3)),
            {"target": target()},
            RowWeights(torch.ones(GOOD + BAD)),
            3,
            folder=tmp_path / "parts",
        )


def test_outer_steps_do_not_go_on_with_other_groups(tmp_path):
    parts = {"target": target()}
    kinds = Groups(pool()["kind"])
    halves = Groups(["first"] * GOOD + ["second"] * BAD)  # as large as these, and named otherwise
    trainings = Trainings.of(stock(tmp_path, max_steps=3))
    begin = [GroupWeights(each.sizes.float().log(), each) for each in (kinds, halves)]
    outer_steps(trainings, parts, begin[0], 1, folder=tmp_path / "parts")
    for other in (begin[1], RowWeights(torch.ones(GOOD + BAD))):
        with pytest.raises(ValueError, match=r"resume_dir: .* is of another training"):
            outer_steps(trainings, parts, other, 1, folder=tmp_path / "parts")


def test_a_prior_leaves_rows_out(tmp_path):
    prior = torch.ones(GOOD + BAD)
    prior[::2] = 0
    farzi = weigh(stock(tmp_path), target(), outer_steps=1, prior=prior, check_smoothness=False)
    assert not farzi.weights[::2].any()


def test_a_prior_leaves_groups_out_and_rows_of_one_have_equal_weights(tmp_path):
    how = {"outer_steps": 1, "groups": "kind", "check_smoothness": False, "warm": False}
    prior = torch.ones(GOOD + BAD)
    prior[:GOOD] = 0
    farzi = weigh(stock(tmp_path, max_steps=3), target(), prior=prior, **how)
    assert not farzi.weights[:GOOD].any()
    assert farzi.weights[GOOD:].all()
    prior[GOOD] = 0
    with pytest.raises(
        ValueError, match=r"prior differs among the rows of the group 'bad', .*equal"
    ):
        weigh(stock(tmp_path), target(), prior=prior, **how)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep": 0}, r"keep=0: there are 36 rows; give a whole number of them, or a share"),
        ({"keep": 37}, "keep=37: there are 36 rows"),
        ({"keep": 1.5}, r"keep=1\.5: there are 36 rows"),
        ({"prior": [1.0]}, r"prior has the shape \(1,\); give 36 finite numbers"),
        ({"prior": [0.0] * 36}, "and not zeros alone"),
        ({"outer_steps": 0}, "outer_steps must be an integer of at least 1, got 0"),
        ({"groups": "none"}, "groups='none': the training rows have the columns"),
        ({"adjoint": "tape"}, "adjoint must be an Adjoint or None, got 'tape'"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        weigh(stock(tmp_path), target(), **changes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("target", "^target_dataset has 'target' for rows; give a data set"),
        ({}, r"^target_dataset has 0 targets, nothing to predict in \[\]; give rows"),
        (target_of([[1]]), r"^target_dataset has 1 targets, nothing to predict in \[0\]; give"),
        (target_of([[1, V]]), rf"^target_dataset has a row with ids from 1 to {V}, but the model"),
    ],
)
def test_bad_targets_are_named(tmp_path, given, message):
    for how in ({}, {"check_smoothness": False, "warm": False}):
        with pytest.raises(ValueError, match=message):
            weigh(stock(tmp_path), given, **how)


def test_one_row_is_no_choice(tmp_path):
    alone = trainer(tmp_path, data=target().select([0]))
    with pytest.raises(ValueError, match="has a train_dataset of 1 row: give two or more"):
        weigh(alone, target())


def test_a_share_of_rows_is_a_number_of_them():
    assert number_kept(0.1, 36) == 4
    assert number_kept(36, 36) == 36
    assert number_kept(None, 36) == 36
    assert number_kept(1, 36) == 1
    assert number_kept(1.0, 36) == 36
    assert number_kept(12.0, 36) == 12
    assert number_kept(np.int64(5), 36) == 5


# -- smoothness ------------------------------------------------------------------------------------


def test_smoothness_is_the_share_of_a_predicted_change_that_comes_true(tmp_path):
    trainings = Trainings.of(stock(tmp_path))
    found = smoothness(trainings, {"target": target()})
    training = trainings.training(torch.ones(GOOD + BAD), 0)
    batch = SequenceCollator(0)(list(target()))
    scores = influence(training, batch)
    v = 0.3 * (scores / scores.std()).clamp(-1, 1)
    above, below = (
        float(training.learner.hard_loss(training.train(1 + sign * v), batch)) for sign in (1, -1)
    )
    assert found.real == pytest.approx(above - below, rel=1e-3)
    assert found.predicted == pytest.approx(-2 * float(scores @ v), rel=1e-3)
    assert found.ratio > 0.5


def test_a_larger_epsilon_is_taken_where_the_training_is_rough(tmp_path, monkeypatch):
    def measured(least: float):
        def found(trainings: Trainings, targets, progress) -> Smoothness:
            is_smooth = trainings.replay.optimizer.eps >= least
            return Smoothness(-1.0, -0.9 if is_smooth else 0.1)

        return found

    rough = Trainings.of(stock(tmp_path, adam_epsilon=1e-8))
    with monkeypatch.context() as patched:
        patched.setattr("farzi_hf.attribution.smoothness.smoothness", measured(1e-3))
        chosen, said = smooth_enough(rough, {"target": target()})
        assert chosen.replay.optimizer.eps == 1e-3
        assert [line.split(":")[0] for line in said] == [
            "rate 0.005, ε 1e-08",
            "rate 0.005, ε 0.001",
        ]
        patched.setattr(
            "farzi_hf.attribution.smoothness.smoothness",
            lambda trainings, targets, progress: Smoothness(
                -1.0, -0.9 if trainings.replay.optimizer.lr < 4e-3 else 0.2
            ),
        )
        chosen, said = smooth_enough(rough, {"target": target()})
        assert chosen.replay.optimizer.lr == pytest.approx(2.5e-3)
        assert [line.split(":")[0] for line in said[2:]] == [
            "rate 0.005, ε 0.01",
            "rate 0.0025, ε 0.01",
        ]
        patched.setattr("farzi_hf.attribution.smoothness.smoothness", measured(1.0))
        with pytest.raises(ValueError, match=r"is not smooth enough .*: lower learning_rate"):
            smooth_enough(rough, {"target": target()})
    smooth = Trainings.of(stock(tmp_path))
    chosen, said = smooth_enough(smooth, {"target": target()})
    assert chosen.replay.optimizer == smooth.replay.optimizer
    assert chosen.warm is smooth
    assert len(said) == 1
    cold, _ = smooth_enough(smooth, {"target": target()}, warm=False)
    assert cold.warm is None


# -- ways to choose --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chooser",
    [
        NGramImportance(),
        CrossEntropyDifference(),
        GradientCosine(),
        InfluenceOfOne(),
        CalibratedScores((NGramImportance(), CrossEntropyDifference())),
    ],
    ids=lambda x: x.name,
)
def test_ways_find_rows_like_the_target(tmp_path, chooser):
    weights = chooser.weights(problem_of(tmp_path))
    assert int(weights.sum()) == GOOD
    assert int(weights[:GOOD].sum()) >= 9


def test_all_and_random_rows_look_at_nothing(tmp_path):
    problem = problem_of(tmp_path)
    assert AllRows().weights(problem).tolist() == [1.0] * (GOOD + BAD)
    drawn = RandomRows().weights(problem)
    assert int(drawn.sum()) == GOOD
    assert torch.equal(drawn, RandomRows().weights(problem))


def test_n_gram_importance_is_the_mean_log_ratio_by_hand(tmp_path):
    problem = problem_of(tmp_path)
    found = NGramImportance().scores(problem)

    def pairs(ids: list[int]) -> list[tuple[int, ...]]:
        return [*((i,) for i in ids[1:-1]), *itertools.pairwise(ids)]

    of_pool = [pairs(ids) for ids in pool()["input_ids"]]
    of_target = [pair for ids in target()["input_ids"] for pair in pairs(ids)]
    everything = [pair for row in of_pool for pair in row]
    kinds = len({*everything, *of_target})

    def ratio(pair) -> float:
        wanted = (of_target.count(pair) + 1) / (len(of_target) + kinds)
        return np.log(wanted / ((everything.count(pair) + 1) / (len(everything) + kinds)))

    expected = [np.mean([ratio(pair) for pair in row]) for row in of_pool]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_graded_prior_falls_from_the_first_row_to_none():
    weights = graded(torch.tensor([0.1, 5.0, -1.0, 3.0, 2.0]), 3)
    assert weights.tolist() == pytest.approx([0, 3, 0, 2, 1])
    assert graded(torch.tensor([1.0, 2.0]), 9).tolist() == pytest.approx([1.5, 3])


def test_of_equal_weights_those_with_more_evidence_stay():
    weights = torch.tensor([3.0, 1.0, 3.0, 3.0, 0.0])
    evidence = torch.tensor([1.0, 9.0, 3.0, 2.0, 9.0])
    assert highest_weights(weights, evidence, 2).tolist() == [0, 0, 3, 3, 0]
    assert highest_weights(weights, evidence, 5).tolist() == weights.tolist()


def test_ways_are_compared_and_the_dev_part_decides(tmp_path):
    told = []
    found = choose(
        problem_of(tmp_path),
        [AllRows(), NGramImportance(), OuterSteps(2, NGramImportance(), room=2)],
        {"target": target(4)},
        {"target": target(5)},
        trainings=2,
        tell=told.append,
    )
    assert [each.method for each in told] == [
        "all rows",
        "n-gram importance",
        "2 outer steps, from n-gram importance",
    ]
    assert found.best is min(found.tried, key=lambda each: np.mean(each.dev))
    assert found.best.method != "all rows"
    row = found.tried[0].row()
    assert row["test"] == pytest.approx(float(np.exp(np.mean(found.tried[0].test))))
    assert found.best.method in found.verdict
    assert "The best way that needs no meta-gradient is '" in found.verdict


class Counted(Ranked):
    """Prefers the last rows, and counts how often it is asked."""

    name = "the last rows"
    is_cheap = True

    def __init__(self) -> None:
        self.asked = 0

    def scores(self, problem: SelectionProblem) -> torch.Tensor:
        self.asked += 1
        return torch.arange(problem.num_rows).float()


def test_outer_steps_begin_with_the_way_that_is_the_best_on_the_dev_part(tmp_path):
    problem = problem_of(tmp_path)
    last, alike = Counted(), NGramImportance()
    best = BestOf((last, alike))
    assert torch.equal(best.scores(problem), last.scores(problem))  # nothing is measured yet
    choose(problem, [last, alike], {"target": target(4)}, {"target": target(5)}, trainings=2)
    assert problem.dev_loss(alike.name) < problem.dev_loss(last.name)
    steps = OuterSteps(1, best)
    assert steps.name == "1 outer steps, from the best cheap way"
    assert torch.equal(steps.weights(problem), OuterSteps(1, alike).weights(problem))


def test_a_choice_says_what_it_began_with_also_when_it_was_kept(tmp_path):
    last, alike = Counted(), NGramImportance()
    parts = ({"target": target(4)}, {"target": target(5)})
    steps = OuterSteps(1, BestOf((last, alike)))
    ways = [last, alike, steps, EqualWeights(steps)]
    given = {"trainings": 1, "folder": tmp_path / "kept"}
    found = choose(problem_of(tmp_path), ways, *parts, **given)
    assert [each.began_with for each in found.tried] == ["", "", alike.name, alike.name]
    of_steps = replace(found, tried=found.tried[2:3])
    assert f"those of '{steps.name}' (here '{alike.name}'), which" in of_steps.verdict
    alone = choose(problem_of(tmp_path), [steps], *parts, **given).tried[0]
    assert alone.began_with == alike.name
    assert torch.equal(alone.weights, found.tried[2].weights)


def test_a_way_that_several_begin_with_is_asked_once(tmp_path):
    problem, way = problem_of(tmp_path), Counted()
    CalibratedScores((way, NGramImportance()), trainings=1).weights(problem)
    assert int(way.weights(problem)[-GOOD:].sum()) == GOOD
    OuterSteps(1, way).weights(problem)
    assert way.asked == 1


def test_rows_that_outer_steps_chose_are_tried_with_equal_weights_too(tmp_path):
    """Read by their weights, the same rows were .03 nats worse on one pool, and better on others."""
    problem = replace(problem_of(tmp_path), folder=tmp_path / "state")
    learnt = OuterSteps(2, NGramImportance(), room=2)
    equal = EqualWeights(learnt)
    assert equal.name == "2 outer steps, from n-gram importance, equal weights"
    assert not equal.is_cheap
    weights = learnt.weights(problem)
    assert len(set(weights[weights > 0].tolist())) > 1

    class Failing(OuterSteps):
        def weights(self, problem: SelectionProblem) -> torch.Tensor:
            raise AssertionError("the steps are taken again")

    parts = ({"target": target(4)}, {"target": target(5)})
    found = choose(problem, [learnt, equal], *parts, trainings=1, folder=tmp_path / "kept")
    assert torch.equal(found.tried[0].weights, weights)
    assert torch.equal(found.tried[1].weights, (weights > 0).float())
    assert found.tried[1].seconds == found.tried[0].seconds > 0
    # A run that goes on knows what was chosen.
    (
        tmp_path / "kept" / "choice-2-outer-steps-from-n-gram-importance-equal-weights.safetensors"
    ).unlink()
    ways = [
        Failing(2, NGramImportance(), room=2),
        EqualWeights(Failing(2, NGramImportance(), room=2)),
    ]
    again = choose(
        replace(problem, _choices={}), ways, *parts, trainings=1, folder=tmp_path / "kept"
    )
    assert torch.equal(again.tried[1].weights, found.tried[1].weights)
    assert again.tried[1].seconds == pytest.approx(found.tried[1].seconds)


def test_shares_by_scores_are_sizes_times_powers_of_e_by_hand(tmp_path):
    problem = problem_of(tmp_path)
    kinds = Groups([*["first"] * 6, *["second"] * 6, *["third"] * BAD])
    for power in (1, 2):
        way = SharesByScores(kinds, Counted(), power)
        means = np.array([2.5, 8.5, np.arange(2 * 6, 2 * 6 + BAD).mean()])
        relative = (means - means.mean()) / means.std(ddof=1)
        shares = np.array([6, 6, BAD]) * np.exp(power * relative)
        weights = way.weights(problem).numpy()
        read = [weights[:6].sum(), weights[6:12].sum(), weights[12:].sum()]
        np.testing.assert_allclose(read / weights.sum(), shares / shares.sum(), rtol=1e-5)
        assert len(set(weights[:6])) == 1
    assert way.name == "shares of groups by the last rows, power 2"
    (alone,) = SharesByScores(Groups(["all"] * (GOOD + BAD)), Counted()).numbers(problem).tolist()
    assert np.isfinite(alone)  # one group has no standard deviation


def test_each_of_several_targets_has_shares_of_its_own(tmp_path):
    ids = [*counting(4, 2, 1), *counting(4, 7, 4)]
    targets = {"one": target_of(ids[:4]), "four": target_of(ids[4:])}
    problem = replace(problem_of(tmp_path, max_steps=10), targets=targets)
    kinds = Groups(pool()["kind"])
    for way in (NGramImportance(), InfluenceOfOne()):
        alone = [SharesByScores(kinds, way, 2).weights(problem.alone(name)) for name in targets]
        both = SharesByScores(kinds, way, 2).weights(problem)
        torch.testing.assert_close(both, (alone[0] + alone[1]) / 2, rtol=1e-3, atol=1e-4)
        share = [float(weights[:GOOD].sum() / weights.sum()) for weights in alone]
        assert share[0] > GOOD / (GOOD + BAD) > share[1]


def test_a_mixture_begins_with_the_shares_that_are_the_best_on_the_dev_part(tmp_path):
    problem = problem_of(tmp_path, max_steps=10)
    kinds = Groups(pool()["kind"])
    last, alike = (SharesByScores(kinds, way, 2) for way in (Counted(), NGramImportance()))
    best = BestMixture((last, alike))
    assert torch.equal(best.numbers(problem), last.numbers(problem))  # nothing is measured yet
    parts = {"target": target(4)}, {"target": target(5)}
    choose(problem, [last, alike], *parts, trainings=1)
    assert problem.dev_loss(alike.name) < problem.dev_loss(last.name)
    steps = MixtureSteps(kinds, 1, best)
    assert steps.name == "mixture, 1 outer steps, from the best shares"
    begun = MixtureSteps(kinds, 1, alike).numbers(problem)
    assert torch.equal(steps.numbers(problem), begun)
    moved = begun - alike.numbers(problem)
    assert moved.abs().max() > 0.01
    by_size = MixtureSteps(kinds, 1).numbers(problem)
    from_size = MixtureSteps(kinds, 1, SharesBySize(kinds)).numbers(problem)
    assert torch.equal(by_size, from_size)


def test_all_mixtures_are_compared_and_one_training_scores_the_rows_of_all(tmp_path, monkeypatch):
    problem = problem_of(tmp_path, max_steps=10)
    asked = []
    scores = InfluenceOfOne.scores
    monkeypatch.setattr(InfluenceOfOne, "scores", lambda *args: asked.append(1) or scores(*args))
    ways = [AllRows(), *mixtures_of(Groups(pool()["kind"]), 1)]
    parts = {"target": target(4)}, {"target": target(5)}
    found = choose(problem, ways, *parts, trainings=1)
    of = {each.method: each for each in found.tried}
    assert len(of) == len(ways) == 11
    assert len(asked) == 1
    good = {name: float(x.weights[:GOOD].sum() / x.weights.sum()) for name, x in of.items()}
    assert good["equal shares of groups"] == pytest.approx(0.5)
    assert good["all rows"] == pytest.approx(GOOD / (GOOD + BAD))
    influence_of_groups = "shares of groups by influence in one training"
    assert good["all rows"] < good[influence_of_groups] < good[f"{influence_of_groups}, power 2"]


def test_the_verdict_names_a_cheap_way_that_is_as_good():
    cheap = Chosen("cheap", True, torch.ones(2), [1.0, 1.0], [1.0, 1.2], 0.1)
    dear = Chosen("dear", False, torch.ones(2), [1.1, 1.0], [1.1, 1.2], 9.0)
    found = Choice([cheap, dear], 2)
    assert found.best is cheap
    assert found.verdict.startswith("The rows are those of 'cheap'")
    said = "'dear' is 0.050 nats worse than that (95 % interval of what it gains: "
    assert re.search(re.escape(said) + r"-0\.685 to \+0\.585, so they are level\)", found.verdict)
    always = Chosen("dear", False, torch.ones(2), [1.1, 1.0], [1.1, 1.3], 9.0)
    assert "-0.100 to -0.100)" in Choice([cheap, always], 2).verdict
    everything = Chosen("all rows", True, torch.ones(5), [0.5, 0.5], [0.6, 0.6], 0.0)
    mixture = Chosen("a mixture", True, torch.ones(5), [0.7, 0.7], [0.6, 0.6], 0.0)
    more = Choice([mixture, everything, cheap, dear], 2)
    assert more.best is cheap
    assert "But 'all rows' (5 rows), for as many steps, is better on the dev part" in more.verdict
    assert "a mixture" not in more.verdict  # one is named, the best


def test_intervals_are_those_of_student_s_t():
    values = [1.0, 1.5, 1.2]
    np.testing.assert_allclose(interval(values), ttest_1samp(values, 0).confidence_interval(0.95))
    assert np.isnan(interval([1.0])).all()


def test_the_loss_of_a_target_is_that_of_all_its_rows(tmp_path):
    trainings = Trainings.of(stock(tmp_path))
    training = trainings.replay
    queries = Targets(training, {"target": target()})
    expected = training.learner.hard_loss(training.start, SequenceCollator(0)(list(target())))
    assert queries.value(training.start, 0) == pytest.approx(float(expected), abs=1e-5)


def test_a_comparison_goes_on_where_it_was(tmp_path, monkeypatch):
    ways = [NGramImportance(), OuterSteps(1)]

    def compared(folder, **changes):
        problem = replace(problem_of(tmp_path, **changes), folder=folder)
        parts = {"target": target(4)}, {"target": target(5)}
        return choose(problem, ways, *parts, trainings=2, folder=folder)

    whole = compared(tmp_path / "parts")
    monkeypatch.setattr(NGramImportance, "scores", None)
    monkeypatch.setattr("farzi_hf.attribution.choosers.outer_steps", None)
    again = compared(tmp_path / "parts")
    for before, after in zip(whole.tried, again.tried, strict=True):
        assert torch.equal(before.weights, after.weights)
        assert (before.dev, before.test, before.seconds) == (after.dev, after.test, after.seconds)
    with pytest.raises(ValueError, match=r"is of another choice .*; give a new folder"):
        compared(tmp_path / "parts", learning_rate=1e-3)


def test_a_comparison_does_not_go_on_with_other_groups_or_another_model(tmp_path):
    problem = problem_of(tmp_path, max_steps=3)
    parts = {"target": target(4)}, {"target": target(5)}

    def compared(kinds: list[str], **how):
        return choose(problem, [EqualShares(Groups(kinds))], *parts, folder=tmp_path / "k", **how)

    kinds = pool()["kind"]
    compared(kinds)
    with pytest.raises(ValueError, match=r"is of another choice \(other rows, groups, "):
        compared(kinds[::-1])
    measured_in = Trainings.of(stock(tmp_path, max_steps=4))
    with pytest.raises(ValueError, match=r"is of another choice"):
        compared(kinds, measured_in=measured_in)


def test_the_bar_counts_to_its_end(tmp_path, monkeypatch):
    """And not beyond it, where outer steps begin with a way that was the best."""
    bars = []

    class Bar(tqdm):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{**kwargs, "disable": False, "file": io.StringIO()})
            bars.append(self)

    monkeypatch.setattr("farzi_hf.attribution.outer_steps.tqdm", Bar)
    monkeypatch.setattr(SelectionProblem, "dev_loss", lambda self, way: way != GradientCosine.name)
    cheap = (NGramImportance(), GradientCosine())
    calibrated = CalibratedScores(cheap, 1)
    ways = [
        AllRows(),
        *cheap,
        InfluenceOfOne(),
        calibrated,
        OuterSteps(2),
        OuterSteps(1, BestOf(cheap)),
    ]
    parts = {"target": target(4)}, {"target": target(5)}
    choose(problem_of(tmp_path), ways, *parts, trainings=1)
    bar = bars[0]
    assert bar.n == bar.total


def test_calibration_recovers_what_features_and_repeated_reads_say():
    """Values that a feature foretells, but for a part of each row's own and noise of each read."""
    draw = torch.Generator().manual_seed(0)
    feature = torch.linspace(-1, 1, 3000).double()
    own = 0.5 * torch.randn(3000, generator=draw).double()
    value = feature + own

    def measured(noise: float) -> tuple[torch.Tensor, torch.Tensor]:
        reads = torch.randint(0, 3, (3000,), generator=draw).double()
        error = noise * torch.randn(3000, generator=draw).double() / reads.clamp(min=1).sqrt()
        return (value + error) * (reads > 0), reads

    def likeness(found: torch.Tensor, to: torch.Tensor) -> float:
        return float(torch.corrcoef(torch.stack([found, to]))[0, 1])

    noisy = [measured(5.0), measured(5.0)]
    found = calibrated(feature[None], noisy)
    alone = sum(z * r for z, r in noisy) / sum(r for _, r in noisy).clamp(min=1)
    assert likeness(found, value) > 0.7 > 0.4 > likeness(alone, value)
    clear = calibrated(feature[None], [measured(0.1), measured(0.1)])
    assert likeness(clear, value) > likeness(calibrated(feature[None], [measured(0.1)]), value)
    assert likeness(clear, value) > 0.9


@pytest.mark.slow
def test_two_processes_share_the_rows_of_a_step(tmp_path):
    """As one process that accumulates their batches."""
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 3,
        "learning_rate": 5e-3,
        "adam_epsilon": 1e-2,
        "max_grad_norm": 0.0,
        "logging_strategy": "no",
        "disable_tqdm": True,
    }
    args = arguments(tmp_path / "one", **settings, gradient_accumulation_steps=2)
    one = Trainer(tiny_model("gpt2"), args, SequenceCollator(0), pool())
    expected = weigh(one, target(), outer_steps=2, keep=6).weights
    folder = tmp_path / "two"
    given = {
        **settings,
        "output_dir": str(folder),
        "rows": pool()["input_ids"][:],
        "target": target()["input_ids"][:],
    }
    codes = run(folder, given, processes=2, target=weighed)
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("two.*.log")]
    for rank in range(2):
        found = torch.load(folder / f"process-{rank}.pt")
        assert found["world_size"] == 2
        torch.testing.assert_close(found["weights"], expected, rtol=1e-3, atol=1e-4)


def test_warm_trainings_start_where_others_end(tmp_path):
    cold = Trainings.of(stock(tmp_path))
    warm = replace(cold, warm=cold)
    ones = torch.ones(GOOD + BAD)
    expected = cold.training(ones, 2).train()
    start = warm.training(torch.rand(GOOD + BAD), 2).start
    for name, x in expected.items():
        torch.testing.assert_close(start[name], x)
    state = outer_steps(warm, {"target": target()}, RowWeights(ones), 1)
    of_cold = outer_steps(cold, {"target": target()}, RowWeights(ones), 1)
    assert state.history[0]["loss"] < of_cold.history[0]["loss"]
