"""The influence of training sequences: exact, whatever the adjoint, and what real
retrainings show.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from gradient_scores import gradient_cosines, gradient_products
from tiny_models import V, config_of
from torch import Tensor
from transformers import AutoModelForCausalLM

from farzi_hf.attribution import WeightedTraining, influence
from farzi_hf.data import IGNORED, SequenceCollator, minibatches
from farzi_hf.distillation import Learner
from farzi_hf.engine import Checkpoint, Direct, InnerAdam, InnerSGD, Reversible, Tape

# Three epochs of two minibatches; each epoch leaves one sequence out.
N = 7
BATCH = 3
STEPS = 6
OPTIMIZERS = {
    "Adam": InnerAdam(lr=0.05, betas=(0.9, 0.99), eps=1e-2, lr_schedule=lambda step: 1 / step),
    "SGD": InnerSGD(lr=0.5, momentum=0.9),
}


def sentences(count: int, seed: int) -> dict[str, Tensor]:
    """Of two to six ids."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 7, (count,), generator=generator).tolist()
    rows = [
        {"input_ids": torch.randint(1, V, (length,), generator=generator)} for length in lengths
    ]
    return SequenceCollator(0)(rows)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(config_of("gpt2", initializer_range=0.3))


@pytest.fixture(params=OPTIMIZERS)
def training(learner: Learner, request) -> WeightedTraining:
    start = {name: x.double() for name, x in learner.initial_parameters(0).items()}
    batches = minibatches(N, BATCH, STEPS, seed=1)
    assert batches.unique(return_counts=True)[1].max() > 1  # weights of sequences that come again
    return WeightedTraining(
        learner, sentences(N, seed=2), batches, OPTIMIZERS[request.param], start
    )


TEST = sentences(5, seed=3)


def weights() -> Tensor:
    return 0.5 + torch.rand(N, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_loss_is_the_weighted_sum_over_the_unweighted_number_of_tokens(training):
    w = weights()
    chosen = training.batches[0]
    rows = {name: x[chosen] for name, x in training.rows.items()}
    logits = training.learner.logits(training.start, rows)[:, :-1]
    labels = rows["labels"][:, 1:]
    losses = torch.nn.functional.cross_entropy(
        logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
    )
    expected = (w[chosen] * losses.sum(1)).sum() / (labels != IGNORED).sum()
    torch.testing.assert_close(training.loss(training.start, (w,), 1), expected)
    unweighted = training.loss(training.start, (training.ones,), 1)
    torch.testing.assert_close(unweighted, training.learner.hard_loss(training.start, rows))


@pytest.mark.parametrize("adjoint", [None, Reversible(), Checkpoint(slots=2), Tape()], ids=repr)
def test_every_adjoint_gives_the_derivative_of_autograd(training, adjoint):
    expected = influence(training, TEST, weights=weights(), adjoint=Direct())
    assert expected.abs().min() > 1e-5
    # `Reversible` holds the optimizer's accumulators in integers with the precision of float32.
    rtol = 1e-11 if isinstance(adjoint, (Checkpoint, Tape)) else 1e-5
    found = influence(training, TEST, weights=weights(), adjoint=adjoint)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=0)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_steps_give_the_same_influence_and_are_compiled_once(training):
    """Whatever the number of padded columns and of predicted ids in a minibatch, which differs
    here.
    """
    expected = influence(training, TEST, adjoint=Direct())
    compiled = replace(training, torch_compile=True)
    stats = torch._dynamo.utils.counters["stats"]
    # The share of the positions that count was float32 here, also in a float64 training: an error
    # of 1.3e-5.
    torch.testing.assert_close(
        influence(compiled, TEST, adjoint=Tape()), expected, rtol=1e-9, atol=0
    )
    before = stats["unique_graphs"]
    influence(compiled, TEST, weights=weights(), adjoint=Tape())
    assert 0 < stats["unique_graphs"] == before


