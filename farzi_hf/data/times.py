"""When interactions happened: a column of times as numbers or NumPy's datetimes.

Text is read as integers, as ISO 8601 dates and times, as other numbers, or as dates that people
write, such as 12/31/2020 11:59 PM: whichever reads all of the column. Where two ways of writing
dates read all of it and differ, the column is refused, because 1/2/2020 does not say its month.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.compute as pc

from farzi_hf.common.text import reason
from farzi_hf.data.text_tables import INTEGER

_ISO_DATES = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
"""Microseconds come before nanoseconds, which end in 2262. All of a column have a zone, or none."""
_REMEDY = (
    "give integers, finite numbers, dates, or text of one form, best of ISO 8601 such as"
    " 2020-12-31T23:59:59"
)

_MARKS = "/.-"
_ORDERS = ("%m{0}%d{0}%Y", "%d{0}%m{0}%Y", "%Y{0}%m{0}%d", "%m{0}%d{0}%y", "%d{0}%m{0}%y")
_DAYS = (
    *(order.format(mark) for order, mark in product((*_ORDERS, "%y{0}%m{0}%d"), _MARKS)),
    "%m %d, %Y",  # of Amazon
    "%d %m, %Y",
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%b %d, %Y", "%B %d, %Y"),
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_ZONES = ("", " UTC", " %z")
WRITTEN = (
    *_DAYS,
    *(
        f"{day}{between}{clock}{zone}"
        for day, between, clock, zone in product(_DAYS, (" ", ", "), _CLOCKS, _ZONES)
    ),
    "%a %b %d %H:%M:%S %z %Y",  # of Twitter
    "%a, %d %b %Y %H:%M:%S %z",  # of mails
)
"""How people write dates, as in `datetime.strptime`. Names of months and days are English."""


def times_of(column: pa.ChunkedArray, name: str, source: Any) -> np.ndarray:
    """Numbers or NumPy's datetimes (n,).

    Args:
        column: without empty values.
        name, source: what an error calls the column and the data.

    Raises:
        ValueError: nothing reads all of the column as times, or two ways read it differently.
    """
    times = _read(column, name, source)
    is_time = times.dtype.kind in "iufM"  # an integer, a float or a date
    if not is_time or not np.isfinite(times).all():
        raise ValueError(
            f"{source}: column {name!r} of type {column.type!s:.80} has values without a time:"
            f" {_REMEDY}"
        )
    return times


def _read(column: pa.ChunkedArray, name: str, source: Any) -> np.ndarray:
    """The column as the first of its kinds that reads all of it, or as dates that people write."""
    errors = []
    for kind in _kinds(column):
        try:
            return column.cast(kind).to_numpy()
        except pa.ArrowInvalid as error:
            errors.append(error)
    if pa.types.is_large_string(column.type):
        times = _as_written(column, name, source)
        if times is not None:
            return times
    raise ValueError(
        f"{source}: column {name!r} cannot be read as times ({reason(errors[0])}): {_REMEDY}"
    )


def _kinds(column: pa.ChunkedArray) -> Sequence[pa.DataType]:
    """The types that a column of times may have, the first choice first."""
    if pa.types.is_decimal(column.type):
        return [pa.int64(), pa.float64()]
    if not pa.types.is_large_string(column.type):
        return [column.type]
    # Arrow alone would read 0x10 as an integer.
    if pc.all(pc.match_substring_regex(column, INTEGER)).as_py():
        return [pa.int64()]
    return [*_ISO_DATES, pa.float64()]


def _as_written(column: pa.ChunkedArray, name: str, source: Any) -> np.ndarray | None:
    """The times of dates that people write (n,); None if no form of `WRITTEN` reads all."""
    encoded = column.dictionary_encode().combine_chunks()
    texts = encoded.dictionary.to_pandas()
    readings: dict[str, np.ndarray] = {}
    for form in WRITTEN:
        if not _reads(form, texts[0]):
            continue
        read = _dates(texts, form)
        if read is not None:
            readings[form] = read
    if not readings:
        return None
    (form, times), *others = readings.items()
    for other, read in others:
        differ = np.flatnonzero(read != times)
        if len(differ):
            raise ValueError(
                f"{source}: column {name!r} may be read in two ways ({form} and {other}), because"
                f" no date shows which, such as {texts[differ[0]]!r}: write dates as 2020-12-31"
            )
    return times[encoded.indices.to_numpy()]


def _reads(form: str, text: str) -> bool:
    """Whether a text is written in this form."""
    try:
        datetime.strptime(text, form)
    except ValueError:
        return False
    return True


def _dates(texts: pandas.Series, form: str) -> np.ndarray | None:
    """The texts as datetimes (n,), in UTC; None if one of them is written in another way."""
    try:
        return pandas.to_datetime(texts, format=form, utc=True).dt.tz_localize(None).to_numpy()
    except ValueError:
        return None
