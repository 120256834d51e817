"""Labels from a teacher, the ids of token inputs, and distillations that start there."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from tiny_trainer import tiny_learner
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from farzi_hf import FarziConfig, FarziData, FarziDataConfig, SASRecConfig
from farzi_hf.common.tensors import save_tensors
from farzi_hf.data import SequenceCollator, flatten_sequences
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.data.streams import RowStream
from farzi_hf.distillation import Learner, MetaMatching, SyntheticTraining
from farzi_hf.distillation import rows as rows_module
from farzi_hf.distillation import teacher as teacher_module
from farzi_hf.distillation.labelling import Labelling, label, linear_head
from farzi_hf.distillation.learner import whole
from farzi_hf.distillation.packing import _rounded, _with_scales
from farzi_hf.distillation.rows import RealData, real_batches, train_on, validation_loss
from farzi_hf.distillation.teacher import Teacher, TeacherTraining
from farzi_hf.distillation.training_progress import cuts_of, numbers_of_cuts, seconds_of
from farzi_hf.engine import Direct, InnerAdam, InnerAdamW, Reversible, Tape
from farzi_hf.models import FMLPConfig, RNNConfig
from farzi_hf.summary.initialization import INPUT_SEQUENCES, covering_windows, made_up, real_windows
from farzi_hf.tasks import LanguageModeling, Recommendation
from farzi_hf.tasks.items import target_ranks

V = 54
OWN = {"labels": "own", "inputs": "tokens", "teacher_steps": 30, "teacher_batch_size": 20}


def summary(learner: Learner, label_dim: int | None = None, **changes) -> FarziData:
    torch.manual_seed(0)
    config = FarziDataConfig(
        6,
        8,
        4,
        learner.vocab_size,
        labels="own",
        label_dim=label_dim or linear_head(learner).width,
        **changes,
    )
    return FarziData(config)


def some_parameters(learner: Learner, seed: int) -> dict[str, torch.Tensor]:
    """With a bias in the head, which starts at 0."""
    generator = torch.Generator().manual_seed(seed)
    start = learner.initial_parameters(seed)
    return {name: x + 0.3 * torch.randn(x.shape, generator=generator) for name, x in start.items()}


@pytest.mark.parametrize("inputs", ["tokens", "soft"])
@pytest.mark.parametrize("kind", ["gpt2", "untied", "sasrec"])
def test_labels_are_what_the_teacher_predicts(kind, inputs):
    config = (
        SASRecConfig(num_items=V - 1, hidden_size=8, max_length=10)
        if kind == "sasrec"
        else tiny_learner(V)
    )
    config.tie_word_embeddings = kind != "untied"
    learner = Learner(config)
    params = some_parameters(learner, 1)
    farzi = summary(learner, inputs=inputs)
    label(farzi, [Teacher(learner, params)])
    given = farzi.input_ids.long() if inputs == "tokens" else farzi(torch.arange(6)).detach()
    expected = learner.logits(params, whole(learner.model, given)).softmax(-1)
    found = torch.softmax(farzi.label_latents @ farzi.label_decoder, -1)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


def test_fewer_dimensions_lose_a_little_and_more_lose_nothing():
    learner = Learner(tiny_learner(V))
    params = some_parameters(learner, 1)
    lost = {}
    for dim in (1, 4, 12, 16, 20):
        farzi = summary(learner, dim, inputs="tokens")
        label(farzi, [Teacher(learner, params)])
        expected = learner.logits(params, whole(learner.model, farzi.input_ids.long())).log_softmax(
            -1
        )
        lost[dim] = (
            expected.exp()
            * (expected - (farzi.label_latents @ farzi.label_decoder).log_softmax(-1))
        ).sum()
    assert lost[1] > lost[4] > lost[12] > 1e-2 > 1e-5 > max(lost[16].abs(), lost[20].abs())


def test_a_teacher_learns_and_is_a_function_of_its_seed(sequences):
    learner = Learner(tiny_learner(V))
    train = TeacherTraining(InnerAdam(0.01, (0.5, 0.999), 1e-4), steps=40, batch_size=20)
    collator = SequenceCollator()
    data = RealData(sequences["train"], collator, quiet=True)
    first, again, other = (train.train(learner, data, seed).params for seed in (1, 1, 2))
    batch = collator([{"input_ids": ids} for ids in sequences["validation"]["input_ids"]])
    assert learner.hard_loss(first, batch) < 0.8 * learner.hard_loss(
        learner.initial_parameters(1), batch
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    with pytest.raises(FloatingPointError, match="lower the rate"):
        replace(train, optimizer=InnerAdam(1e30)).train(learner, data, 1)


def test_a_teacher_of_few_rows_is_better_with_n_grams_beside_the_next_token(sequences):
    """Alone it learns the rows by heart."""
    learner = Learner(tiny_learner(V))
    few = sequences["train"].select(range(60))
    data = RealData(
        few,
        SequenceCollator(),
        quiet=True,
        count=partial(LanguageModeling(None).counted_labels, vocab_size=V),
    )
    held_out = validation_loss(learner, replace(data, held_out=sequences["validation"]), 100)
    found = {}
    for share in (0.0, 0.5):
        train = TeacherTraining(
            InnerAdam(0.02, (0.5, 0.999), 1e-4), steps=150, batch_size=20, counted_share=share
        )
        trained = [train.train(learner, data, seed).params for seed in (1, 2)]
        found[share] = sum(map(held_out, trained)) / 2
    assert found[0.5] < found[0.0] - 0.1


def test_a_stream_has_no_counted_labels(sequences):
    stream = RowStream(sequences["train"].to_iterable_dataset(), lambda some: some)
    train = TeacherTraining(InnerAdam(0.02), steps=2, batch_size=8, counted_share=0.5)
    count = partial(LanguageModeling(None).counted_labels, vocab_size=V)
    data = RealData(stream, SequenceCollator(), quiet=True, count=count)
    with pytest.raises(ValueError, match=r"teacher_counted_share=0.5.*not on a stream"):
        train.train(Learner(tiny_learner(V)), data, 1)


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_of_counts_is_a_share(share):
    with pytest.raises(ValueError, match=r"teacher_counted_share=.*from 0 to 1"):
        TeacherTraining.of({"teacher_counted_share": share})


def test_biases_and_norms_do_not_decay_in_a_teacher_either(sequences):
    learner, data = (
        Learner(tiny_learner(V)),
        RealData(sequences["train"], SequenceCollator(), quiet=True),
    )
    found = [
        TeacherTraining(InnerAdamW(0.01, weight_decay=x), steps=1, batch_size=8)
        .train(learner, data, 1)
        .params
        for x in (0.0, 5.0)
    ]
    alike = {name for name in found[0] if torch.equal(found[0][name], found[1][name])}
    assert alike == set(learner.no_decay)
    assert alike


# -- early stopping and dropout --------------------------------------------------------------------


def toy(validation: list[float] | None, steps: int = 40):
    """A training of three numbers. Its validation losses are those of the list, one for each of the
    40 steps.
    """
    target, start = (torch.tensor(x, dtype=torch.float64) for x in ([1.0, -2.0, 3.0], [0.0] * 3))
    losses = iter(validation or ())

    def loss(params, step):
        return ((params["w"] - target) ** 2).sum() + math.sin(step) * params["w"].sum()

    training = TeacherTraining(InnerAdam(0.1), steps, 1)
    return training.run(
        "Toy", loss, {"w": start}, True, validation and (lambda params: next(losses))
    )


def test_where_validation_always_falls_the_training_is_the_whole_one():
    whole, evaluated = toy(None), toy([1 - i / 100 for i in range(40)])
    assert torch.equal(whole.params["w"], evaluated.params["w"])
    assert (whole.steps, whole.validation) == (40, None)
    assert (evaluated.steps, evaluated.validation) == (40, 1 - 39 / 100)


def test_where_it_rises_the_rate_falls_from_the_best_state():
    """The best one while the rate stays is that of step 6. So the rate falls in 6 steps, and step
    12 is that of a training of 12.
    """
    found = toy([9, 8, 7, 6, 5, 4, *[6] * 8, 5, 5, 3, 3, 3, 2])
    assert (found.steps, found.validation) == (12, 2)
    assert torch.equal(found.params["w"], toy(None, 12).params["w"])


def test_the_end_is_returned_where_it_is_worse_by_noise_alone():
    found = toy([9, 8, 7, 6, 5, 4, *[6] * 8, 5, 3, 2, 1, 2, 1.5])
    assert (found.steps, found.validation) == (12, 1.5)


@pytest.mark.parametrize(("last", "steps"), [(3.25, 12), (3.26, 8)])
def test_noise_is_a_quarter_of_what_the_fall_of_the_rate_has_gained(last, steps):
    """The loss was 4 before the rate fell from step 6 on, and 3 at the best, in step 8. So a last
    one of up to 3.25 is as good.
    """
    found = toy([9, 8, 7, 6, 5, 4, *[6] * 8, 5, 3, 4, 4, 4, last])
    assert (found.steps, found.validation) == (steps, last if steps == 12 else 3)


def test_the_best_state_is_returned_wherever_it_was():
    later, before = (
        toy([9, 8, 7, 6, 5, 4, *[6] * 8, 5, 3, 4, 4, 4, 5]),
        toy([9, 8, 1, *[6] * 8, 5, 5, 5]),
    )
    assert (later.steps, later.validation) == (8, 3)
    assert (before.steps, before.validation) == (3, 1)
    assert toy([math.inf] * 40).steps == 1


@dataclass
class Machine:
    """A clock that only steps and evaluations move. Steps take `seconds[i]` from step `i` on."""

    seconds: dict[int, float]
    now: float = 0.0
    steps: int = 0

    def step(self, real, *given, **settings):
        """Takes the place of `train_on`."""
        self.now += self.seconds[max(first for first in self.seconds if first <= self.steps)]
        self.steps += 1
        return real(*given, **settings)


@pytest.fixture
def machine(monkeypatch):
    """Makes the clock of this test one of a machine."""

    def begin(seconds):
        made = Machine(seconds)
        monkeypatch.setattr(teacher_module.time, "perf_counter", lambda: made.now)
        monkeypatch.setattr(teacher_module, "train_on", partial(made.step, train_on))
        return made

    return begin


@pytest.fixture
def rates(monkeypatch) -> list[float]:
    """The learning rates of all steps."""
    found = []
    real = InnerAdam.rate

    def rate(self, step):
        found.append(real(self, step))
        return found[-1]

    monkeypatch.setattr(InnerAdam, "rate", rate)
    return found


def held_out(params):
    """A loss that always falls."""
    return float((params["w"] - 4).abs().sum())


def clocked(within=math.inf, steps=400, judge=held_out, **settings):
    """A training of three numbers, whose loss on held-out rows always falls."""
    start = {"w": torch.zeros(3, dtype=torch.float64)}
    training = TeacherTraining(InnerAdam(0.01), steps, 1, within=within, **settings)
    return training.run("Toy", lambda params, step: -params["w"].sum(), start, True, judge)


@pytest.mark.parametrize(
    ("seconds", "taken"),
    [
        ({0: 1.0}, 400),  # as planned
        ({0: 1.02}, 400),  # a little late is no reason
        ({0: 3.0}, 133),
        ({0: 1.0, 150: 3.0}, 233),  # slower while the rate stays
        ({0: 1.0, 250: 3.0}, 300),  # slower while it falls
        ({0: 1.0, 300: 30.0}, 305),
        ({0: 3.0, 100: 0.5}, 133),  # what falls does not rise again
        ({0: 500.0}, 2),  # there is time for nothing
    ],
    ids=str,
)
@pytest.mark.parametrize("judge", [held_out, None])
def test_a_training_ends_in_its_seconds(seconds, taken, judge, machine):
    clock = machine(seconds)
    found = clocked(within=400.0, judge=judge)
    late = 1000 if 500.0 in seconds.values() else 412 + 10 * max(seconds.values())
    assert clock.now <= late
    assert found.steps == found.all_steps == found.end == pytest.approx(taken, abs=8)
    assert (found.cuts != {}) == (taken < 400)
    assert len(found.cuts) <= 6


def test_the_rate_falls_to_the_end_of_a_training_that_is_cut(machine, rates):
    """After half of the seconds, on a straight line, to 0 at the end."""
    machine({0: 4.0})
    found = clocked(within=400.0)
    assert found.cuts == {50: 100}
    falling = [0.01 * (1 - i / 50) for i in range(50)]
    assert rates == pytest.approx([0.01] * 50 + falling)


def test_the_rate_can_fall_from_the_first_step_on(machine, rates):
    """Also faster, from half of the seconds on, where the steps take too long. The best state is
    the result.
    """
    machine({0: 1.0})
    whole = clocked(falling=1.0)
    assert whole.steps == whole.end == 400
    assert rates == pytest.approx([0.01 * (1 - i / 400) for i in range(400)])
    rates.clear()
    machine({0: 4.0})
    cut = clocked(within=400.0, falling=1.0)
    assert cut.cuts == {50: 100}
    first = [0.01 * (1 - i / 400) for i in range(50)]
    assert rates == pytest.approx(first + [0.01 * 0.875 * (1 - i / 50) for i in range(50)])

    def lowest_in_the_middle(params):
        return float((params["w"] - 1.0).abs().sum())

    best = clocked(judge=lowest_in_the_middle, falling=1.0)
    assert best.steps < 300 < best.all_steps == 400
    assert best.validation == lowest_in_the_middle(best.params)


@pytest.mark.parametrize("seconds", [{0: 3.0}, {0: 1.0, 150: 3.0, 210: 9.0}], ids=str)
def test_a_training_repeats_how_another_one_was_cut(seconds, machine):
    machine(seconds)
    cut = clocked(within=400.0)
    assert cut.cuts
    machine({0: 1.0})
    again = clocked(cuts=cuts_of("teacher_cuts", numbers_of_cuts(cut.cuts)))
    assert again.cuts == cut.cuts
    assert again.validation == cut.validation
    assert torch.equal(again.params["w"], cut.params["w"])


def test_a_training_that_was_cut_and_died_goes_on_to_the_same_end(machine, tmp_path):
    """The seconds before its death count."""
    clock = machine({0: 3.0})
    whole = clocked(within=400.0)
    kept = tmp_path / "training.safetensors"
    for evaluations in (3, 9, 200):  # the second one dies after the cut
        clock = machine({0: 3.0})
        left = itertools.repeat(None, evaluations)

        def mortal(params, left=left):
            if next(left, "none") == "none":
                raise KeyboardInterrupt
            return held_out(params)

        with suppress(KeyboardInterrupt):
            found = clocked(within=400.0, judge=mortal, kept=kept)
    assert clock.steps < 100
    assert found.cuts == whole.cuts
    assert torch.equal(found.params["w"], whole.params["w"])


def test_a_training_that_goes_back_ends_in_its_seconds(machine):
    """It learns no more after step 100, and notes that after 180; then there is no time for a
    hundred steps more.
    """
    clock = machine({0: 1.0, 180: 3.0})
    seen = itertools.count(1)
    found = clocked(within=400.0, judge=lambda params: abs(next(seen) - 10) + 1.0)
    assert clock.now <= 412
    assert found.still_learning is False
    assert found.all_steps == pytest.approx(180 + 220 / 3, abs=5)


@pytest.mark.parametrize(
    "cuts", [[400], [400, 300], [0, 10], [400, 600, 300, 500], ["400", "600"], "400:600", 3]
)
def test_cuts_that_are_none_are_named(cuts):
    with pytest.raises(ValueError, match=r"teacher_cuts=.* is not usable; give pairs"):
        TeacherTraining.of({"teacher_cuts": cuts})


def test_a_config_names_cuts_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"packing_cuts=\[3\] is not usable"):
        FarziConfig(str(tmp_path), packing_cuts=[3])
    config = FarziConfig(str(tmp_path), teacher_cuts=[2, 3], packing_cuts=[4, 9])
    assert config.make_teacher_training().cuts == {2: 3}
    assert config.make_teacher_training().whole(Learner(tiny_learner(V))).cuts == {}
    assert config.make_packing().cuts == (4, 9)
    assert config.to_recipe()["teacher_cuts"] == [2, 3]


@pytest.mark.parametrize("evaluations", [1, 3, 500])
def test_a_training_that_dies_goes_on_to_the_same_end(evaluations, sequences, tmp_path):
    learner, few = Learner(tiny_learner(V)), sequences["train"].select(range(8))
    data = RealData(few, SequenceCollator(), quiet=True, held_out=sequences["validation"])
    training = TeacherTraining(InnerAdam(0.02, (0.5, 0.999), 1e-4), steps=240, batch_size=8)
    whole = training.train(learner, data, 1)

    class Mortal(TeacherTraining):
        def validation(self, learner, data):
            judge, left = super().validation(learner, data), itertools.repeat(None, evaluations)

            def validation(params):
                if next(left, "none") == "none":
                    raise KeyboardInterrupt
                return judge(params)

            return validation

    kept, dead = tmp_path / "training.safetensors", 0
    while dead < 100:
        mortal = Mortal(training.optimizer, 240, 8, kept=kept)
        before = seconds_of(kept)
        try:
            found = mortal.train(learner, data, 1)
            break
        except KeyboardInterrupt:
            dead += 1
            assert seconds_of(kept) > before
    assert (dead > 0) == (evaluations < 100)
    assert (found.steps, found.validation) == (whole.steps, whole.validation)
    assert all(torch.equal(found.params[name], x) for name, x in whole.params.items())
    assert mortal.train(learner, data, 1).validation == whole.validation  # it has ended already


@pytest.mark.parametrize("content", [b"", b"no tensors", "numbers", "others", "flipped"])
def test_a_file_that_holds_no_training_is_named(content, sequences, tmp_path):
    kept = tmp_path / "training.safetensors"
    if isinstance(content, bytes):
        kept.write_bytes(content)
    elif content == "flipped":
        save_tensors(kept, {"numbers": torch.zeros(8, dtype=torch.float64)})
        kept.write_bytes(kept.read_bytes()[:-1] + b"\1")
    else:
        save_file({content: torch.zeros(8, dtype=torch.float64)}, kept)
    training = TeacherTraining(InnerAdam(0.02), steps=4, batch_size=8, kept=kept)
    with pytest.raises(
        ValueError, match=r"training.safetensors' holds no training that can go on .*; remove it"
    ):
        training.train(
            Learner(tiny_learner(V)),
            RealData(sequences["train"], SequenceCollator(), quiet=True),
            1,
        )
    assert kept.exists()


def test_a_teacher_that_learns_rows_by_heart_stops_early(sequences):
    learner, few = Learner(tiny_learner(V)), sequences["train"].select(range(8))
    training = TeacherTraining(InnerAdam(0.02, (0.5, 0.999), 1e-4), steps=240, batch_size=8)
    data = RealData(few, SequenceCollator(), quiet=True, held_out=sequences["validation"])
    stopped, again = (training.train(learner, data, 1) for _ in range(2))
    whole = training.train(learner, replace(data, held_out=None), 1)
    held_out = validation_loss(learner, data, 1000)
    assert stopped.steps < 120
    assert stopped.validation == held_out(stopped.params) < held_out(whole.params) - 0.5
    assert all(torch.equal(stopped.params[name], x) for name, x in again.params.items())


def test_the_loss_on_held_out_rows_is_the_mean_over_their_tokens(sequences):
    learner = Learner(lambda: AutoModelForCausalLM.from_config(tiny_learner(V)).double())
    theta, collator, rows = (
        learner.initial_parameters(0),
        SequenceCollator(),
        sequences["validation"]["input_ids"],
    )
    data = RealData(sequences["train"], collator, held_out=sequences["validation"])
    for most, every in ((1000, 1), (7, 3)):
        expected = learner.hard_loss(theta, collator([{"input_ids": ids} for ids in rows[::every]]))
        assert validation_loss(learner, data, most)(theta) == pytest.approx(
            float(expected), rel=1e-12
        )


def last_ranks(scores, rows, seen, last):
    """The ranks of each row's last items among those that its user has not had."""
    ranks = []
    for row, had, of_row in zip(rows, seen, scores, strict=True):
        for place in range(max(1, len(row) - last), len(row)):
            z = of_row[place - 1].tolist()
            others = set(range(1, len(z))) - set(had) - set(row)
            ranks.append(1 + sum(z[item] >= z[row[place]] for item in others))
    return torch.tensor(ranks, dtype=torch.float64)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("has_seen", "last"), [(True, 1), (True, 3), (False, 1), (False, 100)])
