"""The training of a stock `transformers.Trainer`, replayed step by step as a function of how much each row counts."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from accelerate.data_loader import SeedableRandomSampler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, SequentialSampler
from transformers import Trainer

from farzi_hf.data import IGNORED
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.distillation.learner import leaves
from farzi_hf.engine import InnerAdam, InnerAdamW, InnerOptimizer, InnerSGD

Batch = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Replay:
    """All steps of a Trainer that has not trained yet, without taking them there. Neither it nor its model is changed.

    The loss of a step is that of the Trainer: over its micro-batches, the sum of the cross-entropy of all predicted tokens, divided as
    the Trainer divides it. The part of row i is multiplied by its weight w_i, and the divisor does not depend on w.

    Args:
        trainer: the configured Trainer.
        learner: its model, as a function of the parameters.
        start: θ_0, by name.
        optimizer: its optimizer, clipping and schedule.
        loader: its rows and its collator.
        steps: for each step the rows of its micro-batches.
    """

    trainer: Trainer
    learner: Learner
    start: Parameters
    optimizer: InnerOptimizer
    loader: DataLoader
    steps: Sequence[Sequence[Sequence[int]]]

    @classmethod
    def of(cls, trainer: Trainer) -> Replay:
        """Reads the training from the Trainer, and compares the first gradient with its own.

        Raises:
            ValueError: the Trainer has trained already, or does something that cannot be replayed; the message says what and the remedy.
        """
        args = trainer.args
        refused = {
            "it has trained already; make a new Trainer with the untrained model": trainer.state.global_step > 0,
            "it has no train_dataset with a length; give one whose rows have numbers": not hasattr(trainer.train_dataset, "__len__"),
            f"{args.world_size} processes and {args.n_gpu} GPUs share its batches; run it as one process on one device": args.world_size > 1
            or args.n_gpu > 1,
            "fp16=True scales its losses; use bf16=True or float32": args.fp16,
        }  # fmt: skip
        for reason, applies in refused.items():
            if applies:
                raise ValueError(f"trainer cannot be replayed: {reason}")
        loader = trainer.get_train_dataloader()
        steps = _steps(trainer, loader)
        model = trainer.model
        learner = Learner(lambda: copy.deepcopy(model).cpu()).to(args.device)
        base = dict(_base(model).named_parameters())
        # `Learner` gives the padding's row its gradient; the Trainer's model may not.
        learner.model.get_input_embeddings().padding_idx = getattr(
            _base(model).get_input_embeddings(), "padding_idx", None
        )
        start = {name: x.detach() if x.requires_grad else x for name, x in base.items()}
        found = cls(trainer, learner, start, _optimizer(trainer, base, len(steps)), loader, steps)
        found._check_first_step()
        return found

    @property
    def num_rows(self) -> int:
        """The number n of training rows."""
        return len(self.loader.dataset)

    @cached_property
    def ones(self) -> Tensor:
        """The weights (n,) of the ordinary training."""
        return next(x for x in self.start.values() if not isinstance(x, nn.Parameter)).new_ones(self.num_rows)

    def batch(self, loader: DataLoader, rows: Sequence[int]) -> Batch:
        """Rows as the collator of a loader makes them, on the Trainer's device."""
        made = loader.collate_fn([loader.dataset[i] for i in rows])
        return {name: x.to(self.trainer.args.device) for name, x in made.items() if isinstance(x, Tensor)}

    def micro_batches(self, step: int) -> tuple[list[Batch], int | None]:
        """Those of step 1, 2, …, and by what the Trainer divides their sums; None where it takes the mean of their means."""
        batches = [self.batch(self.loader, rows) for rows in self.steps[step - 1]]
        batches, items = self.trainer.get_batch_samples(iter(batches), len(batches), self.trainer.args.device)
        return batches, None if items is None else int(items)

    def loss(self, params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
        """The inner loss in the form that `unroll` takes; `inputs` is (w,)."""
        (weights,), (batches, items) = inputs, self.micro_batches(step)
        found = []
        for rows, batch in zip(self.steps[step - 1], batches, strict=True):
            predicted = int((batch["labels"][:, 1:] != IGNORED).sum())
            share = 1 / len(batches) if items is None else predicted / items
            if predicted or items is None:
                found.append(self.learner.hard_loss(params, batch, weights[list(rows)]) * share)
        return torch.stack(found).sum()

    def _check_first_step(self) -> None:
        """Raises ValueError unless the Trainer's own first gradient is the same."""
        trainer, model = self.trainer, self.trainer.model
        theta, trained = leaves(self.start), [x for x in model.parameters() if x.requires_grad]
        batches, items = self.micro_batches(1)
        again, _ = self.micro_batches(1)
        if any(
            not torch.equal(x, other[name])
            for batch, other in zip(batches, again, strict=True)
            for name, x in batch.items()
        ):
            raise ValueError(
                "trainer cannot be replayed: its rows or its collator are random; give a collator that is not"
            )

        def gradient(mode: bool) -> Tensor:
            was = model.training
            model.train(mode)
            try:
                losses = [
                    trainer.compute_loss(model, dict(x), num_items_in_batch=items and torch.tensor(items))
                    for x in batches
                ]
                summed = items is not None and (
                    trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
                )
                loss = torch.stack(losses).sum() / (1 if summed else len(batches))
                return _flat(torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True))
            finally:
                model.train(was)

        with torch.enable_grad(), torch.random.fork_rng(), trainer.accelerator.autocast():
            ours = self.loss(theta, (self.ones,), 1)
            wanted = [x for x in theta.values() if x.requires_grad]
            found = _flat(torch.autograd.grad(ours, wanted, allow_unused=True, materialize_grads=True))
            tolerance = (0.1 if trainer.args.bf16 else 1e-3) * found.norm()
            if (gradient(True) - found).norm() <= tolerance:
                return
            if (gradient(False) - found).norm() <= tolerance:
                raise ValueError(
                    f"trainer cannot be replayed: its model has dropout; switch it off: {_dropouts(model)}"
                )
        raise ValueError(
            "trainer cannot be replayed: its first gradient is not that of the mean cross-entropy of each next token; leave out label "
            "smoothing, NEFTune, a loss function or inputs of your own"
        )


