"""The meta-gradient engine against an independent reference, and its promises on memory, modes and errors."""

from __future__ import annotations

import shutil
import weakref
from collections import Counter
from functools import cache

import meta_problems as mp
import pytest
import torch
from meta_problems import OPTIMIZERS, PROBLEMS, MetaProblem, gradients, outer_loss, relative_error
from torch import Tensor, nn

from farzi_hf import adjoint as adjoint_module
from farzi_hf.adjoint import Adjoint, Checkpoint, Direct, Reversible, Tape, unroll
from farzi_hf.inner_optimizers import InnerAdam, InnerOptimizer, InnerSGD, PaperAdam

ADJOINTS: dict[str, Adjoint] = {
    "direct": Direct(), "tape": Tape(), "checkpoint": Checkpoint(), "three_slots": Checkpoint(slots=3),
    "one_slot": Checkpoint(slots=1), "reversible": Reversible(),
}  # fmt: skip
ADAM = OPTIMIZERS["adam"]
EXACT = 1e-9
CLOSE = 1e-5  # integers round the trajectory to 2^-44
SHORT = [(optimizer, steps) for steps in (1, 2, 7) for optimizer in OPTIMIZERS]
LONG = [(optimizer, 20) for optimizer in ("adam_small_eps", "adam_decay_schedule", "sgd_momentum")]

every_adjoint = pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def meta_gradient(problem: MetaProblem, optimizer: InnerOptimizer, steps: int, **options) -> list[Tensor]:
    theta = unroll(*problem.arguments, optimizer=optimizer, steps=steps, **options)
    return gradients(outer_loss(theta), problem.leaves)


@cache
def reference(name: str, optimizer: str, steps: int, window: int | None = None, first_step: int = 1) -> list[Tensor]:
    problem = PROBLEMS[name]()
    theta = mp.reference_unroll(problem, OPTIMIZERS[optimizer], steps, window, first_step)
    return gradients(outer_loss(theta), problem.leaves)


def assert_exact(problem: MetaProblem, found: list[Tensor], expected: list[Tensor], adjoint: Adjoint) -> None:
    """In the start and in the inputs separately, so that neither hides behind the other's size."""
    start = sum(x.requires_grad for x in problem.params.values())
    tolerance = CLOSE if isinstance(adjoint, Reversible) else EXACT
    assert relative_error(found[:start], expected[:start]) <= tolerance
    assert relative_error(found[start:], expected[start:]) <= tolerance


def skip_irreversible(optimizer: InnerOptimizer, adjoint: Adjoint) -> None:
    if isinstance(adjoint, Reversible) and not all(optimizer.decays):
        pytest.skip("SGD without momentum keeps nothing to come back from")


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "llama"])  # which computes its norms in float32
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adam_small_eps"])
def test_reference_against_finite_differences(name: str, optimizer: str) -> None:
    problem, h = PROBLEMS[name](), 1e-5
    directions = [
        torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3)) for x in problem.leaves
    ]

    def value(h: float) -> float:
        moved = [(x.detach() + h * d).requires_grad_() for x, d in zip(problem.leaves, directions, strict=True)]
        theta = mp.reference_unroll(problem.with_leaves(moved), OPTIMIZERS[optimizer], 5)
        return outer_loss(theta).item()

    slope = sum(float((g * d).sum()) for g, d in zip(reference(name, optimizer, 5), directions, strict=True))
    assert (value(h) - value(-h)) / (2 * h) == pytest.approx(slope, rel=1e-5, abs=1e-5)


@every_adjoint
@every_problem
@pytest.mark.parametrize(("optimizer", "steps"), SHORT + LONG)
def test_against_reference(name: str, optimizer: str, steps: int, adjoint: Adjoint) -> None:
    skip_irreversible(OPTIMIZERS[optimizer], adjoint)
    problem = PROBLEMS[name]()
    found = meta_gradient(problem, OPTIMIZERS[optimizer], steps, adjoint=adjoint)
    assert_exact(problem, found, reference(name, optimizer, steps), adjoint)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(), Checkpoint(slots=3), Reversible()])