def test_of_ranked_data_the_last_items_count_and_only_their_order(
    sequences, tied, has_seen, last, monkeypatch
):
    monkeypatch.setattr(rows_module, "_ENOUGH", 8 * last)
    config = tiny_learner(V)
    config.tie_word_embeddings = tied
    learner = Learner(lambda: AutoModelForCausalLM.from_config(config).double())
    theta, collator, rows = (
        learner.initial_parameters(0),
        SequenceCollator(),
        sequences["validation"].select(range(8)),
    )
    ids = rows["input_ids"]
    seen = [[]] * 8
    if has_seen:  # more than the window of the history shows
        seen = [[*row[:-1], 1, 2, 3] for row in ids]
        rows = rows.add_column("seen", seen)
    scores = learner.logits(theta, collator(rows.to_list()))
    expected = last_ranks(scores, ids, seen, last).log().mean()
    data = RealData(sequences["train"], collator, held_out=rows, ranked=True)
    assert validation_loss(learner, data, 1000)(theta) == pytest.approx(float(expected), rel=1e-12)
    assert expected > 1
    if not tied:
        surer = {name: 20 * x if name == "lm_head.weight" else x for name, x in theta.items()}
        assert validation_loss(learner, data, 1000)(surer) == pytest.approx(
            float(expected), rel=1e-12
        )


