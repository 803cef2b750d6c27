"""Finds types of pytree nodes, such as nnx modules, in user code: a SavedModel lacks them."""

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
    """A user's object, from which containers with the same structure can be built.

    Attributes:
      name: the user's name for it, as "module:name".
      value: the object.
      tree: its structure, with the types.
    """

    name: str
    value: Any
    tree: TreeSpec


class KnownTypes:
    """Finds the types of containers by their structure, among the user's objects."""

    def __init__(self, function: Callable[..., Any], reference: str, like: Any = None) -> None:
        """Collects examples from `like`, the function, its scope and its module.

        Args:
          function: the function that is compared with the SavedModel.
          reference: its name, as "module:function".
          like: an example that takes precedence; None for none.
        """
        self._function = function
        own = getattr(function, "__self__", None)
        self._named = [*_iter_examples([("params_like", like), (reference, function), ("", own)])]
        self._around = [*_iter_examples(_list_objects(function, reference.partition(":")[0]))]

    def add_to(self, tree: TreeSpec) -> TreeSpec:
        """Adds the types of matching examples; other nodes stay dicts or tuples.

        Raises:
          StructureError: several examples have the structure, with different static data.
        """
        if not list_unknown_types(tree):
            return tree
        plain = _drop_names(tree)
        matches = [e for e in self._named if e.tree == plain][:1]
        matches = matches or [e for e in self._around if e.tree == plain]
        if not matches:
            return replace(tree, children=tuple(map(self.add_to, tree.children)))
        first = matches[0]
        for match in matches[1:]:
            structure: Any = jax.tree.structure(match.value)
            if structure != jax.tree.structure(first.value):
                code = f"params_like={first.name.rpartition(':')[2]}"
                raise StructureError(
                    Message(
                        f"{first.name} and {match.name} both have the structure of the "
                        f"SavedModel's {tree.name or tree.kind}, but differ in their static data. "
                        "Pass the one that the function was saved with: ",
                        Argument("params_like", first.name, code=code),
                    )
                )
        return first.tree

    def as_function(self, weights: TreeSpec) -> Callable[..., Any]:
        """Makes a function whose first argument is the weights.

        The user may name the weights themselves, such as a callable nnx module, or one of their
        methods.

        Args:
          weights: the structure of the SavedModel's weights.
        """
        plain, function = _drop_names(weights), self._function
        for example in self._named:
            if example.tree != plain:
                continue
            if example.value is function:
                return lambda own, *args, **kwargs: own(*args, **kwargs)
            if example.value is getattr(function, "__self__", None):
                unbound: Callable[..., Any] = getattr(function, "__func__", function)
                return unbound
        return function


def list_unknown_types(tree: TreeSpec) -> list[str]:
    """Lists the names of nodes that dicts, tuples or plain named tuples replace."""
    own = [tree.name] if tree.kind in ("custom", "namedtuple") and tree.codec is None else []
    return own + [name for child in tree.children for name in list_unknown_types(child)]


def _iter_examples(objects: Sequence[tuple[str, Any]]) -> Iterator[Example]:
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


def _list_objects(function: Callable[..., Any], module: str) -> list[tuple[str, Any]]:
    """Lists the objects in the module and in the function's scope, by name."""
    objects = [*vars(sys.modules[module]).items()] if module in sys.modules else []
    plain = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(plain, types.FunctionType):
        objects += plain.__globals__.items()
        with contextlib.suppress(ValueError):  # a variable has no value yet
            objects += inspect.getclosurevars(plain).nonlocals.items()
    return [(f"{module}:{name}", value) for name, value in objects]


def _drop_names(tree: TreeSpec) -> TreeSpec:
    """Drops the serialized names, which only registered types have."""
    children = tuple(map(_drop_names, tree.children))
    return replace(tree, children=children, serialized_name="", auxdata=None)
