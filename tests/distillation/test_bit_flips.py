"""One bit of one file flips in the folder of a run, or of a search: what goes on from there ends
with the same result, or with one line that says what is wrong. Never with another result.

python -m pytest tests/distillation/test_bit_flips.py -m slow
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipes import leave_out_figures, search_shortly, use_small_data
from tiny_trainer import SETTINGS

pytest.importorskip("matplotlib")
from farzi_hf import FarziData
from farzi_hf.cli import main
from farzi_hf.common.files import names_of
from farzi_hf.distillation import teacher
from farzi_hf.distillation.run import TrainingRun

SEED = 9
GoesOn = Callable[[Path], dict[str, Any]]
"""Goes on in a folder; what that leads to."""
FEW = 3
"""Of each kind, in the tests that are always run."""
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 1,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
CONFIG = {
    **{name: value for name, value in SETTINGS.items() if name != "save_strategy"},
    "dataset": "sample",
    "vocab_size": 50,
    "learner": GPT2,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,
    "num_students": 1,
    "teacher_steps": 3,
    "baselines": [],
}


@pytest.fixture(scope="module", autouse=True)
def short(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_small_data(patch)
        leave_out_figures(patch)
        search_shortly(patch)
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


def distil(folder: Path) -> dict[str, Any]:
    """All of a run; what it leads to."""
    config = folder.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    main(["distil", str(config), "--compare", "--output_dir", str(folder)])
    done = json.loads((folder / "results.json").read_text(encoding="utf-8"))["value"]
    for measured in done["measured"]:
        measured.pop("seconds")
    return {"measured": done["measured"], **summary_in(folder / "summary")}


def suggest(folder: Path) -> dict[str, Any]:
    """All of a search; what it chooses."""
    options = ["--learner", json.dumps(GPT2), "--use_cpu", "true", "--disable_tqdm", "true"]
    main(["suggest", "sample", "--output_dir", str(folder), "--minutes", "10", *options])
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    kept = json.loads((folder / "trials" / "trials.json").read_text(encoding="utf-8"))["trials"]
    errors = {key: trial.get("error") for key, trial in kept.items()}
    # What the search has decided by its clock is kept among the trials, without an error.
    packed = [name for name, error in errors.items() if "coded" in name and error is not None]
    summaries = {name: summary_in(folder / "trials" / name) for name in packed}
    return {"config": {**config, "output_dir": None}, "errors": errors, "summaries": summaries}


def summary_in(folder: Path) -> dict[str, Any]:
    farzi = FarziData.from_pretrained(folder)
    vocabulary = farzi.processing_class.get_vocab()
    return {"numbers": farzi.fingerprint(), "of": farzi.config.to_dict(), "entries": vocabulary}


class Dies(KeyboardInterrupt):
    """In place of a kill."""


def dies_at_step(patch: pytest.MonkeyPatch, step: int) -> None:
    """Every run, in the middle of a step."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise Dies

    patch.setattr(TrainingRun, "on_step_end", on_step_end)


def dies_while_packing(patch: pytest.MonkeyPatch) -> None:
    """Every search, when a packing has kept its state twice."""
    kept, keep = [], teacher.write_training

    def dies(path, *state):
        keep(path, *state)
        kept.append("coded" in path.name)
        if kept.count(True) == 2:
            raise Dies

    patch.setattr(teacher, "write_training", dies)


class Folders:
    """Folders in which bits flip, made when they are asked for."""

    def __init__(self, place: Path) -> None:
        self.place = place

    @cache  # noqa: B019
    def finished(self, go_on: GoesOn) -> tuple[Path, dict[str, Any]]:
        """A folder in which all is done, and what that has led to."""
        folder = self.place / "finished" / go_on.__name__
        folder.parent.mkdir(exist_ok=True)
        return folder, go_on(folder)

    @cache  # noqa: B019
    def interrupted(self, go_on: GoesOn) -> tuple[Path, dict[str, Any]]:
        """A folder in which something is left to do, and what it should lead to."""
        folder = self.place / "interrupted" / go_on.__name__
        folder.parent.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            dies_at_step(patch, 5)
            dies_while_packing(patch)
            with pytest.raises(SystemExit, match="130"):
                go_on(folder)
        return folder, self.finished(go_on)[1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Folders:
    return Folders(tmp_path_factory.mktemp("folders"))


FLIPS = {
    ("interrupted", distil): 70,
    ("finished", distil): 50,
    ("interrupted", suggest): 40,
    ("finished", suggest): 40,
}
"""Two hundred."""


def flip(folder: Path, random: random.Random) -> str:
    """One bit of one file; its name."""
    names = [name for name in names_of(folder) if (folder / name).stat().st_size]
    path = folder / random.choice(names)
    content = bytearray(path.read_bytes())
    bit = random.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"bit {bit} of {path.relative_to(folder)}"


def check(folders: Folders, place: Path, state: str, go_on: GoesOn, number: int) -> None:
    """Flips number `number` of that kind of folder."""
    source, expected = getattr(folders, state)(go_on)
    folder = Path(shutil.copytree(source, place / str(number)))
    flipped = flip(folder, random.Random(f"{SEED} {state} {go_on.__name__} {number}"))
    line = None
    try:
        found = go_on(folder)
    except SystemExit as ended:
        line = ended.code
    if line is None:
        assert found == expected, flipped
    else:
        assert re.fullmatch("farzi (distil|suggest): .+", str(line)), flipped
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("state", "go_on"),
    [
        ("finished", distil),
        ("finished", suggest),
        *(
            pytest.param("interrupted", go_on, marks=pytest.mark.slow)
            for go_on in (distil, suggest)
        ),
    ],
)
def test_a_bit_that_flips_changes_no_result(folders, tmp_path, state, go_on):
    for number in range(FEW):
        check(folders, tmp_path, state, go_on, number)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("state", "go_on"), FLIPS)
def test_two_hundred_bits_that_flip_change_no_result(folders, tmp_path, state, go_on):
    for number in range(FLIPS[state, go_on]):
        check(folders, tmp_path, state, go_on, number)