@every_problem
@pytest.mark.parametrize("optimizer", ["adam_decay_schedule", "sgd_momentum"])
@pytest.mark.parametrize("steps", [100, 300])
def test_against_direct_over_many_steps(name: str, optimizer: str, steps: int, adjoint: Adjoint) -> None:
    problem = PROBLEMS[name]()
    found = meta_gradient(problem, OPTIMIZERS[optimizer], steps, adjoint=adjoint)
    assert_exact(problem, found, by_direct(name, optimizer, steps), adjoint)


@cache
def by_direct(name: str, optimizer: str, steps: int) -> list[Tensor]:
    found = meta_gradient(PROBLEMS[name](), OPTIMIZERS[optimizer], steps, adjoint=Direct())
    assert_exact(PROBLEMS[name](), found, reference(name, optimizer, steps), Direct())
    return found


@every_adjoint
@pytest.mark.parametrize("optimizer", ["adam_decay_schedule", "sgd_momentum"])
@pytest.mark.parametrize("window", [1, 4, 8, 9])
def test_window_differentiates_the_last_steps_only(optimizer: str, window: int, adjoint: Adjoint) -> None:
    problem = mp.mlp()
    found = meta_gradient(problem, OPTIMIZERS[optimizer], 9, window=window, adjoint=adjoint)
    assert_exact(problem, found, reference("mlp", optimizer, 9, window), adjoint)
    assert any(x.any() for x in found[:4]) == (window == 9), "truncation leaves no gradient in the start"


@every_adjoint
@pytest.mark.parametrize("optimizer", ["adam_decay_schedule", "sgd_decay_schedule"])
def test_first_step_numbers_minibatches_and_schedule(optimizer: str, adjoint: Adjoint) -> None:
    problem, seen = mp.mlp(), []

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        seen.append(step)
        return problem.inner_loss(params, inputs, step)

    theta = unroll(inner_loss, problem.params, problem.inputs, optimizer=OPTIMIZERS[optimizer], steps=4, first_step=6,
                   adjoint=adjoint)  # fmt: skip
    assert seen == [6, 7, 8, 9]
    assert_exact(
        problem, gradients(outer_loss(theta), problem.leaves), reference("mlp", optimizer, 4, None, 6), adjoint
    )


@every_adjoint
def test_two_runs_in_a_row_are_one(adjoint: Adjoint) -> None:
    problem, sgd = mp.mlp(), InnerSGD(lr=0.1, weight_decay=0.1, lr_schedule=mp.warmup_then_decay)  # no state but w
    skip_irreversible(sgd, adjoint)
    options = {"optimizer": sgd, "adjoint": adjoint}
    middle = unroll(problem.inner_loss, problem.params, problem.inputs, steps=3, **options)
    theta = unroll(problem.inner_loss, middle, problem.inputs, steps=4, first_step=4, **options)
    whole = meta_gradient(problem, sgd, 7, adjoint=adjoint)
    assert_exact(problem, gradients(outer_loss(theta), problem.leaves), whole, adjoint)


