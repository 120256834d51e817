"""Where the rows of a summary come from, and so what may be printed of them.

Rows that are sequences of the data, or may be, are the data of somebody. A card, a page and a
figure go where their readers take them, so they print such rows only if somebody asks for it and
the licence of the data allows it. The tensors and the tables of a summary hold its rows in any
case: they are the summary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Origin:
    """How the rows of a summary were made, and what its card says about them."""

    name: str
    """In the `config.json` of a summary: `FarziDataConfig.origin`."""

    is_made_up: bool
    """Whether no row can be a sequence of the data. Then card, page and figures print rows."""

    nature: str
    """What somebody has before them who reads rows: the end of "Not text to read…", or a sentence
    in its place."""

    protects: str
    """What the rows give away of the data, and what they do not. {labels} in it stands for
    `LabelWords.origin`.
    """

    hidden: str = ""
    """Why a card prints no rows: the end of "This card prints no rows, because…"."""

    def protects_with(self, labels: str) -> str:
        """`protects`, with the sentence that says how the labels were made."""
        return self.protects.replace("{labels}", labels)


_NOT_TO_READ = "Not text to read and not a sample of the original data: "
_OPTIMISED = f"{_NOT_TO_READ}sequences are optimised for what they teach."
_NOT_ANONYMOUS = (
    "This is not an anonymised dataset. No differential privacy was used; what sequences say, taken"
    " together, may give away what single people wrote or bought, all the more as they may have"
    " been started from real ones."
)

LEARNT = Origin("learnt", True, _OPTIMISED, _NOT_ANONYMOUS)
"""Soft inputs that began without any sequence of the data."""

SOFTENED = Origin(
    "softened",
    False,
    _OPTIMISED,
    _NOT_ANONYMOUS,
    "they began as sequences of the data, and their likeliest entries may still be those",
)
"""Soft inputs that began as sequences of the data."""

MADE_UP = Origin(
    "made_up",
    True,
    _OPTIMISED,
    "The inputs are made up: their ids were drawn by frequency, each on its own, so that they hold"
    " no sequence of the data. {labels}"
    " They may give away what the data hold, rare entries and pairs of entries above all, and the"
    " inputs show which entries occur. No differential privacy was used.",
)
"""Fixed ids, each drawn on its own."""

REAL = Origin(
    "real",
    False,
    "The rows are a sample of the original data; the labels alone were made.",
    "The inputs are sequences of the data, as they are: whoever publishes this summary publishes"
    " them. {labels}",
    "they are sequences of the data, as they are",
)
"""Fixed ids that are sequences of the data."""

DRAWN = Origin(
    "drawn",
    True,
    f"{_NOT_TO_READ}its rows are made up.",
    "Inputs are drawn by frequency, each on its own, so that they hold no sequence of the data; the"
    " stored frequencies show which entries occur. The teacher was trained on the data and may know"
    " parts of them by heart. No differential privacy was used.",
)
"""Ids that are drawn when they are read."""

WRITTEN = Origin(
    "written",
    False,
    f"{_NOT_TO_READ}a model writes its rows.",
    "The teacher that writes the rows was trained on the data. It may know parts of them by heart,"
    " and write them. No differential privacy was used.",
    "the teacher that writes them was trained on the data and may know parts of them by heart",
)
"""Ids that the carried teacher writes. How wide a teacher may be that copies nothing is not known,
so none is trusted.
"""

CHOSEN = Origin(
    "chosen",
    False,
    "The rows are rows of the original data, as they are; the weights alone were made.",
    "The rows are those of the data: whoever publishes this summary publishes them. The weights say"
    " how often a row is to be read for one target, and so tell a little about that target's rows.",
    "they are rows of the data, as they are",
)
"""Rows of the user's data that were chosen."""

UNKNOWN = Origin(
    "unknown",
    False,
    _OPTIMISED,
    _NOT_ANONYMOUS,
    "the summary does not say how they were made, and they may be sequences of the data",
)
"""Rows that a program has put there, or of a summary that was saved before origins were."""

ORIGINS = {each.name: each for each in (LEARNT, SOFTENED, MADE_UP, REAL, DRAWN, WRITTEN, CHOSEN)}
"""By the name in a config."""

FIGURE_OF_ROWS = "tokens.png"
"""The plot of a summary that shows a row."""

_FREE_LICENCES = {
    "afl-3.0",
    "apache-2.0",
    "artistic-2.0",
    "bsd",
    "bsl-1.0",
    "cc0-1.0",
    "cdla-sharing-1.0",
    "ecl-2.0",
    "etalab-2.0",
    "eupl-1.1",
    "gfdl",
    "gpl",
    "isc",
    "lgpl",
    "mit",
    "mpl-2.0",
    "ncsa",
    "odbl",
    "odc-by",
    "ofl-1.1",
    "osl-3.0",
    "pddl",
    "postgresql",
    "unlicense",
    "wtfpl",
    "zlib",
}
"""Licences under which rows may be passed on, by the Hub's names. "other" and "unknown" are not
among them: they say nothing.
"""

_FREE_FAMILIES = ("agpl-", "bsd-", "cc-by-", "cdla-permissive-", "gpl-", "lgpl-")
"""How such names begin that have several ends."""


def may_be_passed_on(licence: Any) -> bool:
    """Whether rows of data under this licence may be printed where others read them."""
    if not isinstance(licence, str):
        return False
    name = licence.lower()
    return name in _FREE_LICENCES or name.startswith(_FREE_FAMILIES)


def shows_rows(origin: Origin, metrics: Mapping[str, Any], show_rows: bool = False) -> bool:
    """Whether a card, a page or a figure prints rows of that origin.

    Args:
        metrics: of the summary; `licence` is that of its data.
        show_rows: asks for rows that are not made up, too.

    Raises:
        ValueError: rows that are not made up are asked for, and the licence does not allow it.
    """
    if origin.is_made_up:
        return True
    if show_rows and not may_be_passed_on(metrics.get("licence")):
        raise ValueError(
            f"show_rows=True with licence={metrics.get('licence')!r:.200}: {origin.hidden}, and"
            " this licence does not say that rows of the data may be passed on. Leave show_rows"
            " out, or name the licence of the data that allows it, such as 'cc-by-4.0'"
        )
    return show_rows
