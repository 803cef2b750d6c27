"""Specifications of arguments: made of polymorphic_shapes, and converted to JAX's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge.errors import Argument, DTypeError, Message, ShapeError, StructureError
from jax2tf_bridge.from_jax._symbols import dim_to_jax, scope_from_jax
from jax2tf_bridge.from_jax.arguments import JaxCallable, advise_closure, shape_and_dtype
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions
from jax2tf_bridge.from_jax.shapes._entries import (
    describe_problem,
    entry_text,
    find_entries,
    format_with_names,
    is_entry,
    propose_shapes,
)
from jax2tf_bridge.from_jax.shapes._options import SHAPES
from jax2tf_bridge.from_jax.trees import check_dict_keys, rebuild_tree, tree_spec
from jax2tf_bridge.portable import Auto, TreeSpec
from shape_poly import (
    Comparison,
    Dim,
    SymbolicScope,
    evaluate_shape,
    is_symbolic_dim,
    shape_text,
    solve_dimensions,
    symbolic_shape,
)


@dataclass(frozen=True)
class _ShapeAndDType:
    shape: tuple[Any, ...]
    dtype: Any

    @property
    def ndim(self) -> int:
        """Number of dimensions; pytree types may use it."""
        return len(self.shape)


@dataclass(frozen=True)
class OpenSpec(_ShapeAndDType):
    """Shape and dtype of an argument, with None for unknown sizes.

    Attributes:
      number: the argument, if it was a Python number.
    """

    shape: tuple[int | None, ...]
    number: complex | None = None


@dataclass(frozen=True)
class ArraySpec(_ShapeAndDType):
    """Shape and dtype of an argument, with the user's dimension variables.

    Attributes:
      example: the shape of the actual argument, with None for unknown sizes.
      number: the argument, if it was a Python number.
    """

    shape: tuple[Dim, ...]
    sharding: Any = None
    example: tuple[int | None, ...] | None = None
    weak_type: bool = False
    number: complex | None = None

    def to_jax(
        self, assumptions: SizeAssumptions, scope: jax_export.SymbolicScope
    ) -> jax.ShapeDtypeStruct:
        """Converts it to JAX's specification, in the scope of the assumptions."""
        shape = tuple(dim_to_jax(assumptions.to_jax(d), scope) for d in self.shape)
        return jax.ShapeDtypeStruct(
            shape, self.dtype, sharding=self.sharding, weak_type=self.weak_type
        )


@dataclass(frozen=True)
class AutoSpec(_ShapeAndDType):
    """Shape (with None for unknown sizes) and dtype of an argument that is left to AUTO."""

    shape: tuple[int | None, ...]
    sharding: Any = None

    @property
    def example(self) -> tuple[int | None, ...]:
        """Shape of the actual argument, as in ArraySpec."""
        return self.shape

    def with_shape(self, shape: tuple[Dim, ...]) -> ArraySpec:
        """Makes the specification with the shape that AUTO chose."""
        return ArraySpec(shape, self.dtype, self.sharding, self.example)


