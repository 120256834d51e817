"""Settings of variants: each variant declares its own, and a config has all of them. Also the
checks of their values.

The settings of a variant are the fields of its dataclass `Settings`, or of the variant itself, that
`setting` has made. A setting may say: `help`; `name` and `start`, the name and the default in the
config where they differ; `least`, of an integer; `table`, the variants of which it names one;
`parts`, classes whose settings count where it is not None.

`collected` gathers them all. The config itself is plain source, so that editors complete its
fields: `farzi_hf/distillation/fields.py`, which `python docs/config_fields.py` writes.
"""

import json
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

logger = logging.getLogger(__name__)


def setting(default: Any = MISSING, help: str = "", **metadata: Any) -> Any:
    """A field of a dataclass that a config can set, and so a YAML file and the command line.

    Args:
        default: of the dataclass; without one, the field must be given.
        help: what it is.
        metadata: `name` and `start`, the name and the default in the config, where they differ;
            more in the text of this module.
    """
    return field(default=default, metadata={"help": help, **metadata})


@dataclass
class Setting:
    """What is known of a setting of a config."""

    hint: Any
    """The type of its values."""
    default: Any
    """Of the config. A list is copied for each config."""
    metadata: dict[str, Any]
    """What `setting` was given, without `name` and `start`."""
    choices: dict[str, Mapping[str, Any] | None]
    """The settings that decide whether it has an effect: by the variant that they name in this
    table; None: where they are not None.
    """

    @property
    def help(self) -> str:
        """For the documentation and the command line."""
        names = " | ".join(self.metadata.get("table", ()))
        return ": ".join(part for part in (self.metadata.get("help"), names) if part)

    def readers(self, name: str) -> list[str]:
        """The values of other settings with which the setting called `name` has an effect, each as
        "objective=meta_matching" or, where any value will do, as "trajectories". Empty: it always
        has one.
        """
        readers = []
        for choice, table in self.choices.items():
            if table is None:
                readers.append(choice)
                continue
            for variant, kind in table.items():
                if name in [its_name for its_name, _, _ in settings_of(kind)]:
                    readers.append(f"{choice}={variant}")
        return readers


def collected(*parts: type) -> dict[str, Setting]:
    """The settings of `parts`, and of all variants that these settings can name, by name.

    Those of a variant follow the setting that names it, in the order of the table. Variants may
    share a setting. Raises TypeError if its default differs between them.
    """
    settings: dict[str, Setting] = {}
    for part in parts:
        for name, hint, declared in settings_of(part):
            _add(settings, name, hint, declared, {})
    return settings


def _add(
    settings: dict[str, Setting], name: str, hint: Any, declared: Field, choices: dict[str, Any]
) -> None:
    """Adds one setting, and those of the variants that it can name."""
    metadata = dict(declared.metadata)
    metadata.pop("name", None)
    default = metadata.pop("start", None if declared.default is MISSING else declared.default)
    if name in settings:
        _share(settings[name], name, default, metadata["help"], choices)
        return
    if default is None:  # another setting decides
        hint = hint | None
    settings[name] = Setting(hint, default, metadata, choices)
    table = metadata.get("table")
    for kind in [*(table or {}).values(), *metadata.get("parts", ())]:
        for its_name, its_hint, its_field in settings_of(kind):
            _add(settings, its_name, its_hint, its_field, {name: table})


def _share(shared: Setting, name: str, default: Any, help: str, choices: dict[str, Any]) -> None:
    """One more variant declares a setting that is there already."""
    if shared.default != default:
        raise TypeError(
            f"{name} has the default {shared.default!r} in one variant and {default!r} in another"
        )
    shared.choices |= choices
    if help not in shared.metadata["help"]:
        shared.metadata["help"] += f"; {help}"


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    """The types of the fields of a dataclass. Python compiles each text among its annotations."""
    return get_type_hints(kind)


def settings_of(kind: Any) -> Iterator[tuple[str, Any, Field]]:
    """The settings that a variant declares: the name in the config, the type and the field of
    each.
    """
    kind = getattr(kind, "Settings", kind)
    if not is_dataclass(kind):
        return
    declared = [each for each in fields(kind) if "help" in each.metadata]
    hints = _hints(kind) if declared else {}
    for each in declared:
        hint = hints[each.name]
        # A list, because YAML and the command line know no tuples.
        hint = list[get_args(hint)[0]] if get_origin(hint) is tuple else hint
        yield each.metadata.get("name", each.name), hint, each


def made(kind: Any, config: Any, **parts: Any) -> Any:
    """A variant with its settings from a config. What is no class is there already."""
    if not isinstance(kind, type):
        return kind
    values = {each.name: getattr(config, name) for name, _, each in settings_of(kind)}
    return kind(
        **parts, **{name: tuple(x) if isinstance(x, list) else x for name, x in values.items()}
    )


