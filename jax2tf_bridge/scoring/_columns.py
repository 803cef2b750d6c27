"""Columns of rows: values of one input, checked, and copied into batches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge._dtypes import is_integer
from jax2tf_bridge.errors import DTypeError, ShapeError

Array: TypeAlias = np.ndarray[Any, Any]
DescribeRow: TypeAlias = Callable[[int], str]
"""Names a row for messages, as "Row 3 (id='a')"."""

_CASTS = {"i": "iu", "u": "iu", "f": "fiu", "V": "fiu", "c": "cfiu", "b": "b"}
"""Maps the kind of a dtype to the kinds of Python numbers that it takes; ml_dtypes have "V"."""


@dataclass(frozen=True)
class Column:
    """Values of an input, one for each row.

    Attributes:
      dense: the values as one array, if all have the same shape; else None.
      cells: the values, if their shapes differ; else empty.
    """

    dense: Array | None
    cells: Sequence[Array] = ()

    def get_shape(self, row: int) -> tuple[int, ...]:
        """Returns the shape of a row's value."""
        return tuple(self.cells[row].shape if self.dense is None else self.dense.shape[1:])

    def make_batch(self, rows: Sequence[int], shape: Sequence[int], pad: Any) -> Array:
        """Returns the values of some rows, each padded at its end to a shape."""
        if self.dense is not None and self.dense.shape[1:] == tuple(shape):
            # A slice copies nothing.
            return self.dense[slice(rows.start, rows.stop) if isinstance(rows, range) else rows]
        values = self.cells if self.dense is None else self.dense
        batch = np.full((len(rows), *shape), pad, values[0].dtype)
        for place, row in enumerate(rows):
            batch[place][tuple(map(slice, values[row].shape))] = values[row]
        return batch


_MISSING = ("None", "NaN", "NAType")
"""Values that stand for missing ones in Python, pandas and Arrow, as `_name_kind` calls them."""


def is_widened(actual: np.dtype[Any], expected: np.dtype[Any]) -> bool:
    """Returns whether each number of a dtype has the same value in another one.

    >>> int32, int64, float64, complex128 = map(
    ...     np.dtype, ("int32", "int64", "float64", "complex128")
    ... )
    >>> is_widened(int32, int64), is_widened(int64, float64), is_widened(int64, complex128)
    (True, False, False)
    """
    # NumPy calls it safe to convert 64-bit integers to float64 or complex128, which round them.
    part_size = expected.itemsize // (2 if expected.kind == "c" else 1)
    is_rounded = actual.kind in "iu" and actual.itemsize >= part_size
    return actual.kind not in "bO" and not is_rounded and np.can_cast(actual, expected, "safe")


def read_column(
    name: str, values: Any, dtype: np.dtype[Any], rank: int | None, describe_row: DescribeRow
) -> Column:
    """Reads the values of an input.

    Args:
      name: the input, for messages.
      values: an array; a list of arrays, Python numbers or lists of these; a pandas Series; or a
        column of an Arrow table.
      dtype: the dtype of the input; "O" for strings. Arrays must have it, or a dtype that
        `is_widened` allows. Python numbers are converted, and must not overflow.
      rank: the rank of a row's value; None if it is unknown.
      describe_row: names a row for messages.

    Raises:
      DTypeError: a value has another dtype.
      ShapeError: the lists of a value have different lengths.
    """

    def describe(row: int) -> str:
        return f"{describe_row(row)}, input {name}"

    if not isinstance(values, np.ndarray | list | tuple):
        # Arrow's nulls would become NaN.
        is_arrow = hasattr(values, "to_pylist")
        values = values.to_pylist() if is_arrow and _has_nulls(values) else np.asarray(values)
    if isinstance(values, np.ndarray):
        if dtype.kind == "O" and values.dtype.kind in "OSU":
            if rank == 0:
                return Column(_check_strings(name, values, describe))
        elif values.dtype == dtype or is_widened(values.dtype, dtype):
            return Column(values.astype(dtype, copy=False))
        elif values.dtype.kind != "O":
            raise _make_dtype_error(f"Column {name}", name, dtype, values.dtype)
    with np.errstate(over="raise"):
        cells = [
            read_cell(name, value, dtype, functools.partial(describe, row))
            for row, value in enumerate(values)
        ]
    shapes = {cell.shape for cell in cells}
    if len(shapes) == 1:
        return Column(np.stack(cells))
    return Column(None, cells) if cells else Column(np.empty((0, *[0] * (rank or 0)), dtype))


