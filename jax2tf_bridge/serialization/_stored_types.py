"""Converts nodes of registered types to what files store, and back; also for pickles."""

from __future__ import annotations

import copyreg
import functools
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from jax2tf_bridge.errors import FileFormatError, SerializationError, StructureError
from jax2tf_bridge.portable import LEAF, NodeCodec, StoredType, TreeSpec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._node_data import (
    read_fields,
    read_static,
    shortest_public_name,
    type_name,
    write_fields,
    write_static,
)
from jax2tf_bridge.serialization._registry import (
    Registration,
    find_registration_by_name,
    find_registration_by_type_name,
    find_registration_of,
    forward_registrations,
    prefer_from_children,
)


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
    registration = find_registration_of(spec.codec.node_type)
    if registration is None:
        return in_jax.serialize_node_type_with_jax(spec) if in_jax.is_imported() else None
    if registration.static is None:
        return registration.serialized_name, write_fields([str(k) for k in spec.keys])
    try:
        auxdata = registration.static.serialize(spec.codec.static)
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
    serialized_name: str, auxdata: bytes, children: Sequence[TreeSpec]
) -> NodeCodec | None:
    """Makes the codec of a stored node; None if its type is not registered.

    Args:
      serialized_name: the name of the type in the file.
      auxdata: the static data as bytes, as stored in the file.
      children: the structures of the children.

    Raises:
      FileFormatError: the registered functions cannot read the static data.
    """
    registration, count = find_registration_by_name(serialized_name), len(children)
    if registration is not None and registration.static is None:
        return _make_namedtuple_codec(registration.node_type, read_fields(auxdata), count)
    if registration is not None and registration.node_type is OrderedDict:
        return _make_ordered_dict_codec(read_fields(auxdata), count)
    try:
        if registration is not None and registration.static is not None:
            static = registration.static.deserialize(auxdata)
            return _make_registered_codec(registration, static, count)
        if not in_jax.is_imported():
            return None
        forward_registrations()
        codec = in_jax.make_jax_export_codec(serialized_name, auxdata, children)
        if codec is not None and hasattr(codec.node_type, "_fields"):
            # JAX's codec uses the field order of this process, not that of the file.
            return _make_namedtuple_codec(codec.node_type, read_fields(auxdata), count)
        return None if codec is None else prefer_from_children(codec)
    except FileFormatError:
        raise
    except Exception as e:
        raise FileFormatError(
            f"The file's {serialized_name!r} has static data that the functions registered for "
            f"it cannot read: {type(e).__name__}: {e}. Register the functions that wrote them."
        ) from e


def _make_registered_codec(
    registration: Registration, static: Any, children: int
) -> NodeCodec | None:
    node_type, to_children = registration.node_type, registration.to_children
    if in_jax.is_imported():
        forward_registrations()
        codec = in_jax.make_jax_codec(node_type, static, children)
        if codec is not None:
            return prefer_from_children(codec)
    if registration.from_children is None:
        return None

    def flatten(value: Any) -> Sequence[Any]:
        if to_children is None:
            raise StructureError(
                f"A {type_name(node_type)} cannot be flattened without JAX: it was registered "
                "without to_children. Pass to_children to register_pytree_node_serialization."
            )
        return to_children(value)

    unflatten = functools.partial(registration.from_children, static)
    return NodeCodec(node_type, flatten, unflatten, static)


def _make_namedtuple_codec(node_type: type, fields: tuple[str, ...], children: int) -> NodeCodec:
    """Makes the codec of a named tuple, for values in the order of the stored `fields`.

    Raises:
      FileFormatError: the fields of the type in this process differ.
    """
    own_fields: tuple[str, ...] = tuple(getattr(node_type, "_fields", ()))
    if set(own_fields) != set(fields) or len(fields) != children or len(own_fields) != children:
        raise FileFormatError(
            f"The named tuple {type_name(node_type)} has the fields "
            f"{', '.join(own_fields)} here and {', '.join(fields)} in the file, with {children} "
            "children. They must be the same."
        )

    def flatten(value: Any) -> Sequence[Any]:
        return [getattr(value, field) for field in fields]

    def unflatten(values: Sequence[Any]) -> Any:
        return node_type(**dict(zip(fields, values, strict=True)))

    return NodeCodec(node_type, flatten, unflatten)


