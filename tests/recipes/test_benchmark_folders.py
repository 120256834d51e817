"""What the programs of the benchmark find in their output folder: files of others, and measurements of their own."""

from __future__ import annotations

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
        (soak, [], soak.FILES),
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