def _steps(trainer: Trainer, loader: DataLoader) -> list[list[list[int]]]:
    """For each step the rows of its micro-batches, in the Trainer's order."""
    sampler = loader.batch_sampler.sampler
    if not isinstance(sampler, (SeedableRandomSampler, SequentialSampler)):
        raise ValueError(
            f"trainer cannot be replayed: the order of its rows comes from a {type(sampler).__name__}, which no seed decides; "
            "set train_sampling_strategy='random' or 'sequential'"
        )
    args, accumulated = trainer.args, trainer.args.gradient_accumulation_steps
    per_epoch = math.ceil(len(loader) / accumulated)
    total = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
    found: list[list[list[int]]] = []
    for epoch in itertools.count():
        if len(found) >= total:
            return found[:total]
        loader.set_epoch(epoch)
        batches = list(loader.batch_sampler)
        found += [batches[i : i + accumulated] for i in range(0, len(batches), accumulated)]


def _optimizer(trainer: Trainer, base: dict[str, nn.Parameter], steps: int) -> InnerOptimizer:
    """The Trainer's optimizer, clipping and schedule, as an inner optimizer."""
    before = trainer.optimizer, trainer.lr_scheduler, trainer._created_lr_scheduler
    made = trainer.create_optimizer()
    schedule = trainer.create_scheduler(steps, made)
    trainer.optimizer, trainer.lr_scheduler, trainer._created_lr_scheduler = before
    name = type(made).__name__
    if not isinstance(schedule, LambdaLR):
        raise ValueError(
            f"trainer cannot be replayed: its schedule {type(schedule).__name__} is no function of the step; set another lr_scheduler_type"
        )
    if type(made) not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
        raise ValueError(f"trainer cannot be replayed: its optimizer is {name}; set optim='adamw_torch' or 'sgd'")
    groups = [group for group in made.param_groups if group["params"]]
    first = {name: value for name, value in groups[0].items() if name not in ("params", "weight_decay")}
    decays = {group["weight_decay"] for group in groups}
    decay = max(decays)
    unlike = [name for name, value in first.items() if any(group[name] != value for group in groups)]
    unlike += [name for name in ("amsgrad", "maximize", "nesterov", "dampening") if first.get(name)]
    if decays - {decay, 0.0} or (len(decays) > 1 and not first.get("decoupled_weight_decay")):
        unlike.append("weight_decay")
    if unlike:
        raise ValueError(
            f"trainer cannot be replayed: {', '.join(unlike)} of its {name} cannot; leave them out, or use optim='adamw_torch'"
        )
    names = {id(x): name for name, x in base.items()}
    common: dict[str, Any] = {
        "lr": float(first["initial_lr"]), "weight_decay": decay, "max_grad_norm": trainer.args.max_grad_norm or None,
        "lr_schedule": lambda step: schedule.lr_lambdas[0](step - 1),
    }  # fmt: skip
    if isinstance(made, torch.optim.SGD):
        return InnerSGD(momentum=first["momentum"], **common)
    adam = {"betas": tuple(first["betas"]), "eps": first["eps"], **common}
    if not first["decoupled_weight_decay"]:
        return InnerAdam(**adam)
    plain = [names[id(x)] for group in groups if group["weight_decay"] == 0 for x in group["params"]] if decay else ()
    return InnerAdamW(**adam, no_decay=tuple(plain))


def _base(model: nn.Module) -> nn.Module:
    """The model without PEFT's class around it, as `Learner` has it."""
    return getattr(model, "get_base_model", lambda: model)()


def _dropouts(model: nn.Module) -> str:
    """The settings and modules of a model that drop something."""
    of_config = {
        name: x for name, x in model.config.to_dict().items() if "drop" in name and isinstance(x, float) and x > 0
    }
    modules = {name for name, x in model.named_modules() if isinstance(x, nn.Dropout) and x.p > 0}
    return ", ".join([*(f"config.{name}={x}" for name, x in of_config.items()), *sorted(modules)])[:400]


def _flat(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.flatten().double() for x in gradients])