@every_adjoint
def test_dead_parameters_keep_the_gradient_finite_at_the_default_eps(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    found = meta_gradient(problem, InnerAdam(lr=0.02), 5, adjoint=adjoint)
    dead = problem.params["dead"]
    expected = gradients(outer_loss({"dead": dead}), [dead])[0]
    assert all(x.isfinite().all() for x in found)
    assert relative_error([found[2]], [expected]) <= (CLOSE if isinstance(adjoint, Reversible) else 0)


def test_paper_rule_is_exact_at_one_step_only() -> None:
    problem = mp.gpt2()
    rules = [PaperAdam(lr=0.02, eps=1e-3, weight_decay=0.1), InnerAdam(lr=0.02, eps=1e-3, weight_decay=0.1)]
    one, exact_one = (meta_gradient(problem, rule, 1) for rule in rules)
    assert relative_error(one, exact_one) <= 1e-12
    many, exact_many = (torch.cat([x.flatten() for x in meta_gradient(problem, rule, 30)]) for rule in rules)
    assert torch.cosine_similarity(many, exact_many, dim=0) < 0.99


def test_direct_refuses_the_paper_rule() -> None:
    with pytest.raises(ValueError, match=r"adjoint=Direct\(\).*PaperAdam.*use adjoint=Tape\(\)"):
        meta_gradient(mp.mlp(), PaperAdam(lr=0.1), 2, adjoint=Direct())


# --- what trains, and in what ----------------------------------------------------------------------------------------


@every_adjoint
def test_result_has_the_keys_shapes_and_passive_tensors_of_params(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    theta = unroll(*problem.arguments, optimizer=ADAM, steps=3, adjoint=adjoint)
    assert list(theta) == list(problem.params)
    assert all(theta[name].shape == x.shape and theta[name].dtype == x.dtype for name, x in problem.params.items())
    assert all(theta[name] is problem.params[name] for name in ("count", "frozen"))


def test_plain_tensors_train_unless_some_other_requires_grad() -> None:
    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        return sum((x * inputs[0]).square().sum() for x in params.values())

    def moved(**params: Tensor) -> set[str]:
        theta = unroll(inner_loss, params, (torch.ones(2),), optimizer=ADAM, steps=1)
        return {name for name in params if theta[name] is not params[name]}

    plain, leaf = torch.ones(2), torch.ones(2, requires_grad=True)
    parameter, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), requires_grad=False)
    assert moved(a=plain, b=plain) == {"a", "b"}
    assert moved(a=plain, b=leaf) == {"b"}
    assert moved(a=plain, b=parameter) == {"b"}
    assert moved(a=plain, b=frozen) == {"a"}


@every_adjoint
def test_gradient_in_the_start_alone_and_in_the_inputs_alone(adjoint: Adjoint) -> None:
    problem = mp.gpt2()
    both = meta_gradient(problem, ADAM, 4, adjoint=adjoint)
    soft = problem.inputs[0]
    start = mp.MetaProblem(problem.inner_loss, problem.params, (soft.detach(),))
    assert relative_error(meta_gradient(start, ADAM, 4, adjoint=adjoint), both[:-1]) <= 1e-12
    detached = {name: x.detach() for name, x in problem.params.items()}
    theta = unroll(problem.inner_loss, detached, (soft,), optimizer=ADAM, steps=4, adjoint=adjoint)
    assert relative_error(gradients(outer_loss(theta), [soft]), both[-1:]) <= 1e-12


@every_adjoint
def test_a_linear_loss_has_no_second_derivatives(adjoint: Adjoint) -> None:
    w, x = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    theta = unroll(lambda p, i, step: p["w"].sum() + 0 * step, {"w": w}, (x,), optimizer=ADAM, steps=3, adjoint=adjoint)
    dw, dx = gradients(theta["w"].sum(), [w, x])
    assert torch.equal(dw, torch.ones(2))
    assert not dx.any()


@every_adjoint
def test_parameters_of_two_dtypes(adjoint: Adjoint) -> None:
    problem, mixed = mp.mlp(), mp.mlp()
    mixed.params["bias"] = problem.params["bias"].detach().float().requires_grad_()
    mixed.params["dead"] = problem.params["dead"].detach().float().requires_grad_()
    found = meta_gradient(mixed, ADAM, 7, adjoint=adjoint)
    assert [x.dtype for x in found[:4]] == [torch.float64, torch.float32, torch.float32, torch.float64]
    assert relative_error([x.double() for x in found], reference("mlp", "adam", 7)) < 1e-5


