"""Looks up the node types that jax.export knows, through its public functions only.

jax.export has no function for such a lookup, but it reads and writes files. Reading a file with a
single node gives the type of a serialized name. Writing one gives the serialized name of a type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import LEAF, NodeCodec, TreeSpec
from jax2tf_bridge.serialization._flatbuffer import FlatBufferReader
from jax2tf_bridge.serialization._node_data import type_name


def is_imported() -> bool:
    """Returns whether this process has imported JAX. Reading a file never imports it."""
    return sys.modules.get("jax") is not None


def register(node_type: type, serialized_name: str, **functions: Any) -> bool:
    """Registers a type with jax.export, unless it is registered there with the same name.

    Args:
      node_type: the type.
      serialized_name: its name in files.
      functions: the functions of register_pytree_node_serialization; none for a named tuple.

    Returns:
      True if the type is newly registered; False if it was registered before.

    Raises:
      SerializationError: the type or the name is registered differently with jax.export, or JAX
        does not know the type.
    """
    from jax import export

    register_type: Any = export.register_namedtuple_serialization
    if functions:
        register_type = export.register_pytree_node_serialization
    try:
        register_type(node_type, serialized_name=serialized_name, **functions)
    except ValueError as e:
        if f"registration was with serialized_name `{serialized_name}`" in str(e):
            return False
        raise SerializationError(
            f"jax.export does not accept {type_name(node_type)} as {serialized_name!r}: {e}"
        ) from e
    return True


def make_jax_constructor(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Returns a function that makes nodes of a custom type; None if JAX does not know the type."""
    if hasattr(node_type, "_fields") or make_jax_codec(node_type, None, 0) is None:
        return None

    def make(static: Any, children: Sequence[Any]) -> Any:
        codec = make_jax_codec(node_type, static, len(children))
        assert codec is not None
        return codec.unflatten(children)

    return make


def make_jax_export_codec(
    serialized_name: str, auxdata: bytes, children: Sequence[TreeSpec]
) -> NodeCodec | None:
    """Makes the codec of a node type that jax.export knows by this name; None for unknown names.

    Exceptions of the functions that were registered for the type pass through.

    Args:
      serialized_name: the name of the type in the file.
      auxdata: the static data as bytes, as stored in the file.
      children: the structures of the children, since some types inspect their children.
    """
    spec = TreeSpec(
        "custom",
        children=tuple(map(_mask_unregistered, children)),
        serialized_name=serialized_name,
        auxdata=auxdata,
    )
    try:
        treedef: Any = _make_exported(spec).in_tree
    except ValueError as e:
        if "Cannot deserialize a PyTreeDef containing an unregistered type" in str(e):
            leaves = (LEAF,) * len(children)
            if tuple(children) == leaves:
                return None
            # The unregistered type may be that of a child: try again with leaves as children.
            return make_jax_export_codec(serialized_name, auxdata, leaves)
        raise
    node = treedef.node_data()
    if node is None or len(treedef.children()) != len(children):
        # The type is registered with jax.export, but JAX does not know it as a pytree.
        return None
    return make_jax_codec(node[0], node[1], len(children))


def make_jax_codec(node_type: type, static: Any, children: int) -> NodeCodec | None:
    """Makes the codec of a node type that JAX knows as a pytree; None for other types."""
    import jax

    try:
        treedef = make_treedef(node_type, static, [jax.tree_util.tree_structure(0)] * children)
    except RuntimeError:  # "Could not find type"
        return None

    def flatten(value: Any) -> Sequence[Any] | None:
        children, value_treedef = jax.tree_util.tree_flatten(
            value, is_leaf=lambda x: x is not value
        )
        return children if value_treedef == treedef else None

    return NodeCodec(node_type, flatten, treedef.unflatten, static)


def make_treedef(node_type: type, static: Any, children: Iterable[Any]) -> Any:
    """Makes a PyTreeDef of a node without making a node: constructors may reject placeholders.

    Args:
      node_type: the type of the node.
      static: the static data, as the flatten function that is registered with JAX returns them.
      children: the PyTreeDef of each child.

    Raises:
      RuntimeError: JAX does not know the type as a pytree.
    """
    import jax

    leaf: Any = jax.tree_util.tree_structure(0)
    registry: Any = jax.tree_util.default_registry
    return leaf.from_node_data_and_children(registry, (node_type, static), list(children))


