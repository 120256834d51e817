"""Files that say whether they are whole: records, tensors, folders."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from farzi_hf.common import files
from farzi_hf.common.files import (
    DamagedError,
    Differences,
    checksums,
    differences,
    load_record,
    replace_file,
    save_record,
    status_of,
)
from farzi_hf.common.tensors import check_tensors, load_tensors, save_tensors

RECORD = {"settings": {"rate": math.inf, "name": "Ä"}, "files": {"a": "1"}, "none": None}
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def flips(path: Path):
    """The file with each of its bits flipped, one after the other."""
    content = path.read_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        yield bit
    path.write_bytes(content)


def test_no_flipped_bit_changes_a_record(tmp_path, caplog):
    """It may make a file of an older version of it, whose content is the same."""
    path = tmp_path / "record.json"
    save_record(path, RECORD)
    expected = {**RECORD, "settings": {"rate": "Infinity", "name": "Ä"}}
    assert load_record(path) == expected
    same = 0
    for _ in flips(path):
        try:
            found = load_record(path)
        except ValueError:
            continue
        assert {name: found[name] for name in expected} == expected
        same += 1
    assert 0 < same < 8 * 20  # of blanks, and of the entry with the checksum


def test_no_flipped_bit_changes_tensors(tmp_path):
    path = tmp_path / "tensors.safetensors"
    save_tensors(path, TENSORS, of="these")
    tensors, facts = load_tensors(path)
    assert facts == {"of": "these"}
    assert all(torch.equal(tensors[name], x) for name, x in TENSORS.items())
    for bit in flips(path):
        try:
            tensors, facts = load_tensors(path)
        except ValueError:
            with pytest.raises(ValueError, match=r"it cannot be read|another checksum"):
                check_tensors(path)
            continue
        assert tensors.keys() == TENSORS.keys(), bit
        assert all(torch.equal(tensors[name], x) for name, x in TENSORS.items()), bit
        assert facts["of"] == "these", bit


def test_a_file_without_a_checksum_is_used_with_one_warning(tmp_path, caplog):
    record, tensors = tmp_path / "record.json", tmp_path / "tensors.safetensors"
    record.write_text(json.dumps(RECORD["files"]))
    save_file(TENSORS, tensors)
    for _ in range(2):
        assert load_record(record) == RECORD["files"]
        assert load_tensors(tensors)[0].keys() == TENSORS.keys()
    assert [message.partition(" has no checksum")[0] for message in caplog.messages] == [
        str(record),
        str(tensors),
    ]


def test_a_changed_record_is_told_from_one_that_cannot_be_read(tmp_path):
    path = tmp_path / "record.json"
    save_record(path, RECORD)
    path.write_text(path.read_text().replace('"1"', '"2"'))
    with pytest.raises(DamagedError, match="its content has another checksum"):
        load_record(path)
    for content in ("[1]", "{", "\ufeff", '{"a": 1'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match=r"it cannot be read|it holds a list"):
            load_record(path)


def test_differences_of_a_folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("same", "changed", "gone", "linked", "deep/same", "replaced"):
        (tmp_path / name).write_text(name)
    expected = checksums(tmp_path)
    assert not differences(tmp_path, expected)
    (tmp_path / "changed").write_text("other")
    (tmp_path / "gone").unlink()
    (tmp_path / "linked").unlink()
    (tmp_path / "linked").symlink_to(tmp_path / "same")
    (tmp_path / "replaced").unlink()
    (tmp_path / "replaced").mkdir()
    (tmp_path / "deep" / "added").touch()
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    found = differences(tmp_path, expected)
    assert found == Differences(
        gone=("gone",), changed=("changed", "linked", "replaced"), added=("deep/added", "link")
    )
    assert str(found) == "gone is gone, changed has changed, linked has changed, and 3 more"
    assert differences(tmp_path / "nowhere", {"a": ""}) == Differences(gone=("a",))


def test_nothing_has_a_name_that_is_too_long(tmp_path):
    """A summary may list such a file; looking for it ended in a traceback."""
    assert status_of(tmp_path / ("a" * 300)) is None


@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_is_named_whatever_error_a_writer_has(tmp_path, monkeypatch, full):
    def write(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("unexpected pos 64 vs 0")

    def probe(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if full:
        monkeypatch.setattr(files, "_probe", probe)
    expected = (OSError, r"No space left on device.*folder") if full else (RuntimeError, "pos 64")
    with pytest.raises(expected[0], match=expected[1]):
        replace_file(tmp_path / "folder" / "file", write)
    assert not list((tmp_path / "folder").iterdir())
