"""The structure of a function's arguments: positional ones with names, and keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax2tf_bridge.portable._tree_spec import NodeKind, TreeSpec, refuse_differences


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
        """Creates a Call from the structure of (args, kwargs) of a portable function."""
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
            expected = f"{len(self.args)} positional arguments ({', '.join(self.names)})"
            differences.append(f"the positional arguments: expected {expected}, got {len(args)}")
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
        rest: Iterator[Any] = iter(leaves)
        args = tuple(tree.unflatten(rest) for _, tree in self.args)
        return args, {name: tree.unflatten(rest) for name, tree in self.kwargs}

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
    kept = [(k, c) for k, c in zip(tree.keys, children, strict=True) if c is not None]
    keys = tuple(key for key, _ in kept)
    # A node type needs all of its children, so the rest becomes a dict, or a custom node of an
    # unknown type with the same names and order.
    kind: NodeKind = "dict" if tree.kind == "dict" else "custom"
    return TreeSpec(kind, tree.name, keys, tuple(child for _, child in kept))
