"""From arguments and polymorphic_shapes to the symbolic ShapeDtypeStructs that JAX traces."""

from __future__ import annotations

import functools
import tokenize
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export as jax_export

from jax2tf_bridge._errors import DTypeError, ShapeError, StructureError
from jax2tf_bridge.from_jax._avals import is_key
from jax2tf_bridge.from_jax._callables import JaxCallable


@dataclass(frozen=True)
class OpenSpec:
    """The shape and dtype of an argument of which some dimensions (None) are not known."""

    shape: tuple[int | None, ...]
    dtype: Any


@dataclass(frozen=True)
class Specs:
    """What to trace with: ShapeDtypeStructs, and static values as they are.

    `dynamic` is the pytree of the ShapeDtypeStructs alone.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    dynamic: Any

    def key(self) -> tuple[Any, ...]:
        """Equal for equal shapes and dtypes, also where the scopes of the symbols differ.

        Says nothing of the static values: a pytree of them has parts that are no leaves.
        """
        leaves, tree = jax.tree_util.tree_flatten(self.dynamic)
        return (tree, *((str(leaf.shape), str(leaf.dtype)) for leaf in leaves))


def symbolic_specs(
    function: JaxCallable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    polymorphic_shapes: Any,
    constraints: Sequence[str],
) -> Specs:
    """The specs of the arguments, with symbolic dimensions where polymorphic_shapes has them.

    Args:
      function: whose arguments they are; its static ones pass through.
      args: pytrees of arrays, ShapeDtypeStructs or OpenSpecs.
      kwargs: likewise, by keyword.
      polymorphic_shapes: None, one string for all, or a prefix of the args pytree with strings
        and None at its leaves. Keyword arguments keep their shapes.
      constraints: on the dimension variables, as "b >= 2".

    Raises:
      StructureError: polymorphic_shapes is no prefix of the arguments.
      ShapeError: a shape contradicts its specification, or a dimension that is not known has
        none; the argument's path is named.
      DTypeError: JAX has no such dtype.
    """
    scope = _scope(constraints)
    names = function.argument_names(len(args))
    per_argument = _specs_of_arguments(polymorphic_shapes, args, kwargs, function)
    new_args = tuple(
        arg if function.is_static(i) else _symbolic_tree(arg, shape_spec, name, scope)
        for i, (arg, shape_spec, name) in enumerate(zip(args, per_argument, names, strict=True))
    )
    new_kwargs = {
        name: value
        if name in function.static_argnames
        else _symbolic_tree(value, None, name, scope)
        for name, value in kwargs.items()
    }
    dynamic = (
        [None if function.is_static(i) else a for i, a in enumerate(new_args)],
        {k: v for k, v in new_kwargs.items() if k not in function.static_argnames},
    )
    return Specs(new_args, new_kwargs, dynamic)


def _scope(constraints: Sequence[str]) -> jax_export.SymbolicScope:
    try:
        return jax_export.SymbolicScope(tuple(constraints))
    except (ValueError, tokenize.TokenError) as e:
        raise ShapeError(
            f"polymorphic_constraints {list(constraints)} cannot be read: {e}. Write each as "
            "'b >= 2', 'b <= 2*c' or 'mod(b, 8) == 0'."
        ) from e


def _specs_of_arguments(
    polymorphic_shapes: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    function: JaxCallable,
) -> Sequence[Any]:
    if polymorphic_shapes is None or _is_spec(polymorphic_shapes):
        return [polymorphic_shapes] * len(args)
    if isinstance(polymorphic_shapes, (list, tuple)) and len(polymorphic_shapes) == len(args):
        return polymorphic_shapes
    by_keyword = (
        f" ({', '.join(kwargs)} came by keyword, which has no entry: pass it by position to give "
        "it one)"
        if kwargs
        else ""
    )
    raise StructureError(
        f"polymorphic_shapes of {function.name} must be None, a string, or a sequence with one "
        f"entry for each of the {len(args)} positional arguments{by_keyword}. "
        f"Got: {polymorphic_shapes!r}"
    )


def _is_spec(value: Any) -> bool:
    # jax2tf's PolyShape is a tuple of dimensions of a type of its own.
    return value is None or isinstance(value, str) or type(value).__name__ == "PolyShape"


def _symbolic_tree(
    argument: Any, shape_spec: Any, name: str, scope: jax_export.SymbolicScope
) -> Any:
    try:
        specs = jax.tree_util.tree_map(
            lambda spec, subtree: jax.tree_util.tree_map(lambda _: _Spec(spec), subtree),
            shape_spec,
            argument,
            is_leaf=_is_spec,
        )
    except ValueError as e:
        entry = isinstance(shape_spec, (tuple, list))
        hint = (
            " A shape is written as a string, for instance '(b, 28)'."
            if entry and all(isinstance(d, int) or d is None for d in shape_spec)
            else ""
        )
        raise StructureError(
            f"polymorphic_shapes for the argument {name} is {shape_spec!r}, which is no prefix of "
            f"the argument's structure.{hint}"
        ) from e
    keyed: tuple[list[tuple[Any, Any]], Any] = jax.tree_util.tree_flatten_with_path(argument)
    leaves, tree = keyed
    flat_specs = jax.tree_util.tree_leaves(specs)
    return tree.unflatten(
        _symbolic_leaf(leaf, spec.text, name + jax.tree_util.keystr(path), scope)
        for (path, leaf), spec in zip(leaves, flat_specs, strict=True)
    )


@dataclass(frozen=True)
class _Spec:
    """A specification as a leaf, since None is none to a pytree."""

    text: Any


def _symbolic_leaf(
    leaf: Any, shape_spec: Any, path: str, scope: jax_export.SymbolicScope
) -> jax.ShapeDtypeStruct:
    shape, dtype = shape_and_dtype(leaf, path)
    if shape_spec is not None and not isinstance(shape_spec, str):
        shape_spec = ", ".join("..." if d is ... else str(d) for d in shape_spec)
    try:
        symbolic = jax_export.symbolic_shape(shape_spec, like=shape, scope=scope)
    # An IndexError: more dimensions than the shape has. A TokenError: an open parenthesis.
    except (ValueError, IndexError, tokenize.TokenError) as e:
        detail = f" ({e})" if isinstance(e, ValueError) else ""
        raise ShapeError(_shape_problem(shape, shape_spec, path, detail)) from e
    # JAX compares with the shape only where the specification has placeholders.
    fits = len(symbolic) == len(shape) and all(
        known is None or not isinstance(d, int) or d == known
        for d, known in zip(symbolic, shape, strict=True)
    )
    if not fits:
        raise ShapeError(_shape_problem(shape, shape_spec, path, ""))
    sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.ShapeDtypeStruct) else None
    return jax.ShapeDtypeStruct(symbolic, dtype, sharding=sharding)


def _shape_problem(
    shape: Sequence[int | None], shape_spec: str | None, path: str, cause: str
) -> str:
    shown = f"({', '.join('?' if d is None else str(d) for d in shape)})"
    if None in shape and (shape_spec is None or len(shape) == _dimension_count(shape_spec)):
        proposal = ", ".join(f"d{i}" if d is None else str(d) for i, d in enumerate(shape))
        return (
            f"The argument {path} has shape {shown} with a dimension that is not known, and its "
            f"polymorphic_shapes entry {shape_spec!r} names no variable for it. "
            f"Write for instance: polymorphic_shapes=[..., '({proposal})', ...].{cause}"
        )
    count = _dimension_count(shape_spec or "")
    differs = count != len(shape) and "..." not in (shape_spec or "")
    ranks = f" It names {count} dimensions, and the argument has {len(shape)}." if differs else ""
    return (
        f"The argument {path} has shape {shown}, which does not match its polymorphic_shapes "
        f"entry: expected {shape_spec!r}, got {shown}.{ranks}{cause}"
    )


def _dimension_count(shape_spec: str) -> int:
    return len([d for d in shape_spec.strip("() ").split(",") if d.strip()])


def shape_and_dtype(leaf: Any, path: str) -> tuple[tuple[Any, ...], Any]:
    """The shape of an argument, and its dtype as JAX would take it (64 bits only with x64).

    Raises:
      DTypeError: it is no array, or JAX has no such dtype.
    """
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        try:
            leaf = jax.typeof(leaf)
        except TypeError as e:
            raise DTypeError(
                f"The argument {path} must be an array, a scalar or a ShapeDtypeStruct. "
                f"Got: {leaf!r} of type {type(leaf).__name__}"
            ) from e
    return tuple(leaf.shape), jax_dtype(leaf.dtype, path)


def jax_dtype(dtype: Any, path: str) -> Any:
    """`dtype` as JAX takes it.

    Raises:
      DTypeError: JAX has no such dtype.
    """
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        if is_key(dtype):
            return dtype
    elif dtype == jax.dtypes.float0:
        return dtype
    else:
        canonical = jax.dtypes.canonicalize_dtype(np.dtype(dtype))
        if _is_known_to_jax(canonical):
            return canonical
    raise DTypeError(
        f"The argument {path} has dtype {dtype}, which JAX does not have. "
        "Convert it to a number before the JAX function, for instance with tf.cast."
    )


@functools.cache
def _is_known_to_jax(dtype: np.dtype[Any]) -> bool:
    try:
        jax.eval_shape(lambda: jax.numpy.zeros((), dtype))
    except TypeError:
        return False
    return True
