"""Fonts for figures that print text of a user: of any script."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterator, Set
from contextlib import contextmanager
from functools import cache

from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, FontProperties, fontManager, get_font
from matplotlib.text import Text

from farzi_hf.common.text import terminal_text

logger = logging.getLogger(__name__)

_NO_TEXT = ("Last Resort", "STIXNonUnicode", "STIXSize", "cm", "DejaVu Math")
"""Beginnings of the names of fonts that have boxes in place of characters, or signs of formulas."""
_UNSEEN = ("Cc", "Cf", "Cs", "Mn", "Zl", "Zp", "Zs")
"""Categories of characters for which no font is looked for: controls, joiners and blanks cannot be
seen, and marks come with the font of their letters.
"""
_SHOWN = 10
"""Characters in a message."""


@contextmanager
def fonts_of(figure: Figure) -> Iterator[None]:
    """A context in which a figure is drawn with fonts for all its characters, as far as there are
    some on this machine. A line says which characters no font has; they are boxes.
    """
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    wanted = {ord(character) for text in texts for character in text.get_text()}
    usual = FontProperties().get_name()  # as the user has set it, or else matplotlib
    lacking = wanted - _characters_of(usual)
    lacking = {x for x in lacking if unicodedata.category(chr(x)) not in _UNSEEN}
    more: list[str] = []
    while lacking:
        best = max(sorted(_fonts()), key=lambda name: len(lacking & _characters_of(name)))
        found = lacking & _characters_of(best)
        if not found:
            break
        more.append(best)
        lacking -= found
    if more:
        for text in texts:
            text.set_fontfamily([*text.get_fontfamily(), *more])
    if lacking:
        some = "".join(map(chr, sorted(lacking)[:_SHOWN]))
        logger.warning(
            "no font here has %s of the characters of a figure, such as %s: they are boxes in it;"
            " install a font, for instance Noto Sans CJK, and draw it again",
            f"{len(lacking):,}",
            terminal_text(some),
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a line says so
        yield


@cache
def _fonts() -> dict[str, FontEntry]:
    """A plain font of each family on this machine, by the name of the family."""
    fonts: dict[str, FontEntry] = {}
    for font in fontManager.ttflist:
        is_plain = font.style == "normal" and font.weight in (400, "normal", "regular")
        if is_plain and not font.name.startswith(_NO_TEXT):
            fonts.setdefault(font.name, font)
    return fonts


@cache
def _characters_of(name: str) -> Set[int]:
    """The characters that a family has, as code points; none where the font cannot be read."""
    font = _fonts().get(name)
    if font is None:
        return frozenset()
    try:
        return frozenset(get_font(font.fname).get_charmap())
    except Exception:  # a damaged file of somebody's is no reason to draw nothing
        return frozenset()