def test_a_teacher_of_histories_is_judged_by_the_ranks_that_the_table_shows(monkeypatch):
    monkeypatch.setattr(rows_module, "_ENOUGH", 24)  # as many as there are users
    histories = [[1 + (7 * user + step) % 30 for step in range(4 + user % 9)] for user in range(24)]
    held_out = Dataset.from_dict({"input_ids": histories})
    task = Recommendation(None)
    learner = Learner(FMLPConfig(num_items=30, hidden_size=8, max_length=6))
    theta = learner.initial_parameters(0)
    rows = task.evaluation_rows(held_out, 6)
    data = RealData(held_out, task.collator, held_out=rows, ranked=True)
    with torch.no_grad():
        batch = task.collator(rows.to_list())
        shown = target_ranks(learner.logits(theta, batch), (batch["labels"], batch["seen"]))
    expected = float(shown[:, 0].log().mean())
    assert validation_loss(learner, data, 1000)(theta) == pytest.approx(expected, rel=1e-5)


def test_a_column_of_the_users_that_is_called_seen_is_not_read(sequences):
    rows = sequences["train"].select(range(4)).add_column("seen", [True, False, True, False])
    data = RealData(rows, SequenceCollator())
    assert "seen" not in data.batch(data.rows())


@pytest.mark.parametrize(("items", "layers", "few", "most"), [(20, 6, 1, 1), (4000, 1, 4, 6)])
def test_of_ranked_data_more_rows_are_read_where_the_head_is_most_of_the_work(
    items, layers, few, most
):
    read = []

    def collator(rows):
        read.extend(rows)
        return SequenceCollator(0)(rows)

    rows = Dataset.from_dict({"input_ids": [[1 + i % 9 for i in range(9)]] * 64})
    config = FMLPConfig(num_items=items, hidden_size=16, num_hidden_layers=layers, max_length=9)
    data = RealData(rows, collator, held_out=rows, ranked=True)
    validation_loss(Learner(config), data, 2)
    assert 2 * few <= len(read) <= 2 * most


