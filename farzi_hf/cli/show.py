"""`farzi show SUMMARY`: prints a summary in the terminal."""

from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from typing import Any

from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.program import ends_in_one_line, summary_at
from farzi_hf.common.checks import check_size
from farzi_hf.common.text import count_of, terminal_text
from farzi_hf.report.tables import fitted
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import Forms

_ROWS = 50
"""The most that are printed of a table of results."""
_COLUMNS = 20
"""The most of such a table."""
_CELL = 60
"""The most letters of a cell."""


def command(argv: Sequence[str]) -> None:
    """Prints the facts of the summary, the likeliest entries of its positions, and its table of
    results, each no wider than the terminal.
    """
    parser = CommandParser("farzi show", description=COMMANDS["show"])
    parser.add_argument("summary", help="folder, or dataset repository of the Hub, user/farzi-…")
    parser.add_argument("--revision", help="branch, tag or commit of the repository")
    parser.add_argument(
        "--sequences",
        type=int,
        default=2,
        help="number of synthetic sequences to print (default: 2)",
    )
    parser.add_argument(
        "--positions", type=int, default=12, help="number of positions per sequence (default: 12)"
    )
    parser.add_argument(
        "--top_k", type=int, default=4, help="number of likeliest entries per position (default: 4)"
    )
    args = parser.parse_args(argv)
    with ends_in_one_line("farzi show", FileNotFoundError):
        for name in ("sequences", "positions", "top_k"):
            check_size(f"--{name}", getattr(args, name))
        farzi = FarziData.from_pretrained(summary_at(args.summary), args.revision)
        width = get_terminal_size().columns
        named = [{"the summary": name, "": value} for name, value in facts(farzi).items()]
        print(fitted(named, width, texts=[""]))
        # At least two positions: one that is read, and one that is predicted.
        beginning = farzi.beginning(args.sequences, max(2, args.positions))
        decoded = beginning.decoded(beginning.tensors, farzi.vocabulary.readable, args.top_k)
        shown = positions(beginning.forms, decoded[:], args.positions)
        print("\n" + fitted(shown, width, texts=["input", "likeliest entries", "its label"]))
        if rows := farzi.results.metrics.get("table"):
            print("\n" + results(rows, width))


def facts(farzi: FarziData) -> dict[str, str]:
    """The facts of a summary: its source, its size, and the settings to train on it."""
    config = farzi.config
    metrics = farzi.results.metrics
    recipe = farzi.results.recipe
    learner = recipe.get("learner")
    unnamed = "" if farzi.processing_class is not None else ", without names"
    inputs = farzi.forms.inputs.words(farzi.vocabulary)
    words = farzi.forms.labels.words(inputs, farzi.vocabulary, farzi.nbytes)
    settings = ", ".join(f"{name} {value}" for name, value in (config.inner or {}).items())
    rows = {
        "distilled from": metrics.get("dataset") or recipe.get("dataset"),
        "with a learner": learner.get("model_type") if isinstance(learner, dict) else None,
        **words.short,
        "vocabulary": f"{config.vocab_size:,} entries{unnamed}",
        words.short_size: f"{farzi.nbytes:,}",
        "bytes of the data": _bytes_of_data(metrics),
        "to be trained with": settings or None,
    }
    return {name: str(value) for name, value in rows.items() if value is not None}


_SIZES = {
    "data_bytes": "",
    "data_bytes_flat": " in flat bits",
    "data_bytes_after_xz": " after xz -9",
}
"""The figures of the size of the data, and how they are told apart."""


def _bytes_of_data(metrics: Mapping[str, Any]) -> str | None:
    """The sizes of the data, as several ways store them."""
    if not isinstance(metrics.get("data_bytes"), int):
        return None
    sizes = [
        f"{metrics[name]:,}{words}"
        for name, words in _SIZES.items()
        if isinstance(metrics.get(name), int)
    ]
    return "; ".join(sizes)


def positions(
    forms: Forms, decoded: Sequence[Sequence[dict[str, Any]]], count: int
) -> list[dict[str, str]]:
    """The first positions of these sequences, a row each."""

    def likeliest(tokens: Sequence[Any], probabilities: Sequence[float]) -> str:
        shown = zip(tokens, probabilities, strict=True)
        return ", ".join(
            f"{terminal_text(token, 40)} {probability:.2f}" for token, probability in shown
        )

    rows = []
    for i, sequence in enumerate(decoded):
        for j, position in enumerate(sequence[:count]):
            rows.append(
                {
                    **forms.inputs.place(i, j),
                    **forms.inputs.terminal_cells(position, likeliest),
                    **forms.labels.terminal_cells(position, likeliest),
                }
            )
    return rows


def results(rows: Sequence[Mapping[str, Any]], width: int) -> str:
    """The rows in the artefact's table, without spreads and intervals. A line says how many rows
    and columns are left out of one that is large, or wider than a terminal of `width` columns.
    """

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4f}" if abs(value) < 1 else f"{value:,.1f}"
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    columns = [name for name in rows[0] if not name.endswith(("_std", "_interval", "seconds"))]
    shown = [
        {
            terminal_text(name.replace("_", " "), _CELL): terminal_text(cell(row.get(name)), _CELL)
            for name in columns[:_COLUMNS]
        }
        for row in rows[:_ROWS]
    ]
    table = fitted(shown, width)
    while len(shown[0]) > 2 and len(table.split("\n", 1)[0]) > width:
        shown = [dict(list(row.items())[:-1]) for row in shown]
        table = fitted(shown, width)
    left_out = [
        count_of(count, what)
        for count, what in ((len(rows) - _ROWS, "row"), (len(columns) - len(shown[0]), "column"))
        if count > 0
    ]
    if not left_out:
        return table
    return f"{table}\n… and {' and '.join(left_out)} more, in metrics.json"