@dataclass(frozen=True)
class Specs:
    """Specifications of all arguments of a function, to trace it with.

    Attributes:
      dynamic: (args, kwargs) with ArraySpecs, or still undecided AutoSpecs, as leaves; static
        arguments are None.
      names: the names of the positional arguments.
      static_args, static_kwargs: the static values, by position and by name.
      constraints: the constraints of JAX's own symbolic dimensions among the arguments.
    """

    dynamic: tuple[tuple[Any, ...], dict[str, Any]]
    static_args: Mapping[int, Any]
    static_kwargs: Mapping[str, Any]
    names: tuple[str, ...]
    constraints: tuple[Comparison, ...] = ()

    def leaves(self) -> list[ArraySpec | AutoSpec]:
        """Lists the specs, in the order of the flat arguments."""
        leaves: list[ArraySpec | AutoSpec] = jax.tree_util.tree_leaves(self.dynamic)
        return leaves

    def shapes(self) -> list[tuple[Dim, ...]]:
        """Lists the shapes of the flat arguments, without undecided ones."""
        return [leaf.shape for leaf in self.leaves() if isinstance(leaf, ArraySpec)]

    @property
    def is_decided(self) -> bool:
        """Returns whether no argument is left to AUTO."""
        return not any(isinstance(leaf, AutoSpec) for leaf in self.leaves())

    def arguments(self) -> list[tuple[str, Any]]:
        """Lists the arguments by name, in the order of their leaves; None for a static one."""
        args, kwargs = self.dynamic
        return [*zip(self.names, args, strict=True), *sorted(kwargs.items())]

    def paths(self) -> list[str]:
        """Returns the path of each flat argument in Python's syntax: "x", "params['w']"."""
        return [
            name + jax.tree_util.keystr(path)
            for name, argument in self.arguments()
            for path, _ in jax.tree_util.tree_flatten_with_path(argument)[0]
        ]

    def structure(self) -> tuple[TreeSpec, tuple[str, ...]]:
        """Returns the structure of (args, kwargs) and the names of args, without static ones."""
        args, kwargs = self.dynamic
        dynamic = [i for i in range(len(args)) if i not in self.static_args]
        tree = tree_spec((tuple(args[i] for i in dynamic), kwargs))
        return tree, tuple(self.names[i] for i in dynamic)

    def texts(self) -> list[Any] | dict[str, Any]:
        """Returns the specifications as polymorphic_shapes.

        The result is a list by position, or a dict by name if a keyword argument has an open size.
        """
        texts = [(name, _format_specs(argument)) for name, argument in self.arguments()]
        positional = [text for _, text in texts[: len(self.names)]]
        if all(text is None for _, text in texts[len(self.names) :]):
            return positional
        return {name: text for name, text in texts if text is not None}

    def description(self) -> str:
        """Describes the shapes that have open dimensions, for people."""
        shapes = [
            f"{shape_text(shape)} for {path}"
            for path, shape in zip(self.paths(), self.shapes(), strict=True)
            if any(map(is_symbolic_dim, shape))
        ]
        return ", ".join(shapes) or "to leave nothing open"

    def numbers(self) -> dict[str, Any]:
        """Returns the arguments that were Python numbers, by name."""
        return {
            name: spec.number
            for name, spec in self.arguments()
            if isinstance(spec, ArraySpec) and spec.number is not None
        }

    def integer_tuples(self) -> dict[str, tuple[int, ...]]:
        """Returns the arguments that were tuples or lists of Python integers, by name."""
        numbers: dict[str, Any] = {
            name: tuple(getattr(leaf, "number", None) for leaf in value)
            for name, value in self.arguments()
            if type(value) in (tuple, list)
        }
        return {name: value for name, value in numbers.items() if _is_integer_tuple(value)}

    def arguments_of_leaves(self) -> list[int]:
        """Returns the index of the argument that each leaf is in; keyword arguments are last."""
        trees = [argument for _, argument in self.arguments()]
        return [i for i, tree in enumerate(trees) for _ in jax.tree_util.tree_leaves(tree)]

    def with_shapes(self, shapes: Sequence[tuple[Dim, ...] | None]) -> Specs:
        """Returns the specs with these shapes of the flat arguments; None keeps a shape."""
        leaves = [
            leaf
            if shape is None
            else leaf.with_shape(shape)
            if isinstance(leaf, AutoSpec)
            else replace(leaf, shape=shape)
            for leaf, shape in zip(self.leaves(), shapes, strict=True)
        ]
        tree = jax.tree_util.tree_structure(self.dynamic)
        return replace(self, dynamic=rebuild_tree(tree, leaves))

    def variables(self) -> frozenset[str]:
        """Returns the names of the dimension variables."""
        dimensions = [d for shape in self.shapes() for d in shape]
        return frozenset[str]().union(*(d.variables() for d in dimensions if is_symbolic_dim(d)))

    def arguments_under(
        self, assumptions: SizeAssumptions, scope: jax_export.SymbolicScope
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) for a trace under assumptions, in JAX's scope of them."""
        leaves, structure = jax.tree_util.tree_flatten(self.dynamic)
        args, kwargs = rebuild_tree(structure, [leaf.to_jax(assumptions, scope) for leaf in leaves])
        return (
            tuple(self.static_args.get(i, arg) for i, arg in enumerate(args)),
            {**kwargs, **self.static_kwargs},
        )

    def example(self) -> dict[str, int]:
        """Solves for the variables' sizes in the actual arguments."""
        known = [
            (leaf.shape, leaf.example)
            for leaf in self.leaves()
            if isinstance(leaf, ArraySpec) and leaf.example is not None
        ]
        return solve_dimensions([shape for shape, _ in known], [sizes for _, sizes in known])

    def arguments_at(self, sizes: Mapping[str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns (args, kwargs) for a trace at concrete sizes."""
        numbers = [evaluate_shape(shape, sizes) for shape in self.shapes()]
        shapes = [tuple(size for size in shape if size is not None) for shape in numbers]
        nothing = SizeAssumptions(SymbolicScope())
        return self.with_shapes(shapes).arguments_under(nothing, nothing.new_scope())

    def key(self) -> tuple[Any, ...]:
        """Returns a cache key of all dtypes and shapes; an AutoSpec counts only with its rank.

        The key does not cover static values, because a pytree of them may have non-leaf data.
        """
        leaves, tree = jax.tree_util.tree_flatten(self.dynamic)
        return (
            tree,
            *(
                (leaf.ndim if isinstance(leaf, AutoSpec) else leaf.shape, str(leaf.dtype))
                for leaf in leaves
            ),
        )


def _format_specs(argument: Any) -> Any:
    """Returns the specification of an argument as texts; None if it has no open dimension."""
    leaves, structure = jax.tree_util.tree_flatten(argument)
    if not any(is_symbolic_dim(d) for leaf in leaves for d in leaf.shape):
        return None
    texts = [shape_text(leaf.shape) for leaf in leaves]
    try:
        return rebuild_tree(structure, texts)
    except StructureError:  # the pytree type does not accept texts as leaves
        return texts


def symbolic_specs(
    function: JaxCallable, args: Sequence[Any], kwargs: Mapping[str, Any], polymorphic_shapes: Any
) -> Specs:
    """Makes the specifications of the arguments, with symbolic dimensions from polymorphic_shapes.

    Args:
      function: the function; its static arguments are passed through.
      args: pytrees of arrays, ShapeDtypeStructs or OpenSpecs.
      kwargs: such pytrees by keyword.
      polymorphic_shapes: None, one string or AUTO for all positional arguments, a prefix of the
        args pytree with strings, AUTO and None as leaves, or a dict of such prefixes by argument
        name, including keyword arguments. Other arguments keep their shapes.

    Raises:
      StructureError: polymorphic_shapes is not a prefix of the arguments.
      ShapeError: a shape contradicts its specification, or an unknown size has none; the text has
        the argument's path.
      DTypeError: JAX has no such dtype.
    """
    names = function.argument_names(len(args))
    positional, by_name = find_entries(polymorphic_shapes, names, kwargs, function.name)
    static_positions = function.static_positions(len(args))
    static_args = {i: arg for i, arg in enumerate(args) if i in static_positions}
    static_kwargs = {k: v for k, v in kwargs.items() if k in function.static_argnames}
    by_keyword = {k: v for k, v in kwargs.items() if k not in static_kwargs}
    arguments = [
        *(
            (name, None if i in static_args else arg, entry)
            for i, (name, arg, entry) in enumerate(zip(names, args, positional, strict=True))
        ),
        *((k, v, by_name.get(k)) for k, v in by_keyword.items()),
    ]
    for name, value, _ in arguments:
        if isinstance(value, str):
            raise DTypeError(
                f"The argument {name} of {function.name} is the string {value!r:.80}, and JAX "
                f"computes with numbers only. {advise_closure(function, names, name, value)}"
            )
    try:
        trees = [
            None if i in static_args else _make_specs(value, entry, name)
            for i, (name, value, entry) in enumerate(arguments)
        ]
    except ShapeError as e:
        for name, value, entry in arguments:
            if isinstance(entry, str) and _is_integer_tuple(value):
                raise ShapeError(explain_shape_as_example(name, tuple(value))) from e
        proposal = propose_shapes(polymorphic_shapes, arguments, len(args), _make_specs)
        if proposal is None:
            raise
        written = Argument(SHAPES.name, proposal)
        raise ShapeError(Message(e, " Write: ", written)) from e.__cause__
    dynamic = tuple(trees[: len(args)]), dict(zip(by_keyword, trees[len(args) :], strict=True))
    leaves = jax.tree_util.tree_leaves([value for _, value, _ in arguments])
    return Specs(dynamic, static_args, static_kwargs, names, _collect_constraints(leaves))


def _is_integer_tuple(value: Any) -> bool:
    return type(value) in (tuple, list) and bool(value) and all(type(d) is int for d in value)


def explain_shape_as_example(name: str, shape: tuple[int, ...]) -> str:
    """Explains that a tuple of integers is not an example of an array of that shape.

    >>> explain_shape_as_example("x", (2, 4)).partition(", which")[0]
    'The argument x is (2, 4)'
    """
    count = f"{len(shape)} integers" if len(shape) > 1 else "an integer"
    return (
        f"The argument {name} is {shape}, which JAX takes as {count} and not as an array of this "
        f"shape. Pass an array, as np.zeros({shape}, np.float32), or "
        f"jax.ShapeDtypeStruct({shape}, np.float32)."
    )


def _collect_constraints(leaves: Sequence[Any]) -> tuple[Comparison, ...]:
    dimensions = [d for leaf in leaves for d in getattr(leaf, "shape", ())]
    scopes = {id(d.scope): d.scope for d in dimensions if jax_export.is_symbolic_dim(d)}
    constraints = [c for scope in scopes.values() for c in scope_from_jax(scope).constraints]
    return tuple(dict.fromkeys(constraints))


def _make_specs(argument: Any, shape_spec: Any, name: str) -> Any:
    try:
        specs = jax.tree_util.tree_map(
            # A list, because the type of a subtree may not accept specifications.
            lambda spec, subtree: [_Entry(spec)] * len(jax.tree_util.tree_leaves(subtree)),
            shape_spec,
            argument,
            is_leaf=is_entry,
        )
    except ValueError as e:
        check_dict_keys(argument, f"The argument {name}")
        hint = ""
        if isinstance(shape_spec, (tuple, list)) and jax.tree_util.all_leaves([argument]):
            shape = ["..." if d is ... else d for d in shape_spec]
            if all(isinstance(d, (int, str, type(None))) for d in shape):
                hint = f" A shape is written as a string: {format_with_names(shape)!r}."
        raise StructureError(
            Message(
                SHAPES,
                f" for the argument {name} is {shape_spec!r}, which is not a prefix of the "
                f"argument's structure.{hint}",
            )
        ) from e
    leaves, tree = jax.tree_util.tree_flatten_with_path(argument)
    entries = jax.tree_util.tree_leaves(specs)
    symbolic = [
        _make_spec(leaf, entry.text, name + jax.tree_util.keystr(path))
        for (path, leaf), entry in zip(leaves, entries, strict=True)
    ]
    return rebuild_tree(tree, symbolic)


@dataclass(frozen=True)
class _Entry:
    """Specification as a leaf, because None is not a leaf of a pytree."""

    text: Any


def _make_spec(leaf: Any, shape_spec: Any, path: str) -> ArraySpec | AutoSpec:
    shape, dtype = shape_and_dtype(leaf, path)
    if any(isinstance(d, int) and d < 0 for d in shape):
        entry = format_with_names([None if isinstance(d, int) and d < 0 else d for d in shape])
        raise ShapeError(
            Message(
                f"The argument {path} has shape {shape}, and sizes are at least 0. To leave a size "
                "open, write ",
                Argument(SHAPES.name, entry),
                ", and pass any size there.",
            )
        )
    sharding, weak = None, False
    if isinstance(leaf, jax.ShapeDtypeStruct):
        sharding, weak = leaf.sharding, bool(getattr(leaf, "weak_type", False))
    if isinstance(shape_spec, Auto):
        return AutoSpec(shape, dtype, sharding)
    shape_spec = entry_text(shape_spec, f"the argument {path}")
    if all(isinstance(d, (int, type(None))) for d in shape):
        number = leaf if isinstance(leaf, complex | float | int) else getattr(leaf, "number", None)
        fixed = _parse_shape(shape_spec, shape, path)
        return ArraySpec(fixed, dtype, sharding, shape, weak, number)
    # The dimensions are the user's, from jax.export.symbolic_shape.
    open_shape = _parse_shape(", ".join(map(str, shape)), None, path)
    return ArraySpec(open_shape, dtype, sharding, weak_type=weak)


def _parse_shape(
    shape_spec: str | None, shape: Sequence[int | None] | None, path: str
) -> tuple[Dim, ...]:
    try:
        return symbolic_shape(shape_spec, like=shape)
    except ValueError as e:
        raise ShapeError(describe_problem(shape or (), shape_spec, path, e)) from e
