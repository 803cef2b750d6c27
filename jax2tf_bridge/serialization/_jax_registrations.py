"""Looks up the node types that jax.export knows, by its public functions alone.

jax.export has no function that looks a type up.  But it reads and writes files: a file of a single
node tells which type a name stands for, and what is written for a node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeGuard

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable._tree_spec import LEAF, NodeCodec, TreeSpec


def is_imported() -> bool:
    """Tells whether this process has imported JAX, which no file imports."""
    return sys.modules.get("jax") is not None


def register_node(
    node_type: type,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes],
    deserialize_auxdata: Callable[[bytes], Any],
    from_children: Callable[[Any, Sequence[Any]], Any] | None,
) -> bool:
    """Registers a type with jax.export, unless it has this name there already.

    Returns:
      Whether the type was new there.

    Raises:
      SerializationError: the type or the name is taken there, or JAX does not know the type.
    """
    import jax.export

    functions: dict[str, Any] = {
        "serialize_auxdata": serialize_auxdata,
        "deserialize_auxdata": deserialize_auxdata,
        "from_children": from_children,
    }
    try:
        jax.export.register_pytree_node_serialization(
            node_type, serialized_name=serialized_name, **functions
        )
    except ValueError as e:
        _refuse_unless_equal(e, serialized_name)
        return False
    return True


def constructor(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Returns JAX's function that makes nodes of a custom type; None if it is no pytree there."""
    if hasattr(node_type, "_fields"):
        return None
    try:
        structure(node_type, None, ())
    except RuntimeError:  # "Could not find type"
        return None

    def make(static: Any, children: Sequence[Any]) -> Any:
        import jax

        leaves = [jax.tree_util.tree_structure(0)] * len(children)
        return structure(node_type, static, leaves).unflatten(children)

    return make


def register_namedtuple(node_type: type, serialized_name: str) -> None:
    """Registers a named tuple with jax.export, unless it has this name there already.

    Raises:
      SerializationError: the type or the name is taken there.
    """
    import jax.export

    try:
        jax.export.register_namedtuple_serialization(node_type, serialized_name=serialized_name)
    except ValueError as e:
        _refuse_unless_equal(e, serialized_name)


def codec_for(
    serialized_name: str, auxdata: bytes, children: Sequence[TreeSpec]
) -> NodeCodec | None:
    """Makes the codec of a node that jax.export knows by this name; None if it does not.

    Exceptions of the functions that were registered for it pass through.

    Args:
      serialized_name: as it stands in the file.
      auxdata: the static data, as they stand in the file.
      children: their structures, since some types look at what they get.
    """
    spec = TreeSpec(
        "custom",
        children=tuple(map(_only_registered, children)),
        serialized_name=serialized_name,
        auxdata=auxdata,
    )
    try:
        treedef: Any = _exported(spec).in_tree
    except ValueError as e:
        if "Cannot deserialize a PyTreeDef containing an unregistered type" in str(e):
            leaves = (LEAF,) * len(children)
            # It may be one of the children.
            return (
                None if tuple(children) == leaves else codec_for(serialized_name, auxdata, leaves)
            )
        raise
    node = treedef.node_data()
    if node is None or len(treedef.children()) != len(children):
        # JAX does not know the type as a pytree.
        return None
    return jax_codec(node[0], node[1], len(children))


def jax_codec(node_type: type, static: Any, children: int) -> NodeCodec | None:
    """Makes the codec of a node that JAX knows as a pytree; None if it does not."""
    import jax

    try:
        treedef = structure(node_type, static, [jax.tree_util.tree_structure(0)] * children)
    except RuntimeError:  # "Could not find type"
        return None

    def flatten(value: Any) -> Sequence[Any] | None:
        found, other = jax.tree_util.tree_flatten(value, is_leaf=lambda x: x is not value)
        return found if other == treedef else None

    return NodeCodec(node_type, flatten, treedef.unflatten, static)


def structure(node_type: type, static: Any, children: Iterable[Any]) -> Any:
    """Makes JAX's structure of a node, without an object: a constructor may refuse dummies.

    Args:
      node_type: of the node.
      static: as the type's registration with JAX has them.
      children: JAX's structures of the children.

    Raises:
      RuntimeError: JAX does not know the type as a pytree.
    """
    import jax

    leaf: Any = jax.tree_util.tree_structure(0)
    registry: Any = jax.tree_util.default_registry
    return leaf.from_node_data_and_children(registry, (node_type, static), list(children))


