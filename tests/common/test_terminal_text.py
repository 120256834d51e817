"""Text as a reader sees it."""

from __future__ import annotations

import io

import pytest

from farzi_hf.common.text import for_reader

LINE = "[ 4.5 min,  5.5 left] teacher, gpt2 of width 64: perplexity 80.3; best after 3,300 steps"


class Stream(io.StringIO):
    """A stream that is a terminal, or a file."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def test_on_a_terminal_lines_are_broken_between_words_and_go_on_indented(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert for_reader(f"first\n\n{LINE}", Stream(True)).splitlines() == [
        "first",
        "",
        "[ 4.5 min,  5.5 left] teacher, gpt2 of width 64:",
        "    perplexity 80.3; best after 3,300 steps",
    ]


@pytest.mark.parametrize(("width", "is_terminal"), [("50", False), ("200", True)])
def test_in_a_file_and_where_there_is_room_lines_stay_whole(monkeypatch, width, is_terminal):
    monkeypatch.setenv("COLUMNS", width)
    assert for_reader(LINE, Stream(is_terminal)) == LINE


def test_a_long_name_is_not_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    name = "a-folder/with-a-name/that-is-long"
    assert for_reader(f"The SUMMARY is {name}", Stream(True)).splitlines()[1].strip() == name