def _make_ordered_dict_codec(keys: tuple[str, ...], children: int) -> NodeCodec:
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


class StoredNames:
    """Cache of the stored names of the node types of one function.

    The cache saves time because JAX has to write a file to look up a type that is registered with
    jax.export only.
    """

    def __init__(self) -> None:
        # The key includes the fields, since portable functions may have them in different orders.
        self._named_tuples: dict[tuple[type, tuple[Hashable, ...]], StoredType] = {}
        self._unregistered: dict[type, str] = {}

    def add_stored_type(self, spec: TreeSpec) -> TreeSpec:
        """Returns the node with `stored_type` set, by which readers find the type.

        A type that is not registered gets its qualified name, and its static data if they are
        plain values.

        Raises:
          SerializationError: the registered serialize_auxdata failed on the static data.
        """
        if spec.kind not in ("namedtuple", "custom") or spec.serialized_name or spec.codec is None:
            return spec
        if spec.kind == "custom":
            return replace(spec, stored_type=self._find_stored_type(spec, spec.codec))
        key = spec.codec.node_type, spec.keys
        if key not in self._named_tuples:
            self._named_tuples[key] = self._find_stored_type(spec, spec.codec)
        return replace(spec, stored_type=self._named_tuples[key])

    def _find_stored_type(self, spec: TreeSpec, codec: NodeCodec) -> StoredType:
        name = self._unregistered.get(codec.node_type)
        if name is None:
            serialization = serialize_node_type(spec)
            if serialization is not None:
                return StoredType(serialization[0], True, serialization[1])
            name = self._unregistered[codec.node_type] = shortest_public_name(codec.node_type)
        static = None if spec.kind == "namedtuple" else write_static(codec.static)
        return StoredType(name, False, static)


def make_stored_codec(spec: TreeSpec) -> NodeCodec | None:
    """Makes the codec of a stored node; None if its type is not known in this process.

    Raises:
      FileFormatError: the type does not fit the stored data.
    """
    if spec.kind not in ("namedtuple", "custom"):
        return None
    stored_type = _get_stored_type(spec)
    if not stored_type.is_registered:
        return _make_codec_of_unregistered(spec, stored_type)
    auxdata = stored_type.auxdata
    if auxdata is None:
        auxdata = write_fields([str(k) for k in spec.keys]) if spec.kind == "namedtuple" else b""
    return make_node_codec(stored_type.name, auxdata, spec.children)


def make_fitting_codec(spec: TreeSpec) -> NodeCodec | None:
    """Makes the codec of a stored node; None if its type is not known or does not fit.

    A type that was registered only after the node was written may not fit. It must not keep
    the rest of the file from being read. `with_types` raises the error once the type is needed.

    Raises:
      FileFormatError: the type was registered when the node was written, and the registration in
        this process does not fit.
    """
    try:
        return make_stored_codec(spec)
    except FileFormatError:
        if _get_stored_type(spec).is_registered:
            raise
        return None


def _get_stored_type(spec: TreeSpec) -> StoredType:
    if spec.serialized_name:
        return StoredType(spec.serialized_name, is_registered=True, auxdata=spec.auxdata)
    return spec.stored_type or StoredType(spec.name, is_registered=False)


def add_codecs(spec: TreeSpec) -> TreeSpec:
    """Returns the structure with codecs added for all types that are known now.

    Raises:
      FileFormatError: a type does not fit the stored data.
    """
    children = tuple(map(add_codecs, spec.children))
    if any(new is not old for new, old in zip(children, spec.children, strict=True)):
        spec = replace(spec, children=children)
    codec = spec.codec or make_stored_codec(spec)
    return spec if codec is spec.codec else replace(spec, codec=codec)


