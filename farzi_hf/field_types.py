"""Whether the fields of a dataclass hold what their annotations say; Python does not ask."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


def numbers_from_text(settings: Any) -> None:
    """Makes floats of texts such as 1e-2, which YAML does not take for a number, in the fields that hold numbers.

    Raises:
        ValueError: a text that is no number.
    """
    for name, hint in get_type_hints(type(settings)).items():
        kinds, value = get_args(hint) or (hint,), getattr(settings, name, None)
        if float in kinds and str not in kinds:
            setattr(settings, name, _number(name, value))


def check_types(settings: Any, names: Iterable[str]) -> None:
    """Raises ValueError where one of the fields `names` holds something of another type than it says."""
    hints = get_type_hints(type(settings))
    for name in names:
        value, hint = getattr(settings, name), hints[name]
        kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
        if not any(_is_a(value, kind) for kind in kinds):
            wanted = " or ".join(str(getattr(kind, "__name__", kind)) for kind in kinds).replace("NoneType", "None")
            raise ValueError(f"{name}={value!r} is a {type(value).__name__}; give a value of type {wanted}")


def _number(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_number(name, part) for part in value]
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a number; write it as 0.01 or 1.0e-2") from None


def _is_a(value: Any, kind: Any) -> bool:
    """Whether `value` is of the type that an annotation says; integers are also floats, and True is no number."""
    if get_origin(kind) is list:
        return isinstance(value, list | tuple)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, Real if kind is float else Integral if kind is int else kind)
