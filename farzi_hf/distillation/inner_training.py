"""Training on a summary: the inner loop of equation (2), and students, which show how good a
summary is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from farzi_hf.common.text import reason
from farzi_hf.data import minibatches
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.learner import Learner, Parameters, is_constant
from farzi_hf.distillation.processes import shared, world
from farzi_hf.distillation.rows import RealData, real_loss
from farzi_hf.engine import Adjoint, InnerLoss, InnerOptimizer, TrainingState, train, unroll
from farzi_hf.engine.compiled_loop import row_of_step
from farzi_hf.engine.devices import portions
from farzi_hf.summary import FarziData
from farzi_hf.summary.endless import EndlessRows
from farzi_hf.summary.forms import Forms, Tensors, device_of
from farzi_hf.summary.inner_settings import inner_optimizer, lr_schedule
from farzi_hf.summary.student_starts import STUDENT_STARTS, StudentStart, start_of
from farzi_hf.tasks.base import mean_and_spread


@dataclass(frozen=True)
class SyntheticTraining:
    """The inner loop of equation (2): train a learner on the summary for T steps.

    Args:
        optimizer: updates θ; its states start at zero.
        forms: the inputs and the labels of the summary.
        batch_size: b_syn, synthetic sequences per inner step; None takes all μ in every step.
        window: only the last `window` of the T steps are differentiated; None differentiates all.
        adjoint: the method of differentiation; None leaves the choice to `unroll`.
        torch_compile: whether the steps are compiled, as in `unroll`.
        lr_scheduler_type: the learning rate over the steps of a training, one of `LR_SCHEDULES`.
        warmup_steps: steps in which the rate rises first, from 0.
        student_start: how students begin.
        lowers_rate: whether students take only as much of the learning rate as their start wants.
        source: of endless inputs, the rows that are read; None takes those of the seed.
    """

    optimizer: InnerOptimizer
    forms: Forms
    batch_size: int | None = None
    window: int | None = None
    adjoint: Adjoint | None = None
    torch_compile: bool = False
    lr_scheduler_type: str = "constant"
    warmup_steps: int = 0
    student_start: StudentStart = STUDENT_STARTS["random"]
    lowers_rate: bool = True
    source: EndlessRows | None = None

    @classmethod
    def of(cls, inner: Mapping[str, Any] | None, forms: Forms, **how: Any) -> SyntheticTraining:
        """The inner loop with the settings of `config.inner` of a summary, see
        `farzi_hf.summary.inner_settings`.

        `how` says how it is differentiated: `window`, `adjoint`, `torch_compile`. Raises ValueError
        if the settings describe no optimizer.
        """
        optimizer = inner_optimizer(inner)
        inner = inner or {}
        how |= {
            name: inner[name] for name in ("lr_scheduler_type", "warmup_steps") if name in inner
        }
        start = start_of(inner, forms.labels.carries_teacher)
        return cls(optimizer, forms, inner.get("synthetic_batch_size"), student_start=start, **how)

    def at_share_of_rate(self, share: float) -> SyntheticTraining:
        """The same with this part of the learning rate."""
        if share == 1:
            return self
        return replace(self, optimizer=replace(self.optimizer, lr=share * self.optimizer.lr))

    def optimizer_for(self, learner: Learner, steps: int) -> InnerOptimizer:
        """The optimizer of a training of `steps` steps: its learning rate follows the schedule, and
        biases and norms do not decay.
        """
        optimizer = self.optimizer.without_decay(learner.no_decay)
        return replace(
            optimizer, lr_schedule=lr_schedule(self.lr_scheduler_type, steps, self.warmup_steps)
        )

    def __call__(
        self,
        learner: Learner,
        summary: Tensors,
        *,
        start: Parameters | TrainingState,
        steps: int,
        seed: int,
        of_steps: int | None = None,
    ) -> Parameters:
        """θ after `steps` steps from `start`, differentiable in the tensors of the summary. The
        minibatches depend on `seed`.

        They are steps of a training of `of_steps` steps, by default the whole of it: the learning
        rate depends on that.
        """
        of_steps = of_steps or steps
        rows = self._minibatches(summary, of_steps, seed)
        optimizer = self.optimizer_for(learner, of_steps)
        widen = None
        if not (self.torch_compile or isinstance(start, TrainingState)):
            # Before the summary is cut to what the next steps see.
            ids = self.forms.inputs.looked_up(summary)
            start, widen = only_seen_rows(learner, ids, start, optimizer)
        summary, rows = self._compact(summary, rows, start, steps)
        loss_of_all = self._loss(learner, summary, rows)

        def loss_of_seen(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            return loss_of_all(widen(params), inputs, step)

        theta = unroll(
            loss_of_all if widen is None else loss_of_seen,
            start,
            tuple(summary.values()),
            optimizer=optimizer,
            steps=steps,
            window=None if self.window is None else min(self.window, steps),
            adjoint=self.adjoint,
            torch_compile=self.torch_compile,
        )
        return theta if widen is None else widen(theta)

    def advance(
        self,
        learner: Learner,
        summary: Tensors,
        *,
        start: Parameters | TrainingState,
        steps: int,
        seed: int,
        of_steps: int,
    ) -> TrainingState:
        """The same training, without derivatives. It can go on: give the result as `start`, with
        the same `seed` and `of_steps`.
        """
        loss = self.inner_loss(learner, summary, of_steps, seed)
        optimizer = self.optimizer_for(learner, of_steps)
        how = {"optimizer": optimizer, "steps": steps, "torch_compile": self.torch_compile}
        return train(loss, start, tuple(summary.values()), **how)

    def inner_loss(self, learner: Learner, summary: Tensors, steps: int, seed: int) -> InnerLoss:
        """L_syn(θ) on the minibatch of each of the steps 1 … `steps`, as a function of the
        summary's tensors, in their order.
        """
        return self._loss(learner, summary, self._minibatches(summary, steps, seed))

    def _minibatches(self, summary: Tensors, steps: int, seed: int) -> Tensor | EndlessRows | None:
        """The rows of each step's minibatch (steps, b_syn); None if every step takes all. Or rows
        of which each step takes the next b_syn.
        """
        if self.forms.inputs.is_endless:
            if self.torch_compile or self.batch_size is None:
                raise ValueError(
                    f"torch_compile={self.torch_compile}, synthetic_batch_size={self.batch_size}:"
                    " rows that are made for each step need their number, and are not compiled;"
                    " give synthetic_batch_size, and torch_compile=False"
                )
            return self.forms.endless(summary, seed) if self.source is None else self.source
        rows = minibatches(self.forms.count(summary), self.batch_size, steps, seed)
        if rows is None:
            return None
        rows = rows.to(device_of(summary))
        if self.torch_compile:  # code for a training of T steps is code for all others
            torch._dynamo.maybe_mark_dynamic(rows, 0)
        return rows

    def _compact(
        self,
        summary: Tensors,
        rows: Tensor | EndlessRows | None,
        start: Parameters | TrainingState,
        steps: int,
    ) -> tuple[Tensors, Tensor | EndlessRows | None]:
        """The sequences that the next steps see, and the places of the minibatches' rows among
        them.

        The derivative of an inner step in a tensor is as large as the tensor, and each step of the
        window adds one up. So the steps get only what they see: their cost does not depend on μ
        then. Rows and gradients are the same, bit for bit.
        """
        # Compiled code is made for one shape, and that of the seen rows changes.
        if not isinstance(rows, Tensor) or self.torch_compile:
            return summary, rows
        taken = start.step if isinstance(start, TrainingState) else 0
        seen, places = rows[taken : taken + steps].unique(return_inverse=True)
        if len(seen) == self.forms.count(summary):
            return summary, rows
        compact = torch.full_like(rows, len(seen))  # of no sequence
        compact[taken : taken + steps] = places
        return self.forms.rows_of(summary, seen), compact

    def _loss(
        self, learner: Learner, summary: Tensors, rows: Tensor | EndlessRows | None
    ) -> InnerLoss:
        names = tuple(summary)
        forms = self.forms
        _ = forms.labels.teacher  # made now: compiled code cannot make it

        def loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            tensors = dict(zip(names, inputs, strict=True))
            read = slice(None)
            if rows is not None:
                read = self._read(rows, step).to(device_of(tensors), non_blocking=True)
            return learner.soft_loss(params, *forms.batch(tensors, read))

        return loss

    def _read(self, rows: Tensor | EndlessRows, step: int) -> Tensor:
        """What a step reads: numbers of rows, or made rows themselves."""
        if isinstance(rows, Tensor):
            return row_of_step(rows, step)
        return rows.rows((step - 1) * self.batch_size, self.batch_size)


WORTH = 0.5
"""The largest share of the rows for which it pays to leave out the others: each step writes the
rows into a copy of the embedding.
"""


@torch.inference_mode(False)  # rows are saved for a backward pass
def only_seen_rows(
    learner: Learner, ids: Tensor | None, start: Parameters, optimizer: InnerOptimizer
) -> tuple[Parameters, Callable[[Parameters], Parameters] | None]:
    """The parameters of an inner loop that trains only those rows of the input embedding that
    `ids` look up, those of the summary; None: they may look up all.

    The others have no gradient in any step, and an optimizer without weight decay leaves them as
    they are. So no step has to update, differentiate or keep them; parameters and gradients are
    those of the whole training, bit for bit. At GPT-2's vocabulary that is 30 % of the memory of a
    model with a head of its own (docs/scale.md).

    Returns:
        The parameters, and a function that puts the rows back among the others; None where all rows
        have to train.
    """
    if ids is None or not optimizer.keeps_unused:
        return start, None
    rows = ids.long().unique()
    if len(rows) > WORTH * learner.vocab_size:
        return start, None
    name = learner.lookup  # runs the model when first asked, and waits for the device
    if name is None or is_constant(start[name]):
        return start, None
    if any(x.requires_grad for x in start.values()):
        return start, None
    table = start[name].detach().clone()  # the caller may change it meanwhile

    def widen(params: Parameters) -> Parameters:
        return {**params, name: table.index_copy(0, rows, params[name])}

    return {**start, name: table[rows]}, widen


# -- students --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Students:
    """Trains students from scratch, on a summary or on real data in the same way.
    `FarziTrainer.evaluate` and the rows of a report both use it.

    Args:
        learner: the students' model, as pure functions.
        farzi: the summary.
        training: the inner loop. Its optimizer also trains the students on real data.
        steps: T.
        seed: of the distillation; a student's fresh weights and minibatches depend on it, and on
            the student's number.
        device: of all tensors.
        quiet: whether progress bars are hidden.
    """

    learner: Learner
    farzi: FarziData
    training: SyntheticTraining
    steps: int
    seed: int
    device: torch.device | str = "cpu"
    quiet: bool = False

    @torch.no_grad()
    def on_summary(self, index: int = 0) -> Parameters:
        """θ_T of student `index` of the summary as it is now."""
        seed = derive(self.seed, Purpose.EVALUATION_STUDENT, index)
        start, training = self.beginning(seed)
        return training(self.learner, self.farzi.tensors, start=start, steps=self.steps, seed=seed)

    def beginning(self, seed: int) -> tuple[Parameters, SyntheticTraining]:
        """θ_0 of a student of the summary, and the training with the learning rate that such a
        start wants. θ_0 are new weights, and what the start sets among them.

        A learner whose weights are given, and not drawn, keeps them, and so do parameters that do
        not train.
        """
        fresh = self.learner.initial_parameters(seed, self.device)
        start = self.training.student_start
        forms = self.farzi.forms
        training = replace(self.training, source=forms.endless(self.farzi.tensors, seed))
        rows = forms.rows_of_start(self.farzi.tensors, seed, training.source)
        known = start.values(forms.labels.model, self.learner.model, rows)
        if not known or not self.learner.draws_weights:
            return fresh, training
        trained = {name: x for name, x in known.items() if not is_constant(fresh[name])}
        first = {**fresh, **{name: x.to(fresh[name]) for name, x in trained.items()}}
        if not self.training.lowers_rate:
            return first, training
        share = start.share_of_rate(forms.labels.model, self.learner.model, known)
        return first, training.at_share_of_rate(share)

    @torch.no_grad()
    def on_summary_each(self, count: int) -> Iterator[Parameters]:
        """θ_T of the students 0 … `count` − 1. As many train as one as the table of devices says;
        on a CPU, none.
        """
        size = self._at_once()
        for first in range(0, count, size):
            numbers = range(first, min(first + size, count))
            if len(numbers) > 1:
                yield from self._together(numbers)
            else:
                yield self.on_summary(first)

    def _at_once(self) -> int:
        """Students that train as one."""
        training = self.training
        parameters = list(self.learner.model.parameters())
        goes_alone = (
            training.torch_compile
            or training.optimizer.of_stacks() is None
            or not all(x.requires_grad for x in parameters)
        )
        if goes_alone:
            return 1
        config = self.farzi.config
        rows = training.batch_size or config.num_sequences
        logits = rows * config.sequence_length * self.learner.vocab_size
        device = portions(parameters[0])
        numbers = max(logits, sum(x.numel() for x in parameters))  # of one student, at once
        return max(1, min(device.learners, device.block // numbers))

    def _together(self, numbers: range) -> Iterable[Parameters]:
        """These students, trained as one by `torch.vmap`: the same up to rounding. A step of all
        has the launches of one.
        """
        learner = self.learner
        tensors = self.farzi.tensors
        seeds = [derive(self.seed, Purpose.EVALUATION_STUDENT, index) for index in numbers]
        starts, trainings = zip(*map(self.beginning, seeds), strict=True)
        training = trainings[0]
        all_rows = torch.arange(self.farzi.config.num_sequences, device=self.device).expand(
            self.steps, -1
        )
        minibatches = [
            each._minibatches(tensors, self.steps, seed)
            for each, seed in zip(trainings, seeds, strict=True)
        ]
        rows = [all_rows if each is None else each for each in minibatches]

        def loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            read = torch.stack([training._read(each, step) for each in rows])

            def of_one(theta: Parameters, its_rows: Tensor) -> Tensor:
                return learner.soft_loss(theta, *training.forms.batch(tensors, its_rows))

            return torch.vmap(of_one)(params, read.to(self.device, non_blocking=True)).sum()

        start = {name: torch.stack([each[name] for each in starts]) for name in starts[0]}
        optimizer = training.optimizer_for(learner, self.steps).of_stacks()
        try:
            theta = train(loss, start, (), optimizer=optimizer, steps=self.steps).params
        except RuntimeError as error:  # of torch.vmap, or out of memory
            logging.getLogger(__name__).warning(
                "Students train one after the other, not together: %s", reason(error)
            )
            return map(self.on_summary, numbers)
        return [{name: x[k] for name, x in theta.items()} for k in range(len(seeds))]

    def on_real(self, data: RealData, batch_size: int, steps: int, seed: int) -> Parameters:
        """θ after `steps` steps of the inner optimizer on real data, `batch_size`
        sequences each.
        """
        loss = real_loss(self.learner, data, batch_size, steps, seed)
        start = self.learner.initial_parameters(seed, self.device)
        optimizer = self.training.optimizer_for(self.learner, steps)

        def of_step(params: Parameters, inputs: tuple, step: int) -> Tensor:
            return loss(params, step)

        return train(of_step, start, (), optimizer=optimizer, steps=steps).params

    def evaluated(
        self, count: int, measure: Callable[[int, Parameters], dict[str, float]]
    ) -> dict[str, float]:
        """Mean and standard deviation (`…_std`) of the metrics `measure(i, θ_T)` of students 0 …
        `count` − 1.

        Several processes share the training, and each measures all students.
        """
        like = partial(self.learner.initial_parameters, 0, self.device)
        students = (
            self.on_summary_each(count) if world()[1] == 1 else shared(count, self.on_summary, like)
        )
        shown = tqdm(
            students, "Students", count, disable=self.quiet, leave=False, dynamic_ncols=True
        )
        return mean_and_spread([measure(i, theta) for i, theta in enumerate(shown)])
