"""Node types that are registered for files: under which names, and how they are rebuilt.

What is registered here is registered with `jax.export` as well, where JAX is imported; and what
was registered with `jax.export` alone is found.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jax2tf_bridge.errors import FileFormatError, SerializationError, StructureError
from jax2tf_bridge.portable._tree_spec import LEAF, NodeCodec, TreeSpec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._fields import (
    fields_codec,
    ordered_dict_codec,
    read_fields,
    write_fields,
)
from jax2tf_bridge.serialization._registrations import (
    Registration,
    Registrations,
    no_auxdata,
    plain_auxdata,
    type_name,
)
from jax2tf_bridge.serialization._static_data import read_static

T = TypeVar("T")


def register_pytree_node_serialization(
    nodetype: type[T],
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes] | None = None,
    deserialize_auxdata: Callable[[bytes], Any] | None = None,
    from_children: Callable[[Any, Sequence[Any]], T] | None = None,
    to_children: Callable[[T], Sequence[Any]] | None = None,
) -> type[T]:
    """Registers a custom pytree node for files, as jax.export's function of this name does.

    Where JAX is imported it registers the type there too: one call is enough. A function that was
    written before its types were registered finds those that are registered when it is called. A
    second call for the same type and name may add the from_children that the first one left out.

    Args:
      nodetype: the type of the node; in a process with JAX, one that JAX knows as a pytree.
      serialized_name: what stands in the file, and finds the type when it is read.
      serialize_auxdata: writes the static data that the type's registration with JAX gives; by
        default as JSON, which takes None, bool, int, float, str, bytes, and tuples, lists and
        dicts of these.
      deserialize_auxdata: reads them. It gets None for a node that was written before the type was
        registered, and whose static data were not of these kinds.
      from_children: makes an object of the static data and the children, which may be abstract:
        of a shape and dtype, without values.  JAX knows how if it is imported; elsewhere it is
        needed, and where the type's constructor checks its arguments.
      to_children: the children of an object: for processes without JAX, to take the type in
        arguments.  Static data are not compared there.

    Returns:
      nodetype.

    Raises:
      SerializationError: a ValueError; the type or the name is registered already (the message
        names the other), from_children is needed, or a function is no function.
    """
    functions = {
        "serialize_auxdata": serialize_auxdata,
        "deserialize_auxdata": deserialize_auxdata,
        "from_children": from_children,
        "to_children": to_children,
    }
    for argument, function in functions.items():
        if function is not None and not callable(function):
            raise SerializationError(
                f"{argument} of {type_name(nodetype)} must be a function. Got: {function!r} of "
                f"type {type(function).__name__}"
            )
    if from_children is None and not in_jax.is_imported():
        raise SerializationError(
            f"{type_name(nodetype)} cannot be registered without from_children where JAX is not "
            "imported: give it, or import jax and register the type with "
            "jax.tree_util.register_pytree_node first."
        )
    if (serialize_auxdata is None) != (deserialize_auxdata is None):
        raise SerializationError(
            f"{type_name(nodetype)} is registered with one of serialize_auxdata and "
            "deserialize_auxdata: give both, or neither for static data that JSON holds."
        )
    _REGISTRY.add(
        Registration(
            nodetype,
            serialized_name,
            serialize_auxdata or plain_auxdata,
            deserialize_auxdata or read_static,
            from_children,
            to_children,
        )
    )
    return nodetype


def register_namedtuple_serialization(nodetype: type[T], *, serialized_name: str) -> type[T]:
    """Registers a named tuple for files, as jax.export's function of this name does.

    Args:
      nodetype: the type; where a file is read it must have the same fields, in any order.
      serialized_name: what stands in the file, and finds the type when it is read.

    Returns:
      nodetype.

    Raises:
      SerializationError: a ValueError; it is no named tuple, or the type or the name is
        registered already (the message names the other).
    """
    if not (issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise SerializationError(
            f"{type_name(nodetype)} is not a named tuple: use register_pytree_node_serialization."
        )
    _REGISTRY.add(Registration(nodetype, serialized_name, no_auxdata, read_fields, None, None))
    return nodetype


def forward_registrations() -> None:
    """Registers with jax.export what was registered before JAX was imported."""
    _REGISTRY.forward_all()


def serialization_of(spec: TreeSpec) -> tuple[str, bytes] | None:
    """Finds under which name a node's type is registered, and its static data; None if it is not.

    Args:
      spec: a named tuple or a custom node.

    Raises:
      SerializationError: the registered function failed on the static data.
    """
    if spec.serialized_name:
        return spec.serialized_name, spec.auxdata or b""
    if spec.codec is None:
        return None
    registration = _REGISTRY.of_type(spec.codec.node_type)
    if registration is None:
        return in_jax.serialization_of(spec) if in_jax.is_imported() else None
    if registration.is_namedtuple:
        return registration.serialized_name, write_fields([str(k) for k in spec.keys])
    try:
        auxdata = registration.serialize_auxdata(spec.codec.static)
    except Exception as e:
        raise SerializationError(
            f"serialize_auxdata, registered for {type_name(registration.node_type)}, failed on "
            f"{spec.codec.static!r}: {type(e).__name__}: {e}"
        ) from e
    if not isinstance(auxdata, (bytes, bytearray)):
        raise SerializationError(
            f"serialize_auxdata, registered for {type_name(registration.node_type)}, must return "
            f"bytes. Got: {auxdata!r} of type {type(auxdata).__name__}"
        )
    return registration.serialized_name, bytes(auxdata)


def codec_for(
    serialized_name: str, auxdata: bytes, children: int, nested: Sequence[TreeSpec] = ()
) -> NodeCodec | None:
    """Finds how a node of a file comes apart and together; None if its type is not registered.

    Args:
      serialized_name: of the type, as it stands in the file.
      auxdata: the static data, as they stand in the file.
      children: how many the node has.
      nested: their structures, leaves by default.

    Raises:
      FileFormatError: the registered functions cannot read the static data.
    """
    registration = _REGISTRY.of_name(serialized_name)
    if registration is not None and registration.is_namedtuple:
        return fields_codec(registration.node_type, read_fields(auxdata), children)
    if registration is not None and registration.node_type is OrderedDict:
        return ordered_dict_codec(read_fields(auxdata), children)
    try:
        if registration is not None:
            return codec_by(registration, registration.deserialize_auxdata(auxdata), children)
        if not in_jax.is_imported():
            return None
        forward_registrations()
        codec = in_jax.codec_for(serialized_name, auxdata, nested or (LEAF,) * children)
        if codec is not None and hasattr(codec.node_type, "_fields"):
            # JAX's own takes the fields in the order of this process.
            return fields_codec(codec.node_type, read_fields(auxdata), children)
        return None if codec is None else with_rebuilder(codec)
    except FileFormatError:
        raise
    except Exception as e:
        raise FileFormatError(
            f"The file's {serialized_name!r} has static data that the functions registered for "
            f"it cannot read: {type(e).__name__}: {e}. Register what they were written with."
        ) from e


def serialized_name_of(node_type: type) -> str | None:
    """Gives the name under which a type is registered for files here; None if it is not."""
    registration = _REGISTRY.of_type(node_type)
    return None if registration is None else registration.serialized_name


def rebuilder(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Finds the from_children that a type was registered with, here; None if there is none."""
    registration = _REGISTRY.of_type(node_type)
    return None if registration is None else registration.from_children


