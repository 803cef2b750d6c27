"""Structures of calls: positional arguments with their names, and keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax2tf_bridge.portable._tree_spec import NodeKind, TreeSpec, refuse_differences


@dataclass(frozen=True)
class Call:
    """Structure of the arguments of a function, by their names.

    Attributes:
      args: a name and a structure for each positional argument.
      kwargs: the same for each keyword argument, in JAX's order.

    >>> leaf = TreeSpec("leaf")
    >>> call = Call((("x", leaf), ("p", TreeSpec("dict", keys=("w", "b"), children=(leaf, leaf)))))
    >>> call.paths(), call.flatten([1, {"b": 3, "w": 2}])
    (('x', "p['w']", "p['b']"), [1, 2, 3])
    >>> call.without(["p['w']", "x"]).unflatten([3])
    (({'b': 3},), {})
    """

    args: tuple[tuple[str, TreeSpec], ...]
    kwargs: tuple[tuple[str, TreeSpec], ...] = ()

    @staticmethod
    def of(in_tree: TreeSpec, argument_names: Sequence[str]) -> Call:
        """Names the arguments in the structure of (args, kwargs) of a portable function."""
        args, kwargs = in_tree.children
        keys = map(str, kwargs.keys)
        return Call(
            tuple(zip(argument_names, args.children, strict=True)),
            tuple(zip(keys, kwargs.children, strict=True)),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Lists the names of the positional arguments."""
        return tuple(name for name, _ in self.args)

    def arguments(self) -> tuple[tuple[str, TreeSpec], ...]:
        """Lists all arguments, those by position first."""
        return (*self.args, *self.kwargs)

    def paths(self) -> tuple[str, ...]:
        """Lists the path of each leaf, as Python would write it: "x", "params['w']"."""
        return tuple(path for name, tree in self.arguments() for path in tree.leaf_paths(name))

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """Takes the arguments of a call apart into their leaves, in order.

        Raises:
          StructureError: they have another structure; every difference is listed.
        """
        given = {} if kwargs is None else kwargs
        leaves: list[Any] = []
        differences: list[str] = []
        if len(args) != len(self.args):
            expected = f"{len(self.args)} positional arguments ({', '.join(self.names)})"
            differences.append(f"the positional arguments: expected {expected}, got {len(args)}")
        # As many as there are: the differences within them are listed as well.
        for (name, tree), value in zip(self.args, args, strict=False):
            tree.flatten_into(value, name, leaves, differences)
        known = dict(self.kwargs)
        differences += [f"the keyword argument {k} is missing" for k in known if k not in given]
        differences += [
            f"the keyword argument {k} is not expected" for k in given if k not in known
        ]
        for name, tree in self.kwargs:
            if name in given:
                tree.flatten_into(given[name], name, leaves, differences)
        refuse_differences(differences)
        return leaves

    def unflatten(self, leaves: Iterable[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Makes (args, kwargs) of leaves in order."""
        rest: Iterator[Any] = iter(leaves)
        args = tuple(tree.unflatten(rest) for _, tree in self.args)
        return args, {name: tree.unflatten(rest) for name, tree in self.kwargs}

    def without(self, paths: Collection[str]) -> Call:
        """Drops the leaves at some paths, and arguments in which nothing else is."""
        return self._changed(lambda name, tree: _without(tree, name, paths))

    def map(self, change: Callable[[TreeSpec], TreeSpec]) -> Call:
        """Changes the structure of each argument."""
        return self._changed(lambda _, tree: change(tree))

    def _changed(self, change: Callable[[str, TreeSpec], TreeSpec | None]) -> Call:
        args, kwargs = (
            tuple((name, new) for name, tree in side if (new := change(name, tree)) is not None)
            for side in (self.args, self.kwargs)
        )
        return Call(args, kwargs)


def _without(tree: TreeSpec, path: str, left_out: Collection[str]) -> TreeSpec | None:
    """Drops the leaves at some paths; None if nothing else was in the structure."""
    if not left_out:
        return tree
    if tree.kind == "leaf":
        return None if path in left_out else tree
    children = [
        _without(child, path + step, left_out)
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
    # No object of a type lacks some of its children: those that are left stand for it, by their
    # names and in its order, as those of a type that is not known.
    kind: NodeKind = "dict" if tree.kind == "dict" else "custom"
    return TreeSpec(kind, tree.name, keys, tuple(child for _, child in kept))
