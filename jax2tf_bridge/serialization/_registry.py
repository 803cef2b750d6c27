"""Registry of node types for files: the names they have there, and how they are rebuilt.

A type that is registered here is registered with `jax.export` as well, if JAX is imported; one that
was registered with `jax.export` alone is found.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jax2tf_bridge.errors import FileFormatError, SerializationError, StructureError
from jax2tf_bridge.portable._tree_spec import LEAF, NodeCodec, TreeSpec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._node_data import (
    names_of,
    read_fields,
    read_static,
    write_fields,
    write_static,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Registration:
    """One type's registration: the arguments of register_pytree_node_serialization."""

    node_type: type
    serialized_name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None
    to_children: Callable[[Any], Sequence[Any]] | None

    @property
    def is_namedtuple(self) -> bool:
        """Tells whether the type was registered by register_namedtuple_serialization."""
        return self.serialize_auxdata is no_auxdata


class _Registry:
    """Registrations of this process, where types and serialized names are unique.

    Attributes:
      known_to_jax: names that jax.export knows, from here or by itself.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_name: dict[str, Registration] = {}
        self.by_type: dict[type, Registration] = {}
        self.known_to_jax = {"collections.OrderedDict"}


_REGISTRY = _Registry()


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

    If JAX is imported, the type is registered there too: one call is enough. A function that was
    written before its types were registered finds those that are registered when it is called. A
    second call for the same type and name may add the from_children that the first one left out.

    >>> register_pytree_node_serialization(  # doctest: +SKIP
    ...     Scale,
    ...     serialized_name="mylib.Scale",
    ...     from_children=lambda static, children: Scale(*children, unit=static),
    ... )

    Args:
      nodetype: the type of the node; in a process with JAX, one that JAX knows as a pytree.
      serialized_name: stands in the file, and finds the type when it is read.
      serialize_auxdata: writes the static data that the type's registration with JAX gives. The
        default writes JSON, which takes None, bool, int, float, str, bytes, and tuples, lists and
        dicts of these.
      deserialize_auxdata: reads the static data. It gets None for a node that was written before
        the type was registered, and whose static data were not plain.
      from_children: makes an object of the static data and the children, which may be abstract:
        of a shape and dtype, without values.  JAX has such a function; give it for processes
        without JAX, and for a type whose constructor checks its arguments.
      to_children: returns the children of an object, so that processes without JAX can take the
        type in arguments.  Static data are not compared there.

    Returns:
      nodetype.

    Raises:
      SerializationError: a ValueError; the type or the name is registered already (the message
        names the other), from_children is needed, or an argument is no function.
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
    _add(
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

    >>> register_namedtuple_serialization(Point, serialized_name="mylib.Point")  # doctest: +SKIP

    Args:
      nodetype: the type; where a file is read it must have the same fields, in any order.
      serialized_name: stands in the file, and finds the type when it is read.

    Returns:
      nodetype.

    Raises:
      SerializationError: a ValueError; nodetype is no named tuple, or the type or the name is
        registered already (the message names the other).
    """
    if not (issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise SerializationError(
            f"{type_name(nodetype)} is not a named tuple: use register_pytree_node_serialization."
        )
    _add(Registration(nodetype, serialized_name, no_auxdata, read_fields, None, None))
    return nodetype


def forward_registrations() -> None:
    """Registers with jax.export the types that were registered before JAX was imported."""
    with _REGISTRY.lock:
        for registration in _REGISTRY.by_name.values():
            _forward(registration)


def serialized_name_of(node_type: type) -> str | None:
    """Returns the name under which a type is registered for files here; None if it is not."""
    registration = _REGISTRY.by_type.get(node_type)
    return None if registration is None else registration.serialized_name


def rebuilder(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Returns the from_children that a type was registered with, here; None if there is none."""
    registration = _REGISTRY.by_type.get(node_type)
    return None if registration is None else registration.from_children


def has_rebuilders() -> bool:
    """Tells whether any type was registered with from_children."""
    return any(r.from_children is not None for r in _all())


def registration_of(name: str, fields: Sequence[str] | None) -> Registration | None:
    """Finds the registration of a type that was not registered when its node was stored.

    Args:
      name: where the type is defined ("optax.EmptyState"); in old files, its class alone.
      fields: of a named tuple, in any order; None for a custom node.

    Raises:
      FileFormatError: `name` is a class alone, and several types have it.
    """
    if "." in name:
        # A notebook's cell that runs again defines the type anew.
        defined = next((r for r in reversed(_all()) if name in names_of(r.node_type)), None)
        # A type that was moved may be registered under the name that files know.
        return defined or _REGISTRY.by_name.get(name)
    of_kind = [r for r in _all() if r.node_type.__name__ == name and _has_fields(r, fields)]
    found = {type_name(r.node_type): r for r in of_kind}
    if len(found) > 1:
        raise FileFormatError(
            f"The type {name} is stored by the name of its class alone, and several types of "
            f"that name are registered: {', '.join(found)}. Read it in a process that "
            "registers only the right one, or write the function again: files now say where "
            "a type is defined."
        )
    return next(iter(found.values()), None)


def serialization_of(spec: TreeSpec) -> tuple[str, bytes] | None:
    """Returns the name under which a node's type is registered, and its static data; None for none.

    Args:
      spec: a named tuple or a custom node.

    Raises:
      SerializationError: the registered function failed on the static data.
    """
    if spec.serialized_name:
        return spec.serialized_name, spec.auxdata or b""
    if spec.codec is None:
        return None
    registration = _REGISTRY.by_type.get(spec.codec.node_type)
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
    """Makes the codec of a node of a file; None if its type is not registered.

    Args:
      serialized_name: of the type, as it stands in the file.
      auxdata: the static data, as they stand in the file.
      children: how many the node has.
      nested: their structures, leaves by default.

    Raises:
      FileFormatError: the registered functions cannot read the static data.
    """
    registration = _REGISTRY.by_name.get(serialized_name)
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


def codec_by(registration: Registration, static: Any, children: int) -> NodeCodec | None:
    """Makes a codec of the registered functions, and of JAX's if it is imported."""
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
    """Returns a function that takes objects apart where JAX does not know their type."""
    to_children, name = registration.to_children, type_name(registration.node_type)

    def flatten(value: Any) -> Sequence[Any]:
        if to_children is None:
            raise StructureError(
                f"A {name} cannot be taken apart without JAX: it was registered without "
                "to_children. Give to_children to register_pytree_node_serialization."
            )
        return to_children(value)

    return flatten


def fields_codec(node_type: type, fields: tuple[str, ...], children: int) -> NodeCodec:
    """Makes the codec of a named tuple whose fields stand in the file in this order.

    Raises:
      FileFormatError: the type has other fields here.
    """
    here: tuple[str, ...] = tuple(getattr(node_type, "_fields", ()))
    if set(here) != set(fields) or len(fields) != children or len(here) != children:
        raise FileFormatError(
            f"The named tuple {node_type.__module__}.{node_type.__qualname__} has the fields "
            f"{', '.join(here)} here and {', '.join(fields)} in the file, with {children} "
            "children. They must be the same."
        )

    def flatten(value: Any) -> Sequence[Any]:
        return [getattr(value, field) for field in fields]

    def unflatten(values: Sequence[Any]) -> Any:
        return node_type(**dict(zip(fields, values, strict=True)))

    return NodeCodec(node_type, flatten, unflatten)


def ordered_dict_codec(keys: tuple[str, ...], children: int) -> NodeCodec:
    """Makes the codec of an OrderedDict of these keys.

    Raises:
      FileFormatError: there is not one key for each child, or one is there twice.
    """
    if len(set(keys)) != len(keys) or len(keys) != children:
        raise FileFormatError(
            f"The file has an OrderedDict of {children} values with the keys {', '.join(keys)}: "
            "there must be one for each, and all must differ."
        )

    def flatten(value: Any) -> Sequence[Any] | None:
        return list(value.values()) if tuple(value) == keys else None

    def unflatten(values: Sequence[Any]) -> Any:
        return OrderedDict(zip(keys, values, strict=True))

    return NodeCodec(OrderedDict, flatten, unflatten, keys)


def _all() -> list[Registration]:
    with _REGISTRY.lock:
        return list(_REGISTRY.by_name.values())


def _add(registration: Registration) -> None:
    """Adds a registration, with jax.export too; or completes an earlier one.

    Raises:
      SerializationError: the name is no text, or the type or the name is registered.
    """
    node_type, name = registration.node_type, registration.serialized_name
    if not isinstance(name, str) or not name:
        raise SerializationError(
            f"serialized_name of {type_name(node_type)} must be text that is not empty. Got: "
            f"{name!r}"
        )
    with _REGISTRY.lock:
        existing = _REGISTRY.by_type.get(node_type)
        if existing is not None and _completes(registration, existing):
            added = registration.to_children or existing.to_children
            completed = replace(
                existing, from_children=registration.from_children, to_children=added
            )
            _REGISTRY.by_name[name] = _REGISTRY.by_type[node_type] = completed
            return
        if existing is not None:
            raise SerializationError(
                f"{type_name(node_type)} is registered for files already, as "
                f"{existing.serialized_name!r}{_difference(registration, existing)}"
            )
        if name in _REGISTRY.by_name:
            raise SerializationError(
                f"The name {name!r} is registered for files already, for "
                f"{type_name(_REGISTRY.by_name[name].node_type)}; {type_name(node_type)} needs "
                "another."
            )
        _forward(registration)
        _REGISTRY.by_name[name] = _REGISTRY.by_type[node_type] = registration


def _forward(registration: Registration) -> None:
    node_type, name = registration.node_type, registration.serialized_name
    if name in _REGISTRY.known_to_jax or not in_jax.is_imported():
        return
    if registration.is_namedtuple:
        in_jax.register_namedtuple(node_type, name)
    else:
        is_new = in_jax.register_node(
            node_type,
            name,
            registration.serialize_auxdata,
            registration.deserialize_auxdata,
            registration.from_children or _completed_later(node_type),
        )
        if not is_new and registration.serialize_auxdata is plain_auxdata:
            raise SerializationError(
                f"jax.export knows {type_name(node_type)} as {name!r}, with functions for its "
                "static data. Give the same serialize_auxdata and deserialize_auxdata here: "
                "without them, files would hold other static data than jax.export reads."
            )
    _REGISTRY.known_to_jax.add(name)


def _completed_later(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Makes a from_children for jax.export that calls one that is registered later."""
    in_jax_alone = in_jax.constructor(node_type)
    if in_jax_alone is None:
        return None

    def from_children(static: Any, children: Sequence[Any]) -> Any:
        by_now = _REGISTRY.by_type.get(node_type)
        completed = None if by_now is None else by_now.from_children
        return (completed or in_jax_alone)(static, children)

    return from_children


def plain_auxdata(static: Any) -> bytes:
    """Writes static data without serialize_auxdata."""
    written = write_static(static)
    if written is None:
        raise TypeError(
            "without serialize_auxdata, static data are None, bool, int, float, str, bytes, or "
            "tuples, lists and dicts of these"
        )
    return written


def no_auxdata(static: Any) -> bytes:
    """Marks named tuples, whose fields are written instead."""
    raise AssertionError("the fields of a named tuple are written by write_fields")


def _completes(registration: Registration, existing: Registration) -> bool:
    """Tells whether a registration only adds the from_children that an earlier one lacks."""
    return (
        registration.serialized_name == existing.serialized_name
        and registration.from_children is not None
        and existing.from_children is None
        and not existing.is_namedtuple
        and not _other_static_functions(registration, existing)
    )


def _other_static_functions(registration: Registration, existing: Registration) -> bool:
    given = registration.serialize_auxdata, registration.deserialize_auxdata
    there = existing.serialize_auxdata, existing.deserialize_auxdata
    return given not in ((plain_auxdata, read_static), there)


def _difference(registration: Registration, existing: Registration) -> str:
    """Says why a registration cannot complete the one that is there."""
    if registration.serialized_name != existing.serialized_name:
        return f"; it cannot be {registration.serialized_name!r} too."
    if registration.is_namedtuple or existing.is_namedtuple:
        return ". Register a named tuple once."
    if existing.from_children is not None:
        return ", with from_children. Register it once."
    if registration.from_children is None:
        return ". Register it once; a second call may only add from_children."
    return (
        ", with other functions for its static data. Leave out serialize_auxdata and "
        "deserialize_auxdata to add from_children."
    )


def _has_fields(registration: Registration, fields: Sequence[str] | None) -> bool:
    """Tells whether a type is a named tuple of these fields; for None, whether it is none."""
    here = getattr(registration.node_type, "_fields", None)
    return here is None if fields is None else set(here or ()) == set(fields)


def type_name(node_type: type) -> str:
    """Names a type by its module and class."""
    return f"{node_type.__module__}.{node_type.__qualname__}"


def _write_keys(keys: Sequence[Any]) -> bytes:
    if not all(isinstance(key, str) for key in keys):
        raise TypeError("files hold only text as the keys of an OrderedDict")
    return write_fields(keys)


# jax.export knows this one by itself, under the same name and in the same form.
_add(Registration(OrderedDict, "collections.OrderedDict", _write_keys, read_fields, None, None))
