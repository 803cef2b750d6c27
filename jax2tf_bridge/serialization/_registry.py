"""Registry of pytree node types for files: their serialized names, and how to rebuild them.

Registering a type here also registers it with `jax.export` if JAX is imported.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable import NodeCodec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._node_data import (
    import_names_of,
    read_fields,
    read_static,
    type_name,
    write_fields,
    write_static,
)

T = TypeVar("T")


class StaticFunctions(NamedTuple):
    """Functions that convert the static data of a custom node to bytes and back."""

    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]


def _serialize_plain(static: Any) -> bytes:
    data = write_static(static)
    if data is None:
        raise TypeError(
            "without serialize_auxdata, static data are None, bool, int, float, str, bytes, or "
            "tuples, lists and dicts of these"
        )
    return data


def _serialize_keys(keys: Sequence[Any]) -> bytes:
    if not all(isinstance(key, str) for key in keys):
        raise TypeError("files hold only text as the keys of an OrderedDict")
    return write_fields(keys)


_PLAIN = StaticFunctions(_serialize_plain, read_static)


@dataclass(frozen=True)
class Registration:
    """Registration of a type: the arguments of register_pytree_node_serialization.

    `static` is None for a named tuple: files hold its fields instead of static data.
    """

    node_type: type
    serialized_name: str
    static: StaticFunctions | None = None
    from_children: Callable[[Any, Sequence[Any]], Any] | None = None
    to_children: Callable[[Any], Sequence[Any]] | None = None


class _NodeTypeRegistry:
    """Registrations of this process; each type and each serialized name occurs once.

    Attributes:
      known_to_jax: serialized names that jax.export knows, built in or forwarded from here.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # jax.export has this type built in, with the same name and format.
        name = "collections.OrderedDict"
        static = StaticFunctions(_serialize_keys, read_fields)
        self.by_name = {name: Registration(OrderedDict, name, static)}
        self.by_type: dict[type, Registration] = {OrderedDict: self.by_name[name]}
        self.known_to_jax = {name}

    def snapshot(self) -> list[Registration]:
        with self.lock:
            return list(self.by_name.values())


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
        conflicting one), from_children is required, nodetype is not a type, or an argument is not
        a function. It is also a ValueError.
    """
    _check_is_type(nodetype)
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
            "imported: pass from_children, or import jax and register the type with "
            "jax.tree_util.register_pytree_node first."
        )
    if (serialize_auxdata is None) != (deserialize_auxdata is None):
        raise SerializationError(
            f"{type_name(nodetype)} is registered with one of serialize_auxdata and "
            "deserialize_auxdata: give both, or neither for static data that JSON holds."
        )
    static = _PLAIN
    if serialize_auxdata is not None and deserialize_auxdata is not None:
        static = StaticFunctions(serialize_auxdata, deserialize_auxdata)
    _add(Registration(nodetype, serialized_name, static, from_children, to_children))
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
    _check_is_type(nodetype)
    if not (issubclass(nodetype, tuple) and hasattr(nodetype, "_fields")):
        raise SerializationError(
            f"{type_name(nodetype)} is not a named tuple: use register_pytree_node_serialization."
        )
    _add(Registration(nodetype, serialized_name))
    return nodetype


def _check_is_type(node_type: object) -> None:
    if not isinstance(node_type, type):
        raise SerializationError(
            f"nodetype must be a type. Got: {node_type!r:.80} of type {type(node_type).__name__}. "
            "Pass the class of the node, not an object."
        )


def forward_registrations() -> None:
    """Registers types with jax.export that were registered here before JAX was imported."""
    with _REGISTRY.lock:
        for registration in _REGISTRY.by_name.values():
            _forward(registration)


def find_registration_of(node_type: type) -> Registration | None:
    return _REGISTRY.by_type.get(node_type)


def find_serialized_name(node_type: type) -> str | None:
    """Returns the serialized name of a type; None if the type is not registered here."""
    registration = find_registration_of(node_type)
    return None if registration is None else registration.serialized_name


def find_from_children(node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
    """Returns the from_children that a type was registered with; None if it has none."""
    registration = find_registration_of(node_type)
    return None if registration is None else registration.from_children


def has_any_from_children() -> bool:
    """Returns whether any type is registered with from_children."""
    return any(r.from_children is not None for r in _REGISTRY.snapshot())


def prefer_from_children(codec: NodeCodec) -> NodeCodec:
    """Makes a codec use the from_children of its type, even if that is registered later."""
    default_unflatten = codec.unflatten
    build = _prefer_registered(codec.node_type, lambda _, children: default_unflatten(children))
    return replace(codec, unflatten=functools.partial(build, codec.static))


def _prefer_registered(
    node_type: type, default: Callable[[Any, Sequence[Any]], Any]
) -> Callable[[Any, Sequence[Any]], Any]:
    """Makes a from_children that calls the registered one, even if that is registered later."""

    def from_children(static: Any, children: Sequence[Any]) -> Any:
        return (find_from_children(node_type) or default)(static, children)

    return from_children


def find_registration_by_name(serialized_name: str) -> Registration | None:
    return _REGISTRY.by_name.get(serialized_name)


def find_registration_by_type_name(name: str, fields: Sequence[str] | None) -> Registration | None:
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
            (r for r in reversed(_REGISTRY.snapshot()) if name in import_names_of(r.node_type)),
            None,
        )
        # A type that has moved to another module may be registered under its old name.
        return latest or _REGISTRY.by_name.get(name)
    candidates = [
        r for r in _REGISTRY.snapshot() if r.node_type.__name__ == name and _has_fields(r, fields)
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


def _has_fields(registration: Registration, fields: Sequence[str] | None) -> bool:
    """Returns whether a type is a named tuple of these fields; None stands for any other type."""
    own_fields = getattr(registration.node_type, "_fields", None)
    return own_fields is None if fields is None else set(own_fields or ()) == set(fields)


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
        if existing is not None:
            conflict = _describe_conflict(registration, existing)
            if conflict:
                raise SerializationError(
                    f"{type_name(node_type)} is registered for files already, as "
                    f"{existing.serialized_name!r}{conflict}"
                )
            # jax.export calls the new from_children too, since it was given _prefer_registered.
            registration = replace(
                existing,
                from_children=registration.from_children,
                to_children=registration.to_children or existing.to_children,
            )
        elif name in _REGISTRY.by_name:
            raise SerializationError(
                f"The name {name!r} is registered for files already, for "
                f"{type_name(_REGISTRY.by_name[name].node_type)}; {type_name(node_type)} needs "
                "another."
            )
        else:
            _forward(registration)
        _REGISTRY.by_name[name] = _REGISTRY.by_type[node_type] = registration


def _describe_conflict(registration: Registration, existing: Registration) -> str:
    """Returns the end of the sentence that says why `registration` cannot complete `existing`.

    Returns "" if it can: it only adds a from_children.
    """
    if registration.serialized_name != existing.serialized_name:
        return f"; it cannot be {registration.serialized_name!r} too."
    if registration.static is None or existing.static is None:
        return ". Register a named tuple once."
    if existing.from_children is not None:
        return ", with from_children. Register it once."
    if registration.from_children is None:
        return ". Register it once; a second call may only add from_children."
    if registration.static not in (_PLAIN, existing.static):
        return (
            ", with other functions for its static data. Leave out serialize_auxdata and "
            "deserialize_auxdata to add from_children."
        )
    return ""


def _forward(registration: Registration) -> None:
    node_type, name = registration.node_type, registration.serialized_name
    static, from_children = registration.static, registration.from_children
    if name in _REGISTRY.known_to_jax or not in_jax.is_imported():
        return
    if static is None:
        in_jax.register(node_type, name)
    else:
        if from_children is None:
            constructor = in_jax.make_jax_constructor(node_type)
            if constructor is not None:
                from_children = _prefer_registered(node_type, constructor)
        is_new = in_jax.register(
            node_type,
            name,
            serialize_auxdata=static.serialize,
            deserialize_auxdata=static.deserialize,
            from_children=from_children,
        )
        if not is_new and static == _PLAIN:
            raise SerializationError(
                f"jax.export knows {type_name(node_type)} as {name!r}, with functions for its "
                "static data. Give the same serialize_auxdata and deserialize_auxdata here: "
                "without them, files would hold other static data than jax.export reads."
            )
    _REGISTRY.known_to_jax.add(name)
