"""Generates code that makes objects of a type without its constructor, for messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge.serialization import (
    find_from_children,
    find_jax_export_name,
    find_serialized_name,
    shortest_public_name,
)

_MAX_EXAMPLE_BYTES = 2**20


def from_children_advice(one_level: Any, children: Sequence[Any]) -> str:
    """Returns advice with code to register a type whose objects are made without its constructor.

    `one_level` is JAX's structure of a node of the type, with leaves as children. The constructor
    rejected the `children`.
    """
    node_type, static = one_level.node_data()
    name = shortest_public_name(node_type)
    type_name = _format_name(name)
    function_name = f"make_{node_type.__name__.lower()}"
    values = _find_attributes(one_level, children)
    imports = _format_import(node_type, name)
    code = "" if values is None else _format_function(function_name, type_name, values)
    if find_from_children(node_type) is not None:
        advice = "Let the from_children of its registration check nothing"
        return f"{advice}:\n{imports}{code.rstrip()}" if code else f"{advice}."
    registered, in_jax = (
        find_serialized_name(node_type),
        find_jax_export_name(node_type, static, children),
    )
    others = ""
    if registered is None and in_jax is not None:
        others = " serialize_auxdata=..., deserialize_auxdata=...,"  # the arguments of jax.export
    call = (
        f"register_pytree_node_serialization({type_name}, "
        f"serialized_name={registered or in_jax or name!r},{others} from_children="
    )
    advice = "Register the type with a from_children that checks nothing"
    if registered or in_jax:
        advice = "Add a from_children that checks nothing to its registration for files"
    if not code:
        return f"{advice}: {call}...)."
    imports += "from jax2tf_bridge import register_pytree_node_serialization\n"
    return f"{advice}:\n{imports}{code}{call}{function_name})"


def _format_name(name: str) -> str:
    """Returns the name of a type in code; only the last part for a local class."""
    shown = name.removeprefix("__main__.").rpartition("<locals>.")[2]
    return shown if all(part.isidentifier() for part in shown.split(".")) else "..."


def _format_import(node_type: type, name: str) -> str:
    module = name.removesuffix(f".{node_type.__qualname__}")
    is_there = module == "__main__" or "<locals>" in name or _format_name(name) == "..."
    return "" if is_there else f"import {module}\n"


def _format_function(made_by: str, type_name: str, values: dict[str, str]) -> str:
    assigned = ", ".join(f"{name}={value}" for name, value in values.items())
    return (
        f"def {made_by}(static, children):\n"
        f"    made = object.__new__({type_name})\n"
        f"    vars(made).update({assigned})\n"
        "    return made\n"
    )


def _find_attributes(one_level: Any, children: Sequence[Any]) -> dict[str, str] | None:
    """Finds expressions for the attributes of a type's objects from (static, children), by example.

    Returns:
      The expression of each attribute; None unless objects made this way flatten to the children.
    """
    for library in (np, jnp):
        try:
            values = _check_attributes(one_level, children, library)
        except Exception:  # the type's own code may fail with such values
            continue
        if values is not None:
            return values
    return None


def _check_attributes(
    one_level: Any, children: Sequence[Any], library: Any
) -> dict[str, str] | None:
    node_type, static = one_level.node_data()
    examples = [_make_example(library, child) for child in children]
    attributes = dict(vars(one_level.unflatten(examples)))
    values = _find_expressions(attributes, examples, static)
    by_expression = {f"children[{i}]": child for i, child in enumerate(children)}
    instance = object.__new__(node_type)
    vars(instance).update({n: by_expression.get(text, attributes[n]) for n, text in values.items()})
    flattened, structure = jax.tree_util.tree_flatten(instance, is_leaf=lambda x: x is not instance)
    are_same = [a is b for a, b in zip(flattened, children, strict=True)]
    are_names = all(name.isidentifier() for name in values)
    return values if are_names and all(are_same) and structure == one_level else None


def _find_expressions(
    held: Mapping[str, Any], children: Sequence[Any], static: Any
) -> dict[str, str]:
    """Expresses attributes by `children` and `static`.

    An example cannot distinguish constants from values that are computed from sizes or static data,
    nor equal static values from each other. So each attribute must have exactly one expression, and
    each static value at most one attribute. None is the only accepted constant.

    Raises:
      ValueError: an attribute has no expression, or several.
    """
    parts = dict(_iter_static_parts(static))
    expressions = {name: _find_expression(value, children, parts) for name, value in held.items()}
    times = Counter(expressions.values())
    twice = [text for text in parts if times[text] > 1]
    if twice:
        raise ValueError(f"{twice[0]} may be one of several attributes")
    return expressions


def _find_expression(value: Any, children: Sequence[Any], parts: Mapping[str, Any]) -> str:
    for i, child in enumerate(children):
        if value is child:
            return f"children[{i}]"
    equal = [text for text, part in parts.items() if _may_be(value, part)]
    if len(equal) == 1 and value is parts[equal[0]]:
        return equal[0]
    if value is None and not equal:
        return "None"
    raise ValueError(f"{value!r} is made by the constructor, or one of {equal}")


def _iter_static_parts(static: Any, text: str = "static") -> Iterator[tuple[str, Any]]:
    """Yields the static data and its parts within containers, each with its expression."""
    yield text, static
    within: Mapping[Any, Any] = {}
    if isinstance(static, (tuple, list)):
        within = dict(enumerate(static))
    elif type(static) is dict:
        within = static
    for key, part in within.items():
        yield from _iter_static_parts(part, f"{text}[{key!r}]")


def _may_be(value: Any, part: Any) -> bool:
    # Equal flags, numbers and texts may be one object, or computed from each other.
    plain = (bool, int, float, str, bytes)
    return value is part or (type(value) in plain and type(part) in plain and value == part)


def _make_example(library: Any, child: Any) -> Any:
    """Makes an array like a child, with size 1 for symbolic dimensions."""
    shape = [d if isinstance(d, int) else 1 for d in getattr(child, "shape", ())]
    if np.prod(shape, dtype=float) > _MAX_EXAMPLE_BYTES:
        shape = [1] * len(shape)
    return library.zeros(shape, getattr(child, "dtype", "float32"))
