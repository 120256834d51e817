"""Columns of the artefact's tables: numbers as lists that any reader of Parquet knows."""

import pyarrow as pa
from torch import Tensor


def list_column(numbers: Tensor) -> pa.Array:
    """(n, …) as n fixed-size lists, of lists where there are more axes; in float32 or int64."""
    numbers = numbers.detach().cpu()
    numbers = numbers.float() if numbers.is_floating_point() else numbers.long()
    column = pa.array(numbers.reshape(-1).numpy())
    for axis in reversed(range(1, numbers.dim())):
        if numbers.shape[axis] == 0:  # a list without numbers says nothing of their type
            empty = [[]] * numbers.shape[:axis].numel()
            column = pa.array(empty, pa.list_(pa.float32(), 0))
        else:
            column = pa.FixedSizeListArray.from_arrays(column, numbers.shape[axis])
    return column
