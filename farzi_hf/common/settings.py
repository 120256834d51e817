"""Settings of variants: each variant declares its own, and `FarziConfig` has all of them. Also the
checks of their values.

The settings of a variant are the fields of its dataclass `Settings`, or of the variant itself, that
`setting` has made. A setting may say: `help`; `name` and `start`, the name and the
default in the config where they differ; `least`, of an integer; `table`, the variants of which it
names one; `parts`, classes whose settings count where it is not None.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
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
    """What is known of a setting besides its type and its default."""

    metadata: dict[str, Any]
    default: Any
    choices: dict[str, Mapping[str, Any] | None]
    """The fields that decide whether it has an effect: by the variant that they name in this table;
    None: where they are not None.
    """

    @property
    def help(self) -> str:
        """For the documentation and the command line."""
        names = " | ".join(self.metadata.get("table", ()))
        return ": ".join(part for part in (self.metadata.get("help"), names) if part)


def with_settings(*parts: type) -> Callable[[type], type]:
    """A class gets the settings of `parts` and of all variants that its fields can name. It becomes
    a dataclass afterwards.

    They follow the field that names the variant, in the order of the table. Variants may share a
    setting, if its default is the same. `settings` of the class has a `Setting` for each field with
    metadata.
    """

    def decorate(config: type) -> type:
        declared, config.__annotations__, config.settings = config.__annotations__, {}, {}
        for name, hint in declared.items():
            _add(config, name, hint, vars(config).get(name), {})
        for part in parts:
            for name, hint, own in settings_of(part):
                _add(config, name, hint, own, {})
        lines = "\n".join(
            f"        {name}: {setting.help}." for name, setting in config.settings.items()
        )
        config.__doc__ = config.__doc__.replace("    Raises:", f"    Args:\n{lines}\n\n    Raises:")
        return config

    return decorate


def _add(config: type, name: str, hint: Any, declared: Any, choices: dict[str, Any]) -> None:
    """Adds one field to the class, and those that come with it."""
    if not isinstance(declared, Field):  # a default of another library's field
        config.__annotations__[name] = hint
        return
    metadata = dict(declared.metadata)
    default = metadata.get("start", declared.default if declared.default is not MISSING else None)
    known = config.settings.get(name)
    if known is not None:
        if known.default != default:
            raise TypeError(
                f"{name} has the default {known.default!r} in one variant and {default!r} in"
                " another"
            )
        known.choices |= choices
        if metadata.get("help") not in known.metadata["help"]:
            known.metadata["help"] += f"; {metadata['help']}"
    else:
        hint = (
            hint | None if default is None and not isinstance(hint, str) else hint
        )  # another setting decides
        known = config.settings[name] = Setting(metadata, default, choices)
        config.__annotations__[name] = hint
        table = metadata.get("table")
        for kind in [*(table or {}).values(), *metadata.get("parts", ())]:
            for its_name, its_hint, its_field in settings_of(kind):
                _add(config, its_name, its_hint, its_field, {name: table})
    given = (
        {"default_factory": lambda: list(default)}
        if isinstance(default, list)
        else {"default": default}
    )
    setattr(config, name, field(**given, metadata={"help": known.help}))


def settings_of(kind: Any) -> Iterator[tuple[str, Any, Field]]:
    """The settings that a variant declares: the name in the config, the type and the
    field of each.
    """
    kind = getattr(kind, "Settings", kind)
    own = [each for each in fields(kind) if "help" in each.metadata] if is_dataclass(kind) else []
    hints = get_type_hints(kind) if own else {}
    for each in own:
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


# -- checks ----------------------------------------------------------------------------------------


def check_settings(config: Any) -> None:
    """Checks a config's settings of ours, whose types are right. Warns, once, of a setting that no
    chosen variant uses. Raises ValueError if a number is too small, or a name is no entry of its
    table.
    """
    for name, setting in config.settings.items():
        value, least, table = (
            getattr(config, name),
            setting.metadata.get("least"),
            setting.metadata.get("table"),
        )
        if least is not None and value is not None and value < least:
            raise ValueError(f"{name}={value!r} is not usable; give an integer of at least {least}")
        if table is not None and value not in table:
            raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(table)}")
        reason = (
            None if value in (setting.default, config.defaults.get(name)) else _idle(config, name)
        )
        if reason is not None:
            _warn_once(f"{name}={value!r} has no effect with {reason}.")


def _idle(config: Any, name: str) -> str | None:
    """Why a setting has no effect; None where it has one."""
    reason = None
    for choice, table in config.settings[name].choices.items():
        chosen = getattr(config, choice)
        used = (
            chosen is not None
            if table is None
            else name in [own for own, _, _ in settings_of(table[chosen])]
        )
        reason = _idle(config, choice) or (None if used else f"{choice}={chosen!r}")
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
    hints, found = get_type_hints(kind), {}
    for name, default in (
        (each.name, each.default) for each in fields(kind) if each.name in values
    ):
        value, hint = values[name], hints[name]
        if value is False and name.endswith("_strategy"):
            found[name] = "no"
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        parts = {
            part for one in kinds for part in (get_args(one) if get_origin(one) is list else (one,))
        }
        if not parts <= _PLAIN and str(value).startswith("{"):
            found[name] = from_json(name, value)
        if not parts <= _PLAIN or value is default:
            continue
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        elif isinstance(value, np.generic):
            value = value.item()
        if float in parts and str not in parts:
            value = (
                [_number(name, part) for part in value]
                if isinstance(value, list)
                else _number(name, value)
            )
        if not any(_is_a(value, one) for one in kinds):
            wanted = " or ".join(str(one) if get_args(one) else one.__name__ for one in kinds)
            wanted = wanted.replace("NoneType", "None")
            raise ValueError(
                f"{name}={value!r} is a {type(value).__name__}; give a value of type {wanted}"
            )
        found[name] = value
    return found


def from_json(name: str, value: Any) -> Any:
    """The value, which a command line gives as JSON. An error calls it `name`."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"{name}={value!r} is not JSON: {error}") from None


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
