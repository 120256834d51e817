"""What a Trainer of a summary saves and pushes: the artefact, to a *dataset* repository. `FarziTrainer` builds on it."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from farzi_hf.artefact import hub
from farzi_hf.interruptible_trainer import InterruptibleTrainer

logger = logging.getLogger(__name__)

_STRATEGIES = (HubStrategy.END, HubStrategy.EVERY_SAVE)


class PublishingTrainer(InterruptibleTrainer):
    """A Trainer whose model is a `FarziData`; `push_to_hub=True` and `hub_strategy` push dataset repositories.

    With `hub_strategy="end"`, `save_model()` pushes as well; with "every_save" (Trainer's default), every checkpoint
    pushes the summary too, in the background. Each push is one commit of the artefact: optimizer states and
    checkpoints stay here, so the strategies that upload them are refused.
    """

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Makes the dataset repository `args.hub_model_id` (by default, the output folder's name) where there is none.

        Trainer calls it at the start where `args.push_to_hub`, so that a wrong name or token shows before the training.

        Raises:
            ValueError: a `hub_strategy` that uploads checkpoints.
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
        """Writes the artefact (`FarziData.save_pretrained`); inside a checkpoint, the tensors that training resumes from.

        The table and plots that this very summary was saved with before stay. Pushes where `args.push_to_hub`.
        """
        if _internal_call:
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, **self._artefact())
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Save summary")

    def push_to_hub(self, repo_id: str | None = None, private: bool | None = None, **kwargs: Any) -> str | None:
        """Uploads the summary to the *dataset* repository `repo_id` and returns the address (in the first process).

        Defaults: `args.hub_model_id`, `hub_private_repo`, `hub_token`, `hub_revision`. See `FarziData.push_to_hub`.
        """
        repo_id = repo_id or self.hub_model_id or self.args.hub_model_id
        if repo_id is None:
            raise ValueError(
                "repo_id is None and args.hub_model_id too; give the dataset repository's name, 'user/farzi-…'"
            )
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        private = self.args.hub_private_repo if private is None else private
        settings = {"private": private, "token": self.args.hub_token, "revision": self.args.hub_revision, **kwargs}
        return self.model.push_to_hub(repo_id, **{**self._artefact(), **settings})

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Pushes the summary as it is now, in the background; skipped while the last push is under way.

        Overrides Trainer's, which uploads what a *model* repository holds. A push that fails does not end the training.
        """
        if not self.is_world_process_zero() or self.args.hub_strategy != HubStrategy.EVERY_SAVE:
            return
        if self.push_in_progress is not None and not self.push_in_progress.is_done():
            if not self.args.hub_always_push:
                return
            self._finish_current_push()
        folder = tempfile.TemporaryDirectory()
        self.model.save_pretrained(folder.name, **self._artefact())  # now: training goes on while it is uploaded
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
            except Exception as error:  # whatever it is, the summary is also here, and the next push may succeed
                logger.warning("%s: not pushed: %s", message, error)

    def _artefact(self) -> dict[str, Any]:
        """Arguments of `FarziData.save_pretrained`: what is known of these very tensors."""
        raise NotImplementedError
