"""Registry of pytree node types for files: their serialized names, and how to rebuild them.

Registering a type here also registers it with `jax.export` if JAX is imported. Types that are
registered with `jax.export` only are found as well.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jax2tf_bridge.errors import FileFormatError, SerializationError, StructureError
from jax2tf_bridge.portable import LEAF, NodeCodec, TreeSpec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._node_data import (
    import_names_of,
    read_fields,
    read_static,
    write_fields,
    write_static,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Registration:
    """Registration of a type: the arguments of register_pytree_node_serialization."""

    node_type: type
    serialized_name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None
    to_children: Callable[[Any], Sequence[Any]] | None

    @property
    def is_namedtuple(self) -> bool:
        """Returns whether register_namedtuple_serialization registered the type."""
        return self.serialize_auxdata is serialize_no_auxdata


class _NodeTypeRegistry:
    """Registrations of this process; each type and each serialized name occurs once.

    Attributes:
      known_to_jax: serialized names that jax.export knows, built in or forwarded from here.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.by_name: dict[str, Registration] = {}
        self.by_type: dict[type, Registration] = {}
        self.known_to_jax = {"collections.OrderedDict"}


_REGISTRY = _NodeTypeRegistry()


def register_pytree_node_serialization(
    nodetype: type[T],
    *,
    serialized_name: str,
    serialize_auxdata: Callable[[Any], bytes] | None = None,
    deserialize_auxdata: Callable[[bytes], Any] | None = None,
    from_children: Callable[[Any, Sequence[Any]], T] | None = None,
    to_children: Callable[[T], Sequence[Any]] | None = None,
) -> type[T]:
    """Registers a custom pytree node for files, like the jax.export function of the same name.

    If JAX is imported, this also registers the type with jax.export, so one call is enough. A
    function that was written before its types were registered uses the types that are registered
    when it is called. A second call for the same type and name may add a from_children that the
    first call left out.

    >>> register_pytree_node_serialization(  # doctest: +SKIP
    ...     Scale,
    ...     serialized_name="mylib.Scale",
    ...     from_children=lambda static, children: Scale(*children, unit=static),
    ... )

    Args:
      nodetype: the type of the node. If JAX is imported, JAX must know it as a pytree.
      serialized_name: the name that is stored in files. Readers find the type by it.
      serialize_auxdata: converts static data to bytes. It gets what the flatten function that is
        registered with JAX returns. The default writes JSON, which supports None, bool, int,
        float, str, bytes, and tuples, lists and dicts of these.
      deserialize_auxdata: converts bytes back to static data. It gets None for a node that was
        written before the type was registered, if JSON could not hold its static data.
      from_children: builds an object from the static data and the children. Children may be
        abstract: they then have a shape and a dtype, but no values. The default is the function
        that is registered with JAX. Pass your own for processes without JAX, and for a type whose
        constructor checks its arguments.
      to_children: returns the children of an object. A process without JAX needs it to accept
        the type in arguments; it does not compare static data.

    Returns:
      nodetype.

    Raises:
      SerializationError: the type or the name is registered already (the message names the
        conflicting one), from_children is required, or an argument is not a function. It is also
        a ValueError.
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
            serialize_auxdata or serialize_plain_auxdata,
            deserialize_auxdata or read_static,
            from_children,
            to_children,
        )
    )
    return nodetype


def register_namedtuple_serialization(nodetype: type[T], *, serialized_name: str) -> type[T]:
    """Registers a named tuple for files, like the jax.export function of the same name.

    >>> register_namedtuple_serialization(Point, serialized_name="mylib.Point")  # doctest: +SKIP

    Args:
      nodetype: the type. A process that reads the file needs a type with the same fields, in any
        order.
      serialized_name: the name that is stored in files. Readers find the type by it.

    Returns:
      nodetype.

    Raises:
      SerializationError: nodetype is not a named tuple, or the type or the name is registered
        already (the message names the conflicting one). It is also a ValueError.
    """
    if not (issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise SerializationError(
            f"{type_name(nodetype)} is not a named tuple: use register_pytree_node_serialization."
        )
    _add(Registration(nodetype, serialized_name, serialize_no_auxdata, read_fields, None, None))
    return nodetype


def forward_registrations() -> None:
    """Registers types with jax.export that were registered here before JAX was imported."""
    with _REGISTRY.lock:
        for registration in _REGISTRY.by_name.values():
            _forward(registration)


def find_serialized_name(node_type: type) -> str | None:
    """Returns the serialized name of a type; None if the type is not registered here."""
    registration = _REGISTRY.by_type.get(node_type)
    return None if registration is None else registration.serialized_name


def find_from_children(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Returns the from_children that a type was registered with; None if it has none."""
    registration = _REGISTRY.by_type.get(node_type)
    return None if registration is None else registration.from_children


def has_any_from_children() -> bool:
    """Returns whether any type is registered with from_children."""
    return any(r.from_children is not None for r in _list_registrations())


