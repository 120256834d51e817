"""Which columns of a table hold users, items and times: by the names that people give them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

NAMES = ("user", "item", "timestamp")
KNOWN = {
    "user": (
        "user userid uid reviewerid customerid memberid visitorid sessionid accountid clientid"
        " username customer client buyer"
    ),
    "item": (
        "item itemid iid parentasin asin movieid productid articleid bookid isbn songid trackid"
        " gameid businessid newsid adid venueid poiid artistid recipeid sku skuid stockcode product"
    ),
    "timestamp": (
        "timestamp ts unixreviewtime unixtime datetime time date createdat eventtime timestamps"
        " times dates timestamplist invoicedate orderdate purchasedate playedat"
    ),
}
"""What the columns are called, first choice first, in small letters without `_`, `-` and blanks
inside, and without RecBole's types.
"""
LISTS = (
    "items itemids itemidlist itemlist itemsequence itemseq history sequence interactions clicks"
    " purchases movies movieids products productids articles articleids asins books songs tracks"
)
"""What a column is called that lists all items of a user in each row."""

Given = Mapping[str, str | None]
"""The columns that a user names, by what they hold: user, item and timestamp."""
NONE: Given = {}

_SHOWN = 20  # names of columns in an error
_WORDS_OF_PROSE = 4


class Columns(NamedTuple):
    """The names of the columns that hold interactions."""

    user: str | None
    """None: each row is a user, and lists the items."""
    item: str
    """One item a row, or a list of items."""
    timestamp: str | None
    """None: the order of the rows is that of time."""


def columns_of(names: Sequence[str], source: Any, given: Given = NONE) -> Columns:
    """The columns of users, items and times among `names`: those given, else by name.

    Raises:
        ValueError: one of them is missing, or there twice.
    """
    plain = {name: _plain(name) for name in dict.fromkeys(names)}  # a line of text repeats words
    aliases = {**KNOWN, "item": f"{KNOWN['item']} {LISTS}"}
    chosen: dict[str, list[str]] = {}
    missing: dict[str, str] = {}
    for role in NAMES:
        alias = next((x for x in aliases[role].split() if x in plain.values()), role)
        wanted = given.get(role)
        chosen[role] = [
            name for name in names if (name == wanted if wanted else plain[name] == alias)
        ]
        missing[role] = wanted or alias
    a_row_each = not chosen["user"] and not given.get("user") and lists_items(chosen["item"])
    optional = {"timestamp"} if not given.get("timestamp") else set()
    optional |= {"user"} if a_row_each else set()
    for role in NAMES:
        few = 0 if role in optional else 1
        if not few <= len(chosen[role]) <= 1:
            raise ValueError(
                f"{source} has columns {_shown(names)}: {missing[role]!r} must be there"
                " exactly once; name yours with user_column, item_column and time_column"
                " (--user_column, --item_column and --time_column on the command line)"
            )
    columns = Columns(*(next(iter(chosen[role]), None) for role in NAMES))
    read = [name for name in columns if name is not None]
    if len(set(read)) < len(read):
        raise ValueError(
            f"{source}: user_column, item_column and time_column are {', '.join(map(repr, read))}:"
            " name different columns"
        )
    return columns


def lists_items(names: Sequence[str]) -> bool:
    """Whether all of these are names for a column that lists items."""
    return bool(names) and all(_plain(name) in LISTS.split() for name in names)


def hold_interactions(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether columns, given with the values of a few rows, are those of interactions."""
    try:
        chosen = columns_of(list(columns), "")
    except ValueError:
        return False
    if not lists_items([chosen.item]):
        return True
    if chosen.user is not None:
        return not _are_prose(columns[chosen.user])  # as of a chat between user and assistant
    lists = [value for value in columns[chosen.item] if value is not None]
    others = [values for name, values in columns.items() if name != chosen.item]
    has_text = any(isinstance(value, str) for values in others for value in values)
    return bool(lists) and all(map(_is_list_of_ids, lists)) and not has_text


def _plain(name: str) -> str:
    """A name as `KNOWN` has it."""
    bare = re.sub(r":(token|float)(_seq)?\Z", "", str(name).strip().lstrip("#%").strip())
    return re.sub(r"(?<=\w)[_ -](?=\w)", "", bare).lower()


def _shown(names: Sequence[str]) -> str:
    shown = str(list(names[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown[:-1]}, … {len(names):,} in all]"


def _is_list_of_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, (int, str)) for part in value)


def _are_prose(values: Sequence[Any]) -> bool:
    words = [len(value.split()) for value in values if isinstance(value, str)]
    return bool(words) and sum(words) >= _WORDS_OF_PROSE * len(words)
