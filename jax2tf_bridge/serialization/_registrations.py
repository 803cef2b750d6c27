"""Registrations of node types for files, by type and by name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._static_data import names_of, read_static, write_static


@dataclass(frozen=True)
class Registration:
    """A type's registration for files: the arguments of register_pytree_node_serialization."""

    node_type: type
    serialized_name: str
    serialize_auxdata: Callable[[Any], bytes]
    deserialize_auxdata: Callable[[bytes], Any]
    from_children: Callable[[Any, Sequence[Any]], Any] | None
    to_children: Callable[[Any], Sequence[Any]] | None

    @property
    def is_namedtuple(self) -> bool:
        """Tells whether it was registered by register_namedtuple_serialization."""
        return self.serialize_auxdata is no_auxdata


class Registrations:
    """The registrations of this process, as types and serialized names are unique in it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_name: dict[str, Registration] = {}
        self._by_type: dict[type, Registration] = {}
        # Names that jax.export knows; it brings the first one itself.
        self._forwarded = {"collections.OrderedDict"}

    def of_name(self, serialized_name: str) -> Registration | None:
        """Finds the registration under a name."""
        return self._by_name.get(serialized_name)

    def of_type(self, node_type: type) -> Registration | None:
        """Finds the registration of a type."""
        return self._by_type.get(node_type)

    def of_definition(self, name: str) -> Registration | None:
        """Finds the registration of the type that is defined under a name ("optax.EmptyState")."""
        with self._lock:
            every = list(self._by_name.values())
        # A notebook's cell that runs again defines the type anew.
        return next((r for r in reversed(every) if name in names_of(r.node_type)), None)

    def of_class(self, name: str, fields: Sequence[str] | None) -> Registration | None:
        """Finds the registration of the only type whose class has a name ("EmptyState").

        Args:
          name: of the class, without its module.
          fields: of a named tuple, in any order; None for a custom node.

        Raises:
          FileFormatError: types of several modules have this name.
        """
        with self._lock:
            every = list(self._by_name.values())
        of_kind = [r for r in every if r.node_type.__name__ == name and _has_fields(r, fields)]
        found = {type_name(r.node_type): r for r in of_kind}
        if len(found) > 1:
            raise FileFormatError(
                f"The type {name} is stored by the name of its class alone, and several types of "
                f"that name are registered: {', '.join(found)}. Read it in a process that "
                "registers only the right one, or write the function again: files now say where "
                "a type is defined."
            )
        return next(iter(found.values()), None)

    def has_rebuilders(self) -> bool:
        """Tells whether any type has from_children."""
        with self._lock:
            return any(r.from_children is not None for r in self._by_type.values())

    def add(self, registration: Registration) -> None:
        """Registers a type, with jax.export too; or completes a registration.

        Raises:
          SerializationError: the name is no text, or the type or the name is registered.
        """
        node_type, name = registration.node_type, registration.serialized_name
        if not isinstance(name, str) or not name:
            raise SerializationError(
                f"serialized_name of {type_name(node_type)} must be text that is not empty. Got: "
                f"{name!r}"
            )
        with self._lock:
            existing = self._by_type.get(node_type)
            if existing is not None and _completes(registration, existing):
                added = registration.to_children or existing.to_children
                completed = replace(
                    existing, from_children=registration.from_children, to_children=added
                )
                self._by_name[name] = self._by_type[node_type] = completed
                return
            if existing is not None:
                raise SerializationError(
                    f"{type_name(node_type)} is registered for files already, as "
                    f"{existing.serialized_name!r}{_difference(registration, existing)}"
                )
            if name in self._by_name:
                raise SerializationError(
                    f"The name {name!r} is registered for files already, for "
                    f"{type_name(self._by_name[name].node_type)}; {type_name(node_type)} needs "
                    "another."
                )
            self._forward(registration)
            self._by_name[name] = self._by_type[node_type] = registration

    def forward_all(self) -> None:
        """Registers with jax.export what it does not know yet."""
        with self._lock:
            for registration in self._by_name.values():
                self._forward(registration)

    def _forward(self, registration: Registration) -> None:
        node_type, name = registration.node_type, registration.serialized_name
        if name in self._forwarded or not in_jax.is_imported():
            return
        if registration.is_namedtuple:
            in_jax.register_namedtuple(node_type, name)
        else:
            is_new = in_jax.register_node(
                node_type,
                name,
                registration.serialize_auxdata,
                registration.deserialize_auxdata,
                registration.from_children or self._completed_later(node_type),
            )
            if not is_new and registration.serialize_auxdata is plain_auxdata:
                raise SerializationError(
                    f"jax.export knows {type_name(node_type)} as {name!r}, with functions for its "
                    "static data. Give the same serialize_auxdata and deserialize_auxdata here: "
                    "without them, files would hold other static data than jax.export reads."
                )
        self._forwarded.add(name)

    def _completed_later(self, node_type: type) -> Callable[[Any, Sequence[Any]], Any] | None:
        """Makes a from_children for jax.export, which takes one registration of a type only."""
        in_jax_alone = in_jax.constructor(node_type)
        if in_jax_alone is None:
            return None

        def from_children(static: Any, children: Sequence[Any]) -> Any:
            by_now = self._by_type.get(node_type)
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
    """Marks named tuples: what is written is their fields."""
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
    """Tells whether a type is a named tuple of these fields; or for None, that it is none."""
    here = getattr(registration.node_type, "_fields", None)
    return here is None if fields is None else set(here or ()) == set(fields)


def type_name(node_type: type) -> str:
    """Names a type by its module and class."""
    return f"{node_type.__module__}.{node_type.__qualname__}"
