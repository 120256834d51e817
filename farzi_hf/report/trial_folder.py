"""The folder of a search: each trial with its result, and with the checksums of the model that it
has made.

A search that is started again takes what is there. A trial whose model is gone or damaged is made
again; files of others are never removed.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from farzi_hf.common.files import checksums, differences, load_record, save_record
from farzi_hf.common.text import as_written, json_text, numbers_of
from farzi_hf.distillation.training_progress import seconds_of
from farzi_hf.report.trials import Trial

KEPT = "trials.json"


@dataclass
class TrialFolder:
    """What trials have left.

    Args:
        path: of the folder.
        settings: on which the trials depend. Trials of other settings are not taken.
        show: is called with a line for the reader where a trial has to be made again.
    """

    path: Path
    settings: Mapping[str, Any]
    show: Callable[[str], None]
    seconds_of_trials: float = field(default=0.0, init=False)
    """Seconds that this object has spent in trials. Those of earlier starts are not among them."""

    @cached_property
    def _kept(self) -> dict[str, Any]:
        """Trials of an earlier start, by their keys."""
        path = self.path / KEPT
        if not path.exists():
            return {}
        try:
            record = load_record(path)
            return numbers_of(record["trials"]) if record["settings"] == self.settings else {}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{str(path)!r} cannot be used ({error}): choose another folder, or move this one"
                " away"
            ) from None

    def trial(self, name: str, make: Callable[[], Mapping[str, Any]], key: str) -> Trial:
        """The trial under `key`: `make()`, or what an earlier start has kept of it. If the trial
        leaves a folder, the key is the folder's name.
        """
        if key in self._kept and not self._is_whole(key):
            del self._kept[key]
        if key not in self._kept:
            self._make(name, make, key)
        return Trial(**numbers_of(self._kept[key]))

    def _make(self, name: str, make: Callable[[], Mapping[str, Any]], key: str) -> None:
        state = self.state(key)
        began = time.perf_counter()
        values = make()
        taken = time.perf_counter() - began
        self.seconds_of_trials += taken
        folder = self.path / key
        self._kept[key] = as_written(
            {
                **values,
                "name": name,
                "seconds": round(max(taken, seconds_of(state)), 2),  # it may have gone on
                "files": checksums(folder) if folder.is_dir() else {},
            }
        )
        save_record(self.path / KEPT, {"settings": self.settings, "trials": self._kept})
        state.unlink(missing_ok=True)

    def _is_whole(self, key: str) -> bool:
        """Whether the folder that a kept trial has left is as it was written. What is left of
        another one is removed. Raises ValueError if it holds files of others.
        """
        trial = self._kept[key]
        folder = self.path / key
        if "folder" not in trial.get("found", {}):
            return True
        expected = trial.get("files")  # older versions have written none
        differ = differences(folder, expected) if expected else ""
        if folder.is_dir() and not differ:
            return True
        if not folder.exists():
            self.show(f"{folder} is gone: this trial is made again")
            return False
        if not expected or differ.added:
            raise ValueError(
                f"{str(folder)!r} has changed since this search wrote it ({differ}): move it"
                " away, and this trial is made again"
            )
        self.show(f"{folder} is damaged ({differ}): this trial is made again")
        shutil.rmtree(folder)
        return False

    def state(self, key: str) -> Path:
        """Where the training of a trial keeps its state. Other settings have another file."""
        which = hashlib.sha256(json_text(self.settings).encode()).hexdigest()[:8]
        return self.path / f"{key}.{which}.safetensors"
