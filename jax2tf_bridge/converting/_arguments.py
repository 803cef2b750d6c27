"""Splits the arguments of a call into static values and leaves, and makes tensors of the leaves."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from jax2tf_bridge.errors import DTypeError, ExportError, name_missing_package

with name_missing_package("dtype_of_val"):
    import jax
    import tensorflow as tf

from jax2tf_bridge.from_jax.arguments import (
    JaxCallable,
    advise_closure,
    advise_on_leaf,
    is_key,
    jax_dtype,
    portable_aval,
)
from jax2tf_bridge.from_jax.shapes import OpenSpec
from jax2tf_bridge.from_jax.trees import check_dict_keys, rebuild_tree
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.to_tensorflow import cast_if_needed, is_in_range, op_dtype, tf_compat

_NUMBERS = (bool, int, float, complex)
_ARRAYS = (tf.Tensor, np.ndarray, np.generic, jax.Array)


@dataclass(frozen=True)
class CallArguments:
    """Arguments of one call: the static values, and the leaves of the others.

    Attributes:
      function: the function.
      static_args, static_kwargs: the static values, by position and by name.
      dynamic: the other arguments, (args, kwargs), with None in place of static ones.
      leaves: the leaves of `dynamic`: tensors, arrays and numbers.
      key: equal for calls with equal structure, shapes, dtypes and static values.
      static_key: equal for calls with equal static values.
    """

    function: JaxCallable
    static_args: Mapping[int, Any]
    static_kwargs: Mapping[str, Any]
    dynamic: tuple[tuple[Any, ...], dict[str, Any]]
    leaves: tuple[Any, ...]
    key: Hashable
    static_key: Hashable

    @staticmethod
    def of(function: JaxCallable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallArguments:
        """Splits the arguments of a call.

        Raises:
          DTypeError: an argument is neither a tensor nor an array nor a number.
          ExportError: a static value is not hashable.
        """
        static_positions = function.static_positions(len(args))
        static_args = {i: a for i, a in enumerate(args) if i in static_positions}
        static_kwargs = {k: v for k, v in kwargs.items() if k in function.static_argnames}
        dynamic = (
            tuple(None if i in static_args else a for i, a in enumerate(args)),
            {k: v for k, v in kwargs.items() if k not in static_kwargs},
        )
        tree: Any
        try:
            leaves, tree = jax.tree_util.tree_flatten(dynamic, is_leaf=tf_compat.is_wrapper)
        except ValueError:
            names = function.argument_names(len(args))
            for name, value in [*zip(names, dynamic[0], strict=True), *dynamic[1].items()]:
                check_dict_keys(value, f"The argument {name}")
            raise
        if any(map(tf_compat.is_wrapper, leaves)):
            dynamic = tree.unflatten(map(_unwrap, leaves))
            leaves, tree = jax.tree_util.tree_flatten(dynamic)
        values = tuple(map(to_array, leaves))
        for i, (value, leaf) in enumerate(zip(values, leaves, strict=True)):
            if value is None:
                path = _format_paths(function, dynamic)[i]
                if isinstance(leaf, str) and path.isidentifier():
                    names = function.argument_names(len(dynamic[0]))
                    raise DTypeError(
                        f"The argument {path} of {function.name} is the string {leaf!r:.80}, a "
                        "tf.string in TensorFlow, and JAX computes with numbers only. "
                        f"{advise_closure(function, names, path, leaf)}"
                    )
                raise DTypeError(
                    f"The argument {path} of a converted function should be a NumPy array, scalar, "
                    f"tf.Variable, or tf.Tensor. Got: {leaf!r} of type {type(leaf).__name__}"
                    f"{_advise_on_leaf(leaf, path)}"
                )
        static_key = _static_key(function, static_args, static_kwargs)
        key = (tree, static_key, tuple(map(_make_key, values)))
        return CallArguments(function, static_args, static_kwargs, dynamic, values, key, static_key)

    def specs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with OpenSpecs in place of arrays; static values stay.

        Raises:
          DTypeError: JAX has no such dtype, or the rank of a tensor is not known.
        """
        tree: Any = jax.tree_util.tree_structure(self.dynamic)
        paths = _format_paths(self.function, self.dynamic)
        args, kwargs = rebuild_tree(tree, map(_make_spec, self.leaves, paths))
        return (
            tuple(self.static_args.get(i, a) for i, a in enumerate(args)),
            {**kwargs, **self.static_kwargs},
        )

    def tensors(self, portable: PortableFunction) -> list[tf.Tensor]:
        """Makes tensors of the function's dtypes; 64 bits become 32 unless jax_enable_x64 is set.

        Raises:
          DTypeError: a number is too large for its dtype.
        """
        tensors = []
        for i, (leaf, aval) in enumerate(zip(self.leaves, portable.in_avals, strict=True)):
            dtype = tf.as_dtype(aval.op_dtype)
            if not is_in_range(leaf, dtype):
                raise DTypeError(
                    f"The argument {portable.in_paths()[i]} is {leaf}, which does not fit "
                    f"{dtype.name}. Set jax_enable_x64, or pass it as a float."
                )
            tensors.append(_to_tensor(leaf, dtype))
        return tensors