@every_adjoint
@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_forward_without_gradients(quiet: type, adjoint: Adjoint) -> None:
    problem = mp.mlp()
    expected = mp.reference_unroll(problem, ADAM, 5)
    with quiet():
        theta = unroll(*problem.arguments, optimizer=ADAM, steps=5, adjoint=adjoint)
    assert not any(x.requires_grad for name, x in theta.items())
    torch.testing.assert_close(theta, {name: x.detach() for name, x in expected.items()}, rtol=1e-12, atol=1e-14)


# --- checkpoints -----------------------------------------------------------------------------------------------------


@cache
def fewest_advances(steps: int, slots: int) -> int:
    """Steps forward that a reversal takes at least, by dynamic programming over all schedules."""
    if steps == 1 or slots == 1:
        return steps * (steps - 1) // 2
    return min(m + fewest_advances(steps - m, slots - 1) + fewest_advances(m, slots) for m in range(1, steps))


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, None])
@pytest.mark.parametrize("steps", [1, 2, 3, 9, 20, 41])
def test_checkpoints_take_as_few_steps_again_as_any_schedule(steps: int, slots: int | None) -> None:
    problem, calls = mp.mlp(), 0

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(params, inputs, step)

    adjoint = Checkpoint(slots)
    outer_loss(unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=steps, adjoint=adjoint)).backward()
    in_forward_pass = sum(len(ts) for ts, _ in adjoint._first_descent(range(steps))[:-1])
    assert calls == steps + fewest_advances(steps, adjoint._slots(steps)) - in_forward_pass + steps


def test_default_checkpoints_take_no_step_more_than_twice() -> None:
    problem, taken = mp.mlp(), Counter()

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        taken[step] += 1
        return problem.inner_loss(params, inputs, step)

    theta = unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=100, adjoint=Checkpoint())
    outer_loss(theta).backward()
    assert max(taken.values()) == 3, "twice to find the states, once in reverse"
    assert Checkpoint()._slots(100) == 13


@pytest.mark.parametrize("slots", [0, -1, 2.0, True])
def test_bad_slots(slots: object) -> None:
    with pytest.raises(ValueError, match=r"slots must be None or an integer >= 1, got"):
        Checkpoint(slots=slots)


# --- running backwards -----------------------------------------------------------------------------------------------


def test_reversal_of_many_steps_ends_at_the_start_and_takes_each_step_twice() -> None:
    problem, seen = mp.gpt2(torch.float32), []

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        seen.append(step)
        return problem.inner_loss(params, inputs, step)

    theta = unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=200, adjoint=Reversible())
    outer_loss(theta).backward()  # it raises if one bit is wrong
    assert seen == [*range(1, 201), *range(200, 0, -1)]


def test_reversal_follows_the_float32_trajectory() -> None:
    problem = mp.gpt2(torch.float32)
    expected = mp.reference_unroll(mp.gpt2(), ADAM, 40)
    error = {}
    for adjoint in (Tape(), Reversible()):
        theta = unroll(*problem.arguments, optimizer=ADAM, steps=40, adjoint=adjoint)
        error[adjoint] = relative_error(
            [x.detach().double() for x in theta.values()], [x.detach() for x in expected.values()]
        )
    assert error[Reversible()] <= 2 * error[Tape()] + 1e-7