def find_jax_namedtuple(name: str, fields: Sequence[str]) -> type | None:
    """Finds a named tuple that functions of jax.numpy or jax.scipy return, such as QRResult.

    Args:
      name: the name of the class, optionally with the module that defines it in any JAX release.
      fields: the fields that the type must have, in any order.

    Returns:
      The type; None unless exactly one type in JAX has this name and these fields.
    """
    if not name.startswith("jax.") and "." in name:
        return None
    class_name = name.rpartition(".")[2]
    matches = _find_named_tuples(class_name, fields)
    if not matches:
        _import_scipy()
        matches = _find_named_tuples(class_name, fields)
    return matches.pop() if len(matches) == 1 else None


def _find_named_tuples(name: str, fields: Sequence[str]) -> set[type]:
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("jax.")]
    candidates = [vars(module).get(name) for module in modules if module is not None]
    return {
        kind
        for kind in candidates
        if isinstance(kind, type)
        and issubclass(kind, tuple)
        and kind.__module__.startswith("jax.")
        and set(getattr(kind, "_fields", ())) == set(fields)
    }


def _import_scipy() -> None:
    """Imports the lazily imported modules of jax.scipy that define named tuples."""
    with suppress(ImportError):
        import jax.scipy.stats
    with suppress(ImportError):
        import jax.scipy.optimize
    with suppress(ImportError):
        import jax.scipy.spatial.transform  # noqa: F401


def _mask_unregistered(spec: TreeSpec) -> TreeSpec:
    """Replaces each node that jax.export cannot read by a leaf."""
    if spec.kind in ("namedtuple", "custom") and not spec.serialized_name:
        return LEAF
    if spec.kind == "dict" and not all(isinstance(key, str) for key in spec.keys):
        return LEAF
    return replace(spec, children=tuple(map(_mask_unregistered, spec.children)))


def serialize_node_type_with_jax(spec: TreeSpec) -> tuple[str, bytes] | None:
    """Returns the serialized name and static data of a node, as jax.export writes them.

    Returns:
      The name and the bytes; None if the type is not registered with jax.export.

    Raises:
      SerializationError: the functions that were registered for the type failed.
    """
    import jax

    from jax2tf_bridge.serialization.jax_exported import ExportedField, TreeField

    assert spec.codec is not None
    leaves = [jax.tree_util.tree_structure(0)] * len(spec.children)
    try:
        treedef = make_treedef(spec.codec.node_type, spec.codec.static, leaves)
        data = replace(_make_exported(LEAF), in_tree=treedef).serialize()
    except Exception as e:
        if "unregistered type" in str(e):
            return None
        raise SerializationError(
            f"jax.export cannot write a {spec.name}: {type(e).__name__}: {e}"
        ) from e
    table = FlatBufferReader(data, what="What jax.export wrote").root().table(ExportedField.IN_TREE)
    assert table is not None
    name, auxdata = table.string(TreeField.CUSTOM_NAME), table.bytes(TreeField.CUSTOM_AUXDATA)
    return None if name is None else (name, bytes(auxdata or b""))


def find_jax_export_name(node_type: type, static: Any, children: Sequence[Any]) -> str | None:
    """Returns the serialized name of a type in jax.export; None if it has none or writing fails."""
    codec = NodeCodec(node_type, lambda value: None, lambda values: None, static)
    spec = TreeSpec("custom", node_type.__name__, (), (LEAF,) * len(children), codec)
    try:
        serialization = serialize_node_type_with_jax(spec)
    except SerializationError:
        return None
    return None if serialization is None else serialization[0]


def _make_exported(in_tree: TreeSpec) -> Any:
    """Makes a jax.export.Exported that has this input structure and no module."""
    import jax.export

    from jax2tf_bridge.serialization.jax_exported import write_structure

    return jax.export.deserialize(write_structure(in_tree))
