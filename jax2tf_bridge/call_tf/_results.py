"""Flattens what TensorFlow functions return, and compares it with what was declared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.export import is_symbolic_dim

from jax2tf_bridge.call_tf._values import canonical_dtype, tensor_spec
from jax2tf_bridge.errors import DTypeError, ShapeError, StructureError
from jax2tf_bridge.from_jax.shapes._symbols import dim_from_jax
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.to_tf import _tf_compat


class Unspecified:
    """Default of output_shape_dtype, for which None declares no results."""

    def __repr__(self) -> str:
        return "<unspecified>"


UNSPECIFIED = Unspecified()


@dataclass(frozen=True)
class Declared:
    """Results that the user declared.

    Attributes:
      structure: the pytree that they form.
      avals: their shapes and dtypes.
      shapes: their shapes as JAX has them.
    """

    structure: Any
    avals: tuple[Aval, ...]
    shapes: tuple[tuple[Any, ...], ...]

    @staticmethod
    def of(output_shape_dtype: Any, name: str, *, graph: bool) -> Declared | None:
        """Reads output_shape_dtype.

        Args:
          output_shape_dtype: a pytree of types; None is one without leaves, of a function without
            results, and UNSPECIFIED is no declaration.
          name: of the function, for messages.
          graph: whether sizes may be symbolic, since the function is carried along as a graph.

        Raises:
          ShapeError: a size in it is not a number.
          StructureError: a leaf of it has no shape and dtype.
          DTypeError: a dtype in it is one that TensorFlow or JAX lacks.
        """
        if output_shape_dtype is UNSPECIFIED:
            return None
        leaves, structure = jax.tree_util.tree_flatten(output_shape_dtype)
        avals, shapes = [], []
        for leaf in leaves:
            is_type = isinstance(leaf, type)  # np.float32 has these attributes too
            if is_type or not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
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
            avals.append(Aval(tuple(map(dim_from_jax, sizes)), _declared_dtype(leaf.dtype, name)))
            shapes.append(sizes)
        return Declared(structure, tuple(avals), tuple(shapes))

    def check(self, found: Sequence[tf.Tensor], structure: Any, name: str) -> None:
        """Raises unless the results are as declared, as far as their shapes are known.

        Raises:
          StructureError, ShapeError, DTypeError: they are not.
        """
        if structure != self.structure:
            raise StructureError(
                f"The TensorFlow function {name} returns another structure than "
                f"output_shape_dtype declares. Declared: {self.structure}. Got: {structure}."
            )
        labels = result_labels(structure)
        for label, tensor, aval in zip(labels, found, self.avals, strict=True):
            narrow = canonical_dtype(tf.as_dtype(aval.dtype)).name
            if narrow != aval.dtype:
                raise DTypeError(
                    f"output_shape_dtype of call_tf({name}) declares {aval.dtype} for "
                    f"{label[0].lower()}{label[1:]}, and JAX has values of 64 bits only with "
                    f"jax_enable_x64. Declare {narrow}, which such results become without it; or "
                    'set jax.config.update("jax_enable_x64", True).'
                )
            if not tensor.shape.is_compatible_with(tensor_spec(aval).shape):
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


def _declared_dtype(dtype: Any, name: str) -> str:
    try:
        found = tf.as_dtype(np.dtype(dtype).name)
        canonical_dtype(found)
    except TypeError as e:
        raise DTypeError(
            f"output_shape_dtype of call_tf({name}) declares the dtype {dtype}, which JAX and "
            "TensorFlow do not share. Declare a dtype of numbers."
        ) from e
    return str(found.name)


def result_labels(structure: Any) -> list[str]:
    """For each leaf of the results what messages call it."""
    tree = structure.unflatten([0] * structure.num_leaves)
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [f"The result {jax.tree_util.keystr(path)}".strip() for path, _ in paths]


def flatten_results(
    value: Any, name: str, declared: Declared | None
) -> tuple[list[tf.Tensor], Any]:
    """Flattens results, in dtypes that JAX has; returns the pytree that they form, too.

    Raises:
      StructureError: one of them is no tensor.
      DTypeError: JAX has no such dtype.
      StructureError, ShapeError, DTypeError: they are not as declared.
    """
    value = jax.tree_util.tree_map(_tf_compat.unwrapped, value, is_leaf=_tf_compat.is_wrapper)
    leaves, structure = jax.tree_util.tree_flatten(value)
    labels = result_labels(structure)
    tensors = [_tensor(leaf, label, name) for leaf, label in zip(leaves, labels, strict=True)]
    if declared is not None:
        declared.check(tensors, structure, name)
    return tensors, structure


def _tensor(leaf: Any, label: str, name: str) -> tf.Tensor:
    if isinstance(leaf, (str, bytes)) or getattr(leaf, "dtype", None) == tf.string:
        raise DTypeError(
            f"{label} of the TensorFlow function {name} is a string, and JAX has none. Return "
            "numbers, such as indices into a table of strings."
        )
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise StructureError(
            f"{label} of the TensorFlow function {name} is a {type(leaf).__name__}, and JAX has "
            f"dense arrays alone. Return {_DENSE[type(leaf)]}."
        )
    try:
        tensor = tf.convert_to_tensor(leaf)
    except (TypeError, ValueError) as e:
        raise StructureError(
            f"{label} of the TensorFlow function {name} is neither a tensor nor an array nor a "
            f"number: {leaf!r:.200} of type {type(leaf).__name__}."
        ) from e
    try:
        return tf.cast(tensor, canonical_dtype(tensor.dtype))
    except TypeError as e:
        raise DTypeError(
            f"{label} of the TensorFlow function {name} has dtype {tensor.dtype.name}, which JAX "
            "does not have. Convert it with tf.cast."
        ) from e


_DENSE = {
    tf.RaggedTensor: "ragged.to_tensor(shape=...)",
    tf.SparseTensor: "tf.sparse.to_dense(sparse)",
}