def named_tuple_of_jax(name: str, fields: Sequence[str]) -> type | None:
    """Finds the named tuple that jax.numpy or jax.scipy returns under a name, as QRResult.

    Args:
      name: with the module where it was defined, in whatever release of JAX, or without it.
      fields: which it must have.

    Returns:
      The type; None if JAX has none of this name with these fields, or several.
    """
    if not name.startswith("jax.") and "." in name:
        return None
    short = name.rpartition(".")[2]
    found = _named_tuples(short, fields)
    if not found:
        _import_scipy()
        found = _named_tuples(short, fields)
    return found.pop() if len(found) == 1 else None


def _named_tuples(name: str, fields: Sequence[str]) -> set[type]:
    """Finds the named tuples of this name and these fields in JAX's imported modules."""
    modules = [module for key, module in list(sys.modules.items()) if key.startswith("jax.")]
    named = [vars(module).get(name) for module in modules if module is not None]
    return {kind for kind in named if _is_named_tuple(kind, fields)}


def _import_scipy() -> None:
    """Imports the modules of jax.scipy that JAX imports late and whose functions return tuples."""
    with suppress(ImportError):
        import jax.scipy.stats
    with suppress(ImportError):
        import jax.scipy.optimize
    with suppress(ImportError):
        import jax.scipy.spatial.transform  # noqa: F401


def _is_named_tuple(kind: Any, fields: Sequence[str]) -> TypeGuard[type]:
    return (
        isinstance(kind, type)
        and issubclass(kind, tuple)
        and kind.__module__.startswith("jax.")
        and set(getattr(kind, "_fields", ())) == set(fields)
    )


def _only_registered(spec: TreeSpec) -> TreeSpec:
    """Replaces nodes that jax.export cannot know by leaves."""
    if spec.kind in ("namedtuple", "custom") and not spec.serialized_name:
        return LEAF
    if spec.kind == "dict" and not all(isinstance(key, str) for key in spec.keys):
        return LEAF
    return replace(spec, children=tuple(map(_only_registered, spec.children)))


def serialization_of(spec: TreeSpec) -> tuple[str, bytes] | None:
    """Returns the name and the static data that jax.export writes for a node; None for no name.

    Raises:
      SerializationError: the functions that were registered for it failed.
    """
    import jax

    from jax2tf_bridge.serialization._flatbuffer import Reader
    from jax2tf_bridge.serialization.jax_exported._schema import ExportedField, TreeField

    assert spec.codec is not None
    leaves = [jax.tree_util.tree_structure(0)] * len(spec.children)
    try:
        treedef = structure(spec.codec.node_type, spec.codec.static, leaves)
        data = replace(_exported(LEAF), in_tree=treedef).serialize()
    except Exception as e:
        if "unregistered type" in str(e):
            return None
        raise SerializationError(
            f"jax.export cannot write a {spec.name}: {type(e).__name__}: {e}"
        ) from e
    table = Reader(data, what="What jax.export wrote").root().table(ExportedField.IN_TREE)
    assert table is not None
    name, auxdata = table.string(TreeField.CUSTOM_NAME), table.bytes(TreeField.CUSTOM_AUXDATA)
    return None if name is None else (name, bytes(auxdata or b""))


def jax_export_name(node_type: type, static: Any, children: Sequence[Any]) -> str | None:
    """Returns the name under which jax.export knows a type; None if it knows none, or fails."""
    codec = NodeCodec(node_type, lambda value: None, lambda values: None, static)
    spec = TreeSpec("custom", node_type.__name__, (), (LEAF,) * len(children), codec)
    try:
        found = serialization_of(spec)
    except SerializationError:
        return None
    return None if found is None else found[0]


def _exported(in_tree: TreeSpec) -> Any:
    """Makes a jax.export.Exported of this structure, without a module."""
    import jax.export

    from jax2tf_bridge.serialization.jax_exported._tables import write_structure

    return jax.export.deserialize(write_structure(in_tree))


def _refuse_unless_equal(error: ValueError, serialized_name: str) -> None:
    if f"registration was with serialized_name `{serialized_name}`" not in str(error):
        raise SerializationError(f"jax.export refuses it: {error}") from error