def test_a_model_without_an_order_is_the_worst(sequences):
    learner = Learner(tiny_learner(V))
    rows = sequences["validation"]
    data = RealData(sequences["train"], SequenceCollator(), held_out=rows, ranked=True)
    # All ids but the first of a row are ranked, among those that the row does not have.
    left = [
        len(set(range(1, V)) - set(row)) + 1
        for row in rows["input_ids"]
        for _ in range(len(row) - 1)
    ]
    worst = sum(math.log(each) for each in left) / len(left)
    for value in (torch.nan, 0.0):
        theta = {
            name: torch.full_like(x, value) for name, x in learner.initial_parameters(0).items()
        }
        assert validation_loss(learner, data, 1000)(theta) == pytest.approx(worst)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_teacher_trains_as_torch_does_with_the_same_masks(sequences, dropout):
    config, steps, seed = tiny_learner(V), 20, 3
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = dropout
    learner = Learner(lambda: AutoModelForCausalLM.from_config(config).double())
    data = RealData(sequences["train"], SequenceCollator(), quiet=True)
    found = (
        TeacherTraining(InnerAdam(0.01, (0.5, 0.999), 1e-4), steps, 16)
        .train(learner, data, seed)
        .params
    )

    order = derive(seed, Purpose.TEACHER_MINIBATCHES)
    batches = real_batches(data, 16, steps, order)
    torch.manual_seed(derive(seed, Purpose.TEACHER))
    model = AutoModelForCausalLM.from_config(config).double().train()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, (0.5, 0.999), 1e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (steps - step) / 10)
    )
    for step in range(1, steps + 1):
        torch.manual_seed(derive(order, Purpose.DROPOUT, step))
        optimizer.zero_grad()
        logits, labels = model(**(batch := batches(step))).logits[:, :-1], batch["labels"][:, 1:]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
        schedule.step()
    for name, x in model.named_parameters():
        torch.testing.assert_close(found[name], x.detach(), rtol=1e-6, atol=1e-9)