def _unwrap(leaf: Any) -> Any:
    """Replaces TensorFlow's wrappers of containers by the containers, at all depths."""
    if not tf_compat.is_wrapper(leaf):
        return leaf
    plain = tf_compat.unwrap_containers(leaf)
    return jax.tree_util.tree_map(_unwrap, plain, is_leaf=tf_compat.is_wrapper)


def to_array(leaf: Any) -> Any:
    """Converts a leaf to a tf.Tensor, a JAX or NumPy array, or a number; None for other objects."""
    if isinstance(leaf, (*_ARRAYS, *_NUMBERS)):
        # The mask would get lost.
        return None if isinstance(leaf, np.ma.MaskedArray) else leaf
    if isinstance(leaf, tf.Variable) or hasattr(leaf, "__tf_tensor__"):
        return tf.convert_to_tensor(leaf)
    if hasattr(leaf, "__jax_array__"):
        return leaf.__jax_array__()
    return None


def _advise_on_leaf(leaf: Any, path: str) -> str:
    if isinstance(leaf, np.ma.MaskedArray):
        return f". Pass {path}.filled(0), and the mask as another argument."
    if isinstance(leaf, tf.RaggedTensor):
        return f". Pass {path}.to_tensor(), and a mask as another argument."
    if isinstance(leaf, tf.SparseTensor):
        return f". Pass tf.sparse.to_dense({path})."
    return advise_on_leaf(leaf, path)


def _make_key(value: Any) -> Hashable:
    if isinstance(value, tf.Tensor):
        shape = value.shape
        return (tuple(shape.as_list()) if shape.rank is not None else None, value.dtype)
    if isinstance(value, _ARRAYS):
        return (*value.shape, value.dtype)
    # For a number, the type alone decides.
    return (type(value),)


def _static_key(
    function: JaxCallable, static_args: Mapping[int, Any], static_kwargs: Mapping[str, Any]
) -> Hashable:
    """Returns the static values with their types, since 1, 1.0 and True are equal to Python."""
    if not static_args and not static_kwargs:
        return ()
    names = function.argument_names(max(static_args, default=-1) + 1)
    values = {**{names[i]: v for i, v in static_args.items()}, **static_kwargs}
    for name, value in values.items():
        try:
            hash(value)
        except TypeError as e:
            raise ExportError(
                f"The argument {name} of {function.name} is static (jit's static_argnums or "
                f"static_argnames), so its value must be hashable. Got: {value!r} of type "
                f"{type(value).__name__}. Pass a hashable value (a tuple for a list), or do not "
                "make the argument static."
            ) from e
    return tuple((name, type(values[name]), values[name]) for name in sorted(values))


