"""Checks of arguments, and what their errors say."""

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """What an error message says after a name that is not among the known ones."""
    close = difflib.get_close_matches(str(name), list(known), n=1)
    return f": did you mean {close[0]}?" if close else ""


def check_size(name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """`value` as an int. Raises ValueError unless it is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r:.200}")
    if value > most:
        raise ValueError(f"{name} must be an integer of at most {most:,}, got {value!r:.200}")
    return int(value)


def check_different(name: str, values: Any, least: float | None = None) -> None:
    """Raises ValueError unless this is a list without a value that is in it twice, or below
    `least`.
    """
    listed = isinstance(values, Sequence) and not isinstance(values, str) and len(values) > 0
    twice = listed and any(value in values[:i] for i, value in enumerate(values))
    if (
        not listed
        or twice
        or not all(least is None or (isinstance(x, Real) and x >= least) for x in values)
    ):
        kind = "values" if least is None else f"numbers of at least {least}"
        raise ValueError(f"{name}={values!r} is not usable: give a list of different {kind}")