def test_how_teachers_stopped_is_in_the_log_and_with_the_summary(make, tmp_path):
    trainer = make(**OWN, max_steps=1)
    trainer.train()
    (logged,) = (entry for entry in trainer.state.log_history if "start_seconds" in entry)
    assert 1 <= logged["teacher_steps_taken"] <= 30
    assert 1 < logged["teacher_validation"] < math.log(V)
    trainer.save_model(str(tmp_path / "s"))
    metrics = FarziData.from_pretrained(tmp_path / "s").results.metrics
    assert {name: metrics[name] for name in trainer.taught} == trainer.taught
    assert trainer.taught.keys() == {"teacher_steps_taken", "teacher_validation"}


def test_a_teacher_of_another_vocabulary_is_refused():
    learner, other = Learner(tiny_learner(V)), Learner(tiny_learner(V + 1))
    with pytest.raises(
        ValueError, match=f"a vocabulary of {V + 1} entries, the summary one of {V}; give one"
    ):
        label(summary(learner, inputs="tokens"), [Teacher(other, some_parameters(other, 0))])


# -- ids -------------------------------------------------------------------------------------------


def drawn(sequences, draw, shape: tuple[int, int], seed: int = 0) -> np.ndarray:
    return draw(*flatten_sequences(sequences["train"]), shape, np.random.default_rng(seed))