def test_it_is_what_small_changes_of_the_weights_do(training):
    w = weights()
    h = 1e-5
    found = influence(training, TEST, weights=w, adjoint=Tape())
    for i in range(N):
        change = h * torch.nn.functional.one_hot(torch.tensor(i), N)
        above, below = (
            training.learner.hard_loss(training.train(w + s * change), TEST) for s in (1, -1)
        )
        torch.testing.assert_close(found[i], -(above - below) / (2 * h), rtol=1e-4, atol=1e-8)


def test_several_losses_have_a_row_each(training):
    one = {name: x[:1] for name, x in TEST.items()}
    losses = lambda theta: torch.stack(  # noqa: E731
        [training.learner.hard_loss(theta, batch) for batch in (TEST, one)]
    )
    expected = torch.stack([influence(training, test) for test in (TEST, one)])
    torch.testing.assert_close(influence(training, losses), expected)


def test_a_weight_of_zero_is_a_sequence_left_out_and_one_that_no_batch_has_does_nothing(learner):
    start = {name: x.double() for name, x in learner.initial_parameters(0).items()}
    batches = torch.tensor([[0, 1], [2, 0]])
    training = WeightedTraining(learner, sentences(4, seed=2), batches, InnerSGD(lr=0.5), start)
    assert influence(training, TEST)[3] == 0
    changed = {name: x.clone() for name, x in training.rows.items()}
    changed["input_ids"][1, 1] = 5
    changed["labels"][1, 1] = 5
    without = torch.tensor([1.0, 0.0, 1.0, 1.0])  # float32, where the parameters are float64
    torch.testing.assert_close(
        replace(training, rows=changed).train(without), training.train(without)
    )


def test_gradient_scores_are_those_of_single_gradients(training):
    theta = training.start

    def gradient(rows: dict[str, Tensor]) -> Tensor:
        leaves = {name: x.clone().requires_grad_() for name, x in theta.items()}
        training.learner.hard_loss(leaves, rows).backward()
        return torch.cat([x.grad.flatten() for x in leaves.values() if x.grad is not None])

    test = gradient(TEST)
    dots = []
    cosines = []
    for i in range(N):
        row = {name: x[i : i + 1] for name, x in training.rows.items()}
        g = gradient(row) * (row["labels"][:, 1:] != IGNORED).sum()
        dots.append(g @ test)
        cosines.append(torch.cosine_similarity(g, test, dim=0))
    torch.testing.assert_close(
        gradient_products(training, TEST, [theta, theta]), 2 * torch.stack(dots)
    )
    torch.testing.assert_close(gradient_cosines(training, TEST, theta), torch.stack(cosines))