def test_a_gradient_that_cannot_be_reproduced_is_an_error() -> None:
    problem, calls = mp.mlp(), 0

    def noisy(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(params, inputs, step) * (1 + 1e-6 * calls)

    loss = outer_loss(unroll(noisy, *problem.arguments[1:], optimizer=ADAM, steps=6, adjoint=Reversible()))
    with pytest.raises(RuntimeError, match=r"did not come back .* before step 6: .*use_deterministic_algorithms"):
        loss.backward()


@pytest.mark.parametrize("optimizer", [InnerSGD(lr=0.1), InnerAdam(lr=0.1, betas=(0.0, 0.9))])
def test_an_optimizer_without_memory_cannot_run_backwards(optimizer: InnerOptimizer) -> None:
    with pytest.raises(ValueError, match=r"adjoint=Reversible\(\) cannot run Inner.* backwards.*use adjoint=Tape\(\)"):
        unroll(*mp.mlp().arguments, optimizer=optimizer, steps=2, adjoint=Reversible())


@pytest.mark.parametrize(("scale", "what"), [(1e12, "gradient"), (1e6, "parameter")])
def test_numbers_beyond_the_integers_are_an_error(scale: float, what: str) -> None:
    w, x = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(OverflowError, match=rf"room for a {what} of up to .* but step 1 has one of"):
        unroll(lambda p, i, t: (p["w"] * i[0] * scale).sum(), {"w": w}, (x,), optimizer=InnerSGD(1.0, momentum=0.5),
               steps=2, adjoint=Reversible())  # fmt: skip


@every_adjoint
def test_training_that_diverges_gives_nan_everywhere(adjoint: Adjoint) -> None:
    problem = mp.mlp()

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        return problem.inner_loss(params, inputs, step) * (float("nan") if step == 3 else 1.0)

    theta = unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=5, adjoint=adjoint)
    found = gradients(outer_loss(theta), problem.leaves)
    assert theta["in"].isnan().all()
    assert found[0].isnan().all()
    assert found[-1].isnan().any()


# --- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "room", "expected"),
    [
        (ADAM, 1e9, "Direct"),
        (ADAM, 2e6, "Tape"),
        (ADAM, 4e5, "Reversible"),
        (InnerSGD(lr=0.1), 4e5, "Checkpoint"),
        (PaperAdam(lr=0.1), 1e9, "Tape"),
        (ADAM, 10, "Reversible"),
    ],
)
def test_without_an_adjoint_the_fastest_that_fits_is_taken(
    optimizer: InnerOptimizer,
    room: float,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(adjoint_module, "_total_memory", lambda device: 4 * room)
    adjoint_module._log_once.cache_clear()
    problem = mp.gpt2()
    with caplog.at_level("INFO"):
        found = meta_gradient(problem, optimizer, 100)
        meta_gradient(problem, optimizer, 100)
    (record,) = caplog.records
    assert record.levelname == ("WARNING" if room == 10 else "INFO")
    assert record.message.startswith(f"adjoint={expected}(")
    assert "estimates: " in record.message
    adjoint = {"Direct": Direct(), "Tape": Tape(), "Reversible": Reversible(), "Checkpoint": Checkpoint()}[expected]
    assert all(map(torch.equal, found, meta_gradient(problem, optimizer, 100, adjoint=adjoint)))


# --- autograd's rules ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(), Reversible()])
def test_second_derivatives_are_refused_by_recordings_and_given_by_direct(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    x = problem.inputs[0]
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=2, adjoint=adjoint))
    with pytest.raises(
        RuntimeError, match=r"adjoint=[A-Z][a-z]+\(\) has first derivatives only.*use adjoint=Direct\(\)"
    ):
        torch.autograd.grad(loss, x, create_graph=True)
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=2, adjoint=Direct()))
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    assert gradients(dx.square().sum(), [x])[0].isfinite().all()