@pytest.mark.parametrize("name", INPUT_SEQUENCES)
def test_ids_are_of_the_data_and_a_function_of_the_generator(sequences, name):
    first, again, other = (
        drawn(sequences, INPUT_SEQUENCES[name].draw, (6, 20), seed) for seed in (0, 0, 1)
    )
    assert first.shape == (6, 20)
    assert set(first.flatten()) <= set(flatten_sequences(sequences["train"])[0])
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_made_up_sequences_show_every_id_and_no_sentence(sequences):
    assert set(drawn(sequences, made_up, (10, 20)).flatten()) == set(
        flatten_sequences(sequences["train"])[0]
    )
    assert (
        len(set(drawn(sequences, made_up, (2, 5)).flatten())) == 10
    )  # different ones, where there is no room for all


def test_covering_windows_are_real_and_show_more(sequences):
    covering, plain = (drawn(sequences, draw, (4, 10)) for draw in (covering_windows, real_windows))
    assert len(set(covering.flatten())) > len(set(plain.flatten()))
    pairs = {
        (3, 2),
        *itertools.pairwise(flatten_sequences(sequences["train"])[0]),
    }  # the end of a sentence, the next
    assert {(a, b) for row in covering for a, b in itertools.pairwise(row)} <= pairs


# -- distillation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", ["tokens", "soft"])
@pytest.mark.parametrize("adjoint", [Tape(), Reversible()], ids=["tape", "reversible"])
def test_the_meta_gradient_is_exact(sequences, adjoint, inputs):
    learner = Learner(lambda: AutoModelForCausalLM.from_config(tiny_learner(V)).double())
    batch = SequenceCollator()([{"input_ids": ids} for ids in sequences["validation"]["input_ids"]])

    def gradients(kind):
        farzi = summary(learner, 3, inputs=inputs).double()
        inner = SyntheticTraining(
            InnerAdam(0.02, (0.5, 0.99), 1e-3), farzi.forms, batch_size=2, adjoint=kind
        )
        MetaMatching(inner, steps=5, steps_min=5)(learner, farzi.tensors, batch, 3).backward()
        return {name: p.grad for name, p in farzi.named_parameters()}

    found, expected = gradients(adjoint), gradients(Direct())
    assert len(found) == (2 if inputs == "tokens" else 4)
    for name, gradient in expected.items():
        assert gradient.norm() > 0
        # Reversible computes in integers, and rounds the trajectory itself.
        tolerance = 1e-4 if isinstance(adjoint, Reversible) else 1e-9
        assert (found[name] - gradient).norm() < tolerance * gradient.norm()


