"""Files that are written whole, and folders that know what is theirs."""

import os
from pathlib import Path

from farzi_hf.common import files
from farzi_hf.common.files import checksums, differences, exclusive, names_of, replace_file


def test_content_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """Otherwise a power cut can leave an empty file under the name."""
    events = []
    rename = os.replace

    def renamed(before, after):
        events.append(("rename", Path(before).name))
        rename(before, after)

    monkeypatch.setattr(files, "flush", lambda path: events.append(("flush", path.name)))
    monkeypatch.setattr(files.os, "replace", renamed)
    replace_file(tmp_path / "new", lambda path: path.write_text("content"))
    assert (tmp_path / "new").read_text() == "content"
    _, staging = events[0]
    assert staging != "new"
    assert events == [("flush", staging), ("rename", staging), ("flush", tmp_path.name)]


def test_a_lock_is_no_file_of_a_folder(tmp_path):
    (tmp_path / "file").write_text("content")
    expected = checksums(tmp_path)
    with exclusive(tmp_path):
        assert (tmp_path / files.LOCK).exists()
        assert names_of(tmp_path) == ["file"]
        assert not differences(tmp_path, expected)