@every_adjoint
def test_backward_twice_over_a_retained_graph(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=7, adjoint=adjoint))
    first, second = (torch.autograd.grad(loss, problem.leaves, retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("victim", ["input", "constant"])
def test_overwriting_what_the_backward_pass_needs_is_an_error(victim: str) -> None:
    problem = mp.mlp()
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=2, adjoint=Tape()))
    with torch.no_grad():
        (problem.inputs[0] if victim == "input" else problem.params["frozen"]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_adjoint
def test_bf16_autocast_covers_the_loss_forward_and_backward(adjoint: Adjoint) -> None:
    problem, dtypes = mp.mlp(torch.float32), []

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        dtypes.append((inputs[0] @ params["in"]).dtype)
        return problem.inner_loss(params, inputs, step).float()

    with torch.autocast("cpu", torch.bfloat16):
        theta = unroll(inner_loss, problem.params, problem.inputs, optimizer=ADAM, steps=5, adjoint=adjoint)
    found = gradients(outer_loss(theta), problem.leaves)  # outside: the backward pass must remember
    assert set(dtypes) == {torch.bfloat16}
    assert all(x.dtype == torch.float32 for name, x in theta.items() if name != "count")
    expected = reference("mlp", "adam", 5)
    assert 1e-4 < relative_error([x.double() for x in found], expected) < 0.1


@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(), Reversible()])
def test_adjoints_agree_under_autocast(adjoint: Adjoint) -> None:
    problem = mp.gpt2(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        losses = [
            outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=4, adjoint=a)) for a in (Direct(), adjoint)
        ]
    direct, found = (gradients(loss, problem.leaves) for loss in losses)
    assert relative_error(found, direct) < 1e-4


# --- compiled --------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_steps_give_the_same_gradient_and_are_compiled_once() -> None:
    name, stats = "adam_decay_schedule", torch._dynamo.utils.counters["stats"]
    for steps, adjoint in ((7, Tape()), (7, Checkpoint(slots=3)), (7, Reversible()), (9, Reversible())):
        problem, compiled = mp.mlp(), stats["unique_graphs"]  # another loss function, of the same code, every time
        found = meta_gradient(problem, OPTIMIZERS[name], steps, adjoint=adjoint, torch_compile=True)
        assert_exact(problem, found, reference("mlp", name, steps), adjoint)
    assert compiled, "there was something to compile"
    assert stats["unique_graphs"] == compiled, "other tensors and more steps need no new code"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["gpt2", "gru"])
@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(slots=3), Reversible()])
def test_compiled_networks(name: str, adjoint: Adjoint) -> None:
    problem = PROBLEMS[name]()
    found = meta_gradient(problem, ADAM, 7, adjoint=adjoint, torch_compile=True)
    assert_exact(problem, found, reference(name, "adam", 7), adjoint)


def test_direct_cannot_be_compiled() -> None:
    with pytest.raises(ValueError, match=r"adjoint=Direct\(\) needs autograd's graphs.*torch_compile=True.*Tape\(\)"):
        unroll(*mp.mlp().arguments, optimizer=ADAM, steps=2, adjoint=Direct(), torch_compile=True)


@pytest.mark.usefixtures("compiler")
def test_a_loss_that_cannot_be_compiled_is_an_error() -> None:
    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        return params["w"].sum() if inputs[0].sum() > 0 else params["w"].prod()

    w = torch.ones(2, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=r"torch_compile=True needs an inner_loss that torch.compile can trace whole"
    ):
        unroll(inner_loss, {"w": w}, (torch.ones(2),), optimizer=ADAM, steps=2, adjoint=Tape(), torch_compile=True)


@every_adjoint
def test_the_backward_pass_leaves_the_result_as_it_is(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    theta = unroll(*problem.arguments, optimizer=ADAM, steps=4, adjoint=adjoint)
    before = {name: x.detach().clone() for name, x in theta.items()}
    outer_loss(theta).backward()
    assert all(torch.equal(x, before[name]) for name, x in theta.items())


# --- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 10])
def test_tape_holds_gradients_and_sparse_states_until_backward(window: int | None) -> None:
    problem = mp.mlp()
    steps, numbers = 50, sum(x.numel() for x in problem.params.values() if x.requires_grad)
    theta = unroll(*problem.arguments, optimizer=ADAM, steps=steps, window=window, adjoint=Tape())
    node = _node(theta["in"])
    taped = window or steps
    segments = -(-taped // 8) if window is None else 3  # ⌈√50⌉ = 8 steps each, ⌈√10⌉ = 4
    kept = [*node.record.stack, *node.record.start[0]]
    assert sum(x.untyped_storage().nbytes() for x in kept) == 8 * numbers * (taped + 3 * segments)
    outer_loss(theta).backward()
    assert not node.record.stack


@pytest.mark.parametrize(("adjoint", "evaluations"), [(Tape(), 24), (Checkpoint(), 32), (Reversible(), 24)])
def test_recordings_keep_one_graph_at_a_time(adjoint: Adjoint, evaluations: int) -> None:
    problem, alive, most = mp.gpt2(), [], 0

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive))
        loss = problem.inner_loss(params, inputs, step)
        alive.append(weakref.ref(loss))
        return loss

    loss = outer_loss(unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=12, adjoint=adjoint))
    loss.backward()
    assert len(alive) == evaluations
    assert most == 0, "when a step is evaluated, the graphs of all others are gone"


