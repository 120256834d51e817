"""Figures print text of any script, as far as the fonts of this machine allow."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from farzi_hf.common import fonts
from farzi_hf.common.fonts import fonts_of

ONLY_IN_MONO = "\u2312"
"""An arc, which the usual font lacks, and another one that comes with matplotlib has."""


def drawn(words: str, path) -> Figure:
    figure = Figure()
    figure.text(0.5, 0.5, words, parse_math=False)
    with fonts_of(figure):
        figure.savefig(path)  # a warning would be an error
    return figure


def test_a_font_that_has_the_characters_is_taken(tmp_path, caplog):
    figure = drawn(f"a {ONLY_IN_MONO}", tmp_path / "a.png")
    assert figure.texts[0].get_fontfamily()[-1] == "DejaVu Sans Mono"
    assert not caplog.records


def test_text_that_the_usual_font_has_keeps_it(tmp_path):
    plain = Figure()
    plain.text(0.5, 0.5, "a ż \u200d\ufe0f")
    figure = drawn("a ż \u200d\ufe0f", tmp_path / "a.png")
    assert figure.texts[0].get_fontfamily() == plain.texts[0].get_fontfamily()


def test_characters_of_no_font_are_named_once_and_drawn_as_boxes(tmp_path, caplog, monkeypatch):
    of_all = fonts._characters_of
    monkeypatch.setattr(fonts, "_characters_of", lambda name: of_all(name) - {ord("天"), ord("地")})
    with caplog.at_level(logging.WARNING):
        drawn("天地 天 a", tmp_path / "a.png")
    (record,) = caplog.records
    assert record.getMessage().startswith("no font here has 2 of the characters of a figure, such")
    assert "天" in record.getMessage()
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_a_font_that_cannot_be_read_has_no_characters(monkeypatch):
    def damaged(path):
        raise RuntimeError("damaged")

    monkeypatch.setattr(fonts, "get_font", damaged)
    assert fonts._characters_of.__wrapped__("DejaVu Sans Mono") == frozenset()
