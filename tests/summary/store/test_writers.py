"""One writer at a time in a folder: the second is refused, a dead one stands in nobody's way, and
what it left is removed.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tiny_artefacts import METRICS, WORDS, listing, save_variant, tiny, word_tokenizer
from tiny_trainer import tiny_trainer
from transformers import TrainerCallback

from farzi_hf.cli.run_folder import begin_run
from farzi_hf.common.files import LOCK, exclusive
from farzi_hf.distillation.run import last_checkpoint
from farzi_hf.summary import FarziData
from farzi_hf.summary.store import folder as artefact_folder
from farzi_hf.summary.store import tensor_file, writing
from farzi_hf.summary.store.folder import read_artefact

IN_USE = r"folder='.*' is in use: another process or thread writes to it"


def in_thread(function) -> list[Exception]:
    """What `function` raises in a thread of its own."""
    raised = []

    def run():
        try:
            function()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def hold(folder: Path) -> None:
    with exclusive(folder):
        pass


@contextmanager
def held_by_another_process(folder: Path) -> Iterator[None]:
    """By the lock that `exclusive` takes, without the seconds that importing torch takes. The
    process dies of SIGKILL.
    """
    code = (
        "import sys, time, filelock; lock = filelock.FileLock(sys.argv[1]); lock.acquire();"
        " print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder / LOCK)], stdout=subprocess.PIPE
    ) as child:
        try:
            assert child.stdout.readline() == b"held\n"
            yield
        finally:
            child.kill()


# -- the lock --------------------------------------------------------------------------------------


def test_a_folder_is_held_against_other_threads_and_not_against_its_own(tmp_path):
    folder = tmp_path / "new" / "folder"
    with exclusive(folder):
        with exclusive(folder), exclusive(str(folder)):
            pass
        assert [
            re.match(IN_USE, str(error)) is not None for error in in_thread(lambda: hold(folder))
        ] == [True]
        assert in_thread(lambda: hold(tmp_path / "other")) == []
        tiny().save_pretrained(folder)  # who holds a folder may save there
    assert in_thread(lambda: hold(folder)) == []
    assert not (folder / LOCK).exists()


def test_a_folder_is_held_under_all_its_names(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    monkeypatch.chdir(tmp_path)
    with exclusive(tmp_path / "link"):
        assert len(in_thread(lambda: hold(Path("folder")))) == 1


def test_another_process_is_refused_until_the_first_one_dies(tmp_path):
    tiny().save_pretrained(tmp_path)
    with held_by_another_process(tmp_path):
        before = listing(tmp_path)
        with pytest.raises(ValueError, match=IN_USE):
            tiny(tau=0.5).save_pretrained(tmp_path)
        assert listing(tmp_path) == before
        assert FarziData.from_pretrained(tmp_path).config.tau == 1.0  # readers need no lock
    assert (tmp_path / LOCK).exists()
    tiny(tau=0.5).save_pretrained(tmp_path)
    assert FarziData.from_pretrained(tmp_path).config.tau == 0.5
    assert not (tmp_path / LOCK).exists()


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path):
    (tmp_path / "precious").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    for plant in ((folder / LOCK).symlink_to, (folder / LOCK).hardlink_to):
        plant(tmp_path / "precious")
        with pytest.raises(ValueError, match=r"lock is (a link|not a plain file)"):
            tiny().save_pretrained(folder)
        (folder / LOCK).unlink()
    assert (tmp_path / "precious").read_text() == "mine"


# -- several writers -------------------------------------------------------------------------------


def test_of_many_writers_each_saves_or_is_refused_and_readers_see_one_artefact_or_an_error(
    tmp_path,
):
    save_variant(0, tmp_path)
    errors, read, done = [], [], threading.Event()

    def write(first: int) -> None:
        for number in range(first, first + 5):
            errors.extend(in_thread(lambda number=number: save_variant(number, tmp_path)))

    def keep_reading() -> None:
        while not done.is_set():
            with suppress(ValueError, FileNotFoundError):  # saved meanwhile
                farzi = FarziData.from_pretrained(tmp_path)
                read.append((farzi.config.inner["variant"], farzi))

    reader = threading.Thread(target=keep_reading)
    writers = [threading.Thread(target=write, args=(10 * i,)) for i in range(1, 4)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert all(
        isinstance(error, ValueError) and re.match(IN_USE, str(error)) for error in errors
    ), "\n".join(map(repr, errors))
    assert len(errors) < 15  # some were saved
    assert read
    for number, farzi in read:
        assert (farzi.latents == number).all()
        assert isinstance(farzi.processing_class, list) == (number % 2 == 1)
        assert farzi.results.metrics == ({"variant": number} if number % 2 == 0 else {})
    save_variant(1, tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_a_folder_is_looked_at_again_where_another_save_moves_its_files(tmp_path, monkeypatch):
    """A save that was about to be refused could end with a file that was not found."""
    tiny().save_pretrained(tmp_path)
    committed = tmp_path / artefact_folder._COMMITTED
    committed.mkdir()
    for path in [*tmp_path.iterdir()]:
        if path.is_file():
            path.rename(committed / path.name)
    listed_files = artefact_folder.listed_files

    def moved_meanwhile(path: Path):
        if committed.exists():
            monkeypatch.setattr(artefact_folder, "listed_files", listed_files)
            artefact_folder._move_into_place(tmp_path)
        return listed_files(path)

    monkeypatch.setattr(artefact_folder, "listed_files", moved_meanwhile)
    artefact_folder.check_destination(tmp_path)
    assert not committed.exists()
    assert FarziData.from_pretrained(tmp_path).config.tau == 1.0


def test_a_read_during_which_somebody_saves_is_refused(tmp_path):
    tiny().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was saved while it was read; load it again"):
        read_artefact(tmp_path, lambda artefact: tiny(tau=0.5).save_pretrained(tmp_path))


# -- runs ------------------------------------------------------------------------------------------


class Then(TrainerCallback):
    """Calls something after the first step."""

    def __init__(self, function) -> None:
        self.function = function

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.function()


def test_a_second_run_in_a_folder_is_refused_before_it_does_anything(
    tmp_path, sequences, tokenizer
):
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    second, errors = tiny_trainer(tmp_path, sequences, tokenizer, **settings), []
    second.tune_initialization = lambda: pytest.fail("it has begun")

    def intrude():
        before = listing(tmp_path)
        for start in (
            second.train,
            lambda: begin_run(second, {}, None),
            lambda: second.save_model(),
        ):
            errors.extend(in_thread(start))
        assert listing(tmp_path) == before

    first = tiny_trainer(tmp_path, sequences, tokenizer, {"callbacks": [Then(intrude)]}, **settings)
    first.train()
    assert first.state.global_step == 2
    assert len(errors) == 3
    assert all(re.search(IN_USE, str(error)) for error in errors), errors
    first.save_model()
    assert not (tmp_path / LOCK).exists()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


# -- what dead writers left ------------------------------------------------------------------------


def test_what_dead_writers_left_is_removed_and_nothing_else(tmp_path):
    left, notes = tmp_path / ".farzi-writing", tmp_path / ".farzi-writing-notes"
    (left / "latents").mkdir(parents=True)
    (left / "latents" / "train-00000-of-00001.parquet").touch()
    (left / "config.json").touch()
    notes.mkdir()
    tiny().save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob(".*")] == [notes.name]
    left.symlink_to(notes)
    with pytest.raises(
        ValueError, match=r"\.farzi-writing holds what no save of this library leaves; remove it"
    ):
        tiny(tau=0.5).save_pretrained(tmp_path)
    left.unlink()
    left.mkdir()
    (left / "precious.txt").write_text("mine")
    with pytest.raises(
        ValueError, match=r"\.farzi-writing holds what no save of this library leaves; remove it"
    ):
        tiny(tau=0.5).save_pretrained(tmp_path)
    assert (left / "precious.txt").read_text() == "mine"
    assert FarziData.from_pretrained(tmp_path).config.tau == 1.0


@pytest.mark.parametrize(
    ("module", "name"), [(writing.pq, "write_table"), (tensor_file, "save_file")]
)
def test_a_write_that_fails_leaves_the_old_artefact(tmp_path, monkeypatch, module, name):
    def failing(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    tiny().save_pretrained(tmp_path, word_tokenizer(), METRICS)
    before = listing(tmp_path)
    monkeypatch.setattr(module, name, failing)
    with pytest.raises(OSError, match="No space left"):
        tiny(tau=0.5).save_pretrained(tmp_path, WORDS)
    assert listing(tmp_path) == before