# --- bad input -------------------------------------------------------------------------------------------------------


def _node(result: Tensor) -> torch.autograd.graph.Node:
    """The engine's node in the graph of a result, under a view and a split."""
    node = result.grad_fn
    while "Unrolled" not in node.name():
        node = node.next_functions[0][0]
    return node


def _frozen() -> dict[str, Tensor]:
    return {"w": nn.Parameter(torch.ones(2), requires_grad=False), "n": torch.arange(2)}


BAD_INPUT = {
    "no steps": ({"steps": 0}, ValueError, r"steps must be an integer >= 1, got 0"),
    "fractional steps": ({"steps": 2.0}, ValueError, r"steps must be an integer >= 1, got 2\.0"),
    "empty window": ({"window": 0}, ValueError, r"window must be None or an integer from 1 to steps=3, got 0"),
    "window beyond steps": ({"window": 4}, ValueError, r"window .* from 1 to steps=3, got 4; None differentiates all"),
    "first step": ({"first_step": None}, ValueError, r"first_step must be an integer, got None"),
    "empty params": ({"params": {}}, TypeError, r"params must be a dict of tensors with at least.*named_parameters"),
    "module": ({"params": nn.Linear(1, 1)}, TypeError, r"params must be a dict .* got Linear"),
    "nothing trains": ({"params": _frozen()}, ValueError, r"params has no tensor to train.*requires_grad=True"),
    "bare input": ({"inputs": torch.ones(2)}, TypeError, r"inputs must be a tuple of tensors, got Tensor.*pass \(x,\)"),
    "list input": ({"inputs": ([1.0],)}, TypeError, r"inputs must be a tuple of tensors, got tuple"),
    "torch optimizer": ({"optimizer": torch.optim.Adam}, TypeError, r"optimizer must .* got the class Adam.*InnerAdam"),
    "optimizer class": ({"optimizer": InnerAdam}, TypeError, r"optimizer must .* got the class InnerAdam"),
    "adjoint name": ({"adjoint": "tape"}, TypeError, r"adjoint must be an Adjoint or None, got str 'tape'.*Tape\(\)"),
    "vector loss": ({"inner_loss": lambda p, i, s: p["w"]}, ValueError, r"inner_loss .* got shape \(2,\) at step 1"),
    "number loss": ({"inner_loss": lambda p, i, s: 1.5}, ValueError, r"inner_loss must .* got float 1\.5 at step 1"),
    "detached": ({"inner_loss": lambda p, i, s: p["w"].detach().sum()}, ValueError, r"inner_loss must depend on the"),
}  # fmt: skip


@every_adjoint
@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_clear_error(case: str, adjoint: Adjoint) -> None:
    change, error, message = BAD_INPUT[case]
    good = {
        "inner_loss": lambda params, inputs, step: (params["w"] * inputs[0]).square().sum(),
        "params": {"w": torch.ones(2)}, "inputs": (torch.ones(2, requires_grad=True),),
        "optimizer": ADAM, "steps": 3, "adjoint": adjoint,
    }  # fmt: skip
    assert unroll(**good)["w"].requires_grad
    with pytest.raises(error, match=message):
        unroll(**(good | change))
