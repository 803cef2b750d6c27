"""Finds types of pytree nodes, as nnx modules, in the user's code: a SavedModel lacks them."""

from __future__ import annotations

import contextlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jax2tf_bridge.errors import Argument, Message, StructureError
from jax2tf_bridge.from_jax.trees import tree_spec
from jax2tf_bridge.portable import TreeSpec


@dataclass(frozen=True)
class Example:
    """An object of the user's from which containers like it can be built.

    Attributes:
      name: how the user calls it.
      value: the object.
      tree: its structure, with the types.
    """

    name: str
    value: Any
    tree: TreeSpec


class KnownTypes:
    """Finds the types of containers by their structure, among objects of the user's."""

    def __init__(self, function: Callable[..., Any], reference: str, like: Any = None) -> None:
        """Looks for examples where the user pointed.

        Args:
          function: what is compared with the SavedModel.
          reference: how the user calls it, "module:function".
          like: an example that counts before all others; None for none.
        """
        self._function = function
        own = getattr(function, "__self__", None)
        self._named = [*_examples([("what is like it", like), (reference, function), ("", own)])]
        self._around = [*_examples(_around(function, reference.partition(":")[0]))]

    def add_to(self, tree: TreeSpec) -> TreeSpec:
        """Adds the types that were found; other nodes stay dicts or tuples.

        Raises:
          StructureError: several objects are of the structure, and of other static data.
        """
        if not unknown_types(tree):
            return tree
        plain = _without_names(tree)
        found = [e for e in self._named if e.tree == plain][:1]
        found = found or [e for e in self._around if e.tree == plain]
        if not found:
            return replace(tree, children=tuple(map(self.add_to, tree.children)))
        first = found[0]
        for other in found[1:]:
            structure: Any = jax.tree.structure(other.value)
            if structure != jax.tree.structure(first.value):
                code = f"params_like={first.name.rpartition(':')[2]}"
                raise StructureError(
                    Message(
                        f"{first.name} and {other.name} have the structure of the SavedModel's "
                        f"{tree.name or tree.kind}, and differ in their static data. Say which one "
                        "the function was saved with: ",
                        Argument("params_like", first.name, code=code),
                    )
                )
        return first.tree

    def as_function(self, weights: TreeSpec) -> Callable[..., Any]:
        """Makes a function whose first argument is the weights.

        What the user named may be the weights themselves, as an nnx module that is called, or a
        method of them.

        Args:
          weights: the structure of the SavedModel's weights.
        """
        plain, function = _without_names(weights), self._function
        for example in self._named:
            if example.tree != plain:
                continue
            if example.value is function:
                return lambda own, *args, **kwargs: own(*args, **kwargs)
            if example.value is getattr(function, "__self__", None):
                unbound: Callable[..., Any] = getattr(function, "__func__", function)
                return unbound
        return function


def unknown_types(tree: TreeSpec) -> list[str]:
    """Names the nodes for which dicts, tuples and plain named tuples stand in."""
    own = [tree.name] if tree.kind in ("custom", "namedtuple") and tree.codec is None else []
    return own + [name for child in tree.children for name in unknown_types(child)]


def _examples(objects: Sequence[tuple[str, Any]]) -> Iterator[Example]:
    seen = set()
    for name, value in objects:
        if id(value) in seen or isinstance(value, (type, types.ModuleType)):
            continue
        seen.add(id(value))
        try:
            tree = tree_spec(value)
        except Exception:  # a type's own functions failed
            continue
        if tree.kind not in ("leaf", "none"):
            yield Example(name, value, tree)


def _around(function: Callable[..., Any], module: str) -> list[tuple[str, Any]]:
    """Lists what the module and the function's scope hold, by how the user calls it."""
    objects = [*vars(sys.modules[module]).items()] if module in sys.modules else []
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(plain, types.FunctionType):
        objects += plain.__globals__.items()
        with contextlib.suppress(ValueError):  # a variable has no value yet
            objects += inspect.getclosurevars(plain).nonlocals.items()
    return [(f"{module}:{name}", value) for name, value in objects]


def _without_names(tree: TreeSpec) -> TreeSpec:
    """Drops the names for files, which only registered types have."""
    children = tuple(map(_without_names, tree.children))
    return replace(tree, children=children, serialized_name="", auxdata=None)
