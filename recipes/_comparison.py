"""The rows of a language model's table of results: students on the summary, students on real data, models that are counted.

Students on real data are trained as those on the summary are: same start, inner optimizer, number of steps, tokens per step.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoModelForCausalLM, PreTrainedConfig, Trainer, TrainingArguments

from farzi_hf import FarziData, FarziTrainer, attach_soft_inputs, soft_cross_entropy
from farzi_hf.adjoint import unroll
from farzi_hf.baselines import InterpolatedBigram, head_sequences, random_sequences
from farzi_hf.data import flatten_sequences
from farzi_hf.learner import Parameters
from farzi_hf.metrics import (
    bootstrap_interval,
    corpus_perplexity,
    mean_and_spread,
    pad_statistics,
    sentence_totals,
    token_metrics,
    token_statistics,
)
from farzi_hf.objectives import minibatches

Row = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Trains and measures students; every method of the table is measured alike, on the test split.

    Args:
        trainer: of the distillation; gives the summary, the learner and the inner loop's settings.
        splits: train, validation and test as `input_ids`.
        config: the learner's, for students of the stock Trainer.
        num_students: per row; each has its own start and, where a subset is drawn, its own subset.
        long_steps: training steps of the row "full data, long".
    """

    trainer: FarziTrainer
    splits: DatasetDict
    config: PreTrainedConfig
    num_students: int
    long_steps: int

    @property
    def steps(self) -> int:
        """T."""
        return self.trainer.args.inner_steps

    @property
    def tokens_per_step(self) -> int:
        """b_syn · ξ."""
        args = self.trainer.args
        return (args.synthetic_batch_size or args.num_sequences) * args.sequence_length

    @property
    def seed(self) -> int:
        return self.trainer.args.seed

    def nbytes(self, sequences: Dataset) -> int:
        """Bytes of all ids."""
        return len(flatten_sequences(sequences)[0]) * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one id: 2 for a vocabulary of 257 to 65,536 entries."""
        return np.min_scalar_type(self.trainer.learner.vocab_size - 1).itemsize

    def train_on_real(self, sequences: Dataset, steps: int, seed: int) -> Parameters:
        """θ after `steps` steps of the inner optimizer, each on about as many tokens as an inner step has."""
        args, learner = self.trainer.args, self.trainer.learner
        batch_size = max(1, round(self.tokens_per_step / flatten_sequences(sequences)[1].mean()))
        rows = minibatches(len(sequences), batch_size, steps, seed)

        def loss(params: Parameters, inputs: tuple, step: int) -> torch.Tensor:
            return learner.hard_loss(params, self._batch(sequences[:] if rows is None else sequences[rows[step - 1]]))

        start = learner.initial_parameters(seed, args.device)
        with torch.no_grad():
            return unroll(loss, start, (), optimizer=args.make_inner_optimizer(), steps=steps)

    def statistics(self, theta: Parameters, sequences: Dataset) -> np.ndarray:
        """Of each predicted token, as `farzi_hf.metrics.token_statistics`; sorted by length, so that little is padded."""
        order = np.argsort(flatten_sequences(sequences)[1], kind="stable")
        size, statistics = self.trainer.args.per_device_eval_batch_size, []
        for start in range(0, len(order), size):
            batch = self._batch(sequences[order[start : start + size]])
            with torch.no_grad():
                logits = self.trainer.learner.logits(theta, batch)
            statistics.extend(token_statistics(logits, batch["labels"]).cpu().numpy())
        return pad_statistics(statistics)

    def _batch(self, columns: Mapping[str, list]) -> Mapping[str, torch.Tensor]:
        batch = self.trainer.data_collator([{"input_ids": ids} for ids in columns["input_ids"]])
        return {name: tensor.to(self.trainer.args.device) for name, tensor in batch.items()}

    def student_row(self, method: str, students: Sequence[Parameters], nbytes: int, steps: int) -> Row:
        """The row of trained students, which it announces as soon as it is there."""
        statistics = [self.statistics(theta, self.splits["test"]) for theta in students]
        row = {**metrics_row(method, statistics, nbytes), "steps": steps, "students": len(students)}
        print(f"{method}: test perplexity {row['perplexity']:,.1f}", flush=True)
        return row

    def real_row(self, method: str, draw: Callable[[int], Dataset], steps: int) -> Row:
        """The row of students on real data, each on `draw(seed)`."""
        seeds = range(self.seed, self.seed + self.num_students)
        subsets = [draw(seed) for seed in seeds]
        students = [self.train_on_real(subset, steps, seed) for subset, seed in zip(subsets, seeds, strict=True)]
        return self.student_row(method, students, round(np.mean([self.nbytes(subset) for subset in subsets])), steps)

    def draw_sequences(self, seed: int) -> Dataset:
        """μ random sequences."""
        return random_sequences(self.splits["train"], self.trainer.args.num_sequences, seed)

    def draw_tokens(self, tokens: int, seed: int) -> Dataset:
        """Random sequences of `tokens` tokens together, or a few more."""
        shuffled = random_sequences(self.splits["train"], len(self.splits["train"]), seed)
        ends = np.cumsum(flatten_sequences(shuffled)[1])
        return shuffled.select(range(min(len(ends), int(np.searchsorted(ends, tokens)) + 1)))


def metrics_row(method: str, statistics: Sequence[np.ndarray], nbytes: int) -> Row:
    """Metrics as mean and spread over students, (N, L − 1, 3) each, and a bootstrap interval of that mean over sequences."""
    totals = np.stack([sentence_totals(values) for values in statistics], axis=1)

    def mean_perplexity(rows: np.ndarray) -> float:
        return float(np.mean([corpus_perplexity(rows[:, student]) for student in range(rows.shape[1])]))

    results = [token_metrics(values) for values in statistics]
    return {
        "method": method,
        **(mean_and_spread(results) if len(results) > 1 else results[0]),
        "perplexity_interval": list(bootstrap_interval(totals, mean_perplexity)),
        "bytes": nbytes,
    }


# -- students on the summary -----------------------------------------------------------------------------------------


def summary_row(c: Comparison, method: str) -> Row:
    """Students on the summary as it is now."""
    students = [c.trainer.train_student(i) for i in range(c.num_students)]
    return c.student_row(method, students, c.trainer.model.nbytes, c.steps)


def stock_row(c: Comparison, folder: Path) -> Row:
    """As a user would: a student of the saved artefact under the stock Trainer, with the settings that the artefact carries."""
    farzi = FarziData.from_pretrained(folder)
    inner = farzi.config.inner
    with tempfile.TemporaryDirectory() as scratch:
        args = TrainingArguments(
            scratch, max_steps=inner["steps"], per_device_train_batch_size=inner["synthetic_batch_size"],
            learning_rate=inner["lr"], adam_beta1=inner["betas"][0], adam_beta2=inner["betas"][1],
            adam_epsilon=inner["eps"], weight_decay=inner["weight_decay"], lr_scheduler_type="constant",
            max_grad_norm=0.0, optim="adamw_torch", save_strategy="no", logging_strategy="no", seed=c.seed,
            use_cpu=c.trainer.args.use_cpu, dataloader_pin_memory=c.trainer.args.dataloader_pin_memory,
        )  # fmt: skip
        torch.manual_seed(c.seed)
        model = attach_soft_inputs(AutoModelForCausalLM.from_config(c.config))
        Trainer(
            model=model, args=args, train_dataset=farzi.as_dataset(),
            data_collator=farzi.collator(), compute_loss_func=soft_cross_entropy,
        ).train()  # fmt: skip
    theta = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return c.student_row("Farzi, stock Trainer", [theta], farzi.nbytes, inner["steps"])


# -- students on real data -------------------------------------------------------------------------------------------


def full(c: Comparison) -> Row:
    return c.real_row("full data", lambda seed: c.splits["train"], c.steps)


def full_long(c: Comparison) -> Row:
    return c.real_row("full data, long", lambda seed: c.splits["train"], c.long_steps)


def random(c: Comparison) -> Row:
    return c.real_row("random, same sequences", c.draw_sequences, c.steps)


def random_early_stop(c: Comparison) -> Row:
    """The same, stopped where the first student's validation is best: after T steps so little text is learnt by heart."""
    subset = c.draw_sequences(c.seed)

    def validation_perplexity(steps: int) -> float:
        theta = c.train_on_real(subset, steps, c.seed)
        return token_metrics(c.statistics(theta, c.splits["validation"]))["perplexity"]

    candidates = {max(1, c.steps // 2**halvings) for halvings in range(6)}
    return c.real_row("random, stopped early", c.draw_sequences, min(sorted(candidates), key=validation_perplexity))


def random_tokens(c: Comparison) -> Row:
    """As many tokens as the summary has positions, μ · ξ."""
    tokens = c.trainer.args.num_sequences * c.trainer.args.sequence_length
    return c.real_row("random, same tokens", lambda seed: c.draw_tokens(tokens, seed), c.steps)


def random_bytes(c: Comparison) -> Row:
    """As many bytes as latents and decoder have: floats are not free."""
    tokens = c.trainer.model.nbytes // c.token_bytes
    return c.real_row("random, same bytes", lambda seed: c.draw_tokens(tokens, seed), c.steps)


def head(c: Comparison) -> Row:
    """The μ longest sequences."""
    longest = head_sequences(c.splits["train"], c.trainer.args.num_sequences)
    return c.real_row("head (longest)", lambda seed: longest, c.steps)


BASELINES: dict[str, Callable[[Comparison], Row]] = {
    function.__name__: function
    for function in (full, full_long, random, random_early_stop, random_tokens, random_bytes, head)
}


def count_rows(c: Comparison) -> list[Row]:
    """Unigram and interpolated bigram: counted, not trained."""
    train, validation, test = (c.splits[name] for name in ("train", "validation", "test"))
    bigram = InterpolatedBigram.fit(train, c.trainer.learner.vocab_size, validation)
    models = {"unigram": bigram.unigram, "interpolated bigram": bigram}
    return [metrics_row(method, [model.token_statistics(test)], c.nbytes(train)) for method, model in models.items()]
