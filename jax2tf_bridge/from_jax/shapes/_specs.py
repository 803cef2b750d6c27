"""From arguments and polymorphic_shapes to symbolic shapes, and to what JAX traces with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import Argument, DTypeError, Message, ShapeError, StructureError
from jax2tf_bridge.from_jax._argument_advice import close_over
from jax2tf_bridge.from_jax._argument_types import shape_and_dtype
from jax2tf_bridge.from_jax._callables import JaxCallable
from jax2tf_bridge.from_jax._trees import rebuilt
from jax2tf_bridge.from_jax.shapes._argument_specs import ArraySpec, AutoSpec
from jax2tf_bridge.from_jax.shapes._knowledge import Knowledge
from jax2tf_bridge.from_jax.shapes._shape_proposals import proposed_shapes, shape_with_names
from jax2tf_bridge.from_jax.shapes._size_words import CONSTRAINTS, SHAPES
from jax2tf_bridge.from_jax.shapes._spec_entries import entry_text, is_entry, specs_of_arguments
from jax2tf_bridge.from_jax.shapes._spec_errors import shape_problem
from jax2tf_bridge.from_jax.shapes._symbols import scope_from_jax
from jax2tf_bridge.portable._auto import Auto
from shape_poly import (
    Comparison,
    ContradictionError,
    Dim,
    SymbolicScope,
    evaluate_shape,
    is_symbolic_dim,
    shape_text,
    solve_dimensions,
    symbolic_shape,
    undetermined,
)


@dataclass(frozen=True)
class Specs:
    """What to trace with.

    Attributes:
      dynamic: (args, kwargs) with ArraySpecs at the leaves, or AutoSpecs as long as they are not
        decided; None in the place of static arguments.
      names: of the positional arguments.
      static_args, static_kwargs: the static values, by position and by name.
      constraints: those of the scopes of JAX's own symbolic dimensions among the arguments.
    """

    dynamic: tuple[tuple[Any, ...], dict[str, Any]]
    static_args: Mapping[int, Any]
    static_kwargs: Mapping[str, Any]
    names: tuple[str, ...]
    constraints: tuple[Comparison, ...] = ()

    def leaves(self) -> list[ArraySpec | AutoSpec]:
        """The specs, in the order of the flat arguments."""
        leaves: list[ArraySpec | AutoSpec] = jax.tree_util.tree_leaves(self.dynamic)
        return leaves

    def shapes(self) -> list[tuple[Dim, ...]]:
        """The shapes of the arguments, in the order of the flat arguments; AUTO's are left out."""
        return [leaf.shape for leaf in self.leaves() if isinstance(leaf, ArraySpec)]

    @property
    def decided(self) -> bool:
        """Whether there is nothing for AUTO to decide."""
        return not any(isinstance(leaf, AutoSpec) for leaf in self.leaves())

    def paths(self) -> list[str]:
        """For each flat argument how a user would write it: "x", "params['w']"."""
        keyed: tuple[list[tuple[Any, Any]], Any] = jax.tree_util.tree_flatten_with_path(
            self.dynamic
        )
        return [
            (self.names[argument.idx] if side.idx == 0 else str(argument.key))
            + jax.tree_util.keystr(tuple(rest))
            for (side, argument, *rest), _ in keyed[0]
        ]

    def check_solvable(self, name: str, scope: SymbolicScope) -> None:
        """Raises unless the values of the variables follow from the sizes of the arguments.

        Raises:
          ShapeError: they do not; where the variables occur is said.
        """
        problem = undetermined(self.shapes(), self.paths(), scope.constraints)
        if problem is not None:
            raise ShapeError(
                f"The shapes of {name}'s arguments do not determine its dimension variables: "
                f"{problem}"
            )

    def texts(self) -> list[Any] | dict[str, Any]:
        """The specification of each argument, to write as polymorphic_shapes.

        By position, unless an argument by keyword has one.
        """
        args, kwargs = self.dynamic
        positional = [_spec_texts(arg) for arg in args]
        keyword = {name: _spec_texts(arg) for name, arg in kwargs.items()}
        if not any(text is not None for text in keyword.values()):
            return positional
        named = {**dict(zip(self.names, positional, strict=True)), **keyword}
        return {name: text for name, text in named.items() if text is not None}

    def description(self) -> str:
        """The shapes of the arguments with dimensions that stay open, for people."""
        shapes = [
            f"{shape_text(shape)} for {path}"
            for path, shape in zip(self.paths(), self.shapes(), strict=True)
            if any(map(is_symbolic_dim, shape))
        ]
        return ", ".join(shapes) or "to leave nothing open"

    def numbers(self) -> dict[str, Any]:
        """The arguments that were numbers of Python, by name."""
        args, kwargs = self.dynamic
        named = {**dict(zip(self.names, args, strict=True)), **kwargs}
        return {
            name: spec.number
            for name, spec in named.items()
            if isinstance(spec, ArraySpec) and spec.number is not None
        }

    def argument_of(self, leaf: int) -> int:
        """The number of the argument that a flat argument is in, those by keyword last."""
        args, kwargs = self.dynamic
        counts = [len(jax.tree_util.tree_leaves(a)) for a in (*args, *kwargs.values())]
        ends = itertools.accumulate(counts)
        return next(i for i, end in enumerate(ends) if leaf < end)

    def with_shapes(self, shapes: Sequence[tuple[Dim, ...] | None]) -> Specs:
        """The same with these shapes for the flat arguments; None keeps what is there."""
        tree: Any = jax.tree_util.tree_structure(self.dynamic)
        leaves = [
            leaf if shape is None else _with_shape(leaf, shape)
            for leaf, shape in zip(self.leaves(), shapes, strict=True)
        ]
        return replace(self, dynamic=rebuilt(tree, leaves))

    def variables(self) -> frozenset[str]:
        """The names of the dimension variables."""
        dimensions = [d for shape in self.shapes() for d in shape]
        return frozenset[str]().union(*(d.variables() for d in dimensions if is_symbolic_dim(d)))

    def under(self, knowledge: Knowledge) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to trace with, (args, kwargs), under what is known of the sizes."""
        scope = knowledge.new_scope()
        args: tuple[Any, ...]
        leaves: list[Any]
        structure: Any
        leaves, structure = jax.tree_util.tree_flatten(self.dynamic)
        args, kwargs = rebuilt(structure, [leaf.placed(knowledge, scope) for leaf in leaves])
        return (
            tuple(self.static_args.get(i, arg) for i, arg in enumerate(args)),
            {**kwargs, **self.static_kwargs},
        )

    def example(self) -> dict[str, int]:
        """The sizes of the variables with which the arguments were given, where they follow."""
        known = [
            (leaf.shape, leaf.example)
            for leaf in self.leaves()
            if isinstance(leaf, ArraySpec) and leaf.example is not None
        ]
        return solve_dimensions([shape for shape, _ in known], [sizes for _, sizes in known])

    def at(self, sizes: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments to trace with, (args, kwargs), for numbers in the place of variables."""
        numbers = [evaluate_shape(shape, sizes) for shape in self.shapes()]
        shapes = [tuple(size for size in shape if size is not None) for shape in numbers]
        return self.with_shapes(shapes).under(Knowledge(SymbolicScope()))

    def key(self) -> tuple[Any, ...]:
        """Equal for equal shapes and dtypes; of AutoSpecs the rank alone counts.

        Says nothing of the static values: a pytree of them has parts that are no leaves.
        """
        leaves, tree = jax.tree_util.tree_flatten(self.dynamic)
        return (
            tree,
            *(
                (len(leaf.sizes) if isinstance(leaf, AutoSpec) else leaf.shape, str(leaf.dtype))
                for leaf in leaves
            ),
        )