@pytest.mark.parametrize("inputs", ["tokens", pytest.param("soft", marks=pytest.mark.slow)])
def test_a_distillation_of_labels_makes_students_better(make, tmp_path, inputs):
    trainer = make(**{**OWN, "inputs": inputs}, max_steps=15, learning_rate=0.003)
    trainer.tune_initialization()
    ids = trainer.model.tensors.get("input_ids", torch.empty(0)).clone()
    before = trainer.evaluate()["eval_perplexity"]
    trainer.train()
    assert trainer.evaluate()["eval_perplexity"] < before
    assert torch.equal(ids, trainer.model.tensors.get("input_ids", torch.empty(0)))
    trainer.save_model(str(tmp_path / "s"))
    assert FarziData.from_pretrained(tmp_path / "s").fingerprint() == trainer.model.fingerprint()


def test_given_teachers_label_by_the_mean_of_their_logits(make):
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append(AutoModelForCausalLM.from_config(tiny_learner(V)).eval())
    trainer = make({"teacher": models}, **OWN, label_dim=32)
    trainer.tune_initialization()
    ids = trainer.model.input_ids.long()
    logits = [model(ids, attention_mask=torch.ones_like(ids)).logits for model in models]
    expected = (sum(logits) / 2).softmax(-1)
    torch.testing.assert_close(
        trainer.model(torch.arange(len(ids))), expected, rtol=1e-3, atol=1e-5
    )


def test_teachers_are_models_or_configs():
    mixed = [GPT2Config(), AutoModelForCausalLM.from_config(tiny_learner(V))]
    for teacher, message in (([], "teacher is empty"), (mixed, "GPT2Config, GPT2LMHeadModel")):
        with pytest.raises(ValueError, match=message):
            Labelling.by(teacher, Learner(tiny_learner(V)))


def test_no_outer_step_leaves_the_summary_at_its_start(make):
    trainer, started = make(**OWN, max_steps=0), make(**OWN)
    assert trainer.train().global_step == 0
    assert trainer.state.log_history[-1]["start_seconds"] > 0
    started.tune_initialization()
    assert all(map(torch.equal, trainer.model.tensors.values(), started.model.tensors.values()))


