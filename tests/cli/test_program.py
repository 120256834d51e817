"""How programs end when they are stopped, or when a file, the disk or the memory fails them: with
one line.
"""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors import SafetensorError
from tiny_artefacts import tiny
from torch import distributed

from farzi_hf.cli import COMMANDS, main
from farzi_hf.cli.program import ends_in_one_line, run
from farzi_hf.data import DataUnavailableError

LONG = "x" * 5000


def test_ctrl_c_and_a_full_disk_end_a_program_with_one_line(monkeypatch, capsys):
    def main():
        raise errors.pop()

    errors = [OSError(errno.ENOSPC, "the disk is full", "outputs"), KeyboardInterrupt()]
    monkeypatch.setattr(sys, "argv", ["recipes/ptb.py"])
    with pytest.raises(SystemExit, match=r"^130$"):
        run(main)
    assert (
        capsys.readouterr().err
        == "ptb.py: interrupted; started again, it goes on from what it has saved, if anything\n"
    )
    with pytest.raises(
        SystemExit,
        match=r"^ptb.py: \[Errno 28\] the disk is full: 'outputs'; make room and start it again$",
    ):
        run(main)


MEMORY = r"there is too little memory: free some, or raise the limit \(ulimit -v\)$"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), f"farzi: MemoryError; {MEMORY}"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate"), MEMORY),
        (RuntimeError("can't start new thread"), MEMORY),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), MEMORY),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "; make room and"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "; make room and"),
        (OSError(errno.EROFS, "Read-only file system", "o"), "; name a folder in which you may w"),
        (PermissionError(errno.EACCES, "Permission denied", "a\nb"), r"denied: 'a\\nb'$"),
        (OSError(errno.EIO, "Input/output error", "model"), "error: 'model'$"),
    ],
    ids=str,
)
def test_what_the_machine_cannot_do_ends_a_program_with_one_line(error, line):
    def main():
        raise error

    with pytest.raises(SystemExit, match=line) as stop:
        run(main, "farzi")
    assert "\n" not in stop.value.code


def test_the_cause_of_an_error_counts_and_a_defect_keeps_its_traceback():
    def wrapped():
        try:
            raise MemoryError
        except MemoryError as error:
            raise RuntimeError("in a library") from error

    with pytest.raises(SystemExit, match="in a library; there is too little memory"):
        run(wrapped, "farzi")
    for error in (ZeroDivisionError("a defect"), RuntimeError("shapes differ")):

        def defect(error=error):
            raise error

        with pytest.raises(type(error), match=str(error)):
            run(defect, "farzi")


@pytest.mark.parametrize("name", ["HF_HOME", "HF_DATASETS_CACHE"])
def test_a_cache_that_is_not_writable_has_its_remedy(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, str(tmp_path))
    refusal = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "datasets"))
    remedy = f"; set {name} to a folder in which you may write$"
    with pytest.raises(SystemExit, match=remedy), ends_in_one_line("farzi", PermissionError):
        raise refusal
    with pytest.raises(SystemExit, match=remedy), ends_in_one_line("farzi"):
        raise DataUnavailableError("not within reach") from refusal


# -- real ones -------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space")
def test_too_little_memory_to_start_is_three_lines_at_most(tmp_path):
    """It was a traceback of forty, from an import."""
    limit = 700 * 2**20
    program = [sys.executable, "-m", "farzi_hf", "show", str(tmp_path)]
    ended = subprocess.run(
        program,
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert ended.returncode != 0
    assert len(ended.stderr.splitlines()) <= 3, ended.stderr
    assert "too little memory" in ended.stderr or "allocat" in ended.stderr


@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"attribute", "export", "weigh"}))
@pytest.mark.parametrize("name", [LONG, f"./{LONG}.txt"], ids=["name", "path"])
def test_a_name_that_no_file_can_have_is_one_line(command, name):
    with pytest.raises(SystemExit, match=rf"^farzi {command}: .*File name too long") as stop:
        main([command, name, *(["user/name"] if command == "push" else [])])
    assert len(stop.value.code.splitlines()) == 1


@pytest.fixture
def nobody():
    """Of a user that may read everything, as in a container, files that cannot be read are those of
    another user.
    """
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    yield
    if is_root:
        os.seteuid(0)


@pytest.mark.parametrize("name", ["farzi.safetensors", "config.json", "mine.txt"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, name, request):
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    tiny().save_pretrained("summary")
    Path("summary", "mine.txt").write_text("a b\nc d\ne f\n")
    Path("summary", name).chmod(0)
    request.getfixturevalue("nobody")
    command = (
        ["distil", "summary/mine.txt", "--dry_run"] if name == "mine.txt" else ["show", "summary"]
    )
    with pytest.raises(SystemExit, match=rf"^farzi {command[0]}: .*Permission denied.*{name}"):
        main(command)


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (
            "export",
            "farzi export: the following arguments are required: summary, out; see farzi export"
            " --help",
        ),
        (
            "export summary out",
            "farzi export: one of the arguments --teacher --rows is required; see farzi export"
            " --help",
        ),
        (
            "count data --order five",
            "farzi count: --order: invalid int value: 'five'; give a whole number, such as 10",
        ),
        (
            "train summary --stepz=3",
            "farzi train: '--stepz=3' is not an option: did you mean --steps?; see farzi train"
            " --help",
        ),
        ("push summary a/b c", "farzi push: 'c' is one argument too many; see farzi push --help"),
        (
            "weigh model data --target",
            "farzi weigh: --target: expected one argument; see farzi weigh --help",
        ),
        (
            "attribute model data --test t --learning_rate fast",
            "farzi attribute: --learning_rate: invalid float value: 'fast'; give a number, such as"
            " 10 or 0.5",
        ),
        (
            "attribute model data --test t --learning_ratee 1",
            "farzi attribute: '--learning_ratee' is not an option: did you mean --learning_rate?;"
            " see --help",
        ),
    ],
)
def test_a_wrong_option_is_named_in_one_line(typed, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(typed.split())
    said = capsys.readouterr().err.strip() or ended.value.code
    assert said == line


def test_a_program_leaves_its_process_group(tmp_path):
    """Otherwise threads of gloo outlive Python, and now and then abort a process that is done. A
    model that was wrapped for several processes refers to the group, and to itself.
    """

    def main():
        file = f"file://{tmp_path / 'rendezvous'}"
        distributed.init_process_group("gloo", init_method=file, rank=0, world_size=1)
        wrapped = SimpleNamespace(group=distributed.group.WORLD)
        wrapped.itself = wrapped
        distributed.all_reduce(torch.ones(1))
        assert is_soon(lambda: threads_of_gloo() > before)

    before = threads_of_gloo()
    run(main, "farzi")
    assert not distributed.is_initialized()
    assert is_soon(lambda: threads_of_gloo() == before)


def threads_of_gloo() -> int:
    """Of this process; Python does not list them."""
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended meanwhile
            names.append(path.read_text())
    return sum("gloo" in name for name in names)


def is_soon(condition: Callable[[], bool]) -> bool:
    """Whether it holds within ten seconds: the system names threads, and lets go of them, while
    this one goes on.
    """
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()
