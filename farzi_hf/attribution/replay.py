"""The training of a stock `transformers.Trainer`, replayed step by step as a function of how much
each row counts.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import accelerate
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import DataLoader, SequentialSampler
from transformers import Trainer

from farzi_hf.attribution.weighted_training import RowTraining
from farzi_hf.common.modules import copy_of
from farzi_hf.data import IGNORED
from farzi_hf.data.seeds import seeded
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.distillation.learner import leaves
from farzi_hf.distillation.learner_model import readable_positions
from farzi_hf.distillation.processes import together, world
from farzi_hf.engine import InnerAdam, InnerAdamW, InnerOptimizer, InnerSGD

# How far the first gradient may be from the Trainer's, as a share of its norm.
_TOLERANCE = 1e-3
_TOLERANCE_BF16 = 0.1


class MicroBatches(NamedTuple):
    """What one process computes of a step."""

    rows: Sequence[Sequence[int]]
    """The numbers of the rows of each micro-batch."""
    batches: list[dict[str, Tensor]]
    """The micro-batches, as the collator makes them."""
    num_items: Tensor | None
    """By what the Trainer divides all sums; None where it takes the mean of their means."""


@dataclass(frozen=True, eq=False)
class Replay(RowTraining):
    """All steps of a Trainer that has not trained yet. Neither it nor its model is changed. Several
    processes share the rows of a step.

    The loss of a step is the Trainer's: over its micro-batches, the sum of the cross-entropy of all
    predicted tokens, divided as the Trainer divides it. The part of row i is multiplied by its
    weight w_i. A weight is a factor of the loss, and the divisor does not depend on w; or it is a
    share, and the loss is the mean that w weighs.
    """

    trainer: Trainer
    """The Trainer."""
    learner: Learner
    """Its model as a function of the parameters."""
    start: Parameters
    """θ_0, by name."""
    optimizer: InnerOptimizer
    """Its optimizer, with its clipping and schedule."""
    loader: DataLoader
    """Of its rows, with its collator."""
    order: Sequence[Sequence[Sequence[int]]]
    """For each step the rows of its micro-batches, of one process after the other."""
    on_gradient: Callable[[], Any] = lambda: None
    """Is called before each gradient, to show progress."""
    shares_of: Tensor | None = None
    """(n,), how many tokens of each row are predicted, if weights (n,) are shares: the divisor
    counts the tokens of row i w_i times. Then a row gains nothing by making a step larger, as a row
    of many tokens does by a factor. None: weights are factors.
    """

    @classmethod
    def of(cls, trainer: Trainer, damping: float = 0.0) -> Replay:
        """Reads the training from the Trainer, and compares the first gradient with its own.

        Args:
            damping: of its Adam's derivative, as a multiple of the root mean square of those
                numbers of the first gradient that are not 0.

        Raises:
            ValueError: the Trainer has trained already, or does something that cannot be replayed;
                the message says what and the remedy.
        """
        _check_trainer(trainer)
        loader = trainer.get_train_dataloader()
        _refuse(
            len(loader) == 0,
            "its training set makes no batch; lower per_device_train_batch_size, or keep incomplete"
            " batches",
        )
        order = _order(trainer, loader)
        _refuse(not order, "it takes no step; raise max_steps or num_train_epochs")
        # Without PEFT's class around it, as `Learner` has it.
        model = getattr(trainer.model, "get_base_model", lambda: trainer.model)()
        parameters = dict(model.named_parameters())
        _check_all_inside(trainer.model, parameters)
        replay = cls(
            trainer=trainer,
            learner=_learner(trainer, model),
            start={name: x.detach() if x.requires_grad else x for name, x in parameters.items()},
            optimizer=_optimizer(trainer, parameters, len(order)),
            loader=loader,
            order=order,
        )
        is_adam = isinstance(replay.optimizer, InnerAdam)
        can_be_damped = damping == 0 or (is_adam and 0 < damping < math.inf)
        _refuse(
            not can_be_damped,
            f"damping={damping} has to be a number from 0 on, and 0 with SGD, which has no ε",
        )
        rows = (replay.batch(loader, [row]) for row in range(replay.num_rows))
        check_readable(replay.learner, rows, "the trainer's train_dataset")
        gradient = replay._first_gradient()
        if damping == 0:
            return replay
        (clipped,) = replay.optimizer.clip((gradient,))
        size = float(clipped.norm() / clipped.count_nonzero().clamp(min=1).sqrt())
        return replace(replay, optimizer=replace(replay.optimizer, damping=damping * size))

    @property
    def num_rows(self) -> int:
        return len(self.loader.dataset)

    @property
    def steps(self) -> int:
        return len(self.order)

    def batch(self, loader: DataLoader, rows: Sequence[int]) -> dict[str, Tensor]:
        """Rows as the collator of a loader makes them, on the Trainer's device."""
        device = self.trainer.args.device
        columns = loader.collate_fn([loader.dataset[i] for i in rows])
        _refuse(
            not isinstance(columns.get("labels"), Tensor),
            "its batches have no labels; give it a data_collator that makes them, such as"
            " farzi_hf.data.SequenceCollator(), or rows with a column labels",
        )
        return {name: x.to(device) for name, x in columns.items() if isinstance(x, Tensor)}

    def micro_batches(self, step: int) -> MicroBatches:
        """Those of this process."""
        rank, processes = world()
        rows = self.order[step - 1][rank::processes]
        batches = [self.batch(self.loader, each) for each in rows]
        counted = self.trainer.get_batch_samples(
            iter(batches), len(batches), self.trainer.args.device
        )
        return MicroBatches(rows, *counted)

    def loss(self, params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Iterator[Tensor]:
        self.on_gradient()
        (weights,) = inputs
        micro_batches = self.micro_batches(step)
        params = together(params)
        takes_means = micro_batches.num_items is None
        for rows, batch in zip(micro_batches.rows, micro_batches.batches, strict=True):
            predicted = predicted_tokens(batch)
            if takes_means:
                share = 1 / len(self.order[step - 1])
            elif predicted:
                share = predicted / int(micro_batches.num_items)
            else:
                # Other processes wait for its gradient, and for second derivatives.
                yield 0.0 * sum(x.square().sum() for x in params.values() if x.requires_grad)
                continue
            if self.shares_of is not None:
                divided = list(rows if takes_means else itertools.chain(*self.order[step - 1]))
                counts = self.shares_of[divided].to(weights)
                share = share / ((weights[divided] * counts).sum() / counts.sum().clamp(min=1))
            row_weights = self.of_rows(weights, list(rows), batch)
            yield self.learner.hard_loss(params, batch, row_weights) * share

    def _first_gradient(self) -> Tensor:
        """All its numbers (P,), after a comparison with the Trainer's own."""
        trainer = self.trainer
        theta = leaves(self.start)
        # The seed decides about dropout alone, which is refused.
        with torch.enable_grad(), seeded(), trainer.accelerator.autocast():
            loss = sum(self.loss(theta, (self.ones,), 1))
            ours = _gradient(loss, theta.values())
            tolerance = (_TOLERANCE_BF16 if trainer.args.bf16 else _TOLERANCE) * ours.norm()
            if (self._gradient_of_trainer(training=True) - ours).norm() <= tolerance:
                return ours
            without_dropout = self._gradient_of_trainer(training=False)
            has_dropout = (without_dropout - ours).norm() <= tolerance
        layers = [
            name
            for name, module in trainer.model.named_modules()
            if isinstance(module, nn.Dropout) and module.p
        ]
        _refuse(
            has_dropout,
            "its model has dropout; set it to 0 in the model's config, and lora_dropout"
            f" ({', '.join(layers):.200})",
        )
        _refuse(
            True,
            "its first gradient is not that of the mean cross-entropy of each next token; leave out"
            " label smoothing, NEFTune, random rows or collators, and losses or inputs of your own",
        )

    def _gradient_of_trainer(self, training: bool) -> Tensor:
        """The Trainer's own gradient of the first step (P,), with its model in training or in
        evaluation.
        """
        trainer = self.trainer
        model = trainer.model
        micro_batches = self.micro_batches(1)
        num_items = micro_batches.num_items
        was_training = model.training
        model.train(training)
        losses = [
            trainer.compute_loss(model, dict(batch), num_items_in_batch=num_items)
            for batch in micro_batches.batches
        ]
        model.train(was_training)
        loss = torch.stack(losses).sum()
        if num_items is None:
            loss = loss / len(losses)
        gradient = _gradient(loss, model.parameters())
        return accelerate.utils.reduce(gradient, "mean")


def predicted_tokens(batch: Mapping[str, Tensor]) -> int:
    """How many tokens of a batch are predicted."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def check_readable(learner: Learner, batches: Iterable[dict[str, Tensor]], argument: str) -> None:
    """Checks that a model knows all ids, and has a position for each.

    Args:
        batches: of ids.
        argument: names them in an error.

    Raises:
        ValueError: it does not.
    """
    longest = 0
    for batch in batches:
        ids = batch["input_ids"]
        least, largest = map(int, torch.aminmax(ids))
        if not 0 <= least <= largest < learner.vocab_size:
            raise ValueError(
                f"{argument} has a row with ids from {least} to {largest}, but the model knows 0 to"
                f" {learner.vocab_size - 1}; use its tokenizer"
            )
        longest = max(longest, ids.shape[1])
    readable = readable_positions(learner.model, longest)
    if readable < longest:
        raise ValueError(
            f"{argument} has a row of {longest:,} ids, but the model reads {readable:,} at most; cut"
            " such rows"
        )


def _gradient(loss: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """The gradient in those parameters that train, in float64 (P,)."""
    trained = [x for x in parameters if x.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
    return torch.cat([x.flatten().double() for x in gradients])


def _refuse(applies: bool, reason: str) -> None:
    """Raises ValueError, with this reason, if it applies."""
    if applies:
        raise ValueError(f"trainer cannot be replayed: {reason}")


def _check_trainer(trainer: Trainer) -> None:
    """Raises ValueError if its arguments ask for what cannot be replayed."""
    _refuse(
        not isinstance(trainer, Trainer),
        f"it is a {type(trainer).__name__}; give a configured transformers.Trainer",
    )
    args = trainer.args
    _refuse(
        trainer.state.global_step > 0,
        "it has trained already; make a new Trainer with the untrained model",
    )
    _refuse(
        not hasattr(trainer.train_dataset, "__len__"),
        "its train_dataset has no length; give rows with numbers",
    )
    _refuse(
        args.n_gpu > 1,
        "several devices share its batches; launch a process for each, or run it on one",
    )
    _refuse(
        trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled,
        "its model is in pieces; leave out FSDP and DeepSpeed",
    )
    _refuse(
        args.world_size > 1 and not args.average_tokens_across_devices,
        "each process takes a mean of its own; leave average_tokens_across_devices=True",
    )
    _refuse(args.fp16, "fp16=True scales its losses; set bf16=True, or none of both")
    _refuse(bool(args.neftune_noise_alpha), "NEFTune draws noise; leave out neftune_noise_alpha")
    _refuse(
        args.load_best_model_at_end,
        "it may end with an earlier model; leave that out, and set max_steps to that step",
    )


def _learner(trainer: Trainer, model: nn.Module) -> Learner:
    """A copy of the Trainer's model as a function of its parameters.

    Args:
        model: it itself, without PEFT's class around it.
    """
    learner = Learner(lambda: copy_of(trainer.model).cpu()).to(trainer.args.device)
    # `Learner` has taken the padding out of the embedding, whose row then trains. Here it trains as
    # the Trainer's does.
    padding = getattr(model.get_input_embeddings(), "padding_idx", None)
    learner.model.get_input_embeddings().padding_idx = padding
    return learner


# -- the order of the rows -------------------------------------------------------------------------


def _order(trainer: Trainer, loader: DataLoader) -> list[list[list[int]]]:
    """For each step the rows of its micro-batches, in the Trainer's order."""
    args = trainer.args
    shards = _shards(loader, args.world_size)
    accumulated = args.gradient_accumulation_steps
    steps_of_an_epoch = math.ceil(len(loader) / accumulated)
    steps = args.max_steps
    if steps <= 0:
        steps = math.ceil(args.num_train_epochs * steps_of_an_epoch)
    order: list[list[list[int]]] = []
    for epoch in itertools.count():
        if len(order) >= steps:
            return order[:steps]
        of_shards = []
        for shard in shards:
            loader.set_epoch(epoch)  # of all shards; one that comes to its end sets the next epoch
            of_shards.append(list(shard))
        batches = list(zip(*of_shards, strict=True))  # of all processes, one after the other
        for first in range(0, len(batches), accumulated):
            order.append(list(itertools.chain(*batches[first : first + accumulated])))


def _shards(loader: DataLoader, processes: int) -> list[Any]:
    """What gives each process the rows of its batches.

    Raises:
        ValueError: they are not the same again, or some process has more batches than another.
    """
    shards = []
    for rank in range(processes):
        shard = copy.copy(loader.batch_sampler)
        shard.process_index = rank
        shards.append(shard)
    _refuse(
        len({len(shard) for shard in shards}) > 1,
        "processes have unequal numbers of batches; leave even_batches=True",
    )
    sampler = getattr(shards[0], "batch_sampler", shards[0]).sampler
    is_reproducible = isinstance(sampler, (SeedableRandomSampler, SequentialSampler))
    _refuse(
        not is_reproducible,
        f"no seed orders its {type(sampler).__name__}; set train_sampling_strategy='random'",
    )
    return shards


# -- the optimizer ---------------------------------------------------------------------------------


def _optimizer(trainer: Trainer, parameters: dict[str, nn.Parameter], steps: int) -> InnerOptimizer:
    """The Trainer's optimizer, clipping and schedule, as an inner optimizer."""
    optimizer, schedule = _made(trainer, steps)
    kind = type(optimizer).__name__
    groups = [group for group in optimizer.param_groups if group["params"]]
    _refuse(
        type(optimizer) not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD),
        f"no optimizer here is its {kind}; use AdamW",
    )
    _check_schedule(schedule)
    _check_all_step(groups, parameters)
    _check_settings(groups, kind)

    first = groups[0]
    rate_of_step = schedule.lr_lambdas[0]
    largest_decay = max(group["weight_decay"] for group in groups)
    settings = {
        "lr": float(first["initial_lr"]),
        "weight_decay": largest_decay,
        "max_grad_norm": trainer.args.max_grad_norm or None,
        "lr_schedule": lambda step: rate_of_step(step - 1),
    }
    if "momentum" in first:
        return InnerSGD(momentum=first["momentum"], **settings)
    settings |= {"betas": tuple(first["betas"]), "eps": first["eps"]}
    if not first["decoupled_weight_decay"]:
        return InnerAdam(**settings)
    no_decay: tuple[str, ...] = ()
    if largest_decay:
        plain = [group for group in groups if not group["weight_decay"]]
        ids = {id(x) for group in plain for x in group["params"]}
        no_decay = tuple(name for name, x in parameters.items() if id(x) in ids)
    return InnerAdamW(**settings, no_decay=no_decay)