ROWS = sentences(N, seed=2)
LEFT_PADDED = torch.tensor([[1, 1, 1, 1, 1, 0]] * 3 + [[0, 1, 1, 1, 1, 1]] * 4)
NO_LABELS = torch.full((N, 6), IGNORED)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batches": torch.tensor([[0, 7]])}, "batches names the rows 0 to 7, but rows has 0 to 6"),
        ({"batches": torch.tensor([0, 1])}, r"batches is torch.int64 of shape \(2,\)"),
        (
            {"rows": {**ROWS, "user": torch.arange(N)}},
            r"rows has the shapes {'user': \(7,\)}; give every column as \(n, L\)",
        ),
        (
            {"rows": {"input_ids": torch.ones(7, 3)}},
            "rows has input_ids; give input_ids and labels",
        ),
        (
            {"rows": {**ROWS, "input_ids": torch.full((N, 6), V)}},
            rf"rows\['input_ids'\] holds the id {V}, outside 0 … {V - 1}",
        ),
        (
            {"rows": {**ROWS, "attention_mask": LEFT_PADDED}},
            r"rows\['attention_mask'\]\[3\] has padding before an id; pad on the right",
        ),
        (
            {"rows": {**ROWS, "labels": NO_LABELS}},
            r"batches\[0\] has only rows without a label to predict",
        ),
    ],
)
def test_a_training_says_what_is_wrong(training, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(training, **changes)


def test_weights_that_cannot_be_used(training):
    for weights, message in (
        (torch.ones(3), r"the shape \(3,\)"),
        (torch.ones(N) / 0, r"weights\[0\] is not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            influence(training, TEST, weights=weights)


@pytest.mark.parametrize(
    ("test", "error", "message"),
    [
        (lambda loss, theta: loss(theta).view(1, 1), ValueError, r"losses of shape \(1, 1\)"),
        (
            lambda loss, theta: loss(theta) * torch.inf,
            FloatingPointError,
            "the influence is not finite after 6 steps",
        ),
        (
            None,
            TypeError,
            "test is a NoneType; give a batch with input_ids and labels, or a function of θ",
        ),
        (
            {"input_ids": TEST["input_ids"]},
            ValueError,
            "test has input_ids; give input_ids and labels",
        ),
        (
            {**TEST, "input_ids": TEST["input_ids"] + V},
            ValueError,
            rf"test\['input_ids'\] holds the id \d+, outside 0 … {V - 1}",
        ),
        (
            {**TEST, "labels": torch.full_like(TEST["labels"], IGNORED)},
            ValueError,
            "test has no label to predict",
        ),
    ],
)
def test_tests_that_cannot_be_used(training, test, error, message):
    given = (
        partial(test, lambda theta: training.learner.hard_loss(theta, TEST))
        if callable(test)
        else test
    )
    with pytest.raises(error, match=message):
        influence(training, given)


def partly_frozen(
    trained: tuple[str, ...], frozen_type: torch.dtype = torch.float32
) -> WeightedTraining:
    """Of a model in which only parameters with one of these names train."""

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        made = AutoModelForCausalLM.from_config(config_of("gpt2", initializer_range=0.3))
        for name, x in made.named_parameters():
            x.requires_grad_(any(part in name for part in trained))
            x.data = x.data if x.requires_grad else x.data.to(frozen_type)
        return made

    learner = Learner(model)
    batches = minibatches(N, BATCH, STEPS, seed=1)
    return WeightedTraining(learner, ROWS, batches, InnerSGD(0.1), learner.initial_parameters(0))


def test_frozen_parameters_have_no_part_in_gradient_scores():
    """Products add up over groups of parameters, and cosines are at most 1 in each."""

    def scores(*trained: str) -> tuple[Tensor, Tensor]:
        training = partly_frozen(trained)
        return gradient_products(training, TEST, [training.start]), gradient_cosines(
            training, TEST, training.start
        )

    embeddings = scores("wte")
    others = scores("ln_")
    both = scores("wte", "ln_")
    torch.testing.assert_close(embeddings[0] + others[0], both[0], rtol=1e-3, atol=1e-5)
    assert embeddings[1].abs().max() <= 1 + 1e-5


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_influence_is_a_derivative_also_where_the_caller_wants_no_others(training, quiet):
    expected = influence(training, TEST)
    products = gradient_products(training, TEST, [training.start])
    with quiet():
        torch.testing.assert_close(influence(training, TEST), expected)
    with torch.no_grad():
        torch.testing.assert_close(gradient_products(training, TEST, [training.start]), products)


def test_a_sequence_without_anything_to_predict_scores_zero(training):
    alone = {name: x.clone() for name, x in training.rows.items()}
    alone["labels"][2, 1:] = IGNORED
    found = gradient_cosines(replace(training, rows=alone), TEST, training.start)
    assert found[2] == 0
    assert found.isfinite().all()


def test_weights_are_of_the_type_of_what_trains():
    """A constant base in bfloat16 comes first among the parameters."""
    training = partly_frozen(("ln_",), torch.bfloat16)
    assert next(iter(training.start.values())).dtype == torch.bfloat16
    assert training.ones.dtype == torch.float32
    assert training.checked(torch.ones(N).double()).dtype == torch.float32
