"""Names of jax.experimental.export, the removed predecessor of jax.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import DTypeError, ShapeError, StructureError
from jax2tf_bridge.from_jax import dim_to_jax, scope_from_jax, to_exported
from jax2tf_bridge.from_jax.arguments import shape_and_dtype
from jax2tf_bridge.from_jax.shapes import entry_text, is_entry
from jax2tf_bridge.jax_export._export import (
    Exported,
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from jax2tf_bridge.portable import PortableFunction, as_portable_function
from shape_poly import symbolic_shape

default_lowering_platform = jax_export.default_export_platform
"""Older name of default_export_platform."""
minimum_supported_serialization_version = minimum_supported_calling_convention_version
"""Older name of minimum_supported_calling_convention_version."""
maximum_supported_serialization_version = maximum_supported_calling_convention_version
"""Older name of maximum_supported_calling_convention_version."""


def poly_spec(
    arg_shape: Sequence[int | None],
    arg_dtype: Any,
    polymorphic_shape: Any,
    *,
    scope: jax_export.SymbolicScope | None = None,
) -> jax.ShapeDtypeStruct:
    """Returns the specification of an array argument whose shape may have symbolic dimensions.

    Args:
      arg_shape: the sizes of the argument, with None for unknown sizes.
      arg_dtype: the dtype of the argument.
      polymorphic_shape: a string such as "(b, 28, ...)", where "_" stands for one of the sizes and
        "..." for the remaining ones; or a tuple or jax2tf.PolyShape of such entries. None stands
        for the shape of the argument.
      scope: the scope of JAX for the variables; a new scope by default. JAX does not accept
        dimensions of several scopes together, while `jax2tf_bridge.export` does.

    Returns:
      A ShapeDtypeStruct with symbolic dimensions of JAX.

    Raises:
      ShapeError: the specification has a syntax error, or contradicts a known size or the
        constraints of the scope.
      DTypeError: JAX does not have the dtype.

    >>> poly_spec((None, 28), "float32", "b, _").shape
    (b, 28)
    """
    shape_spec = entry_text(polymorphic_shape, f"an argument of shape {tuple(arg_shape)}")
    scope = jax_export.SymbolicScope() if scope is None else scope
    try:
        shape = symbolic_shape(shape_spec, like=tuple(arg_shape), scope=scope_from_jax(scope))
    except ValueError as e:
        raise ShapeError(f"poly_spec for an argument of shape {tuple(arg_shape)}: {e}") from e
    try:
        return jax.ShapeDtypeStruct(tuple(dim_to_jax(d, scope) for d in shape), arg_dtype)
    except TypeError as e:
        raise DTypeError(
            f"arg_dtype must be a dtype of JAX, as 'float32'. Got: {arg_dtype!r}"
        ) from e


def shape_and_dtype_jax_array(a: Any) -> tuple[tuple[Any, ...], Any]:
    """Returns the shape and dtype of an array, a scalar or a ShapeDtypeStruct.

    Raises:
      DTypeError: `a` is none of these, or JAX does not have its dtype.
    """
    return shape_and_dtype(a, "a")


def poly_specs(
    args: Any,
    polymorphic_shapes: Any,
    get_shape_and_dtype: Callable[[Any], tuple[Sequence[Any], Any]] = shape_and_dtype_jax_array,
) -> Any:
    """Returns the specifications of arguments, whose symbolic dimensions share one scope.

    Args:
      args: a pytree of arguments.
      polymorphic_shapes: a `polymorphic_shape` of `poly_spec` for all leaves, or a prefix of `args`
        with such leaves. If `args` is a tuple, the prefix may be a list.
      get_shape_and_dtype: returns the shape of a leaf, with None for unknown sizes, and its dtype.

    Returns:
      `args` with a jax.ShapeDtypeStruct for each leaf.

    Raises:
      StructureError: polymorphic_shapes is not a prefix of `args`.
      ShapeError: as for `poly_spec`.

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
            lambda spec, subtree: jax.tree_util.tree_map(lambda leaf: (leaf, spec), subtree),
            polymorphic_shapes,
            args,
            is_leaf=is_entry,
        )
    except ValueError as e:
        raise StructureError(
            f"polymorphic_shapes is {polymorphic_shapes!r}, which is not a prefix of the structure "
            f"of the arguments, {jax.tree_util.tree_structure(args)}."
        ) from e
    tree: Any = jax.tree_util.tree_structure(args)
    return tree.unflatten(spec_of(*entry) for entry in tree.flatten_up_to(entries))


args_specs = poly_specs
"""Older name of poly_specs."""


def call(exported: jax_export.Exported | PortableFunction) -> Callable[..., Any]:
    """Returns a function that runs `exported` in JAX: its method `call`.

    Raises:
      FunctionError: `exported` is neither an Exported nor a portable function.
    """
    if isinstance(exported, jax_export.Exported):
        return exported.call
    return to_exported(as_portable_function(exported, "call")).call


call_exported = call
"""Older name of call."""


def serialize(exported: Exported | PortableFunction, vjp_order: int = 0) -> bytearray:
    """Returns the bytes of a .jaxfn file, like the method Exported.serialize.

    Raises:
      FunctionError: `exported` is neither an Exported of the bridge nor a portable function.
      SerializationError, InconclusiveShapeError, ValueError: as for Exported.serialize.
    """
    portable = as_portable_function(exported, "serialize")
    return Exported(portable).serialize(vjp_order)
