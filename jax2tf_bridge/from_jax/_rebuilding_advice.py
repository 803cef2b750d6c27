"""Code that makes objects of a type without its constructor, for messages about such types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge.serialization._jax_registrations import jax_export_name
from jax2tf_bridge.serialization._registry import rebuilder, serialized_name_of
from jax2tf_bridge.serialization._static_data import defined_name

_LARGEST_EXAMPLE = 2**20


def from_children_advice(one_level: Any, children: Sequence[Any]) -> str:
    """Says how to register a type so that its objects are made without checks, with the code.

    Args:
      one_level: JAX's structure of a node of the type, with leaves as its children.
      children: with which an object could not be made.
    """
    node_type, static = one_level.node_data()
    name = defined_name(node_type)
    shown = name.removeprefix("__main__.")
    made_by = f"make_{node_type.__name__.lower()}"
    values = _attributes(one_level, children)
    code = "" if values is None else _function(made_by, shown, values)
    if rebuilder(node_type) is not None:
        advice = "Let the from_children of its registration check nothing"
        return f"{advice}:\n{code.rstrip()}" if code else f"{advice}."
    registered, in_jax = serialized_name_of(node_type), jax_export_name(node_type, static, children)
    others = ""
    if registered is None and in_jax is not None:
        others = " serialize_auxdata=..., deserialize_auxdata=...,"  # those that jax.export has
    call = (
        f"register_pytree_node_serialization({shown}, "
        f"serialized_name={registered or in_jax or name!r},{others} from_children="
    )
    advice = "Register the type with a from_children that checks nothing"
    if registered or in_jax:
        advice = "Add a from_children that checks nothing to its registration for files"
    if not code:
        return f"{advice}: {call}...)."
    return f"{advice}:\n{code}{call}{made_by})"


def _function(made_by: str, type_name: str, values: dict[str, str]) -> str:
    assigned = ", ".join(f"{name}={value}" for name, value in values.items())
    return (
        f"def {made_by}(static, children):\n"
        f"    made = object.__new__({type_name})\n"
        f"    vars(made).update({assigned})\n"
        "    return made\n"
    )


def _attributes(one_level: Any, children: Sequence[Any]) -> dict[str, str] | None:
    """Finds how attributes of a type's objects follow from (static, children), by an example.

    Returns:
      For each attribute the expression for it; None unless objects that are made so come apart
      into the children again.
    """
    for library in (np, jnp):
        try:
            values = _checked_attributes(one_level, children, library)
        except Exception:  # whatever the type's own code does with such values
            continue
        if values is not None:
            return values
    return None


def _checked_attributes(
    one_level: Any, children: Sequence[Any], library: Any
) -> dict[str, str] | None:
    node_type, static = one_level.node_data()
    examples = [_example(library, child) for child in children]
    held = dict(vars(one_level.unflatten(examples)))
    values = {name: _expression(value, examples, static) for name, value in held.items()}
    given = {f"children[{i}]": child for i, child in enumerate(children)}
    made = object.__new__(node_type)
    vars(made).update({n: given.get(text, held[n]) for n, text in values.items()})
    found, structure = jax.tree_util.tree_flatten(made, is_leaf=lambda x: x is not made)
    same = [a is b for a, b in zip(found, children, strict=True)]
    named = all(name.isidentifier() for name in values)
    return values if named and all(same) and structure == one_level else None


def _expression(value: Any, children: Sequence[Any], static: Any) -> str:
    """Writes a value in terms of `children` and `static`.

    Raises:
      ValueError: it is neither of them nor a plain value.
    """
    for i, child in enumerate(children):
        if value is child:
            return f"children[{i}]"
    if value is None:
        return "None"
    if value is static:
        return "static"
    for i, part in enumerate(static if isinstance(static, tuple) else ()):
        if value is part:
            return f"static[{i}]"
    if type(value) in (bool, int, str):
        return repr(value)
    raise ValueError(f"{value!r} is made by the constructor")


def _example(library: Any, child: Any) -> Any:
    """Makes an array like a child, of size 1 where the size is a symbol."""
    shape = [d if isinstance(d, int) else 1 for d in getattr(child, "shape", ())]
    if np.prod(shape, dtype=float) > _LARGEST_EXAMPLE:
        shape = [1] * len(shape)
    return library.zeros(shape, getattr(child, "dtype", "float32"))
