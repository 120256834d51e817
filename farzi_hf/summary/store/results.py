"""The results that an artefact carries: which entries its card and `farzi show` can use."""

from collections.abc import Mapping
from typing import Any

_FIGURES = (
    "data_bytes",
    "data_bytes_flat",
    "data_bytes_after_xz",
    "data_sequences",
    "learner_parameters",
    "distillation_seconds",
    "student_seconds",
    "full_data_seconds",
    "full_data_steps",
)

MOST_ROWS = 1000
"""Of a table of results."""
MOST_COLUMNS = 100
"""The same: a card pads each row to all columns."""


def check_results(
    metrics: Mapping[str, Any], recipe: Mapping[str, Any], of_metrics: str, of_recipe: str
) -> None:
    """Raises ValueError for entries of a type that the card and `farzi show` cannot use; it calls
    their sources `of_metrics` and `of_recipe`.
    """

    def is_number(value: Any) -> bool:
        return value is None or (isinstance(value, float | int) and not isinstance(value, bool))

    def is_cell(column: str, value: Any) -> bool:
        values = (
            value if column.endswith("_interval") and isinstance(value, list | tuple) else [value]
        )
        return not column.endswith(("_std", "_interval")) or all(map(is_number, values))

    def is_table(rows: Any) -> bool:
        rows = rows if isinstance(rows, list | tuple) else [None]
        if len(rows) > MOST_ROWS:
            return False
        columns: set[str] = set()
        for row in rows:
            if not isinstance(row, Mapping) or not row:
                return False
            columns.update(row)
            if len(columns) > MOST_COLUMNS or not all(is_cell(*cell) for cell in row.items()):
                return False
        return True

    def is_figure(value: Any) -> bool:
        return is_number(value) and abs(value or 0) < 1e18  # the card computes with it

    entries = [(of_metrics, metrics, name, is_figure, "not a number") for name in _FIGURES]
    table = (
        f"no list of at most {MOST_ROWS:,} rows, which map at most {MOST_COLUMNS} columns to values"
        " and spreads to numbers"
    )
    entries.append((of_metrics, metrics, "table", is_table, table))
    for of, values, name in (
        (of_metrics, metrics, "licence"),
        (of_recipe, recipe, "input_sequences"),
    ):
        entries.append((of, values, name, lambda value: isinstance(value, str | None), "no text"))
    for of, values, name, is_right, reason in entries:
        if name in values and not is_right(values[name]):
            raise ValueError(
                f"{of}[{name!r}]={values[name]!r:.200} is {reason}; mend it, or leave it out"
            )
