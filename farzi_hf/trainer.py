"""FarziTrainer: distillation as a `transformers.Trainer` whose trained model is the summary. Wiring only."""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import DataCollatorForLanguageModeling, PreTrainedConfig, PreTrainedModel, Trainer

from farzi_hf.config import INITIALIZATIONS, FarziConfig
from farzi_hf.data import check_sequences
from farzi_hf.farzi_data import FarziData
from farzi_hf.learner import Learner, Parameters
from farzi_hf.metrics import language_modeling_metrics, token_statistics

logger = logging.getLogger(__name__)

_EVALUATION = 1  # keeps the seeds of evaluation students apart from those of the distillation


class FarziTrainer(Trainer):
    """Distils `train_dataset` into a `FarziData`, which is the `model` that the Trainer trains.

    Each outer step trains a fresh learner for T steps on the summary, takes its loss on a batch of real sequences, and
    updates latents and decoder by the exact gradient of that loss through the training (equation 2 of the paper).
    Everything random in a step is a function of (seed, global step, process): a run that resumes from a checkpoint is
    bit for bit the run that was not interrupted, and n processes equal one that accumulates n batches per step.

    Logged beside the Trainer's own figures: `loss` is the outer loss, `grad_norm` the norm of the meta-gradient before
    clipping; `non_finite_steps`, `seconds_per_step`, `peak_memory_gib`.

    Args:
        learner_init: the learner: a function that returns a freshly initialised model, a config, or a model (its class
            and config; the weights are drawn anew). See `farzi_hf.learner.Learner`.
        args: a `FarziConfig`.
        train_dataset, eval_dataset: `datasets.Dataset`s with `input_ids`, lists of token ids with BOS and EOS.
        processing_class: the tokenizer; it travels with the summary. Without one, give `data_collator`.
        data_collator: pads real sequences and makes `labels`; by default `DataCollatorForLanguageModeling`.
        farzi_data: a summary to go on with; by default a new one as `args` describes it.
        compute_metrics, preprocess_logits_for_metrics: as in `Trainer`; by default the language-model metrics.
        kwargs: of `Trainer`: callbacks, optimizers.

    Raises:
        ValueError, TypeError: unusable data or settings; the message names the argument and the remedy.
    """

    def __init__(
        self,
        learner_init: Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel,
        args: FarziConfig,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        processing_class: Any = None,
        data_collator: Callable | None = None,
        farzi_data: FarziData | None = None,
        compute_metrics: Callable | None = language_modeling_metrics,
        preprocess_logits_for_metrics: Callable | None = token_statistics,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, FarziConfig):
            raise TypeError(f"args is {type(args).__name__}; give a FarziConfig, for instance FarziConfig('out')")
        self.learner = Learner(learner_init)
        for name, dataset in (("train_dataset", train_dataset), ("eval_dataset", eval_dataset)):
            _check_dataset(name, dataset, self.learner.vocab_size)
        if farzi_data is None:
            farzi_data = FarziData(args.summary_config(self.learner.vocab_size), processing_class)
            if train_dataset is not None:
                INITIALIZATIONS[args.initialization](farzi_data, train_dataset, args.seed)
        _check_vocabulary(farzi_data, self.learner.vocab_size)
        super().__init__(
            model=farzi_data,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            data_collator=data_collator or _language_model_collator(processing_class),
            compute_metrics=compute_metrics,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **kwargs,
        )
        self.learner.to(self.args.device)
        self.objective = args.make_objective()
        self.training = args.make_training()
        self.model_accepts_loss_kwargs = (
            False  # a micro-batch's loss is a mean of its own: each has a learner of its own
        )
        self._micro_step = (-1, 0)
        self._student: Parameters | None = None
        self._non_finite_steps = 0
        self._pace = (time.perf_counter(), 0)

    # -- outer step --------------------------------------------------------------------------------------------------

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor:
        """The outer loss, whose gradient in latents and decoder is the meta-gradient."""
        seed = self._learner_seed()
        # Through the model's forward, so that DistributedDataParallel and accelerate see an ordinary training step.
        return model(functional=lambda latents, decoder: self.objective(self.learner, latents, decoder, inputs, seed))

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One micro-batch; a meta-gradient that is not finite is dropped before it reaches the summary."""
        loss = super().training_step(*args, **kwargs)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not all(torch.isfinite(gradient).all() for gradient in gradients):
            self._drop_gradients()
        return loss

    def _drop_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None  # the optimizer then leaves latents and decoder as they are
        self._non_finite_steps += 1
        logger.warning(
            "Step %d: the meta-gradient is not finite; skipped (%d so far).",
            self.state.global_step,
            self._non_finite_steps,
        )
        if self._non_finite_steps > self.args.max_non_finite:
            raise FloatingPointError(
                f"{self._non_finite_steps} meta-gradients were not finite, more than max_non_finite="
                f"{self.args.max_non_finite}; go on from the last checkpoint in {self.args.output_dir} with a smaller "
                "learning_rate or window, or a larger inner_epsilon"
            )

    def _learner_seed(self) -> int:
        """Of this micro-batch's learner: a function of seed, global step and which micro-batch this is over all processes."""
        step, micro = self._micro_step
        micro = micro + 1 if step == self.state.global_step else 0
        self._micro_step = (self.state.global_step, micro)
        position = micro * self.args.world_size + self.args.process_index
        return _seed(self.args.seed, 0, self.state.global_step, position)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            then, step = self._pace
            self._pace = (time.perf_counter(), self.state.global_step)
            logs["seconds_per_step"] = (self._pace[0] - then) / max(1, self.state.global_step - step)
            logs["non_finite_steps"] = self._non_finite_steps
            logs["peak_memory_gib"] = _peak_memory(self.args.device) / 2**30
        super().log(logs, start_time)

    # -- students ----------------------------------------------------------------------------------------------------

    def train_student(self, index: int = 0) -> Parameters:
        """θ_T of evaluation student `index`: fresh weights, trained on the summary with the inner loop's settings."""
        seed = _seed(self.args.seed, _EVALUATION, index)
        start = self.learner.initial_parameters(seed, self.args.device)
        farzi = self.model
        with torch.no_grad():
            return self.training(
                self.learner, farzi.latents, farzi.decoder, start=start, steps=self.args.inner_steps, seed=seed
            )

    def evaluate(
        self, eval_dataset: Dataset | None = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Trains `args.eval_students` students from scratch on the summary and evaluates each on real data.

        Returns:
            For each metric its mean over the students and, as `…_std`, their standard deviation.
        """
        if eval_dataset is not None:
            _check_dataset("eval_dataset", eval_dataset, self.learner.vocab_size)
        results = [self._evaluate_student(i, eval_dataset, metric_key_prefix) for i in range(self.args.eval_students)]
        metrics: dict[str, float] = {}
        for name in results[0]:
            values = [result[name] for result in results]
            metrics[name] = float(np.mean(values))
            metrics[f"{name}_std"] = float(np.std(values, ddof=min(1, len(values) - 1)))
        metrics[f"{metric_key_prefix}_students"] = len(results)
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self._pace = (time.perf_counter(), self.state.global_step)
        return metrics

    def _evaluate_student(self, index: int, dataset: Dataset | None, prefix: str) -> dict[str, float]:
        self._student = self.train_student(index)
        loader = self.get_eval_dataloader(dataset)
        output = self.evaluation_loop(loader, f"Student {index + 1}", metric_key_prefix=prefix)
        self._student = None
        speed = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")
        return {k: float(v) for k, v in output.metrics.items() if not k.endswith(speed)}

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The student's loss, logits and labels on a real batch."""
        if self._student is None:
            raise RuntimeError("a summary has no predictions of its own; call evaluate(), which trains students on it")
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            loss = self.learner.hard_loss(self._student, inputs)
            if prediction_loss_only:
                return loss, None, None
            return loss, self.learner.logits(self._student, inputs), inputs["labels"]

    # -- data and artefact -------------------------------------------------------------------------------------------

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:  # real sequences go to the learner, not to FarziData.forward
            self._signature_columns = ["input_ids", "attention_mask", *self.label_names]

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the artefact (`FarziData.save_pretrained`); inside a checkpoint, the tensors that training resumes from."""
        if _internal_call:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, **self._artefact())

    def push_to_hub(self, repo_id: str | None = None, private: bool | None = None, **kwargs: Any) -> str:
        """Uploads the summary to the *dataset* repository `repo_id` (default: `args.hub_model_id`) and returns the address."""
        repo_id = repo_id or self.args.hub_model_id
        if repo_id is None:
            raise ValueError(
                "repo_id is None and args.hub_model_id too; give the dataset repository's name, 'user/farzi-…'"
            )
        return self.model.push_to_hub(repo_id, private=private, **self._artefact(), **kwargs)

    def _artefact(self) -> dict[str, Any]:
        evaluations = [entry for entry in self.state.log_history if any(key.startswith("eval_") for key in entry)]
        return {
            "processing_class": self.processing_class,
            "metrics": evaluations[-1] if evaluations else None,
            "recipe": self.args.to_recipe(),
        }


def _seed(*numbers: int) -> int:
    """One seed of several numbers, without the collisions of adding them."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _language_model_collator(processing_class: Any) -> Callable:
    if processing_class is None:
        raise ValueError(
            "processing_class and data_collator are both None; give the tokenizer, or a collator that returns "
            "input_ids, attention_mask and labels"
        )
    return DataCollatorForLanguageModeling(processing_class, mlm=False)


def _check_dataset(name: str, dataset: Dataset | None, vocab_size: int) -> None:
    if dataset is None:
        return
    try:
        check_sequences(dataset, vocab_size)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_vocabulary(farzi_data: FarziData, vocab_size: int) -> None:
    if farzi_data.config.vocab_size != vocab_size:
        raise ValueError(
            f"farzi_data has vocab_size={farzi_data.config.vocab_size}, but the learner predicts {vocab_size} entries; "
            "build the learner with the summary's vocabulary size"
        )


def _peak_memory(device: torch.device) -> int:
    """Bytes: of the CUDA device where there is one, else the resident peak of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