def _has_nulls(column: Any) -> bool:
    """Returns whether an Arrow column has nulls, also within its lists."""
    chunks = getattr(column, "chunks", (column,))
    return bool(column.null_count) or any(
        _has_nulls(chunk.flatten())
        for chunk in chunks
        if hasattr(chunk, "flatten") and hasattr(chunk, "values")  # lists
    )


def read_cell(name: str, value: Any, dtype: np.dtype[Any], describe: Callable[[], str]) -> Array:
    """Reads one value of an input; refuses numbers that overflow if np.errstate raises for them.

    Args:
      name: the input, for messages.
      value: an array, a Python number, or lists of them.
      dtype: the dtype of the input; "O" for strings.
      describe: names the value for messages.

    Raises:
      DTypeError: it has another dtype.
      ShapeError: its lists have different lengths.
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind == "O" and dtype.kind != "O":  # arrays within arrays, as from Arrow
            array = np.asarray(array.tolist())
    except ValueError as e:
        raise ShapeError(
            f"{describe()}: its lists have different lengths. Pass lists of one length."
        ) from e
    if dtype.kind == "O":
        return _check_strings(name, array, lambda _: describe())
    if array.dtype == dtype:
        return array
    has_dtype = isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O"
    if is_widened(array.dtype, dtype):
        return array.astype(dtype)
    if has_dtype or (array.size and array.dtype.kind not in _CASTS.get(dtype.kind, "")):
        kinds = map(_name_kind, array.flat if array.dtype.kind == "O" else ())
        got = next((kind for kind in kinds if kind in _MISSING), array.dtype)
        raise _make_dtype_error(describe(), name, dtype, got)
    try:
        converted = array.astype(dtype)
        can_wrap = dtype.kind in "iu" or (dtype.kind == "V" and is_integer(dtype.name))
        lost: Any = array[converted != array] if can_wrap else ()
    except FloatingPointError:
        finite = array[np.isfinite(array)]
        lost = finite[np.abs(finite).argmax() :]
    if len(lost):
        raise DTypeError(
            f"{describe()}: {dtype} does not hold {lost[0]}. Pass numbers that it holds."
        )
    return converted


def _name_kind(value: object) -> str:
    """Names the type of a value for messages; NaN by itself, because it may be a missing value."""
    is_nan = isinstance(value, float) and value != value
    return "None" if value is None else "NaN" if is_nan else type(value).__name__


def _check_strings(name: str, array: Array, describe: DescribeRow) -> Array:
    if array.dtype.kind in "SU":
        return array.astype(object)
    for row, value in enumerate(array if array.ndim else [array.item()]):
        for text in value.flat if isinstance(value, np.ndarray) else [value]:
            if not isinstance(text, str | bytes):
                raise _make_dtype_error(describe(row), name, np.dtype(object), _name_kind(text))
    return array


def _make_dtype_error(subject: str, name: str, expected: np.dtype[Any], got: object) -> DTypeError:
    if expected.kind == "O":
        text, advice = "str or bytes", "Pass text, or leave the row out."
        if got in _MISSING:
            advice = (
                "This is a missing text: fill it in, as with fillna('') in pandas, or leave the "
                "row out."
            )
    elif got in _MISSING:
        text, advice = str(expected), "Fill it in, or leave the row out."
    else:
        text = str(expected)
        advice = f"Convert it first, as with np.asarray({name}, np.{expected})."
    return DTypeError(f"{subject}: expected {text}, got {got}. {advice}")