def find_registration(name: str, fields: Sequence[str] | None) -> Registration | None:
    """Returns the registration of a type that was not registered when its node was stored.

    Args:
      name: the qualified name of the type ("optax.EmptyState"); in old files, only the name of the
        class.
      fields: the fields of a named tuple, in any order; None for a custom node.

    Returns:
      The registration; None if no registered type matches.

    Raises:
      FileFormatError: `name` is only the name of a class, and several registered types have it.
    """
    if "." in name:
        # Prefer the latest: rerunning a notebook cell defines the type again.
        latest = next(
            (r for r in reversed(_list_registrations()) if name in import_names_of(r.node_type)),
            None,
        )
        # A type that has moved to another module may be registered under its old name.
        return latest or _REGISTRY.by_name.get(name)
    candidates = [
        r for r in _list_registrations() if r.node_type.__name__ == name and _has_fields(r, fields)
    ]
    matches = {type_name(r.node_type): r for r in candidates}
    if len(matches) > 1:
        raise FileFormatError(
            f"The type {name} is stored by the name of its class alone, and several types of "
            f"that name are registered: {', '.join(matches)}. Read it in a process that "
            "registers only the right one, or write the function again: files now say where "
            "a type is defined."
        )
    return next(iter(matches.values()), None)


def serialize_node_type(spec: TreeSpec) -> tuple[str, bytes] | None:
    """Returns the serialized name and static data of a node; None if its type is not registered.

    Args:
      spec: a named tuple or a custom node.

    Raises:
      SerializationError: the registered serialize_auxdata failed on the static data.
    """
    if spec.serialized_name:
        return spec.serialized_name, spec.auxdata or b""
    if spec.codec is None:
        return None
    registration = _REGISTRY.by_type.get(spec.codec.node_type)
    if registration is None:
        return in_jax.serialize_node_type_with_jax(spec) if in_jax.is_imported() else None
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


def make_node_codec(
    serialized_name: str, auxdata: bytes, children: int, nested: Sequence[TreeSpec] = ()
) -> NodeCodec | None:
    """Makes the codec of a stored node; None if its type is not registered.

    Args:
      serialized_name: the name of the type in the file.
      auxdata: the static data as bytes, as stored in the file.
      children: the number of children of the node.
      nested: the structures of the children; leaves by default.

    Raises:
      FileFormatError: the registered functions cannot read the static data.
    """
    registration = _REGISTRY.by_name.get(serialized_name)
    if registration is not None and registration.is_namedtuple:
        return make_namedtuple_codec(registration.node_type, read_fields(auxdata), children)
    if registration is not None and registration.node_type is OrderedDict:
        return make_ordered_dict_codec(read_fields(auxdata), children)
    try:
        if registration is not None:
            return make_registered_codec(
                registration, registration.deserialize_auxdata(auxdata), children
            )
        if not in_jax.is_imported():
            return None
        forward_registrations()
        codec = in_jax.make_jax_export_codec(serialized_name, auxdata, nested or (LEAF,) * children)
        if codec is not None and hasattr(codec.node_type, "_fields"):
            # JAX's codec uses the field order of this process, not that of the file.
            return make_namedtuple_codec(codec.node_type, read_fields(auxdata), children)
        return None if codec is None else prefer_from_children(codec)
    except FileFormatError:
        raise
    except Exception as e:
        raise FileFormatError(
            f"The file's {serialized_name!r} has static data that the functions registered for "
            f"it cannot read: {type(e).__name__}: {e}. Register what they were written with."
        ) from e


def make_registered_codec(
    registration: Registration, static: Any, children: int
) -> NodeCodec | None:
    """Makes a codec from the registered functions, and from those of JAX if it is imported."""
    node_type, from_children = registration.node_type, registration.from_children
    jax_codec = None
    if in_jax.is_imported():
        forward_registrations()
        jax_codec = in_jax.make_jax_codec(node_type, static, children)
    if jax_codec is not None:
        return prefer_from_children(jax_codec)
    if from_children is None:
        return None

    def unflatten(values: Sequence[Any]) -> Any:
        return from_children(static, values)

    return NodeCodec(node_type, _make_flatten(registration), unflatten, static)


def prefer_from_children(codec: NodeCodec) -> NodeCodec:
    """Makes a codec use the from_children of its type, even if that is registered later."""
    node_type, static, default_unflatten = codec.node_type, codec.static, codec.unflatten

    def unflatten(values: Sequence[Any]) -> Any:
        from_children = find_from_children(node_type)
        return default_unflatten(values) if from_children is None else from_children(static, values)

    return replace(codec, unflatten=unflatten)


def _make_flatten(registration: Registration) -> Callable[[Any], Sequence[Any]]:
    """Makes the flatten function of a type that JAX does not know."""
    to_children, name = registration.to_children, type_name(registration.node_type)

    def flatten(value: Any) -> Sequence[Any]:
        if to_children is None:
            raise StructureError(
                f"A {name} cannot be taken apart without JAX: it was registered without "
                "to_children. Give to_children to register_pytree_node_serialization."
            )
        return to_children(value)

    return flatten


