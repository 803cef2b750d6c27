"""Converts arguments and results between JAX and TensorFlow, and checks declared results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax.export import is_symbolic_dim

from jax2tf_bridge.errors import DTypeError, ShapeError, StructureError
from jax2tf_bridge.from_jax import dim_from_jax
from jax2tf_bridge.from_jax.arguments import is_key, is_narrow, portable_aval
from jax2tf_bridge.from_jax.trees import check_dict_keys
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.to_tensorflow import tf_compat


def convert_argument(leaf: Any, label: str, name: str) -> Any:
    """Converts an argument to a JAX array; tracers stay as they are.

    Raises:
      DTypeError: the argument is not an array or number, or TensorFlow lacks its dtype.
    """
    if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable):
        raise DTypeError(
            f"The argument {label} of {name} is a TensorFlow value: {leaf!r:.200}. Functions "
            "made by call_tf take JAX or NumPy arrays: pass value.numpy()."
        )
    if isinstance(leaf, jax.Array) or getattr(leaf, "dtype", None) == jax.dtypes.float0:
        value = leaf
    else:
        try:
            if isinstance(leaf, (str, bytes)):
                raise TypeError("text")
            value = jnp.asarray(leaf)
        except OverflowError as e:
            raise DTypeError(
                f"The argument {label} of {name} is {leaf!r:.200}, which is too large for JAX's "
                "int32. Pass a float, or set jax.config.update('jax_enable_x64', True)."
            ) from e
        except (TypeError, ValueError) as e:
            raise DTypeError(
                f"The argument {label} of {name} must be an array or a number. Got: {leaf!r:.200} "
                f"of type {type(leaf).__name__}. Bind other values beforehand: "
                "call_tf(functools.partial(f, ...))."
            ) from e
    _check_dtype(value, label, name)
    return value


def _check_dtype(value: Any, label: str, name: str) -> None:
    dtype = value.dtype
    if is_key(dtype):
        hint = "Pass its words: jax.random.key_data(key)."
    elif dtype == jax.dtypes.float0:
        hint = "It is the tangent of an integer, and has no values: leave it out."
    elif is_narrow(Aval((), np.dtype(dtype).name)):
        hint = "TensorFlow misreads values of fewer than 8 bits: pass it as int8 or uint8."
    elif not _has_tensorflow_dtype(np.dtype(dtype).name):
        hint = "Convert it before, for instance with x.astype('float32')."
    else:
        return
    shown = "float0" if dtype == jax.dtypes.float0 else dtype
    raise DTypeError(
        f"The argument {label} of {name} has dtype {shown}, which TensorFlow {tf.__version__} "
        f"cannot take. {hint}"
    )


def _has_tensorflow_dtype(name: str) -> bool:
    try:
        tf.as_dtype(name)
    except TypeError:
        return False
    return True


def make_tensor_spec(aval: Aval) -> tf.TensorSpec:
    """Makes a tf.TensorSpec from an aval; symbolic sizes become unknown."""
    sizes = [size if isinstance(size, int) else None for size in aval.shape]
    return tf.TensorSpec(sizes, tf.as_dtype(aval.dtype))


def get_aval(value: Any) -> Aval:
    """Returns the aval of a JAX array, or of a tensor or tf.TensorSpec of known shape."""
    if tf.is_tensor(value) or isinstance(value, tf.TensorSpec):
        return Aval(tuple(value.shape.as_list()), value.dtype.name)
    return portable_aval(value)


def uses_64_bits() -> bool:
    """Returns whether jax_enable_x64 is on."""
    return bool(canonical_dtype(tf.float64) == tf.float64)


def canonical_dtype(dtype: tf.DType) -> tf.DType:
    """Returns JAX's dtype for `dtype`; 64-bit dtypes become 32-bit without jax_enable_x64.

    Raises:
      TypeError: JAX has no such dtype.
    """
    if dtype in (tf.string, tf.resource, tf.variant) or dtype.is_quantized:
        raise TypeError(dtype)
    return tf.as_dtype(jax.dtypes.canonicalize_dtype(dtype.as_numpy_dtype))


def make_jax_aval(shape: Sequence[Any], dtype: str) -> Any:
    """Makes a JAX abstract value; sizes may be JAX's symbolic dimensions."""
    zero = np.zeros((), tf.as_dtype(dtype).as_numpy_dtype)
    sizes = tuple(1 if is_symbolic_dim(size) else size for size in shape)
    return jax.typeof(np.broadcast_to(zero, sizes)).update(shape=tuple(shape))


class Unspecified:
    """The type of UNSPECIFIED, the default of output_shape_dtype; None declares no results."""

    def __repr__(self) -> str:
        return "<unspecified>"


UNSPECIFIED = Unspecified()


