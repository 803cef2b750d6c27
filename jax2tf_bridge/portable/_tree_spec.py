"""Pytree structures, and the structure of a function's arguments, without JAX and TensorFlow."""

from __future__ import annotations

import copyreg
import keyword
from collections import namedtuple
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

from jax2tf_bridge.errors import StructureError, format_bullets

NodeKind: TypeAlias = Literal["leaf", "none", "tuple", "list", "dict", "namedtuple", "custom"]


@dataclass(frozen=True)
class NodeCodec:
    """Functions that flatten and unflatten objects of a registered node type.

    `flatten` returns None for an object whose static data differ from those at export. `static`
    holds the static data, in the form of the type's registration with JAX.
    """

    node_type: type
    flatten: Callable[[Any], Sequence[Any] | None]
    unflatten: Callable[[Sequence[Any]], Any]
    static: Any = None


@dataclass(frozen=True)
class StoredType:
    """A name by which another process finds the type of a stored node.

    Attributes:
      name: the name registered for files; else the import path, such as "optax.EmptyState".
      is_registered: whether `name` is a registered name.
      auxdata: static data of a custom node, serialized by its registration, or plain values as
        JSON; None if the values are not plain.
    """

    name: str
    is_registered: bool
    auxdata: bytes | None = None


@dataclass(frozen=True)
class TreeSpec:
    """The structure of a pytree.

    Attributes:
      kind: the kind of node.
      name: the type's name for named tuples and custom nodes, else "".
      keys: a dict's keys in JAX's order, a named tuple's fields, or the names of a custom node's
        children, if it has any.
      children: one structure per child.
      codec: for named tuples and custom nodes, the functions of the type in this process. Portable
        functions from another process have none; the node is then a named tuple of the same fields,
        a dict if the children have names, else a tuple.
      serialized_name: the name under which a named tuple's or custom node's type is registered for
        files; "" if it is not.
      auxdata: a custom node's static data, serialized by its registration; None if it has none.
      stored_type: for stored structures, how another process finds the type; ignored in
        comparisons.

    >>> spec = TreeSpec("dict", keys=("a", "b"), children=(LEAF, LEAF))
    >>> spec.flatten({"b": 2, "a": 1}), spec.unflatten(iter([1, 2]))
    ([1, 2], {'a': 1, 'b': 2})
    """

    kind: NodeKind
    name: str = ""
    keys: tuple[Hashable, ...] = ()
    children: tuple[TreeSpec, ...] = ()
    codec: NodeCodec | None = field(default=None, compare=False, repr=False)
    serialized_name: str = ""
    auxdata: bytes | None = None
    stored_type: StoredType | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # serialization._stored_types registers its reducer in copyreg, which picklers with their
        # own dispatch table ignore.
        by_names = copyreg.dispatch_table.get(TreeSpec)
        if by_names is not None:
            return cast("tuple[Any, ...]", by_names(self))
        # The codec is dropped, because its functions belong to this process.
        fields = (self.kind, self.name, self.keys, self.children)
        return (TreeSpec, (*fields, None, self.serialized_name, self.auxdata, self.stored_type))

    def __deepcopy__(self, memo: object) -> TreeSpec:
        # It is frozen, and copying through a pickle would lose unregistered types.
        return self

    @property
    def leaf_count(self) -> int:
        """The number of leaves."""
        return 1 if self.kind == "leaf" else sum(c.leaf_count for c in self.children)

    def flatten(self, value: Any, path: str = "") -> list[Any]:
        """Flattens `value` into its leaves, in order.

        Raises:
          StructureError: `value` has another structure; the message lists all differences.
        """
        leaves: list[Any] = []
        differences: list[str] = []
        self.flatten_into(value, path, leaves, differences)
        refuse_differences(differences)
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """Builds a tree of this structure, and takes its leaves from the front of `leaves`."""
        leaves = iter(leaves)
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "none":
            return None
        children = [child.unflatten(leaves) for child in self.children]
        if self.codec is not None:
            return self.codec.unflatten(children)
        if self.kind == "list":
            return children
        if self.kind == "tuple":
            return tuple(children)
        if self.kind == "namedtuple":
            return _make_stand_in(self.name, self.keys)(*children)
        if self.keys or self.kind == "dict":
            return dict(zip(self.keys, children, strict=True))
        return tuple(children)

    def leaf_paths(self, path: str = "") -> Iterator[str]:
        """Yields the path to each leaf, as a Python expression that begins with `path`."""
        if self.kind == "leaf":
            yield path
        for step, child in zip(self.steps(), self.children, strict=True):
            yield from child.leaf_paths(path + step)

    def __str__(self) -> str:
        if self.kind in ("leaf", "none"):
            return "*" if self.kind == "leaf" else "None"
        if self.kind == "list":
            return f"[{', '.join(map(str, self.children))}]"
        if self.kind == "tuple":
            return f"({', '.join(map(str, self.children))}{',' * (len(self.children) == 1)})"
        if self.kind == "dict":
            pairs = zip(self.keys, self.children, strict=True)
            return "{" + ", ".join(f"{k!r}: {c}" for k, c in pairs) + "}"
        return f"{self.name}({', '.join(map(str, self.children))})"

    def steps(self) -> list[str]:
        """Returns the Python accessor of each child: "[0]", "['w']", ".mean"."""
        if self.kind == "dict":
            return [f"[{k!r}]" for k in self.keys]
        if self.keys:
            return [f".{k}" if str(k).isidentifier() else f"[{k!r}]" for k in self.keys]
        return [f"[{i}]" for i in range(len(self.children))]

    def flatten_into(self, value: Any, path: str, leaves: list[Any], problems: list[str]) -> None:
        """Appends the leaves of `value` to `leaves`, and its differences to `problems`."""
        if self.kind == "leaf":
            if value is None or isinstance(value, (tuple, list, Mapping)):
                problems.append(_describe_difference(path, "an array", value))
            leaves.append(value)
            return
        children = self._list_children(value, path, problems)
        if children is not None:
            for step, spec, child in zip(self.steps(), self.children, children, strict=True):
                spec.flatten_into(child, path + step, leaves, problems)

    def _list_children(self, value: Any, path: str, problems: list[str]) -> Sequence[Any] | None:
        """Returns the children of `value`; if it does not match, None, and adds to `problems`."""
        if self.kind == "none":
            if value is not None:
                problems.append(_describe_difference(path, "None", value))
            return ()
        if self.codec is not None and type(value) is self.codec.node_type:
            children = self.codec.flatten(value)
            if children is not None and len(children) == len(self.children):
                return children
            problems.append(
                f"{path or 'the arguments'}: the {self.name} differs in its static data or "
                "in its number of children"
            )
            return None
        elif self.kind == "dict" or (self.kind == "custom" and self.keys):
            if isinstance(value, Mapping):
                return self._index_by_key(value, path, problems)
        elif self.kind == "namedtuple":
            fields = getattr(value, "_fields", None)
            if isinstance(value, tuple) and fields == self.keys:
                return value
        elif isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            expected = list if self.kind == "list" else tuple
            if isinstance(value, expected) and len(value) == len(self.children):
                return value
        problems.append(_describe_difference(path, self._describe(), value))
        return None

    def _index_by_key(
        self, value: Mapping[Any, Any], path: str, problems: list[str]
    ) -> Sequence[Any] | None:
        missing = [k for k in self.keys if k not in value]
        unexpected = [k for k in value if k not in self.keys]
        if not missing and not unexpected:
            return [value[k] for k in self.keys]
        place = path or "the arguments"
        problems += [f"{place}: the key {k!r} is missing" for k in missing]
        problems += [f"{place}: the key {k!r} is not expected" for k in unexpected]
        return None

    def _describe(self) -> str:
        count = len(self.children)
        if self.kind in ("tuple", "list"):
            return f"a {self.kind} of length {count}"
        if self.kind == "dict":
            return f"a dict with the keys {list(self.keys)}"
        stand_in = "" if self.codec else f" (as {'a dict' if self.keys else 'a tuple'} here)"
        return f"a {self.name} of {count} children{stand_in}"


