"""Checks that the fields of a dataclass have the types of their annotations. Python itself does not check this."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from enum import EnumMeta
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

_PLAIN = {int, float, bool, str, NoneType}


def numbers_from_text(settings: Any) -> None:
    """Converts texts such as 1e-2 to floats, in the fields that hold numbers, and NumPy's numbers to Python's. YAML reads 1e-2 as text.

    Raises:
        ValueError: a text is not a number.
    """
    for name, hint in get_type_hints(type(settings)).items():
        kinds, value = get_args(hint) or (hint,), getattr(settings, name, None)
        if float in kinds and str not in kinds:
            value = _number(name, value)
        if {int, float} & set(kinds) and not isinstance(value, int | float) and isinstance(value, Real):
            value = int(value) if isinstance(value, Integral) else float(value)
        setattr(settings, name, value)


def check_types(settings: Any, names: Iterable[str]) -> None:
    """Raises ValueError if one of the fields `names` has a value of another type than its annotation."""
    hints = get_type_hints(type(settings))
    for name in names:
        _check(name, getattr(settings, name), _kinds(hints[name]))


def check_plain_types(kind: type, values: Mapping[str, Any]) -> None:
    """Raises ValueError if a value has another type than the annotation of its field in the dataclass `kind`.

    This is for annotations of other libraries too: only those of plain types and of lists of them count, and a default is always right. A path
    counts as text, and text as the number that it is.
    """
    hints = get_type_hints(kind)
    for field in fields(kind):
        kinds = _kinds(hints[field.name])
        parts = {part for one in kinds for part in (get_args(one) if get_origin(one) is list else (one,))}
        if field.name in values and parts <= _PLAIN and values[field.name] is not field.default:
            value = values[field.name]
            value = os.fspath(value) if isinstance(value, os.PathLike) else value
            _check(field.name, _number(field.name, value) if float in parts and str not in parts else value, kinds)


def values_of_file(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a YAML file as a parser of the dataclass `kind` can take them: it converts texts, but not in lists, nor a text to a list.

    YAML reads `save_strategy: no` as False; a choice that has a "no" gets it.

    Raises:
        ValueError: see `check_plain_types`.
    """
    hints, found, left = get_type_hints(kind), {}, set()
    for name in (field.name for field in fields(kind) if field.name in values):
        value, kinds = values[name], _kinds(hints[name])
        if value is False and any(
            isinstance(one, EnumMeta) and "no" in {choice.value for choice in one} for one in kinds
        ):
            value = "no"
        found[name] = _number(name, value) if isinstance(value, list) and list[float] in kinds else value
        if isinstance(value, str) and not all(get_origin(one) is list for one in kinds):
            left.add(name)  # to the parser
    check_plain_types(kind, {name: value for name, value in found.items() if name not in left})
    return {**values, **found}


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _check(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    if not any(_is_a(value, kind) for kind in kinds):
        names = [str(kind) if get_args(kind) else kind.__name__ for kind in kinds]
        wanted = " or ".join(names).replace("NoneType", "None")
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
        return isinstance(value, list | tuple) and all(_is_a(part, get_args(kind)[0]) for part in value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, Real if kind is float else Integral if kind is int else kind)