@dataclass(frozen=True)
class DeclaredResults:
    """Results that the user declared.

    Attributes:
      structure: the pytree structure.
      avals: the shapes and dtypes.
      shapes: the shapes, with JAX's symbolic dimensions.
    """

    structure: Any
    avals: tuple[Aval, ...]
    shapes: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(output_shape_dtype: Any, name: str, *, graph: bool) -> DeclaredResults | None:
        """Reads output_shape_dtype.

        Args:
          output_shape_dtype: a pytree of jax.ShapeDtypeStruct. None is a pytree without leaves, for
            a function without results; UNSPECIFIED declares nothing.
          name: the name of the function in error messages.
          graph: whether the function is embedded as a graph, so that sizes may be symbolic.

        Raises:
          ShapeError: a size is not a number.
          StructureError: a leaf has no shape and dtype.
          DTypeError: TensorFlow or JAX lacks a dtype.
        """
        if output_shape_dtype is UNSPECIFIED:
            return None
        leaves, structure = jax.tree_util.tree_flatten(output_shape_dtype)
        avals, shapes = [], []
        for leaf in leaves:
            # np.float32 and tf.TensorSpec have these attributes too.
            is_other = isinstance(leaf, (type, tf.TypeSpec))
            if is_other or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
                raise StructureError(
                    f"output_shape_dtype of call_tf({name}) must be a pytree of "
                    f"jax.ShapeDtypeStruct. Got: {leaf!r} of type {type(leaf).__name__}."
                )
            sizes = tuple(leaf.shape)
            if not all(
                isinstance(size, (int, np.integer)) or (graph and is_symbolic_dim(size))
                for size in sizes
            ):
                symbolic = any(map(is_symbolic_dim, sizes))
                hint = " Symbolic sizes need call_tf_graph=True." if symbolic else ""
                raise ShapeError(
                    f"output_shape_dtype of call_tf({name}) must have numbers as sizes. Got: "
                    f"{sizes}.{hint}"
                )
            avals.append(
                Aval(tuple(map(dim_from_jax, sizes)), _check_declared_dtype(leaf.dtype, name))
            )
            shapes.append(sizes)
        return DeclaredResults(structure, tuple(avals), tuple(shapes))

    def check(self, tensors: Sequence[tf.Tensor], structure: Any, name: str) -> None:
        """Compares the results with the declaration, as far as their shapes are known.

        Raises:
          StructureError, ShapeError, DTypeError: they differ.
        """
        if structure != self.structure:
            raise StructureError(
                f"The TensorFlow function {name} returns another structure than "
                f"output_shape_dtype declares. Declared: {self.structure}. Got: {structure}."
            )
        labels = _label_results(structure)
        for label, tensor, aval in zip(labels, tensors, self.avals, strict=True):
            narrow = canonical_dtype(tf.as_dtype(aval.dtype)).name
            if narrow != aval.dtype:
                raise DTypeError(
                    f"output_shape_dtype of call_tf({name}) declares {aval.dtype} for "
                    f"{label[0].lower()}{label[1:]}, and JAX has values of 64 bits only with "
                    f"jax_enable_x64. Declare {narrow}, which such results become without it; or "
                    'set jax.config.update("jax_enable_x64", True).'
                )
            if not tensor.shape.is_compatible_with(make_tensor_spec(aval).shape):
                raise ShapeError(
                    f"{label} of the TensorFlow function {name} has another shape than "
                    f"output_shape_dtype declares. Declared: {aval.shape}. Got: {tensor.shape}."
                )
            if tensor.dtype.name != aval.dtype:
                raise DTypeError(
                    f"{label} of the TensorFlow function {name} has another dtype than "
                    f"output_shape_dtype declares. Declared: {aval.dtype}. Got: "
                    f"{tensor.dtype.name}."
                )


def _check_declared_dtype(dtype: Any, name: str) -> str:
    try:
        tf_dtype = tf.as_dtype(np.dtype(dtype).name)
        canonical_dtype(tf_dtype)
    except TypeError as e:
        raise DTypeError(
            f"output_shape_dtype of call_tf({name}) declares the dtype {dtype}, which JAX and "
            "TensorFlow do not share. Declare a dtype of numbers."
        ) from e
    return str(tf_dtype.name)


def _label_results(structure: Any) -> list[str]:
    """Labels each leaf of the results for error messages."""
    tree = structure.unflatten([0] * structure.num_leaves)
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [f"The result {jax.tree_util.keystr(path)}".strip() for path, _ in paths]


def flatten_results(
    value: Any, name: str, declared: DeclaredResults | None
) -> tuple[list[tf.Tensor], Any]:
    """Flattens results and casts them to JAX's dtypes; returns them and their pytree structure.

    Raises:
      StructureError: a result is not a tensor.
      DTypeError: JAX lacks the dtype of a result.
      StructureError, ShapeError, DTypeError: the results are not as declared.
    """
    try:
        value = jax.tree_util.tree_map(
            tf_compat.unwrap_containers, value, is_leaf=tf_compat.is_wrapper
        )
        leaves, structure = jax.tree_util.tree_flatten(value)
    except ValueError:
        check_dict_keys(value, "The result", f" of the TensorFlow function {name}")
        raise
    labels = _label_results(structure)
    tensors = [_to_tensor(leaf, label, name) for leaf, label in zip(leaves, labels, strict=True)]
    if declared is not None:
        declared.check(tensors, structure, name)
    return tensors, structure


_DENSE_ADVICE = {
    tf.RaggedTensor: "ragged.to_tensor(shape=...)",
    tf.SparseTensor: "tf.sparse.to_dense(sparse)",
}


def _to_tensor(leaf: Any, label: str, name: str) -> tf.Tensor:
    if isinstance(leaf, (str, bytes)) or getattr(leaf, "dtype", None) == tf.string:
        raise DTypeError(
            f"{label} of the TensorFlow function {name} is a string, which JAX lacks. Return "
            "numbers, such as indices into a table of strings."
        )
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise StructureError(
            f"{label} of the TensorFlow function {name} is a {type(leaf).__name__}, but JAX "
            f"has only dense arrays. Return {_DENSE_ADVICE[type(leaf)]}."
        )
    try:
        tensor = tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as e:
        raise StructureError(
            f"{label} of the TensorFlow function {name} is neither a tensor nor an array nor a "
            f"number: {leaf!r:.200} of type {type(leaf).__name__}. Return tensors only."
        ) from e
    try:
        return tf.cast(tensor, canonical_dtype(tensor.dtype))
    except TypeError as e:
        raise DTypeError(
            f"{label} of the TensorFlow function {name} has dtype {tensor.dtype.name}, which JAX "
            "does not have. Convert it with tf.cast."
        ) from e
