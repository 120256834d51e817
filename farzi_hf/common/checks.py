"""Checks of arguments, and what their errors say."""

import difflib
import math
import os
import re
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """What an error message says after a name that is not among the right ones."""
    close = difflib.get_close_matches(str(name), list(names), n=1)
    return f": did you mean {close[0]}?" if close else ""


def check_place(name: str, value: Any, kind: str) -> None:
    """Checks what should name a folder, a file or a repository.

    Args:
        kind: what it should name, for the error, such as "a folder".

    Raises:
        ValueError: it is no text and no path, or an empty one, which would mean the working folder.
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError(f"{name}={value!r:.200} names nothing: give {kind}")


def check_size(name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """`value` as an int.

    Raises:
        ValueError: it is not an integer from `least` to `most`.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r:.200}")
    if value > most:
        raise ValueError(f"{name} must be an integer of at most {most:,}, got {value!r:.200}")
    return int(value)


def check_share(name: str, value: float) -> float:
    """`value`.

    Raises:
        ValueError: it is not a number from 0 to 1.
    """
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} is not a share; give a number from 0 to 1")
    return value


def check_rate(name: str, value: Any) -> float:
    """A learning rate as a float.

    Raises:
        ValueError: it is not a finite number above 0.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise ValueError(f"{name} {value!r:.200} trains nothing: give a number such as 0.01")
    return float(value)


def check_licence_name(name: str, value: str | None) -> None:
    """Checks how a licence is written; None for none.

    Raises:
        ValueError: the Hub has no licence that is written so, and would refuse the card.
    """
    if value is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", value):
        raise ValueError(
            f"{name} {value!r:.200}: the Hub writes licences in small letters, without blanks; give"
            " its name, such as cc-by-4.0, apache-2.0 or other"
            " (https://huggingface.co/docs/hub/repositories-licenses)"
        )


def check_different(name: str, values: Any, least: float | None = None) -> None:
    """Checks a list: it has a value, and none that is in it twice, or below `least`.

    Raises:
        ValueError: it is no such list.
    """
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if is_list and len(values) > 0 and _are_different(values) and _are_at_least(values, least):
        return
    kind = "values" if least is None else f"numbers of at least {least}"
    raise ValueError(f"{name}={values!r} is not usable: give a list of different {kind}")


def _are_different(values: Sequence[Any]) -> bool:
    return not any(value in values[:place] for place, value in enumerate(values))


def _are_at_least(values: Sequence[Any], least: float | None) -> bool:
    if least is None:
        return True
    return all(isinstance(value, Real) and value >= least for value in values)
