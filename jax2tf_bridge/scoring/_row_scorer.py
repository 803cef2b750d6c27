"""RowScorer: runs a signature of a SavedModel over rows of any number and length."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import as_integer, did_you_mean, join_names, unknown_name_text
from jax2tf_bridge.errors import BridgeError, ShapeError, StructureError
from jax2tf_bridge.saved_model import (
    GRAPH_FILE,
    EntryPoint,
    read_array,
    read_saved_model,
    read_sidecar,
)
from jax2tf_bridge.saving.serving import read_signature
from jax2tf_bridge.scoring._columns import Array, Column, DescribeRow, read_cell, read_column
from jax2tf_bridge.scoring._row_plan import RowPlan, RowSizes, Sizes, fits_shape, plan_rows
from jax2tf_bridge.storage import as_path

_DEFAULT_BATCH_SIZE = 256
"""Default number of rows of a call, for signatures without buckets of the rows."""

_MAX_LOADED = 8
"""Maximum number of signatures that a process keeps loaded."""

_MAX_SIZES = 65_536
"""Maximum number of combinations of sizes that are remembered for a signature."""

_Group = tuple[Sequence[RowSizes], Sequence[int]]
"""The sizes of some rows that run together, and their numbers."""

_Part = tuple[Sequence[int], Mapping[str, Array | list[Array]]]
"""The numbers of some rows, and their results by output."""

_LOADING = threading.Lock()


class RowScorer:
    """Scores rows with a SavedModel: in order, padded to its buckets, at few sizes.

    Rows of different lengths run together. Each is padded at its end to the next bucket of its
    length, with the pad value of the input (0 by default), and each result is cut to the length of
    its row. So a row has the score that it would have alone, up to rounding, which depends on the
    batch size.

    It needs TensorFlow and no JAX. A pickled scorer holds the path only: each process loads the
    model when it scores its first rows, and once for all scorers of the same signature. Several
    threads may use a scorer.

    Args:
      path: the folder of the SavedModel; of a served model, the folder of one version
        (`latest_version`).
      signature: the name of the signature.
      shared_inputs: values of the inputs that all rows share, such as a temperature. Inputs with
        `defaults` may be left out.
      key: the field that identifies a row in error messages, as "id". It need not be an input.
      batch_size: the maximum number of rows in a call of the signature. The default is the largest
        bucket of the rows. Without buckets it is 256, and each other number of rows is compiled.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: it is not a SavedModel, or it is damaged.
      BridgeError: it has no such signature.
      ShapeError: the signature takes no rows, or its rows may influence each other; or a value in
        `shared_inputs` has another shape.
      DTypeError: a value in `shared_inputs` has another dtype.
      StructureError: `shared_inputs` has another name, or lacks one.

    >>> import jax.numpy as jnp, tempfile
    >>> from jax2tf_bridge import Signature, save
    >>> def count(ids, mask):
    ...     return {"words": mask.sum(1)}
    >>> ids = np.ones((1, 4), np.int32)
    >>> folder = tempfile.mkdtemp()
    >>> signature = Signature(count, args=[ids, ids], polymorphic_shapes="(b, n)")
    >>> _ = save(folder, signature, buckets={"b": [1, 4], "n": [8]}, overwrite=True)
    >>> scorer = RowScorer(folder)
    >>> rows = [{"ids": [5, 6], "mask": [1, 1]}, {"ids": [7, 8, 9], "mask": [1, 1, 1]}]
    >>> [int(scores["words"]) for scores in scorer.score(rows)]
    [2, 3]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        signature: str = "serving_default",
        shared_inputs: Mapping[str, Any] | None = None,
        key: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.path, self.signature, self.key = os.fspath(path), signature, key
        self.shared_inputs = dict(shared_inputs or {})
        if batch_size is not None and (as_integer(batch_size) or 0) < 1:
            raise ValueError(f"batch_size must be an integer of 1 or more, got {batch_size!r}.")
        self.batch_size = batch_size
        plan, entry = _read_plan(self.path, signature)
        _read_shared(plan, self.shared_inputs)
        missing = plan.shared.keys() - self.shared_inputs.keys() - _read_defaults(entry).keys()
        if missing:
            names = ", ".join(f"{name}: {plan.shared[name]}" for name in sorted(missing))
            raise StructureError(
                f"{signature} of {self.path} has inputs that all rows share, and shared_inputs "
                f"lacks {names}. Pass shared_inputs={{{sorted(missing)[0]!r}: ...}}."
            )
        self._model: _Model | None = None

    def __repr__(self) -> str:
        return f"RowScorer({self.path!r}, signature={self.signature!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_model": None}

    def load(self) -> RowScorer:
        """Loads the model now rather than for the first rows; returns the scorer itself.

        Raises:
          FileNotFoundError: there is no such folder.
          FileFormatError: it is not a SavedModel.
        """
        self._get_model()
        return self

    def score(
        self, rows: Iterable[Any], *, shared_inputs: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Scores rows.

        Args:
          rows: a mapping from inputs to values for each row, without a dimension of the rows; other
            fields are ignored. If the signature has one input, a row may be its value. Arrays have
            the dtype of the input, or a narrower one whose numbers it holds, as int32 for int64;
            Python's numbers and lists are converted.
          shared_inputs: values that replace those of the scorer.

        Returns:
          The outputs of each row by name, in the order of the rows.

        Raises:
          StructureError: a row lacks an input, or `rows` is one row or a table.
          DTypeError: a value has another dtype.
          ShapeError: a value has another shape, or sizes of a row contradict each other.
        """
        model = self._get_model()
        is_list = isinstance(rows, Iterable) and not isinstance(rows, Mapping | str | bytes)
        if not is_list or hasattr(rows, "columns"):
            raise StructureError(
                "rows: expected a list with a mapping or a value for each row, got "
                f"{type(rows).__name__}. Pass [row] for one row, or a table to score_columns."
            )
        rows = list(rows)
        names = [value.name for value in model.plan.inputs]
        if len(names) == 1:
            rows = [row if isinstance(row, Mapping) else {names[0]: row} for row in rows]

        def describe_row(row: int) -> str:
            fields = rows[row]
            has_key = self.key is not None and isinstance(fields, Mapping) and self.key in fields
            return f"Row {row} ({self.key}={fields[self.key]!r})" if has_key else f"Row {row}"

        columns = []
        for name in names:
            try:
                columns.append([row[name] for row in rows])
            except (KeyError, TypeError, IndexError):
                self._raise_incomplete(rows, model.plan, describe_row)
                raise
        results = self._score(model, columns, len(rows), describe_row, shared_inputs)
        return [{name: values[row] for name, values in results.items()} for row in range(len(rows))]

    def score_columns(
        self, columns: Any, *, shared_inputs: Mapping[str, Any] | None = None
    ) -> dict[str, Array]:
        """Scores rows that are stored by column.

        Args:
          columns: maps the inputs to arrays, lists or Series with a value for each row, as Ray Data
            passes a batch, pandas' DataFrame, or Arrow's Table; other columns are ignored.
          shared_inputs: values that replace those of the scorer.

        Returns:
          A column for each output: an array whose first dimension is the rows, in their order. If
          the results of rows have different shapes, it is an array of arrays (dtype object).

        Raises:
          StructureError: an input has no column of rows, or columns differ in their number.
          DTypeError: a value has another dtype.
          ShapeError: a value has another shape, or sizes of a row contradict each other.
        """
        model = self._get_model()
        names = [value.name for value in model.plan.inputs]
        # `in` searches the values of Arrow's tables.
        present = getattr(columns, "column_names", columns)
        for name in names:
            if name not in present:
                expected = {value.name: value for value in model.plan.inputs}[name]
                raise StructureError(
                    f"The columns lack {name}: {expected}, an input of {self.signature}; there are "
                    f"{join_names([str(c) for c in present], 8) or 'none'}"
                    f"{did_you_mean(name, map(str, present)) or '.'} Add the column, or rename one."
                )
        counts = {}
        keys = [self.key] if self.key is not None and self.key in present else []
        for name in [*names, *keys]:
            try:
                counts[name] = len(columns[name])
            except TypeError as e:  # a number, or an array without dimensions
                raise StructureError(
                    f"The column {name} has no rows: expected an array, a list or a Series with a "
                    f"value for each row, got {columns[name]!r}."
                ) from e
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise StructureError(
                f"The columns have different numbers of rows: {lengths}. Pass a value for each row."
            )

        def describe_row(row: int) -> str:
            if not keys:
                return f"Row {row}"
            return f"Row {row} ({self.key}={np.asarray(columns[self.key])[row:][:1].tolist()[0]!r})"

        values = [columns[name] for name in names]
        return self._score(model, values, counts[names[0]], describe_row, shared_inputs)

    def _get_model(self) -> _Model:
        if self._model is None:
            with _LOADING:  # the cache alone would load it once for each waiting thread
                self._model = _load(self.path, self.signature, _make_fingerprint(self.path))
        return self._model

    def _raise_incomplete(
        self, rows: Sequence[Any], plan: RowPlan, describe_row: DescribeRow
    ) -> None:
        """Raises StructureError for the first row that lacks an input."""
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                expected = ", ".join(f"{value.name}: {value}" for value in plan.inputs)
                raise StructureError(
                    f"{describe_row(number)}: expected a mapping with {expected}, got "
                    f"{type(row).__name__}. Pass a dict of the inputs for each row."
                )
            for value in plan.inputs:
                if value.name not in row:
                    raise StructureError(
                        f"{describe_row(number)} lacks the input {value.name}: {value}; it has "
                        f"{join_names([str(name) for name in row], 8) or 'nothing'}"
                        f"{did_you_mean(value.name, map(str, row)) or '.'} Add it, or leave the "
                        "row out."
                    )

    def _score(
        self,
        model: _Model,
        values: Sequence[Any],
        count: int,
        describe_row: DescribeRow,
        shared_inputs: Mapping[str, Any] | None,
    ) -> dict[str, Array]:
        columns = [
            read_column(
                each.name,
                value,
                _find_dtype(each.dtype),
                None if each.shape is None else len(each.shape),
                describe_row,
            )
            for each, value in zip(model.plan.inputs, values, strict=True)
        ]
        shared = _read_shared(model.plan, {**self.shared_inputs, **(shared_inputs or {})})
        constants = {
            name: tf.constant(value, tf.as_dtype(model.plan.shared[name].dtype))
            for name, value in {**model.defaults, **shared}.items()
        }
        step = self.batch_size or (model.plan.batch_buckets or (_DEFAULT_BATCH_SIZE,))[-1]
        parts: list[_Part] = []
        for sizes, rows in _group_rows(model, columns, count, describe_row):
            for first in range(0, len(rows), step):
                piece = rows[first : first + step]
                tensors = {
                    each.name: tf.constant(
                        column.make_batch(piece, shape, each.pad),
                        tf.as_dtype(each.dtype),
                    )
                    for each, column, shape in zip(
                        model.plan.inputs, columns, sizes[0].padded, strict=True
                    )
                }
                outputs = model.function(**tensors, **constants)
                arrays = {name: tensor.numpy() for name, tensor in outputs.items()}
                self._check_results(arrays, len(piece))
                parts.append((piece, _cut_results(arrays, sizes[first : first + step])))
        return _join_parts(parts, count) if count else model.make_empty()

    def _check_results(self, arrays: Mapping[str, Array], count: int) -> None:
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != count:
                raise ShapeError(
                    f"{self.signature} of {self.path}: output {name} has the shape {array.shape} "
                    f"for {count} rows, so it has no result for each row. Save a signature that "
                    "returns one."
                )


@dataclass(frozen=True, eq=False)
class _Model:
    """Loaded signature.

    Attributes:
      plan: how its rows run.
      function: the signature.
      owner: the loaded object, which keeps the variables alive.
      defaults: the values of the shared inputs that callers may leave out.
    """

    plan: RowPlan
    function: Any
    owner: Any
    defaults: Mapping[str, Any]
    find_sizes: Callable[[tuple[Sizes, ...]], RowSizes] = field(init=False)

    def __post_init__(self) -> None:
        cached = functools.lru_cache(_MAX_SIZES)(self.plan.find_sizes)
        object.__setattr__(self, "find_sizes", cached)

    def make_empty(self) -> dict[str, Array]:
        outputs = {}
        for name, spec in self.function.structured_outputs.items():
            sizes = spec.shape[1:] if spec.shape.rank else ()
            outputs[name] = np.empty((0, *(n or 0 for n in sizes)), _find_dtype(spec.dtype.name))
        return outputs


@functools.lru_cache(_MAX_LOADED)
def _load(path: str, signature: str, fingerprint: object) -> _Model:
    """Loads a signature once per process, because engines make a new scorer for each task.

    Args:
      path: the folder.
      signature: the name of the signature.
      fingerprint: identifies the model at the path, so that another one there is loaded.
    """
    plan, entry = _read_plan(path, signature)
    loaded = tf.saved_model.load(path)
    function = loaded.signatures[signature]
    return _Model(plan, function, loaded, _read_defaults(entry))


def _make_fingerprint(path: str) -> object:
    """Identifies the contents of the graph's file; None for a URL, where they never change."""
    try:
        status = os.stat(os.path.join(path, GRAPH_FILE))
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read_plan(path: str, signature: str) -> tuple[RowPlan, EntryPoint]:
    contents = read_saved_model(path, accept_any_tool=True)
    entries = {entry.name: entry for entry in contents.entries if entry.is_signature}
    if signature not in entries:
        raise BridgeError(f"{path} has {unknown_name_text('signature', signature, entries)}")
    served = read_signature(entries[signature], read_sidecar(as_path(path)))
    return plan_rows(path, served), entries[signature]


def _read_defaults(entry: EntryPoint) -> dict[str, Array]:
    return {
        port.name: read_array(port.default, _find_dtype)
        for port in entry.inputs
        if port.default is not None
    }


@np.errstate(over="raise")
def _read_shared(plan: RowPlan, values: Mapping[str, Any]) -> dict[str, Array]:
    arrays = {}
    for name, value in values.items():
        if name not in plan.shared:
            raise StructureError(
                f"shared_inputs has {name!r}, but {plan.signature} has "
                f"{unknown_name_text('shared input', name, plan.shared)}"
            )
        expected, place = plan.shared[name], f"shared_inputs[{name!r}]"
        array = read_cell(name, value, _find_dtype(expected.dtype), functools.partial(str, place))
        if not fits_shape(expected.shape, array.shape, {}):
            raise ShapeError(
                f"{place}: expected {expected}, got the shape {array.shape}. Pass an array of "
                "this shape."
            )
        arrays[name] = array
    return arrays


def _find_dtype(name: str) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    return dtype


def _group_rows(
    model: _Model, columns: Sequence[Column], count: int, describe_row: DescribeRow
) -> list[_Group]:
    """Groups the rows that run at the same sizes: their numbers, and the sizes of each."""
    if not count:
        return []

    def find_sizes(row: int) -> RowSizes:
        try:
            return model.find_sizes(tuple(column.get_shape(row) for column in columns))
        except ShapeError as e:
            raise ShapeError(f"{describe_row(row)}, {e}") from None

    if all(column.dense is not None for column in columns):
        return [([find_sizes(0)] * count, range(count))]
    groups: dict[tuple[Sizes, ...], tuple[list[RowSizes], list[int]]] = {}
    for row in range(count):
        sizes = find_sizes(row)
        each, numbers = groups.setdefault(sizes.padded, ([], []))
        each.append(sizes)
        numbers.append(row)
    return list(groups.values())


def _cut_results(
    arrays: Mapping[str, Array], sizes: Sequence[RowSizes]
) -> dict[str, Array | list[Array]]:
    results: dict[str, Array | list[Array]] = {}
    for name, array in arrays.items():
        shapes = [each.outputs.get(name, array.shape[1:]) for each in sizes]
        if set(shapes) == {array.shape[1:]}:
            results[name] = array
        else:  # copies, since a view would keep the whole batch in memory
            results[name] = [
                row[tuple(map(slice, shape))].copy()
                for row, shape in zip(array, shapes, strict=True)
            ]
    return results


def _join_parts(parts: Sequence[_Part], count: int) -> dict[str, Array]:
    results = {}
    for name, first in parts[0][1].items():
        shapes = {np.shape(row) for _, part in parts for row in part[name]}  # texts have ()
        if len(shapes) == 1 and len(parts) == 1 and isinstance(first, np.ndarray):
            results[name] = first
            continue
        shape, dtype = (), np.dtype("O")
        if len(shapes) == 1:
            shape = shapes.pop()
            dtype = first.dtype if isinstance(first, np.ndarray) else first[0].dtype
        column = np.empty((count, *shape), dtype)
        for rows, part in parts:
            values = part[name]
            if dtype.kind == "O" and not shape:
                for row, value in zip(rows, values, strict=True):
                    column[row] = value
            else:
                column[rows] = values
        results[name] = column
    return results
