"""Tiny data and models for all tests: built from the embedded corpus and from configs, in memory,
without a network.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

# Compiling torch and transformers takes each process fifteen seconds. Where Python is told to keep
# no bytecode, the tests and the processes that they start keep it beside the cache of pytest.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parent.parent / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# Tests make and delete thousands of small files, and to delete one takes a disk a millisecond or
# more. So they are kept in memory where there is room for them and nobody names another place.
_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30
_is_free = "TMPDIR" not in os.environ and os.access(_MEMORY, os.W_OK)
if _is_free and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ["TMPDIR"] = str(_MEMORY)
    tempfile.tempdir = None  # it is looked up again

# no test reads or writes the user's caches.
_CACHE = tempfile.TemporaryDirectory(prefix="farzi-tests-", ignore_cleanup_errors=True)
os.environ["HF_HOME"] = _CACHE.name
# Before torch: the tests and the processes that they start are bit for bit alike only with equally
# many threads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["HF_UPDATE_DOWNLOAD_COUNTS"] = (
    "0"  # datasets would tell the Hub of each file that it reads
)

# It waits for the disk, for the case of a power cut, which no test makes: a process that is killed
# leaves to the system what it has written.
os.fsync = lambda descriptor: None

# Under nohup, or in the background of a script, signals are ignored, here and in the processes that
# tests start.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _name) and signal.getsignal(getattr(signal, _name)) == signal.SIG_IGN:
        signal.signal(getattr(signal, _name), _handler)

from hub_server import HubServer  # noqa: E402

_HUB = HubServer()
os.environ["HF_ENDPOINT"] = (
    _HUB.url
)  # there is no other Hub for any test, nor for the processes that it starts

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from pictures import png  # noqa: E402

# The process that shares the tests out among the others needs none of these, and importing them
# takes seconds.
if TYPE_CHECKING:
    from collections.abc import Iterator

    from datasets import DatasetDict
    from transformers import GPT2Config, PreTrainedTokenizerFast

settings.register_profile("farzi", deadline=None)  # on a busy machine any example may take long
settings.load_profile("farzi")


_LONGEST = (
    "test_suggestion.py",
    "test_minutes.py",
    "test_rotations.py",
    "test_weigh.py",
    "test_carried_teacher.py",
    "test_attribute.py",
    "test_own.py",
    "test_teacher.py",
    "test_licensed_text.py",
)
"""Files that take six seconds of a processor and more."""

_TOGETHER = {
    "processes are forked from one that imports everything, see `trainer_runs`": (
        "test_untrusted.py",
        "test_run.py",
        "test_load_budget.py",
        "test_processes.py",
        "test_opened_files.py",
        "test_checkpoints.py",
    ),
    "a summary that carries a teacher is made once, see `recipes/conftest.py`": (
        "test_carried_recipe.py",
        "test_warm.py",
        "test_warm_outer.py",
    ),
}
"""Files that share what takes seconds to make, by what that is."""
_SHARE = {file: what for what, files in _TOGETHER.items() for file in files}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests have ten minutes. The longest files come first: last, they would leave one core
    idle, because `make test` gives a file to one process, which makes its fixtures once.
    """
    items.sort(key=lambda item: item.path.name not in {*_LONGEST, *_SHARE})
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`make test` gives files that share something to one process. Any other file goes to a process
    as a whole.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = super()._split_scope(nodeid)
            return _SHARE.get(Path(path).name, path)

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """A full collection walks through all that torch and transformers have imported, a third of a
    second, and every training under a Trainer makes one. So what the imports made is left out of
    collections.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    _HUB.close()
    _CACHE.cleanup()


@pytest.fixture(scope="session")
def hub_server() -> HubServer:
    """The Hub of all tests, with what they have pushed."""
    return _HUB


@pytest.fixture
def plot(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plots") / "curve.png"
    path.write_bytes(png())
    return path


@pytest.fixture
def hub(hub_server: HubServer) -> HubServer:
    """A Hub without repositories."""
    hub_server.forget()
    return hub_server


@pytest.fixture(scope="session")
def text() -> DatasetDict:
    """200 sentences of the embedded corpus: 160 / 20 / 20."""
    from farzi_hf.data import load_sample_text

    return load_sample_text(200)


@pytest.fixture(scope="session")
def tokenizer(text: DatasetDict) -> PreTrainedTokenizerFast:
    """50 words and the four special tokens: V = 54."""
    from farzi_hf.data import word_tokenizer

    return word_tokenizer(text["train"]["text"], vocab_size=50)


@pytest.fixture(scope="session")
def sequences(text: DatasetDict, tokenizer: PreTrainedTokenizerFast) -> DatasetDict:
    """The same sentences as ``input_ids``."""
    from farzi_hf.data import tokenize

    return tokenize(text, tokenizer)


@pytest.fixture
def tiny_config(tokenizer: PreTrainedTokenizerFast) -> GPT2Config:
    """A GPT-2 of one layer and width 16, without dropout."""
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        attn_implementation="eager",
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


@pytest.fixture
def compiler() -> Iterator[None]:
    """Nothing is compiled yet. Mark the test with ``filterwarnings("default")``, because the
    compiler has warnings of its own.
    """
    import torch
    from torch._inductor import config

    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    torch.compiler.reset()
    # By default one process for each core imports torch first, which takes longer than compiling
    # the functions of a test.
    with config.patch(compile_threads=1):
        yield
