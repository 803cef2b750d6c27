"""Makes JAX's structures of a portable function's arguments and results, with known types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax

from jax2tf_bridge.errors import StructureError, format_bullets
from jax2tf_bridge.portable import LEAF, Aval, PortableFunction, TreeSpec
from jax2tf_bridge.serialization import add_codecs, format_registration_call
from jax2tf_bridge.serialization import make_treedef as node_structure

_UNKNOWN = object()


def jax_structures(portable: PortableFunction) -> tuple[Any, Any]:
    """Makes JAX's structures of (args, kwargs) and of the result.

    Raises:
      StructureError: a type is unknown in this process, or its children have another order here.
      FileFormatError: a registered type does not fit the stored node.
    """
    known = _with_known_types(portable)
    return (
        _treedef(portable, known.in_tree, portable.in_avals, "arguments"),
        _treedef(portable, known.out_tree, portable.out_avals, "results"),
    )


def _with_known_types(portable: PortableFunction) -> PortableFunction:
    """Sets the types of tree nodes that have been registered since the file was read.

    Raises:
      StructureError: a type is not registered.
      FileFormatError: a type does not fit the stored node.
    """
    in_tree, out_tree = add_codecs(portable.in_tree), add_codecs(portable.out_tree)
    unknown = [*_without_types(in_tree), *_without_types(out_tree)]
    if unknown:
        names = dict.fromkeys(node.serialized_name or node.name for node in unknown)
        calls = list(dict.fromkeys(map(format_registration_call, unknown)))
        raise StructureError(
            f"The arguments or results of {portable.name} hold types that are not known here: "
            f"{', '.join(names)}. Register them before the call:{format_bullets(calls)}"
        )
    return replace(portable, in_tree=in_tree, out_tree=out_tree)


def _treedef(portable: PortableFunction, spec: TreeSpec, avals: Sequence[Aval], what: str) -> Any:
    structure = _jax_structure(spec, portable.name)
    if not _keeps_order(spec, iter([replace(aval) for aval in avals]))[0]:
        raise StructureError(
            f"The {what} of {portable.name} are flattened in another order here than when it was "
            "exported: the fields of a named tuple or the children of a registered type have "
            "another order, or the keys of a dict in the file are not sorted. "
            "Use the definitions of the types that it was exported with."
        )
    return structure


def _jax_structure(spec: TreeSpec, name: str) -> Any:
    """Makes JAX's structure without making objects, because constructors may check values."""
    children = [_jax_structure(child, name) for child in spec.children]
    match spec.kind:
        case "leaf":
            return jax.tree_util.tree_structure(0)
        case "none":
            return jax.tree_util.tree_structure(None)
        case "tuple":
            return node_structure(tuple, None, children)
        case "list":
            return node_structure(list, None, children)
        case "dict":
            return node_structure(dict, list(spec.keys), children)
    node_type = _type_of(spec)
    static = spec.codec.static if spec.codec is not None else None
    try:
        return node_structure(node_type, static, children)
    except RuntimeError as e:
        raise StructureError(
            f"{name} has a {spec.name}, which JAX does not know as a pytree here: register "
            f"{node_type.__qualname__} with jax.tree_util.register_pytree_node before the call."
        ) from e


def _keeps_order(spec: TreeSpec, leaves: Iterator[Aval]) -> tuple[bool, Any]:
    """Checks that objects flatten to the order of the stored leaves; also returns an object.

    The object is _UNKNOWN if a type rejects abstract values; the order of a custom node is then not
    checked.
    """
    if spec.kind == "leaf":
        return True, next(leaves)
    parts = [_keeps_order(child, leaves) for child in spec.children]
    children = [value for _, value in parts]
    if not all(kept for kept, _ in parts):
        return False, _UNKNOWN
    if spec.kind == "dict":
        sorted_here: Any = jax.tree_util.tree_structure(dict.fromkeys(spec.keys, 0))
        if sorted_here.node_data()[1] != list(spec.keys):
            return False, _UNKNOWN
    if spec.kind == "namedtuple" and spec.keys != getattr(_type_of(spec), "_fields", ()):
        return False, _UNKNOWN
    if any(child is _UNKNOWN for child in children):
        return True, _UNKNOWN
    try:
        value = replace(spec, children=(LEAF,) * len(children)).unflatten(children)
    except Exception:  # the type's own code may fail with abstract values
        return True, _UNKNOWN
    found, expected = jax.tree_util.tree_leaves(value), jax.tree_util.tree_leaves(children)
    same = [a is b for a, b in zip(found, expected, strict=False)]
    return spec.kind != "custom" or (len(found) == len(expected) and all(same)), value


def _type_of(spec: TreeSpec) -> type:
    assert spec.codec is not None  # _with_known_types rejects others
    return spec.codec.node_type


def _without_types(spec: TreeSpec) -> Iterator[TreeSpec]:
    if spec.kind in ("namedtuple", "custom") and spec.codec is None:
        yield spec
    for child in spec.children:
        yield from _without_types(child)
