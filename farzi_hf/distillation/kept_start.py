"""The start of a summary while teachers make it: the state of their trainings in the run's folder.

A start may take hours, and a run has no checkpoint before its first step. So teachers write their
state at their evaluations, and a run that was ended meanwhile goes on from there, bit for bit, if
its settings and its data are the same. Once a checkpoint or the artefact holds the start, the state
is removed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farzi_hf.common.files import load_record, save_record, status_of
from farzi_hf.common.text import as_written

logger = logging.getLogger(__name__)

FOLDER = "farzi_start"
_RECORD = "settings.json"


@dataclass(frozen=True)
class KeptStart:
    """The folder with the state.

    Args:
        folder: in the folder of the run; it need not exist.
    """

    folder: Path

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Makes the folder. The state in it stays, if it is of the same settings; else it is
        removed.

        Args:
            settings: everything on which the start depends, as plain JSON by name.

        Raises:
            ValueError: the folder exists, and this library did not write it.
        """
        if status_of(self.folder) is not None:
            self._check_ours()
            if self._settings() == as_written(dict(settings)):
                return
            logger.warning(
                "%s holds a start of other settings or data: the start begins anew.", self.folder
            )
            self.discard()
        self.folder.mkdir(parents=True, exist_ok=True)
        save_record(self.folder / _RECORD, {"settings": settings})

    def file(self, name: str) -> Path:
        """Where the state of the training of that name is."""
        return self.folder / f"{name}.safetensors"

    def discard(self) -> None:
        """Removes what this library has written there."""
        if status_of(self.folder / _RECORD) is None:
            return
        for path in self.folder.glob("*.safetensors"):
            path.unlink(missing_ok=True)
        (self.folder / _RECORD).unlink(missing_ok=True)
        if not os.listdir(self.folder):
            self.folder.rmdir()

    def _settings(self) -> Any:
        """Of the state that is there; None if they cannot be read."""
        try:
            return load_record(self.folder / _RECORD).get("settings")
        except ValueError:
            return None

    def _check_ours(self) -> None:
        folder = self.folder
        is_empty = folder.is_dir() and not os.listdir(folder)
        is_ours = status_of(folder / _RECORD) is not None
        if folder.is_symlink() or not (is_ours or is_empty):
            raise ValueError(
                f"output_dir={str(folder.parent)!r} holds {folder.name}, which no FarziTrainer has"
                " written: choose another output_dir, or move it away"
            )