def _made(trainer: Trainer, steps: int) -> tuple[torch.optim.Optimizer, LRScheduler]:
    """The optimizer and the schedule that the Trainer would make, or has; it stays as it was."""
    before = (trainer.optimizer, trainer.lr_scheduler, trainer._created_lr_scheduler)
    optimizer = trainer.create_optimizer()
    schedule = trainer.create_scheduler(steps, optimizer)
    trainer.optimizer, trainer.lr_scheduler, trainer._created_lr_scheduler = before
    return optimizer, schedule


def _check_all_inside(whole: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """Raises ValueError if PEFT's class trains something that is not in the model, as the prompts of
    prompt tuning.
    """
    inside = {id(x) for x in parameters.values()}
    outside = [
        name for name, x in whole.named_parameters() if x.requires_grad and id(x) not in inside
    ]
    _refuse(
        bool(outside),
        f"its adapter trains {', '.join(outside):.200}, which are not in the model; use one that"
        " changes layers, such as LoRA",
    )


def _check_schedule(schedule: LRScheduler) -> None:
    """Raises ValueError unless the rate is the same function of the step for all parameters."""
    is_function = isinstance(schedule, LambdaLR)
    is_one = is_function and all(each is schedule.lr_lambdas[0] for each in schedule.lr_lambdas)
    _refuse(
        not is_one,
        f"its {type(schedule).__name__} is not a function of the step, one for all parameters; set"
        " another lr_scheduler_type",
    )


def _check_all_step(groups: list[dict[str, Any]], parameters: dict[str, nn.Parameter]) -> None:
    """Raises ValueError if the optimizer leaves out a parameter that requires a gradient."""
    stepped = {id(x) for group in groups for x in group["params"]}
    left_out = [name for name, x in parameters.items() if x.requires_grad and id(x) not in stepped]
    _refuse(
        bool(left_out),
        f"its optimizer leaves out {', '.join(left_out):.200}, which require a gradient; freeze"
        " them",
    )


def _check_settings(groups: list[dict[str, Any]], kind: str) -> None:
    """Raises ValueError if an inner optimizer lacks a setting, or has it for all parameters only."""
    first = groups[0]
    unlike = []
    for name in first:
        may_differ = name in ("params", "weight_decay")
        if not may_differ and any(group[name] != first[name] for group in groups):
            unlike.append(name)
    unlike += [name for name in ("amsgrad", "maximize", "nesterov", "dampening") if first.get(name)]
    decays = {group["weight_decay"] for group in groups}
    has_two_decays = bool(decays - {max(decays), 0.0})
    some_decay = len(decays) > 1
    if has_two_decays or (some_decay and not first.get("decoupled_weight_decay")):
        unlike.append("weight_decay")
    _refuse(
        bool(unlike),
        f"no optimizer here has the {', '.join(unlike)} of its {kind}; leave them out, or use"
        " AdamW",
    )
