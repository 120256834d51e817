"""The training of a stock `transformers.Trainer`, replayed step by step as a function of how much
each row counts.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import accelerate
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, SequentialSampler
from transformers import Trainer

from farzi_hf.attribution.weighted_training import RowTraining
from farzi_hf.data import IGNORED
from farzi_hf.data.seeds import seeded
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.distillation.learner import leaves
from farzi_hf.distillation.processes import together, world
from farzi_hf.engine import InnerAdam, InnerAdamW, InnerOptimizer, InnerSGD


@dataclass(frozen=True, eq=False)
class Replay(RowTraining):
    """All steps of a Trainer that has not trained yet. Neither it nor its model is changed. Several
    processes share the rows of a step.

    The loss of a step is the Trainer's: over its micro-batches, the sum of the cross-entropy of all
    predicted tokens, divided as the Trainer divides it. The part of row i is multiplied by its
    weight w_i, and the divisor does not depend on w.
    """

    trainer: Trainer
    learner: Learner
    start: Parameters
    optimizer: InnerOptimizer
    loader: DataLoader  # of its rows, with its collator
    order: Sequence[
        Sequence[Sequence[int]]
    ]  # for each step the rows of its micro-batches, of one process after the other
    on_gradient: Callable[[], Any] = lambda: None  # to show progress

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
        args, model = trainer.args, trainer.model
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
        apart = args.world_size > 1 and not args.average_tokens_across_devices
        _refuse(
            apart, "each process takes a mean of its own; leave average_tokens_across_devices=True"
        )
        _refuse(args.fp16, "fp16=True scales its losses; set bf16=True, or none of both")
        _refuse(
            bool(args.neftune_noise_alpha), "NEFTune draws noise; leave out neftune_noise_alpha"
        )
        _refuse(
            args.load_best_model_at_end,
            "it may end with an earlier model; leave that out, and set max_steps to that step",
        )
        loader = trainer.get_train_dataloader()
        _refuse(
            not len(loader),
            "its training set makes no batch; lower per_device_train_batch_size, or keep incomplete"
            " batches",
        )
        order = _order(trainer, loader)
        learner = Learner(lambda: copy.deepcopy(model).cpu()).to(args.device)
        base = getattr(
            model, "get_base_model", lambda: model
        )()  # without PEFT's class around it, as `Learner` has it
        # `Learner` has taken the padding out of the embedding, whose row then trains. Here it
        # trains as the Trainer's does.
        learner.model.get_input_embeddings().padding_idx = getattr(
            base.get_input_embeddings(), "padding_idx", None
        )
        named = dict(base.named_parameters())
        start = {name: x.detach() if x.requires_grad else x for name, x in named.items()}
        found = cls(trainer, learner, start, _optimizer(trainer, named, len(order)), loader, order)
        usable = damping == 0 or (isinstance(found.optimizer, InnerAdam) and 0 < damping < math.inf)
        _refuse(
            not usable,
            f"damping={damping} has to be a number from 0 on, and 0 with SGD, which has no ε",
        )
        gradient = found._first_gradient()
        if damping == 0:
            return found
        (clipped,) = found.optimizer.clip((gradient,))
        size = float(clipped.norm() / clipped.count_nonzero().clamp(min=1).sqrt())
        return replace(found, optimizer=replace(found.optimizer, damping=damping * size))

    @property
    def num_rows(self) -> int:
        return len(self.loader.dataset)

    @property
    def steps(self) -> int:
        return len(self.order)

    def batch(self, loader: DataLoader, rows: Sequence[int]) -> dict[str, Tensor]:
        """Rows as the collator of a loader makes them, on the Trainer's device."""
        made = loader.collate_fn([loader.dataset[i] for i in rows])
        return {
            name: x.to(self.trainer.args.device)
            for name, x in made.items()
            if isinstance(x, Tensor)
        }

    def micro_batches(
        self, step: int
    ) -> tuple[Sequence[Sequence[int]], list[dict[str, Tensor]], Tensor | None]:
        """The rows of this process's, they themselves, and by what the Trainer divides all sums;
        None where it takes the mean of their means.
        """
        rank, processes = world()
        rows = self.order[step - 1][rank::processes]
        batches = [self.batch(self.loader, each) for each in rows]
        return rows, *self.trainer.get_batch_samples(
            iter(batches), len(batches), self.trainer.args.device
        )

    def loss(self, params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Iterator[Tensor]:
        self.on_gradient()
        (weights,), (chosen, batches, items) = inputs, self.micro_batches(step)
        params = together(params)
        for rows, batch in zip(chosen, batches, strict=True):
            predicted = int((batch["labels"][:, 1:] != IGNORED).sum())
            if predicted or items is None:
                share = 1 / len(self.order[step - 1]) if items is None else predicted / int(items)
                yield (
                    self.learner.hard_loss(params, batch, self.of_rows(weights, list(rows), batch))
                    * share
                )
            else:  # other processes wait for its gradient, and for second derivatives
                yield 0.0 * sum(x.square().sum() for x in params.values() if x.requires_grad)

    def _first_gradient(self) -> Tensor:
        """All its numbers (P,), after a comparison with the Trainer's own."""
        trainer, model = self.trainer, self.trainer.model
        theta = leaves(self.start)

        def gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
            own = [x for x in parameters if x.requires_grad]
            found = torch.autograd.grad(loss, own, allow_unused=True, materialize_grads=True)
            return torch.cat([x.flatten().double() for x in found])

        def of_trainer(training: bool) -> Tensor:
            (_, batches, items), before = self.micro_batches(1), model.training
            model.train(training)
            losses = [
                trainer.compute_loss(model, dict(x), num_items_in_batch=items) for x in batches
            ]
            model.train(before)
            whole = torch.stack(losses).sum() / (len(batches) if items is None else 1)
            return accelerate.utils.reduce(gradient(whole, list(model.parameters())), "mean")

        with torch.enable_grad(), seeded(), trainer.accelerator.autocast():
            ours = gradient(sum(self.loss(theta, (self.ones,), 1)), list(theta.values()))
            tolerance = (0.1 if trainer.args.bf16 else 1e-3) * ours.norm()
            if (of_trainer(True) - ours).norm() <= tolerance:
                return ours
            drops = [
                name
                for name, x in model.named_modules()
                if getattr(x, "p", 0) and isinstance(x, nn.Dropout)
            ]
            dropped = (of_trainer(False) - ours).norm() <= tolerance
        _refuse(
            dropped,
            "its model has dropout; set it to 0 in the model's config, and lora_dropout"
            f" ({', '.join(drops):.200})",
        )
        causes = (
            "label smoothing, NEFTune, random rows or collators, and losses or inputs of your own"
        )
        _refuse(
            True,
            "its first gradient is not that of the mean cross-entropy of each next token; leave"
            f" out {causes}",
        )


def _refuse(applies: bool, reason: str) -> None:
    if applies:
        raise ValueError(f"trainer cannot be replayed: {reason}")


def _order(trainer: Trainer, loader: DataLoader) -> list[list[list[int]]]:
    """For each step the rows of its micro-batches, in the Trainer's order."""
    args, shards = (
        trainer.args,
        [copy.copy(loader.batch_sampler) for _ in range(trainer.args.world_size)],
    )
    for rank, shard in enumerate(shards):
        shard.process_index = rank
    sampler = getattr(shards[0], "batch_sampler", shards[0]).sampler
    _refuse(
        len(set(map(len, shards))) > 1,
        "processes have unequal numbers of batches; leave even_batches=True",
    )
    seeded = isinstance(sampler, (SeedableRandomSampler, SequentialSampler))
    _refuse(
        not seeded,
        f"no seed orders its {type(sampler).__name__}; set train_sampling_strategy='random'",
    )
    accumulated, found = args.gradient_accumulation_steps, []
    epochs = math.ceil(args.num_train_epochs * math.ceil(len(loader) / accumulated))
    total = args.max_steps if args.max_steps > 0 else epochs
    for epoch in itertools.count():
        if len(found) >= total:
            return found[:total]
        parts = [
            (loader.set_epoch(epoch), list(shard))[1] for shard in shards
        ]  # an epoch that ends sets the next one
        batches = list(zip(*parts, strict=True))
        found += [
            list(itertools.chain(*batches[i : i + accumulated]))
            for i in range(0, len(batches), accumulated)
        ]


def _optimizer(trainer: Trainer, named: dict[str, nn.Parameter], steps: int) -> InnerOptimizer:
    """The Trainer's optimizer, clipping and schedule, as an inner optimizer."""
    before = trainer.optimizer, trainer.lr_scheduler, trainer._created_lr_scheduler
    made = trainer.create_optimizer()
    schedule = trainer.create_scheduler(steps, made)
    trainer.optimizer, trainer.lr_scheduler, trainer._created_lr_scheduler = before
    kind, groups = type(made).__name__, [group for group in made.param_groups if group["params"]]
    known = torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD
    _refuse(type(made) not in known, f"no optimizer here is its {kind}; use AdamW")
    stairs = not isinstance(schedule, LambdaLR) or any(
        each is not schedule.lr_lambdas[0] for each in schedule.lr_lambdas
    )
    _refuse(
        stairs,
        f"its {type(schedule).__name__} is no function of the step, one for all parameters; set"
        " another lr_scheduler_type",
    )
    stepped = {id(x) for group in groups for x in group["params"]}
    left_out = [name for name, x in named.items() if x.requires_grad and id(x) not in stepped]
    _refuse(
        bool(left_out),
        f"its optimizer leaves out {', '.join(left_out):.200}, which require a gradient; freeze"
        " them",
    )
    first, decays = groups[0], {group["weight_decay"] for group in groups}
    alike = first.keys() - {"params", "weight_decay"}
    unlike = [
        name
        for name in first
        if name in alike and any(group[name] != first[name] for group in groups)
    ]
    unlike += [name for name in ("amsgrad", "maximize", "nesterov", "dampening") if first.get(name)]
    if decays - {max(decays), 0.0} or (len(decays) > 1 and not first.get("decoupled_weight_decay")):
        unlike.append("weight_decay")
    _refuse(
        bool(unlike),
        f"no optimizer here has the {', '.join(unlike)} of its {kind}; leave them out, or use"
        " AdamW",
    )
    settings = {
        "lr": float(first["initial_lr"]),
        "weight_decay": max(decays),
        "max_grad_norm": trainer.args.max_grad_norm or None,
        "lr_schedule": lambda step: schedule.lr_lambdas[0](step - 1),
    }
    if "momentum" in first:
        return InnerSGD(momentum=first["momentum"], **settings)
    settings |= {"betas": tuple(first["betas"]), "eps": first["eps"]}
    if not first["decoupled_weight_decay"]:
        return InnerAdam(**settings)
    plain = (
        {id(x) for group in groups if not group["weight_decay"] for x in group["params"]}
        if max(decays)
        else ()
    )
    return InnerAdamW(
        **settings, no_decay=tuple(name for name, x in named.items() if id(x) in plain)
    )
