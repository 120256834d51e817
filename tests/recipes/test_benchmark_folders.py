"""What the programs of the benchmark find in their output folder: files of others, and measurements of their own."""

from __future__ import annotations

import csv
import json

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("psutil")
import benchmark
import large_interactions
import results
import scaling
import soak


@pytest.mark.parametrize(
    ("module", "arguments", "names"),
    [
        (benchmark, ["--methods", "Tape"], results.FILES),
        (benchmark, ["--methods", "Tape", "--anew"], results.FILES),
        (scaling, [], scaling.FILES),
        (soak, [], (*soak.FILES, soak.UNDER_WAY)),
    ],
)
def test_files_of_others_are_refused_in_one_line_before_any_work(tmp_path, monkeypatch, module, arguments, names):
    for measures in ((benchmark, "run_limited"), (scaling, "run_limited"), (soak, "trainer_of")):
        monkeypatch.setattr(*measures, lambda *_: pytest.fail("there was work before the check"))
    for name in names:
        for content in (b"name,price\napple,1\n", b"\xff\xfe"):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
            with pytest.raises(
                SystemExit, match=r"^\w+\.py: '.*' exists already and would be overwritten; .*move it away$"
            ):
                module.main([*arguments, "--output_dir", str(folder)])
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: content}


def test_a_file_of_stages_is_not_overwritten(tmp_path):
    path = tmp_path / "stages.json"
    path.write_text("precious")
    with pytest.raises(
        SystemExit, match=r"^large_interactions.py: json='.*stages.json' exists already: give a new name"
    ):
        large_interactions.main(["--share", "0.0001", "--json", str(path)])
    assert path.read_text() == "precious"


def test_rows_of_older_code_stay_with_their_commit_until_their_cells_are_asked_for(tmp_path, monkeypatch):
    good = {"status": "ok", "note": "", "seconds": 0.5, "memory_bytes": 2e6, "estimated_bytes": 1e6}
    monkeypatch.setattr(scaling, "run_cell", lambda *_: good)
    monkeypatch.setattr(scaling, "plot_scaling", lambda rows, path: path.touch())
    monkeypatch.setattr(scaling, "LOSSES", {"ours": scaling.ours})
    for commit, lengths in (("old", ["20", "50"]), ("new", ["50", "70"])):
        monkeypatch.setattr(scaling, "code_hash", lambda *_, commit=commit: f"code of {commit}")
        monkeypatch.setattr(scaling, "environment", lambda commit=commit: {"commit": commit})
        scaling.main(["--vocabularies", "2000", "--lengths", *lengths, "--output_dir", str(tmp_path)])
    rows = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    expected = [(20, "old"), (50, "new"), (70, "new")]
    assert sorted((row["length"], row["commit"]) for row in rows) == expected
    with (tmp_path / "results.csv").open(encoding="utf-8") as file:
        assert [(int(row["length"]), row["commit"]) for row in csv.DictReader(file)] == expected
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert [line.split("|")[4].strip() for line in table.splitlines() if line.startswith("| ours")] == [
        "old",
        "new",
        "new",
    ]
