"""Draws figures of cards again from their tables: after a change of how figures look, nothing is
measured anew.

    python recipes/redraw.py model_cards/size model_cards/gcide_carried_128

A folder says by its files which recipe made it. Folders that no recipe of this list has made are an
error.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE / "paper"), str(HERE / "benchmark")]

import benchmark  # noqa: E402
import carried  # noqa: E402
import packing  # noqa: E402
import size  # noqa: E402

from farzi_hf.cli.program import ends_in_one_line, run  # noqa: E402

Found = list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> None:
    """Draws the figures of each folder."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of cards, such as model_cards/size")
    args = parser.parse_args(argv)
    with ends_in_one_line("redraw.py", OSError):
        for folder in args.folders:
            draw(folder)


def draw(folder: Path) -> None:
    """The figures of one card.

    Raises:
        ValueError: the folder has no figure that this recipe can draw.
    """
    for figure, (table, drawn) in FIGURES.items():
        if (folder / figure).exists() and (folder / table).exists():
            found = json.loads((folder / table).read_text(encoding="utf-8"))
            drawn(found if isinstance(found, list) else found["rows"], folder)
            print(f"{folder / figure}: drawn again", flush=True)
            return
    raise ValueError(
        f"{folder} has no figure that can be drawn again; name a folder with one of"
        f" {', '.join(FIGURES)} and its table"
    )


def of_carried(rows: Found, folder: Path) -> None:
    """The rows of students have the tokens that they read, the others a curve. All were compared by
    perplexity.
    """
    read = [row for row in rows if "tokens" in row]
    compared = [row for row in rows if "curve" in row]
    lines = {}
    for row in compared:
        if row["method"] == "teacher":
            lines["the packed teacher itself"] = row["perplexity"]
        elif row["method"] == carried.LONG:
            lines.setdefault(f"all real data, {row['steps']:,} steps", row["perplexity"])
    title = (folder / "table.md").read_text(encoding="utf-8").splitlines()[0]
    data = title.removeprefix("# ").partition(":")[0]
    metric = ("perplexity", "Test perplexity")
    carried.draw(read, compared, lines, metric, data, folder)


def of_packing(rows: Found, folder: Path) -> None:
    """All metrics that tables of packing compare are shares."""
    packing.draw(rows, ("hr@10", "hr@100", "ndcg@10"), True, folder)


FIGURES: dict[str, tuple[str, Callable[[Found, Path], None]]] = {
    carried.TOKENS: ("table.json", of_carried),
    packing.FIGURE: ("table.json", of_packing),
    "size.png": ("results.json", size.draw),
    "benchmark.png": ("results.json", benchmark.draw),
}
"""The table of a figure, and what draws it, by the figure's file."""


if __name__ == "__main__":
    run(main)
