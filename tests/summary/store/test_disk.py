"""A full disk, as it is reported by what writes to it. The messages are those that a file system of 64 KiB led to."""

from __future__ import annotations

import errno
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
from full_disk import NO_SPACE, FullFile
from safetensors import SafetensorError

from farzi_hf.summary.store.atomic_folder import names_the_disk


def by_torch():
    torch.save(torch.zeros(10_000), FullFile())


def by_safetensors():
    raise SafetensorError(f"Error while serializing: I/O error: {NO_SPACE} (os error 28)")


def by_arrow():
    raise OSError(errno.ENOSPC, f"Error writing bytes to file. Detail: [errno 28] {NO_SPACE}")


def by_a_quota():
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.fixture
def disk(monkeypatch):
    """What every disk is like."""
    disk = SimpleNamespace(total=10**9, used=0, free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)
    return disk


@pytest.mark.parametrize("write", [by_torch, by_safetensors, by_arrow, by_a_quota])
def test_a_full_disk_is_named(tmp_path, disk, write):
    """Even where the half of a file is gone again; torch alone leaves it, and says nothing of a disk."""
    if write is by_torch:
        disk.free = 0
    folder = tmp_path / "not there yet"
    message = rf"the disk is full \({disk.free:,} of its 1,000,000,000 bytes are free now\); make room .*: '{folder}'"
    with pytest.raises(OSError, match=message) as raised, names_the_disk(folder):
        write()
    assert raised.value.errno == errno.ENOSPC
    assert raised.value.filename == str(folder)
    assert raised.value.__cause__ is not None


@pytest.mark.parametrize(
    ("free", "error"),
    [(10**6, RuntimeError("unexpected pos 8512 vs 8406")), (0, OSError(errno.EACCES, "no")), (0, KeyError(1))],
)
def test_other_errors_stay_what_they_are(tmp_path, disk, free, error):
    disk.free = free
    with pytest.raises(type(error)) as raised, names_the_disk(tmp_path):
        raise error
    assert raised.value is error