def _make_stand_in(name: str, fields: Sequence[Hashable]) -> Callable[..., Any]:
    """Creates a named tuple type for an unknown one; a file may contain any name."""
    usable = name if name.isidentifier() and not keyword.iskeyword(name) else "NamedTuple"
    return namedtuple(usable, [str(f) for f in fields], rename=True)


LEAF = TreeSpec("leaf")


def refuse_differences(differences: Sequence[str]) -> None:
    if differences:
        raise StructureError(
            "The arguments do not have the structure that the function was exported with:"
            + format_bullets(differences)
        )


def _describe_difference(path: str, expected: str, value: Any) -> str:
    kind = type(value).__name__
    got = f"an {kind}" if kind[0] in "aeiouAEIOU" else f"a {kind}"
    if value is None:
        got = "None"
    elif isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        got += f" of length {len(value)}"
    elif isinstance(value, Mapping):
        got += f" with the keys {list(value)}"
    return f"{path or 'the arguments'}: expected {expected}, got {got}"


def flat_tuple(count: int) -> TreeSpec:
    """Returns the structure of a tuple of `count` arrays."""
    return TreeSpec("tuple", children=(LEAF,) * count)


def flat_call(count: int) -> TreeSpec:
    """Returns the structure of (args, kwargs) for `count` positional arrays."""
    return TreeSpec("tuple", children=(flat_tuple(count), TreeSpec("dict")))


def flat_names(count: int) -> tuple[str, ...]:
    """Returns names for `count` positional arguments: x0, x1, ..."""
    return tuple(f"x{i}" for i in range(count))


