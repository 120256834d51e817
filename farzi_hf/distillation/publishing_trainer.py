"""A Trainer that saves its model as an artefact, and pushes it to a *dataset* repository. `FarziTrainer` builds on it."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from farzi_hf.distillation.interruptible_trainer import InterruptibleTrainer
from farzi_hf.summary.store import hub

logger = logging.getLogger(__name__)

_STRATEGIES = (HubStrategy.END, HubStrategy.EVERY_SAVE)


class PublishingTrainer(InterruptibleTrainer):
    """A Trainer whose model is a `FarziData`; `push_to_hub=True` and `hub_strategy` push dataset repositories.

    With `hub_strategy="end"`, `save_model()` also pushes. With "every_save" (Trainer's default), every checkpoint pushes the
    summary too, in the background. Each push is one commit of the artefact. Optimizer states and checkpoints stay on this
    machine, and the strategies that upload them are refused.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Creates the dataset repository `args.hub_model_id`, if it does not exist. By default it has the output folder's name.

        If `args.push_to_hub` is set, Trainer calls this at the start. A wrong name or token then fails before the training.

        Raises:
            ValueError: `hub_strategy` would upload checkpoints.
        """
        if self.args.hub_strategy not in _STRATEGIES:
            raise ValueError(
                f"hub_strategy={self.args.hub_strategy.value!r} uploads checkpoints with optimizer states, which do not belong "
                "into a dataset repository; use 'every_save' or 'end'"
            )
        self.push_in_progress = None
        if self.is_world_process_zero():
            name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
            private = self.args.hub_private_repo if private is None else private
            self.hub_model_id = hub.create_repository(
                name, private, self.args.hub_revision, token or self.args.hub_token
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the artefact (`FarziData.save_pretrained`). Inside a checkpoint, it writes the tensors for a resume instead.

        If the same summary was saved with a table and plots before, these stay. If `args.push_to_hub` is set, it also pushes.
        """
        if _internal_call:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, **self._artefact())
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Save summary")

    def push_to_hub(self, repo_id: str | None = None, private: bool | None = None, **kwargs: Any) -> str | None:
        """Uploads the summary to the *dataset* repository `repo_id`. The first process returns the address, all others None.

        Defaults: `args.hub_model_id`, `hub_private_repo`, `hub_token`, `hub_revision`. See `FarziData.push_to_hub`.
        """
        if not self.is_world_process_zero():  # the first alone knows the default name
            return None
        repo_id = repo_id or self.hub_model_id or self.args.hub_model_id
        if repo_id is None:
            raise ValueError(
                "repo_id and args.hub_model_id are both None; give the dataset repository's name, 'user/farzi-…'"
            )
        self._finish_current_push()
        private = self.args.hub_private_repo if private is None else private
        settings = {"private": private, "token": self.args.hub_token, "revision": self.args.hub_revision, **kwargs}
        return self.model.push_to_hub(repo_id, **{**self._artefact(), **settings})

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Pushes the present summary in the background. While an earlier push is running, this does nothing.

        It overrides Trainer's method, which uploads the files of a *model* repository. A push that fails does not end the training.
        """
        if not self.is_world_process_zero() or self.args.hub_strategy != HubStrategy.EVERY_SAVE:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            if not self.args.hub_always_push:
                return
            self._finish_current_push()
        folder = tempfile.TemporaryDirectory()
        self.model.save_pretrained(
            folder.name, **self._artefact()
        )  # a copy, because training goes on during the upload
        message = f"Training in progress, step {self.state.global_step}"
        self.push_in_progress = PushInProgress([HfApi().run_as_future(self._push_in_background, folder, message)])

    def _push_in_background(self, folder: tempfile.TemporaryDirectory, message: str) -> None:
        args = self.args
        with folder:
            try:
                hub.push_folder(
                    folder.name, self.hub_model_id, private=args.hub_private_repo, revision=args.hub_revision,
                    token=args.hub_token, commit_message=message,
                )  # fmt: skip
            except (
                Exception
            ) as error:  # no error should end the training: the summary is on disk, the next push may work
                logger.warning("%s: not pushed: %s", message, error)

    def _artefact(self) -> dict[str, Any]:
        """Arguments of `FarziData.save_pretrained`: metrics and recipe of exactly the present tensors."""
        raise NotImplementedError