def _with_shape(leaf: ArraySpec | AutoSpec, shape: tuple[Dim, ...]) -> ArraySpec:
    if isinstance(leaf, ArraySpec):
        return replace(leaf, shape=shape)
    return ArraySpec(shape, leaf.dtype, leaf.sharding, leaf.example)


def _spec_texts(argument: Any) -> Any:
    """The specification of an argument of ArraySpecs; None if it has no open dimension."""
    leaves: list[ArraySpec] = jax.tree_util.tree_leaves(argument)
    if not any(is_symbolic_dim(d) for leaf in leaves for d in leaf.shape):
        return None
    structure: Any = jax.tree_util.tree_structure(argument)
    texts = [shape_text(leaf.shape) for leaf in leaves]
    try:
        return rebuilt(structure, texts)
    except StructureError:  # nobody can write them in a type that takes no texts
        return texts


def symbolic_specs(
    function: JaxCallable,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    polymorphic_shapes: Any,
) -> Specs:
    """The specs of the arguments, with symbolic dimensions where polymorphic_shapes has them.

    Args:
      function: whose arguments they are; its static ones pass through.
      args: pytrees of arrays, ShapeDtypeStructs or OpenSpecs.
      kwargs: likewise, by keyword.
      polymorphic_shapes: None, one string or AUTO for all positional arguments, a prefix of the
        args pytree with strings, AUTO and None at its leaves, or a dict of such prefixes by the
        names of arguments, those by keyword among them. Others keep their shapes.

    Raises:
      StructureError: polymorphic_shapes is no prefix of the arguments.
      ShapeError: a shape contradicts its specification, or a dimension that is not known has
        none; the argument's path is named.
      DTypeError: JAX has no such dtype.
    """
    names = function.argument_names(len(args))
    positional, by_name = specs_of_arguments(polymorphic_shapes, names, kwargs, function.name)
    static_args = {i: arg for i, arg in enumerate(args) if function.is_static(i)}
    static_kwargs = {k: v for k, v in kwargs.items() if k in function.static_argnames}
    by_position = {
        name: None if i in static_args else arg
        for i, (name, arg) in enumerate(zip(names, args, strict=True))
    }
    by_keyword = {k: v for k, v in kwargs.items() if k not in static_kwargs}
    for name, value in {**by_position, **by_keyword}.items():
        if isinstance(value, str):
            raise DTypeError(
                f"The argument {name} of {function.name} is the string {value!r:.80}, and JAX "
                f"computes with numbers alone. {close_over(function, names, name, value)}"
            )
    try:
        dynamic = (
            tuple(
                None if i in static_args else _symbolic_tree(arg, entry, name)
                for i, (arg, entry, name) in enumerate(zip(args, positional, names, strict=True))
            ),
            {k: _symbolic_tree(v, by_name.get(k), k) for k, v in by_keyword.items()},
        )
    except ShapeError as e:
        proposal = proposed_shapes(
            polymorphic_shapes, by_position, by_keyword, positional, by_name, _symbolic_tree
        )
        if proposal is None:
            raise
        written = Argument(SHAPES.name, proposal)
        raise ShapeError(Message(e, " Write: ", written)) from e.__cause__
    leaves = jax.tree_util.tree_leaves(((*args,), dict(kwargs)))
    return Specs(dynamic, static_args, static_kwargs, names, _constraints_of(leaves))


