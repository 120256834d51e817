"""Checks that the fields of a dataclass have the types of their annotations. Python itself does not check this."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints


def numbers_from_text(settings: Any) -> None:
    """Converts texts such as 1e-2 to floats, in the fields that hold numbers. YAML reads such a number as text.

    Raises:
        ValueError: a text is not a number.
    """
    for name, hint in get_type_hints(type(settings)).items():
        kinds, value = get_args(hint) or (hint,), getattr(settings, name, None)
        if float in kinds and str not in kinds:
            setattr(settings, name, _number(name, value))


def check_types(settings: Any, names: Iterable[str]) -> None:
    """Raises ValueError if one of the fields `names` has a value of another type than its annotation."""
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
    """Whether `value` has the type of an annotation. Integers count as floats, and True does not count as a number."""
    if get_origin(kind) is list:
        return isinstance(value, list | tuple)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, Real if kind is float else Integral if kind is int else kind)