def make_namedtuple_codec(node_type: type, fields: tuple[str, ...], children: int) -> NodeCodec:
    """Makes the codec of a named tuple, for values in the order of the stored `fields`.

    Raises:
      FileFormatError: the fields of the type in this process differ.
    """
    own_fields: tuple[str, ...] = tuple(getattr(node_type, "_fields", ()))
    if set(own_fields) != set(fields) or len(fields) != children or len(own_fields) != children:
        raise FileFormatError(
            f"The named tuple {node_type.__module__}.{node_type.__qualname__} has the fields "
            f"{', '.join(own_fields)} here and {', '.join(fields)} in the file, with {children} "
            "children. They must be the same."
        )

    def flatten(value: Any) -> Sequence[Any]:
        return [getattr(value, field) for field in fields]

    def unflatten(values: Sequence[Any]) -> Any:
        return node_type(**dict(zip(fields, values, strict=True)))

    return NodeCodec(node_type, flatten, unflatten)


def make_ordered_dict_codec(keys: tuple[str, ...], children: int) -> NodeCodec:
    """Makes the codec of an OrderedDict with these keys.

    Raises:
      FileFormatError: the number of keys and of children differ, or a key occurs twice.
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


def _list_registrations() -> list[Registration]:
    with _REGISTRY.lock:
        return list(_REGISTRY.by_name.values())


def _add(registration: Registration) -> None:
    """Adds a registration, here and with jax.export, or completes an earlier one.

    Raises:
      SerializationError: the name is not text, or the type or the name is registered already.
    """
    node_type, name = registration.node_type, registration.serialized_name
    if not isinstance(name, str) or not name:
        raise SerializationError(
            f"serialized_name of {type_name(node_type)} must be text that is not empty. Got: "
            f"{name!r}"
        )
    with _REGISTRY.lock:
        existing = _REGISTRY.by_type.get(node_type)
        if existing is not None and _can_complete(registration, existing):
            to_children = registration.to_children or existing.to_children
            completed = replace(
                existing, from_children=registration.from_children, to_children=to_children
            )
            _REGISTRY.by_name[name] = _REGISTRY.by_type[node_type] = completed
            return
        if existing is not None:
            raise SerializationError(
                f"{type_name(node_type)} is registered for files already, as "
                f"{existing.serialized_name!r}{_describe_conflict(registration, existing)}"
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
            registration.from_children or _make_late_constructor(node_type),
        )
        if not is_new and registration.serialize_auxdata is serialize_plain_auxdata:
            raise SerializationError(
                f"jax.export knows {type_name(node_type)} as {name!r}, with functions for its "
                "static data. Give the same serialize_auxdata and deserialize_auxdata here: "
                "without them, files would hold other static data than jax.export reads."
            )
    _REGISTRY.known_to_jax.add(name)


def _make_late_constructor(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Makes a from_children for jax.export that prefers one that is registered here later."""
    jax_constructor = in_jax.make_jax_constructor(node_type)
    if jax_constructor is None:
        return None

    def from_children(static: Any, children: Sequence[Any]) -> Any:
        registration = _REGISTRY.by_type.get(node_type)
        own = None if registration is None else registration.from_children
        return (own or jax_constructor)(static, children)

    return from_children


def serialize_plain_auxdata(static: Any) -> bytes:
    """Writes static data as JSON: the default of serialize_auxdata."""
    data = write_static(static)
    if data is None:
        raise TypeError(
            "without serialize_auxdata, static data are None, bool, int, float, str, bytes, or "
            "tuples, lists and dicts of these"
        )
    return data


def serialize_no_auxdata(static: Any) -> bytes:
    """Marks the registration of a named tuple; its fields are written instead of static data."""
    raise AssertionError("the fields of a named tuple are written by write_fields")


def _can_complete(registration: Registration, existing: Registration) -> bool:
    """Returns whether `registration` only adds a from_children that `existing` lacks."""
    return (
        registration.serialized_name == existing.serialized_name
        and registration.from_children is not None
        and existing.from_children is None
        and not existing.is_namedtuple
        and not _has_other_static_functions(registration, existing)
    )


def _has_other_static_functions(registration: Registration, existing: Registration) -> bool:
    functions = registration.serialize_auxdata, registration.deserialize_auxdata
    existing_functions = existing.serialize_auxdata, existing.deserialize_auxdata
    return functions not in ((serialize_plain_auxdata, read_static), existing_functions)


def _describe_conflict(registration: Registration, existing: Registration) -> str:
    """Returns the end of the sentence that says why `registration` cannot complete `existing`."""
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
    """Returns whether the type is a named tuple with these fields; for None, whether it is none."""
    own_fields = getattr(registration.node_type, "_fields", None)
    return own_fields is None if fields is None else set(own_fields or ()) == set(fields)


def type_name(node_type: type) -> str:
    """Returns the module and qualified name of a type, for messages."""
    return f"{node_type.__module__}.{node_type.__qualname__}"


def _write_keys(keys: Sequence[Any]) -> bytes:
    if not all(isinstance(key, str) for key in keys):
        raise TypeError("files hold only text as the keys of an OrderedDict")
    return write_fields(keys)


# jax.export has this type built in, with the same name and format.
_add(Registration(OrderedDict, "collections.OrderedDict", _write_keys, read_fields, None, None))
