"""The part of the trainer that evaluates: a summary is as good as the students that train on it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import TrainerState
from transformers.utils import SAFE_WEIGHTS_NAME

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.checkpoints import step_of
from farzi_hf.distillation.learner import Parameters
from farzi_hf.distillation.processes import shared
from farzi_hf.distillation.resumable_trainer import ResumableTrainer
from farzi_hf.summary.soft_tokens import shifted_cross_entropy
from farzi_hf.summary.store.tensor_file import fingerprint
from farzi_hf.tasks.statistics import mean_and_spread

_SPEED = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")


class StudentTrainer(ResumableTrainer):
    """A `ResumableTrainer` whose `evaluate` trains students on the summary. `FarziTrainer` sets its learner, training and rows."""

    _student: Parameters | None = None

    @property
    def _quiet(self) -> bool:
        """Whether this process shows no progress."""
        return self.args.disable_tqdm or not self.is_world_process_zero()

    def train_student(self, index: int = 0) -> Parameters:
        """θ_T of evaluation student `index`: it starts from fresh weights and trains on the summary with the inner loop's settings."""
        return self._trained(Purpose.EVALUATION_STUDENT, index)

    def _trained(self, purpose: Purpose, index: int) -> Parameters:
        seed, where = derive(self.args.seed, purpose, index), {"device": self.args.device}
        return self.training.from_scratch(self.learner, self.model, steps=self.args.inner_steps, seed=seed, **where)

    def evaluate(
        self,
        eval_dataset: str | Dataset | Mapping[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Trains `args.eval_students` students from scratch on the summary and evaluates each on real data. Processes share the work.

        Args:
            eval_dataset: another evaluation set, several by name, or the name of one of the trainer's. All sets see the same students.

        Returns:
            For each metric its mean over the students and, as `…_std`, their standard deviation. If there are several sets, a set's
            metrics are called `eval_NAME_…`.
        """
        count, fresh = self.args.eval_students, partial(self.learner.initial_parameters, 0, self.args.device)
        with torch.random.fork_rng(devices=[]):  # a data loader draws a random number; training must not depend on it
            rows = self._real_rows.evaluated(eval_dataset, self.eval_dataset)
            # Trainer keeps loaders with persistent workers, but it keeps one for all data sets given here; not those for tests.
            loaders = {f"{metric_key_prefix}{name}": self.get_test_dataloader(x) for name, x in rows.items()}
            with self._students_bar.shown(count, sum(map(len, loaders.values())), self._quiet):
                students = enumerate(shared(count, self.train_student, fresh))
                results = [self._evaluate_student(i, theta, loaders) for i, theta in students]
        metrics = {**mean_and_spread(results), f"{metric_key_prefix}_students": len(results)}
        self.log(metrics)
        self._remember(self.model.fingerprint(), {**metrics, "step": self.state.global_step})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """As in `Trainer`, but `dataloader_drop_last` is for training alone: an evaluation is of all rows."""
        drop_last, self.args.dataloader_drop_last = self.args.dataloader_drop_last, False
        try:
            return super().get_test_dataloader(test_dataset)
        finally:
            self.args.dataloader_drop_last = drop_last

    def _restore(self, state: TrainerState, checkpoint: str) -> None:
        super()._restore(state, checkpoint)
        for folder in {checkpoint, state.best_model_checkpoint or checkpoint}:
            self._recall_evaluation(state, Path(folder))

    def _recall_evaluation(self, state: TrainerState, checkpoint: Path) -> None:
        """The metrics of the summary in a checkpoint, from the log of the run: they belong into its artefact."""
        step = step_of(checkpoint)
        logged = [entry for entry in state.log_history if entry["step"] == step]
        evaluated = [entry for entry in logged if any(name.endswith("_students") for name in entry)]
        tensors = load_file(checkpoint / SAFE_WEIGHTS_NAME) if evaluated else {}
        for entry in evaluated:
            summary = fingerprint({name: tensors[name] for name in self.model.contents().tensors})
            self._remember(summary, entry)

    def _remember(self, summary: str, metrics: Mapping[str, float]) -> None:
        """Adds metrics of a summary, by its fingerprint, to those of other sets with another prefix."""
        self._evaluations[summary] = dict(sorted({**self._evaluations.get(summary, {}), **metrics}.items()))

    def _evaluate_student(self, index: int, student: Parameters, loaders: Mapping[str, DataLoader]) -> dict[str, float]:
        self._student, metrics = student, {}
        self._students_bar.trained()
        only_loss = True if self.compute_metrics is None else None
        for prefix, loader in loaders.items():
            metrics |= self.evaluation_loop(loader, f"Student {index + 1}", only_loss, metric_key_prefix=prefix).metrics
        self._student = None
        return {k: float(v) for k, v in metrics.items() if not k.endswith(_SPEED)}

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The student's loss, logits and labels on a real batch. If `args.label_names` has several names, labels are a tuple."""
        if self._student is None:
            raise RuntimeError("a summary has no predictions of its own; call evaluate(), which trains students on it")
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            logits, labels = self.learner.logits(self._student, inputs), inputs["labels"]
            loss, count = shifted_cross_entropy(logits, labels)
        references = tuple(inputs[name] for name in self.label_names)
        references = references[0] if len(references) == 1 else references
        return (loss / count, None, None) if prediction_loss_only else (loss / count, logits, references)