def registration_of(name: str, fields: Sequence[str] | None) -> Registration | None:
    """Finds the registration of a type that was not registered when its node was stored.

    Args:
      name: where the type is defined; or, in old files, the name of its class alone.
      fields: of a named tuple, in any order; None for a custom node.

    Raises:
      FileFormatError: there is only the name of the class, and several types have it.
    """
    if "." not in name:
        return _REGISTRY.of_class(name, fields)
    # A type that was moved may be registered under the name that files know.
    return _REGISTRY.of_definition(name) or _REGISTRY.of_name(name)


def has_rebuilders() -> bool:
    """Tells whether any type was registered with from_children."""
    return _REGISTRY.has_rebuilders()


def codec_by(registration: Registration, static: Any, children: int) -> NodeCodec | None:
    """Makes the codec by the registered functions, and by JAX's where it is imported."""
    node_type, from_children = registration.node_type, registration.from_children
    jax_codec = None
    if in_jax.is_imported():
        forward_registrations()
        jax_codec = in_jax.jax_codec(node_type, static, children)
    if jax_codec is not None:
        return with_rebuilder(jax_codec)
    if from_children is None:
        return None

    def unflatten(values: Sequence[Any]) -> Any:
        return from_children(static, values)

    return NodeCodec(node_type, _flatten_by(registration), unflatten, static)


def with_rebuilder(codec: NodeCodec) -> NodeCodec:
    """Lets a codec make objects by the type's from_children, which may be registered later."""
    node_type, static, otherwise = codec.node_type, codec.static, codec.unflatten

    def unflatten(values: Sequence[Any]) -> Any:
        from_children = rebuilder(node_type)
        return otherwise(values) if from_children is None else from_children(static, values)

    return replace(codec, unflatten=unflatten)


def _flatten_by(registration: Registration) -> Callable[[Any], Sequence[Any]]:
    """Takes objects of a type apart where JAX does not know it."""
    to_children, name = registration.to_children, type_name(registration.node_type)

    def flatten(value: Any) -> Sequence[Any]:
        if to_children is None:
            raise StructureError(
                f"A {name} cannot be taken apart without JAX: it was registered without "
                "to_children. Give to_children to register_pytree_node_serialization."
            )
        return to_children(value)

    return flatten


def _write_keys(keys: Sequence[Any]) -> bytes:
    if not all(isinstance(key, str) for key in keys):
        raise TypeError("files hold only text as the keys of an OrderedDict")
    return write_fields(keys)


_REGISTRY = Registrations()
# jax.export knows this one by itself, under the same name and in the same form.
_REGISTRY.add(
    Registration(OrderedDict, "collections.OrderedDict", _write_keys, read_fields, None, None)
)