@pytest.mark.parametrize(("settings", "width"), [({}, 24), ({"label_dim": 10}, 10)])
def test_a_teacher_of_another_config_is_trained_and_labels(make, settings, width):
    """It is wider than the learner, and so are the labels, unless `label_dim` says less."""
    wide = tiny_learner(V)
    wide.n_embd = 24
    trainer = make({"teacher": wide}, **OWN, **settings)
    before = trainer.model.label_latents.clone()
    trainer.tune_initialization()
    assert not torch.equal(trainer.model.label_latents, before)
    assert (trainer.learner.model.config.n_embd, trainer.model.config.label_dim) == (16, width)


def test_teachers_of_several_kinds_are_trained_and_label_together(make):
    kinds = [tiny_learner(V), RNNConfig(vocab_size=V, hidden_size=8)]
    trainer = make({"teacher": kinds}, **{**OWN, "teacher_steps": 10}, label_dim=24, num_teachers=2)
    trainer.tune_initialization()
    data = RealData(trainer.train_dataset, trainer.data_collator, quiet=True)
    training = trainer.args.make_teacher_training()
    teachers = Labelling.by(kinds, trainer.learner).teachers(data, training, trainer.args.seed)
    inputs = whole(teachers[0].learner.model, trainer.model.input_ids.long())
    logits = sum(t.learner.logits(t.params, inputs) for t in teachers) / 4
    alone = sum(t.learner.logits(t.params, inputs) for t in teachers[:2]) / 2
    found = trainer.model(torch.arange(len(inputs["input_ids"])))
    error, other = ((found - x.softmax(-1)).abs().mean() for x in (logits, alone))
    assert error < other / 2  # 48 numbers do not fit into 24


def test_groups_of_tokens_are_those_that_the_teacher_sees_alike(make):
    torch.manual_seed(0)
    teacher = AutoModelForCausalLM.from_config(tiny_learner(V)).eval()
    settings = {
        **OWN,
        "inputs": "soft",
        "initialization": "clusters",
        "latent_dim": 18,
        "concentration": None,
    }
    trainer = make({"teacher": teacher}, **settings)
    trainer.tune_initialization()
    farzi, embedding = trainer.model, teacher.transformer.wte.weight.detach()
    ours, theirs = (x - x.mean(0) for x in (farzi.decoder[:16].T.detach(), embedding))
    distances = torch.cdist(theirs, theirs) / theirs.std()
    torch.testing.assert_close(torch.cdist(ours, ours), distances, rtol=1e-2, atol=1e-2)
    expected = teacher(inputs_embeds=farzi(torch.arange(4)).detach() @ embedding).logits
    found = torch.softmax(farzi.label_latents @ farzi.label_decoder, -1)
    torch.testing.assert_close(found, expected.softmax(-1), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("stream", [False, True])
def test_teachers_predict_only_what_labels_and_mask_leave(stream):
    row = {
        "input_ids": [4, 5, 6, 7],
        "labels": [-100, -100, 6, 7],
        "attention_mask": [1, 1, 1, 0],
        "text": "other",
    }
    rows = Dataset.from_list([row] * 3)
    data = RealData(
        RowStream(rows.to_iterable_dataset(), lambda rows: rows) if stream else rows,
        SequenceCollator(),
    )
    assert real_batches(data, 2, 3, seed=0)(1)["labels"].tolist() == [[-100, -100, 6, -100]] * 2


@pytest.mark.parametrize("rows", [1, 2, 50])
def test_scales_of_few_rows_and_of_columns_far_from_zero_keep_the_numbers(rows):
    """A matrix of one row has no deviation, and a column whose numbers are alike a small one: most
    of it was cut off.
    """
    weight = torch.linspace(1.0, 2.0, 8) + 0.01 * torch.randn(
        rows, 8, generator=torch.Generator().manual_seed(0)
    )
    params = _rounded(_with_scales({"w": weight}, 31), 31)
    torch.testing.assert_close(params["w"], weight, rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("steps", "batch_size", "rows"), [(10, 4, 256), (400, 4, 256), (4000, 64, 3200)]
)
def test_a_few_held_out_rows_are_always_worth_their_time(steps, batch_size, rows, monkeypatch):
    """Else as many as half the steps between two of forty evaluations read."""
    monkeypatch.setattr(teacher_module, "validation_loss", lambda learner, data, most: most)
    training = TeacherTraining(InnerAdam(0.1), steps=steps, batch_size=batch_size)
    assert training.validation(None, None) == rows


def test_room_for_the_labels_of_a_given_teacher(make):
    """It was that of the learner's head, which is narrower here."""
    wide = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=54,
            n_positions=64,
            n_embd=24,
            n_layer=1,
            n_head=2,
            bos_token_id=2,
            eos_token_id=3,
        )
    )
    trainer = make({"teacher": wide}, inputs="tokens", labels="own")
    assert trainer.model.config.label_dim == 24