def format_registration_call(spec: TreeSpec) -> str:
    """Returns the Python code that registers the type of a node for files."""
    if spec.codec is not None:
        static = write_static(spec.codec.static)
        stored_type = StoredType(shortest_public_name(spec.codec.node_type), False, static)
    else:
        stored_type = _get_stored_type(spec)
    type_text = stored_type.name.removeprefix("__main__.")
    if stored_type.is_registered or not all(part.isidentifier() for part in type_text.split(".")):
        type_text = "..."
    arguments = f"{type_text}, serialized_name={stored_type.name!r}"
    if spec.kind == "namedtuple":
        return f"register_namedtuple_serialization({arguments})"
    # The default deserialize_auxdata reads plain static data.
    if not stored_type.is_registered and stored_type.auxdata is not None:
        return f"register_pytree_node_serialization({arguments})"
    call = (
        f"register_pytree_node_serialization({arguments}, serialize_auxdata=..., "
        "deserialize_auxdata=...)"
    )
    if stored_type.is_registered or spec.codec is not None:
        return call
    return f"{call}; deserialize_auxdata(None) must return the static data, which were not stored"


def _make_codec_of_unregistered(spec: TreeSpec, stored: StoredType) -> NodeCodec | None:
    """Finds the type if it is registered now, or is a named tuple of jax.numpy or jax.scipy.

    Raises:
      FileFormatError: the fields of a named tuple differ in this process, the static data cannot
        be read, or the node stores only the name of its class and several types have that name.
    """
    fields = tuple(str(key) for key in spec.keys) if spec.kind == "namedtuple" else None
    registration = find_registration_by_type_name(stored.name, fields)
    children = len(spec.children)
    if fields is None:
        if registration is None:
            return None
        return _make_registered_codec(
            registration, _read_static_of_unregistered(stored, registration), children
        )
    if registration is not None:
        return _make_namedtuple_codec(registration.node_type, fields, children)
    if not in_jax.is_imported():
        return None
    jax_type = in_jax.find_jax_namedtuple(stored.name, fields)
    if jax_type is not None:
        return _make_namedtuple_codec(jax_type, fields, children)
    # jax.export may know an unrelated type by the name of a class without its module.
    if "." not in stored.name:
        return None
    return make_node_codec(stored.name, write_fields(fields), (LEAF,) * children)


def _read_static_of_unregistered(stored: StoredType, registration: Registration) -> Any:
    try:
        if stored.auxdata is not None:
            return read_static(stored.auxdata)
        no_data: Any = None
        functions = registration.static
        return (read_fields if functions is None else functions.deserialize)(no_data)
    except Exception as e:
        raise FileFormatError(
            f"The static data of a {stored.name} are not stored: its type was not registered when "
            "it was written, and they are not plain values. deserialize_auxdata(None) should have "
            f"returned them, but raised {type(e).__name__}: {e}. Register the type before the "
            "function is written, or have deserialize_auxdata return its static data for None."
        ) from e


def _reduce(spec: TreeSpec) -> tuple[Any, ...]:
    """Returns what `__reduce__` returns, with the stored names of types instead of the types."""
    return _unpickle, (_to_tuples(spec, StoredNames()),)


def _to_tuples(spec: TreeSpec, names: StoredNames) -> tuple[Any, ...]:
    try:
        node = names.add_stored_type(spec)
    except SerializationError:  # the reader then rebuilds the node from its children
        node = spec
    children = tuple(_to_tuples(child, names) for child in spec.children)
    fields = (node.kind, node.name, node.keys, children, node.serialized_name, node.auxdata)
    return (*fields, node.stored_type)


def _unpickle(fields: tuple[Any, ...]) -> TreeSpec:
    """Makes a structure from a pickle, with codecs for the types that are known here."""
    # Pickles store the name of this function.
    return _from_tuples(fields, {})


def _from_tuples(fields: tuple[Any, ...], codecs: dict[Hashable, NodeCodec | None]) -> TreeSpec:
    kind, name, keys, child_tuples, serialized_name, auxdata, stored_type = fields
    children = tuple(_from_tuples(child, codecs) for child in child_tuples)
    spec = TreeSpec(kind, name, keys, children, None, serialized_name, auxdata, stored_type)
    if kind not in ("namedtuple", "custom"):
        return spec
    key = (kind, name, keys, len(children), serialized_name, auxdata, stored_type)
    if key not in codecs:
        try:
            codecs[key] = make_stored_codec(spec)
        except FileFormatError:  # with_types raises it again once the type is needed
            codecs[key] = None
    return replace(spec, codec=codecs[key])


# All modules that make structures with codecs import this module: from_jax and the file readers.
copyreg.pickle(TreeSpec, _reduce)
