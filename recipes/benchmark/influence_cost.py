"""Time and memory of the influence of all training sequences, for each way to differentiate: a
process per way and T.

`attribution.py` calls `measured`. A process that needs more memory or time than it may have is
stopped, and its row says so.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import harness
import torch
from harness import Facts, Limits, PeakMemory, Report, Timer, in_process, unfinished
from influence import AttributionProblem, parse, say
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from farzi_hf.attribution import WeightedTraining, influence
from farzi_hf.engine import Adjoint, Checkpoint, Direct, InnerAdam, Reversible, Tape

WARM_UP = 3
"""Steps of the training before the one that is measured. Then compiled code is there for any number
of steps.
"""

Method = Callable[[WeightedTraining, dict[str, Tensor]], Tensor]


def plain_training(training: WeightedTraining, test: dict[str, Tensor]) -> Tensor:
    """No derivative: what the others are compared with."""
    return training.learner.hard_loss(training.train(), test).detach()


def ordinary_loop(training: WeightedTraining, test: dict[str, Tensor]) -> Tensor:
    """The same training as a user of PyTorch writes it: the model's own loss, an optimizer of
    `torch.optim`, a schedule.
    """
    model = copy.deepcopy(training.learner.model)
    ours = training.optimizer
    model.load_state_dict(training.start, strict=False)
    if isinstance(ours, InnerAdam):
        optimizer = torch.optim.Adam(model.parameters(), ours.lr, ours.betas, ours.eps)
    else:
        optimizer = torch.optim.SGD(model.parameters(), ours.lr, ours.momentum)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda taken: ours.lr_schedule(taken + 1)
    )
    for chosen in training.batches:
        optimizer.zero_grad()
        model(**training.minibatch(chosen)).loss.backward()
        optimizer.step()
        schedule.step()
    return training.learner.hard_loss(dict(model.named_parameters()), test).detach()


def with_adjoint(adjoint: Adjoint) -> Method:
    return lambda training, test: influence(training, test, adjoint=adjoint)


def compiled(method: Method) -> Method:
    return lambda training, test: method(replace(training, torch_compile=True), test)


def step_checkpoint(training: WeightedTraining, test: dict[str, Tensor]) -> Tensor:
    """`torch.utils.checkpoint` around each step of the optimizer, as a user would write it."""
    names, start = zip(*training.start.items(), strict=True)
    optimizer = training.optimizer
    w = training.ones.requires_grad_()
    flat = torch.cat([x.reshape(-1) for x in start])

    def params_of(x: Tensor) -> dict[str, Tensor]:
        parts = x.split([p.numel() for p in start])
        return {name: part.view(p.shape) for name, part, p in zip(names, parts, start, strict=True)}

    def step(t: int, w: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        recomputing = torch.is_grad_enabled()
        with torch.enable_grad():
            x = (
                state[0]
                if recomputing and state[0].requires_grad
                else state[0].detach().requires_grad_()
            )
            g = torch.autograd.grad(
                training.loss(params_of(x), (w,), t), x, create_graph=recomputing
            )[0]
        return optimizer.step((x, *state[1:]), g, t, optimizer.rate(t))

    state = (flat.requires_grad_(), *(torch.zeros_like(flat) for _ in range(optimizer.fields - 1)))
    for t in range(1, training.steps + 1):
        state = checkpoint(step, t, w, *state, use_reentrant=True)
    loss = training.learner.hard_loss(params_of(state[0]), test)
    loss.backward()  # the reentrant form refuses torch.autograd.grad
    return w.grad.neg()


_OURS = {
    "training alone": plain_training,
    "Tape": with_adjoint(Tape()),
    "Checkpoint": with_adjoint(Checkpoint()),
    "Reversible": with_adjoint(Reversible()),
}
METHODS: dict[str, Method] = {
    "ordinary loop": ordinary_loop,
    "autograd": with_adjoint(Direct()),
    "torch.utils.checkpoint": step_checkpoint,
    **_OURS,
    **{f"{name}, compiled": compiled(method) for name, method in _OURS.items()},
}


def measured(problem: AttributionProblem, argv: list[str]) -> list[Facts]:
    """A row per way and T: `status`, and where it is "ok" the CPU seconds and the peak of memory.
    Kept results are not measured again.
    """
    args = problem.args
    rows = []
    limits = Limits(args.memory_limit, args.time_limit)
    for steps in sorted(args.cost_steps):
        for method in args.ways:
            slug = method.replace(",", "").replace(" ", "-").lower()
            cell = {"argv": argv, "method": method, "steps": steps}
            run = lambda cell=cell: in_process(measure, cell, limits)  # noqa: E731
            facts = problem.kept(
                f"cost/{slug}-T-{steps}", run, "memory_limit", "time_limit", unless=unfinished
            )
            rows.append({"method": method, "steps": steps, **facts})
            say(f"{method}, T = {steps}: {facts}")
    return rows


def measure(report: Report, argv: list[str], method: str, steps: int) -> None:
    """The process of one measurement."""
    _, data, args, _ = parse(argv)
    problem = AttributionProblem(data, args)
    harness.return_freed_memory()
    METHODS[method](problem.training(0, WARM_UP), problem.test)
    training = problem.training(0, steps)
    peak = PeakMemory()
    seconds, cpu_seconds = Timer()(lambda: METHODS[method](training, problem.test))
    report({"memory_bytes": peak.read(), "cpu_seconds": cpu_seconds, "seconds": seconds})