@contextmanager
def changed(settings: Any, **values: Any) -> Iterator[None]:
    """In this context, the fields of `settings` have these values; afterwards, also after an error,
    those that they had.
    """
    before = {name: getattr(settings, name) for name in values}
    try:
        for name, value in values.items():
            setattr(settings, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)


# -- checks ----------------------------------------------------------------------------------------


def check_settings(config: Any) -> None:
    """Checks a config's settings of ours, whose types are right. Warns, once, of a setting that no
    chosen variant uses. Raises ValueError if a number is too small, or a name is no entry of its
    table.
    """
    for name, setting in config.settings.items():
        value = getattr(config, name)
        _check_value(name, value, setting.metadata)
        is_default = value in (setting.default, config.defaults.get(name))
        reason = None if is_default else _idle(config, name)
        if reason is not None:
            _warn_once(f"{name}={value!r} has no effect with {reason}.")


def checked(kind: type, values: Mapping[str, Any]) -> Any:
    """An instance of `kind`, a dataclass of settings, with those of `values` that it has. Raises
    ValueError if one has another type than its field, is too small, or is no entry of its table.
    """
    declared = {each.name: each.metadata for each in fields(kind)}
    given = {name: value for name, value in values.items() if name in declared}
    settings = kind(**converted(kind, given))
    for name, metadata in declared.items():
        _check_value(name, getattr(settings, name), metadata)
    return settings


def _check_value(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    least = metadata.get("least")
    if least is not None and value is not None and value < least:
        raise ValueError(f"{name}={value!r} is not usable; give an integer of at least {least}")
    table = metadata.get("table")
    if table is not None and value not in table:
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(table)}")


def _idle(config: Any, name: str) -> str | None:
    """Why a setting has no effect; None where it has one."""
    reason = None
    for choice, table in config.settings[name].choices.items():
        chosen = getattr(config, choice)
        if table is None:
            is_read = chosen is not None
        else:
            is_read = name in [of_variant for of_variant, _, _ in settings_of(table[chosen])]
        reason = _idle(config, choice) or (None if is_read else f"{choice}={chosen!r}")
        if reason is None:
            return None
    return reason


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


_PLAIN = {int, float, bool, str, NoneType}


def converted(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values for fields of the dataclass `kind`, with the types of their annotations. Python itself
    does not check these. Raises ValueError if a value has another type than its field.

    Texts such as 1e-2 become floats and the False of `save_strategy: no` a text, because YAML reads
    them otherwise; NumPy's numbers become Python's, and paths texts. Only annotations of plain
    types and of lists of them count, other fields are left out; a default is always right.
    """
    hints = _hints(kind)
    changed_values = {}
    for each in fields(kind):
        name = each.name
        if name not in values:
            continue
        value = values[name]
        hint = hints[name]
        if value is False and name.endswith("_strategy"):
            changed_values[name] = "no"
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        parts = set()  # the kinds, and of a list that of its entries
        for one in kinds:
            parts |= set(get_args(one)) if get_origin(one) is list else {one}
        is_plain = parts <= _PLAIN
        if not is_plain and str(value).startswith("{"):
            changed_values[name] = from_json(name, value)
        if is_plain and value is not each.default:
            changed_values[name] = _of_kind(name, value, kinds, parts)
    return changed_values


def _of_kind(name: str, value: Any, kinds: Sequence[Any], parts: Collection[type]) -> Any:
    """A value as one of these kinds. Raises ValueError if it is none of them.

    Args:
        parts: the kinds, and of a list that of its entries.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif isinstance(value, np.generic):
        value = value.item()
    if float in parts and str not in parts:
        if isinstance(value, list):
            value = [_number(name, part) for part in value]
        else:
            value = _number(name, value)
    if not any(_is_a(value, one) for one in kinds):
        wanted = " or ".join(str(one) if get_args(one) else one.__name__ for one in kinds)
        wanted = wanted.replace("NoneType", "None")
        raise ValueError(
            f"{name}={value!r} is a {type(value).__name__}; give a value of type {wanted}"
        )
    return value


def from_json(name: str, value: Any) -> Any:
    """The value, which a command line gives as JSON. An error calls it `name`."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(
            f'{name}={value!r} is not JSON: {error}; write it as {{"name": value}}, such as'
            ' {"model_type": "gpt2"} for a model'
        ) from None


def _number(name: str, value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a number; write it as 0.01 or 1.0e-2") from None


def _is_a(value: Any, kind: Any) -> bool:
    """Whether `value` has the type of an annotation. Integers count as floats, and True does not
    count as a number.
    """
    if get_origin(kind) is list:
        return isinstance(value, list | tuple) and all(
            _is_a(part, get_args(kind)[0]) for part in value
        )
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)
