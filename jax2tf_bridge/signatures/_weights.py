"""The weights of a function: the leaves of its first argument, by name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import make_mismatch_error
from jax2tf_bridge.portable import (
    Aval,
    PortableFunction,
    TreeSpec,
    can_become,
    can_hold_number,
    dtype_name,
)
from jax2tf_bridge.signatures._inputs import as_op_aval
from jax2tf_bridge.signatures._params import PathWeights, iterate_leaf_keys, match_leaves
from jax2tf_bridge.weights.msgpack import host_array, is_jax_array
from shape_poly import shape_text

PARAMS = "params"
"""Name of the argument with the weights."""


@dataclass(frozen=True)
class WeightLeaf:
    """Array that a function takes: a leaf of its weights, or a lifted constant.

    Attributes:
      path: its path in Python's notation, "params['dense']['kernel']".
      name: the name of its variable, "dense/kernel".
      aval: the type of its variable; for the function itself, the type that it takes.
      value: the user's value.
    """

    path: str
    name: str
    aval: Aval
    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of its value."""
        return tuple(np.shape(self.value))

    def array(self) -> np.ndarray:
        """Returns the value in the dtype in which TensorFlow holds it."""
        return self.original_array().astype(_numpy_dtype(self.aval.op_dtype), copy=False)

    def convert(self, dtype: str) -> WeightLeaf:
        """Returns the leaf in another dtype of its variable, by `convert_array`."""
        aval = Aval(self.shape, dtype)
        return replace(self, aval=aval, value=convert_array(self.array(), dtype))

    def original_array(self) -> np.ndarray:
        """Returns the value in its own dtype; a view of arrays in this machine's memory."""
        value = self.value
        if hasattr(value, "numpy"):  # a tensor or a variable of TensorFlow
            return np.asarray(value.numpy())
        # For other arrays JAX raises an error that says why they have no value.
        if is_jax_array(value) and not value.is_deleted() and value.is_fully_addressable:
            return host_array(value)
        return np.asarray(value)


def _numpy_dtype(dtype: str) -> np.dtype:
    row = find_dtype(dtype)
    assert row is not None, "a weight has a dtype of the table"
    return np.dtype(row.numpy())


def convert_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Converts an array to the dtype of its variable, or back; dtypes of equal size keep the bits.

    >>> convert_array(np.array([2**32 - 1], np.uint32), "int32").tolist()
    [-1]
    """
    target = _numpy_dtype(dtype)
    return array.view(target) if array.dtype.itemsize == target.itemsize else array.astype(target)


def match_weights(portable: PortableFunction, params: Any) -> list[WeightLeaf]:
    """Matches the user's weights to the leaves of a function's first argument.

    Args:
      portable: the function.
      params: the weights, as for `match_leaves`.

    Raises:
      StructureError, ShapeError, DTypeError: the weights are not of the function's structure,
        shapes or dtypes; each difference is listed.
    """
    (tree, *_), (path, *_) = portable.in_tree.children[0].children, portable.argument_names
    values = match_leaves(tree, params, f"the argument {path} of {portable.name}", PARAMS)
    names = name_leaves(tree)
    leaves = list(map(WeightLeaf, tree.leaf_paths(PARAMS), names, portable.in_avals, values))
    _check_leaves(portable, path, leaves, params)
    return leaves


def _check_leaves(
    portable: PortableFunction, argument: str, leaves: Sequence[WeightLeaf], params: Any
) -> None:
    expected = []
    for leaf in leaves:
        aval = leaf.aval
        if aval.element_shape:  # the words of a PRNG key are passed
            aval = as_op_aval(aval)
        dtype = dtype_name(leaf.value)
        if dtype is None:
            is_accepted = can_hold_number(leaf.value, aval.dtype)
        else:
            is_accepted = can_become(dtype, aval.dtype)
        expected.append((leaf.path, leaf.value, aval.shape, aval.dtype, is_accepted))
    file = params.file if isinstance(params, PathWeights) else ""
    owner = f"The weights in {file}" if file else "params"
    check_value_types(
        f"{owner} do not fit the argument {argument} of {portable.name}",
        expected,
        "Pass the weights that it was exported with, or export it for these.",
    )


def check_value_types(
    text: str, values: Iterable[tuple[str, Any, Sequence[Any], str, bool]], advice: str
) -> None:
    """Checks the shapes and dtypes of values.

    Args:
      text: the first sentence of the error.
      values: for each value its path, the value, the expected shape (None for any size), the
        expected dtype, and whether its own dtype is accepted.
      advice: the last sentence of the error.

    Raises:
      ShapeError, DTypeError, ArgumentsError: a shape, a dtype, or both differ.
    """
    shapes, dtypes = [], []
    for path, value, expected_shape, dtype, is_accepted in values:
        shape = tuple(np.shape(value))
        if len(expected_shape) != len(shape) or any(
            expected not in (None, size)
            for expected, size in zip(expected_shape, shape, strict=True)
        ):
            expected = shape_text(["?" if d is None else d for d in expected_shape])
            hint = " (transposed?)" if tuple(expected_shape) == shape[::-1] else ""
            shapes.append(f"{path}: expected shape {expected}, got {shape_text(shape)}{hint}")
        if not is_accepted:
            dtypes.append(f"{path}: expected {dtype}, got {dtype_name(value) or repr(value)}")
    if shapes or dtypes:
        raise make_mismatch_error(text, shapes, dtypes, advice)


def name_leaves(tree: TreeSpec) -> tuple[str, ...]:
    """Names each leaf by its path, "dense/kernel" or "layers/0/w"; names are unique.

    >>> leaf = TreeSpec("leaf")
    >>> name_leaves(TreeSpec("dict", keys=("a b", 3), children=(leaf, leaf)))
    ('a_b', '3')
    """
    return name_paths([keys for keys, _ in iterate_leaf_keys(tree)])


def name_paths(paths: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Names each leaf by the keys that lead to it, as `name_leaves` does."""
    taken: set[str] = set()
    names = [""] * len(paths)
    # Sorted, because containers with the same keys may differ in order (OrderedDict, dict).
    for i in sorted(range(len(paths)), key=lambda i: (list(map(str, paths[i])), i)):
        parts = [re.sub(r"[^\w.\-]+", "_", str(part), flags=re.ASCII) for part in paths[i]]
        plain = "/".join(parts)
        numbered = (f"{plain}_{number}" for number in itertools.count(1))
        candidates = itertools.chain([plain or PARAMS], numbered)
        names[i] = next(name for name in candidates if name.lower() not in taken)
        taken.add(names[i].lower())
    return tuple(names)