def _constraints_of(leaves: Sequence[Any]) -> tuple[Comparison, ...]:
    """The constraints of the scopes of JAX's own symbolic dimensions."""
    dimensions = [d for leaf in leaves for d in getattr(leaf, "shape", ())]
    scopes = {id(d.scope): d.scope for d in dimensions if jax_export.is_symbolic_dim(d)}
    constraints = [c for scope in scopes.values() for c in scope_from_jax(scope).constraints]
    return tuple(dict.fromkeys(constraints))


def scope_of(constraints: Sequence[str]) -> SymbolicScope:
    """The scope of the constraints that the user wrote.

    Raises:
      ShapeError: one cannot be read, or they contradict each other.
    """
    try:
        return SymbolicScope(constraints)
    except ContradictionError as e:
        raise ShapeError(Message(CONSTRAINTS, f": {e}")) from e
    except ValueError as e:
        meant = "".join(did_you_mean(c, ["infer"], quoted=True) for c in constraints)
        written = Argument(CONSTRAINTS.name, list(constraints))
        raise ShapeError(Message(written, f" cannot be read{meant or f': {e}'}")) from e


def _symbolic_tree(argument: Any, shape_spec: Any, name: str) -> Any:
    try:
        specs = jax.tree_util.tree_map(
            # A list, since the type of a subtree may refuse them.
            lambda spec, subtree: [_Spec(spec)] * len(jax.tree_util.tree_leaves(subtree)),
            shape_spec,
            argument,
            is_leaf=is_entry,
        )
    except ValueError as e:
        entry = isinstance(shape_spec, (tuple, list))
        hint = (
            f" A shape is written as a string: {shape_with_names(shape_spec)!r}."
            if entry and all(isinstance(d, int) or d is None for d in shape_spec)
            else ""
        )
        raise StructureError(
            Message(
                SHAPES,
                f" for the argument {name} is {shape_spec!r}, which is no prefix of the argument's "
                f"structure.{hint}",
            )
        ) from e
    keyed: tuple[list[tuple[Any, Any]], Any] = jax.tree_util.tree_flatten_with_path(argument)
    leaves, tree = keyed
    flat_specs = jax.tree_util.tree_leaves(specs)
    symbolic = [
        _symbolic_leaf(leaf, spec.text, name + jax.tree_util.keystr(path))
        for (path, leaf), spec in zip(leaves, flat_specs, strict=True)
    ]
    return rebuilt(tree, symbolic)


@dataclass(frozen=True)
class _Spec:
    """A specification as a leaf, since None is none to a pytree."""

    text: Any


def _symbolic_leaf(leaf: Any, shape_spec: Any, path: str) -> ArraySpec | AutoSpec:
    shape, dtype = shape_and_dtype(leaf, path)
    sharding, weak = None, False
    if isinstance(leaf, jax.ShapeDtypeStruct):
        sharding, weak = leaf.sharding, bool(getattr(leaf, "weak_type", False))
    if isinstance(shape_spec, Auto):
        return AutoSpec(shape, dtype, sharding)
    shape_spec = entry_text(shape_spec, f"the argument {path}")
    if all(isinstance(d, (int, type(None))) for d in shape):
        number = leaf if isinstance(leaf, complex | float | int) else getattr(leaf, "number", None)
        fixed = _symbolic(shape_spec, shape, path)
        return ArraySpec(fixed, dtype, sharding, shape, weak, number)
    # Of JAX's own making: by jax.export.symbolic_shape.
    open_shape = _symbolic(", ".join(map(str, shape)), None, path)
    return ArraySpec(open_shape, dtype, sharding, weak_type=weak)


def _symbolic(
    shape_spec: str | None, shape: Sequence[int | None] | None, path: str
) -> tuple[Dim, ...]:
    try:
        return symbolic_shape(shape_spec, like=shape)
    except ValueError as e:
        raise ShapeError(shape_problem(shape or (), shape_spec, path, e)) from e