def _format_paths(function: JaxCallable, dynamic: Any) -> list[str]:
    """Returns the paths of the leaves as a user would write them: "x", "params['w']"."""
    names = function.argument_names(len(dynamic[0]))
    keyed, _ = jax.tree_util.tree_flatten_with_path(dynamic)
    paths = []
    for (side, argument, *rest), _ in keyed:
        name = names[argument.idx] if side.idx == 0 else str(argument.key)
        paths.append(name + jax.tree_util.keystr(tuple(rest)))
    return paths


def _make_spec(value: Any, path: str) -> OpenSpec:
    if isinstance(value, tf.Tensor):
        if value.shape.rank is None:
            raise DTypeError(
                f"The argument {path} has an unknown rank. Give it one with tf.ensure_shape, or "
                "by the tf.function's input_signature."
            )
        dtype = jax_dtype(value.dtype.as_numpy_dtype, path, shown=f"tf.{value.dtype.name}")
        return OpenSpec(tuple(value.shape.as_list()), dtype)
    dtype = jax_dtype(_get_jax_type(value), path)
    if isinstance(value, _ARRAYS):
        return OpenSpec(tuple(value.shape), dtype)
    return OpenSpec((), dtype, value)  # the number is checked when it becomes a tensor


def _get_jax_type(value: Any) -> Any:
    """Returns the dtype of an array, or JAX's dtype for the kind of a number."""
    if hasattr(value, "dtype"):
        return value.dtype
    # A bool is an int as well, so bool comes first.
    kind = next(kind for kind in _NUMBERS if isinstance(value, kind))
    return jax.typeof(kind()).dtype


def _to_tensor(value: Any, dtype: tf.DType) -> tf.Tensor:
    if isinstance(value, tf.Tensor):
        return cast_if_needed(value, dtype)
    if isinstance(value, _ARRAYS):
        if is_key(value.dtype):
            value = jax.random.key_data(cast(jax.Array, value))
        if value.dtype == jax.dtypes.float0:
            return tf.zeros(value.shape, dtype)
        return tf.convert_to_tensor(np.asarray(value).astype(dtype.as_numpy_dtype, copy=False))
    return tf.convert_to_tensor(value, dtype)


def dtype_of_val(val: Any) -> tf.DType:
    """Returns the TensorFlow dtype in which `convert` takes a value, by JAX's rules.

    Args:
      val: a number, or an array of TensorFlow, NumPy or JAX.

    Returns:
      The dtype of the value, with 32 bits instead of 64 unless jax_enable_x64 is set. A Python
      number has JAX's default dtype for its kind; a typed PRNG key becomes uint32 words, float0
      becomes bool, and 4-bit integers become 8-bit.

    Raises:
      DTypeError: it is none of these, JAX or TensorFlow has no such dtype, or a Python integer
        does not fit.

    >>> dtype_of_val(1), dtype_of_val(tf.constant(1.0, tf.float64))
    (tf.int32, tf.float32)
    """
    value = to_array(val)
    if value is None:
        raise DTypeError(
            "dtype_of_val takes a number or an array of TensorFlow, NumPy or JAX. "
            f"Got: {val!r} of type {type(val).__name__}. For a structure of them, map it over "
            "the leaves with tf.nest.map_structure."
        )
    is_tensor = isinstance(value, tf.Tensor)
    jax_type = value.dtype.as_numpy_dtype if is_tensor else _get_jax_type(value)
    spec = jax.ShapeDtypeStruct((), jax_dtype(jax_type, "val"))
    dtype = op_dtype(portable_aval(spec), "val")
    if not is_in_range(value, dtype):
        raise DTypeError(
            f"{value} does not fit {dtype.name}. Set jax_enable_x64, or pass it as a float."
        )
    return dtype
