"""Names of jax.experimental.export, which JAX had before jax.export and no longer has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import ShapeError, StructureError
from jax2tf_bridge.from_jax import to_exported
from jax2tf_bridge.from_jax.arguments._types import shape_and_dtype
from jax2tf_bridge.from_jax.shapes._entries import entry_text, is_entry
from jax2tf_bridge.from_jax.shapes._symbols import dim_to_jax, scope_from_jax
from jax2tf_bridge.jax_export._export import (
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from jax2tf_bridge.jax_export._exported import Exported
from jax2tf_bridge.portable._as_portable import as_portable_function
from jax2tf_bridge.portable._portable_function import PortableFunction
from shape_poly import symbolic_shape

default_lowering_platform = jax_export.default_export_platform
minimum_supported_serialization_version = minimum_supported_calling_convention_version
maximum_supported_serialization_version = maximum_supported_calling_convention_version


def poly_spec(
    arg_shape: Sequence[int | None],
    arg_dtype: Any,
    polymorphic_shape: Any,
    *,
    scope: jax_export.SymbolicScope | None = None,
) -> jax.ShapeDtypeStruct:
    """Specifies an array argument whose shape is open in places.

    Args:
      arg_shape: its sizes, None for those that are not known.
      arg_dtype: its dtype.
      polymorphic_shape: as "(b, 28, ...)", where "_" takes one of the sizes and "..." the rest;
        None for the shape as it is. A tuple or jax2tf's PolyShape, entry by entry, will do.
      scope: JAX's, for the variables; a new one by default. JAX does not take dimensions of
        several scopes together, which `jax2tf_bridge.export` does.

    Returns:
      A ShapeDtypeStruct with symbolic dimensions of JAX's.

    Raises:
      ShapeError: the specification cannot be read, or contradicts a size that is known, or the
        constraints of the scope.

    >>> poly_spec((None, 28), "float32", "b, _").shape
    (b, 28)
    """
    shape_spec = entry_text(polymorphic_shape, f"an argument of shape {tuple(arg_shape)}")
    scope = jax_export.SymbolicScope() if scope is None else scope
    try:
        shape = symbolic_shape(shape_spec, like=tuple(arg_shape), scope=scope_from_jax(scope))
    except ValueError as e:
        raise ShapeError(f"poly_spec for an argument of shape {tuple(arg_shape)}: {e}") from e
    return jax.ShapeDtypeStruct(tuple(dim_to_jax(d, scope) for d in shape), arg_dtype)


def shape_and_dtype_jax_array(a: Any) -> tuple[tuple[Any, ...], Any]:
    """Returns shape and dtype of an array, a scalar or a ShapeDtypeStruct.

    Raises:
      DTypeError: it is none of these, or JAX has no such dtype.
    """
    return shape_and_dtype(a, "a")


def poly_specs(
    args: Any,
    polymorphic_shapes: Any,
    get_shape_and_dtype: Callable[[Any], tuple[Sequence[Any], Any]] = shape_and_dtype_jax_array,
) -> Any:
    """Specifies arguments whose shapes are open in places, in one scope.

    Args:
      args: a pytree of arguments.
      polymorphic_shapes: None or one specification, as of `poly_spec`, for all, or a prefix of the
        structure of `args` with such leaves; where `args` is a tuple, a list will do.
      get_shape_and_dtype: gives the shape, with None for unknown sizes, and dtype of a leaf.

    Returns:
      `args` with a jax.ShapeDtypeStruct for each leaf.

    Raises:
      StructureError: polymorphic_shapes is no prefix.
      ShapeError: as `poly_spec`.

    >>> import numpy as np
    >>> poly_specs({"x": np.ones((3, 2)), "y": np.ones(3)}, "b, ...")["y"].shape
    (b,)
    """
    scope = jax_export.SymbolicScope()
    if isinstance(args, tuple) and isinstance(polymorphic_shapes, list):
        polymorphic_shapes = tuple(polymorphic_shapes)

    def spec_of(leaf: Any, spec: Any) -> jax.ShapeDtypeStruct:
        shape, dtype = get_shape_and_dtype(leaf)
        return poly_spec(shape, dtype, spec, scope=scope)

    try:
        entries = jax.tree_util.tree_map(
            lambda spec, below: jax.tree_util.tree_map(lambda leaf: (leaf, spec), below),
            polymorphic_shapes,
            args,
            is_leaf=is_entry,
        )
    except ValueError as e:
        raise StructureError(
            f"polymorphic_shapes is {polymorphic_shapes!r}, which is no prefix of the structure "
            f"of the arguments, {jax.tree_util.tree_structure(args)}."
        ) from e
    tree: Any = jax.tree_util.tree_structure(args)
    return tree.unflatten(spec_of(*entry) for entry in tree.flatten_up_to(entries))


args_specs = poly_specs


def call(exported: jax_export.Exported | PortableFunction) -> Callable[..., Any]:
    """Returns the function that runs in JAX, which is the method `call`.

    Raises:
      FunctionError: it is neither an Exported nor a portable function.
    """
    if isinstance(exported, jax_export.Exported):
        return exported.call
    return to_exported(as_portable_function(exported, "call")).call


call_exported = call


def serialize(exported: Exported | PortableFunction, vjp_order: int = 0) -> bytearray:
    """Writes a .jaxfn file; the method `serialize`.

    Raises:
      FunctionError: it is neither an Exported nor a portable function.
      SerializationError, InconclusiveShapeError, ValueError: as the method.
    """
    portable = as_portable_function(exported, "serialize")
    return Exported(portable).serialize(vjp_order)
