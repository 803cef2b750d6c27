"""The weights of a function: the leaves of its first argument, by name."""

from __future__ import annotations

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
from jax2tf_bridge.signatures._params import PathWeights, leaf_keys, leaves_for
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
      aval: the type that the function takes.
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

    def stored_as(self, dtype: str | None) -> WeightLeaf:
        """Returns the leaf in the dtype of its variable; None leaves it as it is.

        `convert_array` returns the values.
        """
        if dtype is None:
            return self
        aval = Aval(self.shape, dtype)
        return replace(self, aval=aval, value=convert_array(self.array(), dtype))

    def original_array(self) -> np.ndarray:
        """Returns the value in its own dtype; a view of arrays in this machine's memory."""
        value = self.value
        if hasattr(value, "numpy"):  # one of TensorFlow's
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
    """Converts an array from or to the dtype in which it is stored; equal sizes keep the bits."""
    target = _numpy_dtype(dtype)
    return array.view(target) if array.dtype.itemsize == target.itemsize else array.astype(target)


def weight_leaves(portable: PortableFunction, params: Any) -> list[WeightLeaf]:
    """Finds the weights that are a function's first argument, in the order of its leaves.

    Args:
      portable: the function.
      params: the weights, as for `leaves_for`.

    Raises:
      StructureError, ShapeError, DTypeError: the weights are not of the function's structure,
        shapes or dtypes; each difference is listed.
    """
    (tree, *_), (path, *_) = portable.in_tree.children[0].children, portable.argument_names
    values = leaves_for(tree, params, f"the argument {path} of {portable.name}", PARAMS)
    described = zip(
        tree.leaf_paths(PARAMS), leaf_names(tree), portable.in_avals, values, strict=False
    )
    leaves = [WeightLeaf(*each) for each in described]
    _check_leaves(portable, path, leaves, params)
    return leaves


def _check_leaves(
    portable: PortableFunction, argument: str, leaves: Sequence[WeightLeaf], params: Any
) -> None:
    expected = []
    for leaf in leaves:
        aval = leaf.aval
        if aval.element_shape:  # a PRNG key is passed as its words
            aval = Aval(aval.op_shape, aval.op_dtype)
        dtype = dtype_name(leaf.value)
        if dtype is None:
            is_accepted = can_hold_number(leaf.value, aval.dtype)
        else:
            is_accepted = can_become(dtype, aval.dtype)
        expected.append((leaf.path, leaf.value, aval.shape, aval.dtype, is_accepted))
    file = params.file if isinstance(params, PathWeights) else ""
    check_types(
        f"{f'The weights in {file}' if file else 'params'} do not fit the argument {argument} "
        f"of {portable.name}",
        expected,
        "Pass the weights that it was exported with, or export it for these.",
    )


def check_types(
    text: str, values: Iterable[tuple[str, Any, Sequence[Any], str, bool]], advice: str
) -> None:
    """Raises unless values have the expected shapes and dtypes.

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
            size not in (None, own) for size, own in zip(expected_shape, shape, strict=True)
        ):
            expected = shape_text(["?" if d is None else d for d in expected_shape])
            hint = " (transposed?)" if tuple(expected_shape) == shape[::-1] else ""
            shapes.append(f"{path}: expected shape {expected}, got {shape_text(shape)}{hint}")
        if not is_accepted:
            dtypes.append(f"{path}: expected {dtype}, got {dtype_name(value) or repr(value)}")
    if shapes or dtypes:
        raise make_mismatch_error(text, shapes, dtypes, advice)


def leaf_names(tree: TreeSpec) -> tuple[str, ...]:
    """Names each leaf by its path, "dense/kernel" or "layers/0/w"; names are unique.

    >>> leaf = TreeSpec("leaf")
    >>> leaf_names(TreeSpec("dict", keys=("a b", 3), children=(leaf, leaf)))
    ('a_b', '3')
    """
    return names_of([keys for keys, _ in leaf_keys(tree)])


def names_of(paths: Sequence[Sequence[Any]]) -> tuple[str, ...]:
    """Names each leaf by the keys that lead to it, as `leaf_names` does."""
    taken: set[str] = set()
    names = [""] * len(paths)
    # Sorted, because containers with the same keys may differ in order (OrderedDict, dict).
    for i in sorted(range(len(paths)), key=lambda i: (list(map(str, paths[i])), i)):
        parts = [re.sub(r"[^\w.\-]+", "_", str(part), flags=re.ASCII) for part in paths[i]]
        plain = "/".join(parts)
        name, number = plain or "params", 0
        while name.lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(name.lower())
        names[i] = name
    return tuple(names)