@dataclass(frozen=True)
class CallStructure:
    """The structure of a function's arguments, by name.

    Attributes:
      args: (name, structure) for each positional argument.
      kwargs: (name, structure) for each keyword argument, in JAX's order.

    >>> leaf = TreeSpec("leaf")
    >>> weights = TreeSpec("dict", keys=("w", "b"), children=(leaf, leaf))
    >>> call = CallStructure((("x", leaf), ("p", weights)))
    >>> call.paths(), call.flatten([1, {"b": 3, "w": 2}])
    (('x', "p['w']", "p['b']"), [1, 2, 3])
    >>> call.without(["p['w']", "x"]).unflatten([3])
    (({'b': 3},), {})
    """

    args: tuple[tuple[str, TreeSpec], ...]
    kwargs: tuple[tuple[str, TreeSpec], ...] = ()

    @staticmethod
    def of(in_tree: TreeSpec, argument_names: Sequence[str]) -> CallStructure:
        """Creates it from the structure of (args, kwargs) of a portable function."""
        args, kwargs = in_tree.children
        keys = map(str, kwargs.keys)
        return CallStructure(
            tuple(zip(argument_names, args.children, strict=True)),
            tuple(zip(keys, kwargs.children, strict=True)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the positional arguments."""
        return tuple(name for name, _ in self.args)

    def arguments(self) -> tuple[tuple[str, TreeSpec], ...]:
        """Returns all arguments, positional ones first."""
        return (*self.args, *self.kwargs)

    def paths(self) -> tuple[str, ...]:
        """Returns the path of each leaf as a Python expression: "x", "params['w']"."""
        return tuple(path for name, tree in self.arguments() for path in tree.leaf_paths(name))

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Flattens the arguments of a call into their leaves, in order.

        Raises:
          StructureError: the arguments have another structure; the message lists all differences.
        """
        keywords = {} if kwargs is None else kwargs
        leaves: list[Any] = []
        differences: list[str] = []
        if len(args) != len(self.args):
            differences.append(
                f"the positional arguments: expected {len(self.args)} ({', '.join(self.names)}), "
                f"got {len(args)}"
            )
        # Not strict, so that differences within the arguments are listed as well.
        for (name, tree), value in zip(self.args, args, strict=False):
            tree.flatten_into(value, name, leaves, differences)
        known = dict(self.kwargs)
        differences += [f"the keyword argument {k} is missing" for k in known if k not in keywords]
        differences += [
            f"the keyword argument {k} is not expected" for k in keywords if k not in known
        ]
        for name, tree in self.kwargs:
            if name in keywords:
                tree.flatten_into(keywords[name], name, leaves, differences)
        refuse_differences(differences)
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Builds (args, kwargs) from leaves in order."""
        leaf_iterator: Iterator[Any] = iter(leaves)
        args = tuple(tree.unflatten(leaf_iterator) for _, tree in self.args)
        return args, {name: tree.unflatten(leaf_iterator) for name, tree in self.kwargs}

    def without(self, paths: Collection[str]) -> CallStructure:
        """Drops the leaves at some paths, and arguments that have no other leaves."""
        return self._map_arguments(lambda name, tree: _drop_leaves(tree, name, paths))

    def map(self, change: Callable[[TreeSpec], TreeSpec]) -> CallStructure:
        """Applies a function to the structure of each argument."""
        return self._map_arguments(lambda _, tree: change(tree))

    def _map_arguments(self, change: Callable[[str, TreeSpec], TreeSpec | None]) -> CallStructure:
        args, kwargs = (
            tuple((name, new) for name, tree in side if (new := change(name, tree)) is not None)
            for side in (self.args, self.kwargs)
        )
        return CallStructure(args, kwargs)


def _drop_leaves(tree: TreeSpec, path: str, left_out: Collection[str]) -> TreeSpec | None:
    """Drops the leaves at some paths; returns None if no leaf is left."""
    if not left_out:
        return tree
    if tree.kind == "leaf":
        return None if path in left_out else tree
    children = [
        _drop_leaves(child, path + step, left_out)
        for step, child in zip(tree.steps(), tree.children, strict=True)
    ]
    if not children or all(a is b for a, b in zip(children, tree.children, strict=True)):
        return tree
    if all(child is None for child in children):
        return None
    if not tree.keys:
        none = TreeSpec("none")
        return replace(tree, children=tuple(none if c is None else c for c in children))
    remaining_pairs = [(k, c) for k, c in zip(tree.keys, children, strict=True) if c is not None]
    keys = tuple(key for key, _ in remaining_pairs)
    # A node type needs all of its children, so the rest becomes a dict, or a custom node of an
    # unknown type with the same names and order.
    kind: NodeKind = "dict" if tree.kind == "dict" else "custom"
    return TreeSpec(kind, tree.name, keys, tuple(child for _, child in remaining_pairs))
