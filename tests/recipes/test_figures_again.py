"""Figures that are drawn from tables: of cards, again, and of the README."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import hero
import pytest
import redraw

CARDS = Path(__file__).resolve().parents[2] / "model_cards"


@pytest.mark.parametrize(
    ("card", "figure"),
    [
        ("size", "size.png"),
        ("benchmark", "benchmark.png"),
        ("beauty_packing", "quality_over_bytes.png"),
        ("gcide_carried_128", "quality_over_tokens.png"),
        ("yelp_teacher_16", "plots/comparison.png"),
        ("ptb_10x50", "plots/comparison.png"),
        ("magazine_50x20", "comparison_hr_10.png"),
        ("privacy_ptb", "privacy.png"),
        ("inputs_magazine", "inputs.png"),
        ("yelp_seconds_fmlp", "seconds.png"),
        ("ptb_seconds_llama_64", "seconds.png"),
        ("sample_efficiency_ptb", "sample_efficiency.png"),
        ("trajectory_count_ptb", "trajectory_count.png"),
        ("scaling", "scaling.png"),
    ],
)
def test_a_committed_table_is_drawn_again(card, figure, tmp_path, capsys):
    folder = Path(shutil.copytree(CARDS / card, tmp_path / card))
    (folder / figure).write_bytes(b"an older figure")
    redraw.main([str(folder)])
    assert (folder / figure).read_bytes().startswith(b"\x89PNG")
    assert "drawn again" in capsys.readouterr().out


def test_a_folder_without_such_a_figure_is_named(tmp_path):
    with pytest.raises(SystemExit, match="has no figure that can be drawn again"):
        redraw.main([str(tmp_path)])


def test_lines_of_a_carried_card_are_its_own_rows(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("redraw.carried.draw", lambda *given: drawn.append(given))
    table = json.loads((CARDS / "gcide_carried_128" / "table.json").read_text("utf-8"))
    redraw.of_carried(table["rows"], CARDS / "gcide_carried_128")
    _, _, lines, _, data, _ = drawn[0]
    assert {name: round(value, 2) for name, value in lines.items()} == {
        "all real data, 12,000 steps": 25.91,
        "the packed teacher itself": 26.03,
    }
    assert data == "gcide.txt.gz"


def test_figures_of_a_summary_are_those_of_its_card():
    rows = redraw.rows_of(CARDS / "ptb_10x50" / "README.md")
    assert rows[0]["method"] == "Farzi [10×50]"
    assert rows[0]["perplexity"] == 90.69
    assert rows[0]["perplexity_interval"] == [88.7, 92.51]
    assert rows[5]["perplexity"] == 355856
    assert rows[-1]["steps"] == ""


def test_curves_of_a_card_are_its_families(monkeypatch):
    drawn = []
    monkeypatch.setattr("redraw.sample_efficiency.draw", lambda *given: drawn.append(given))
    folder = CARDS / "sample_efficiency_magazine"
    redraw.of_sample_efficiency(redraw.rows_of(folder / "table.json"), folder)
    curves, lines, task, _ = drawn[0]
    assert {row["method"] for row in curves} == set(redraw.sample_efficiency.FAMILIES)
    assert [row["μ"] for row in curves] == [10, 25, 50] * 4
    assert list(lines) == ["full data", "full data, long"]
    assert task.metric == "hr@100"


def test_the_line_of_counting_is_its_best_row(monkeypatch):
    drawn = []
    monkeypatch.setattr("redraw.seconds.draw", lambda *given: drawn.append(given))
    for name in ("yelp_seconds_fmlp", "ptb_seconds_llama_64"):
        redraw.of_seconds(redraw.rows_of(CARDS / name / "table.json"), CARDS / name)
    assert [given[1] for given in drawn] == [
        "rules of sequences, counted",
        "Kneser-Ney 5-gram, counted",
    ]
    assert drawn[1][-1] == "ptb, Llama 64"


def test_the_figure_of_the_readme_has_the_points_of_its_tables(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("hero.plots.save", lambda figure, path: drawn.append(figure))
    folders = [str(CARDS / name) for name in ("beauty_nine_minutes", "ptb_ten_minutes")]
    hero.main([*folders, "--output", str(tmp_path / "hero.png")])
    beauty, treebank = drawn[0].axes
    assert {note.get_text() for note in beauty.texts} == {
        "28.8, 6.9 s",
        "27.0, 7.3 s",
        "29.2, 116 s",
        "23.4, 1.4 s",
    }
    assert treebank.get_ylabel() == "Test perplexity: lower is better"
    assert len(treebank.texts) == 4


def test_titles_are_as_many_as_folders(capsys):
    with pytest.raises(SystemExit):
        hero.main(["a", "b", "--titles", "one"])
    assert "give one for each folder" in capsys.readouterr().err
