"""Names of node types in files and pickles, and codecs for the types that have these names."""

from __future__ import annotations

import copyreg
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable import NodeCodec, StoredType, TreeSpec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._node_data import (
    read_static,
    shortest_public_name,
    write_fields,
    write_static,
)
from jax2tf_bridge.serialization._registry import (
    Registration,
    find_registration,
    make_namedtuple_codec,
    make_node_codec,
    make_registered_codec,
    serialize_node_type,
)


class StoredNames:
    """Cache of the stored names of the node types of one function.

    The cache saves time because JAX has to write a file to look up a type that is registered with
    jax.export only.
    """

    def __init__(self) -> None:
        # The key includes the fields, since portable functions may have them in different orders.
        self._named_tuples: dict[tuple[type, tuple[Hashable, ...]], StoredType] = {}
        self._unregistered: dict[type, str] = {}

    def stored(self, spec: TreeSpec) -> TreeSpec:
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
    stored_type = _stored_type_of(spec)
    if not stored_type.is_registered:
        return _make_codec_of_unregistered(spec, stored_type)
    auxdata = stored_type.auxdata
    if auxdata is None:
        auxdata = write_fields([str(k) for k in spec.keys]) if spec.kind == "namedtuple" else b""
    return make_node_codec(stored_type.name, auxdata, len(spec.children), spec.children)


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
        if _stored_type_of(spec).is_registered:
            raise
        return None


def _stored_type_of(spec: TreeSpec) -> StoredType:
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
    elif spec.serialized_name:
        stored_type = StoredType(spec.serialized_name, True)
    else:
        stored_type = spec.stored_type or StoredType(spec.name, False)
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
    return f"{call}; deserialize_auxdata(None) has to give the static data, which were not stored"


def _make_codec_of_unregistered(spec: TreeSpec, stored: StoredType) -> NodeCodec | None:
    """Makes the codec of a node whose type was not registered when it was stored.

    Finds types that are registered now, and the named tuples of jax.numpy and jax.scipy.

    Raises:
      FileFormatError: the fields of a named tuple differ in this process, the static data cannot
        be read, or the node stores only the name of its class and several types have that name.
    """
    fields = tuple(str(key) for key in spec.keys) if spec.kind == "namedtuple" else None
    registration = find_registration(stored.name, fields)
    children = len(spec.children)
    if fields is None:
        if registration is None:
            return None
        return make_registered_codec(
            registration, _read_static_of_unregistered(stored, registration), children
        )
    if registration is not None:
        return make_namedtuple_codec(registration.node_type, fields, children)
    if not in_jax.is_imported():
        return None
    jax_type = in_jax.find_jax_namedtuple(stored.name, fields)
    if jax_type is not None:
        return make_namedtuple_codec(jax_type, fields, children)
    # jax.export may know an unrelated type by the name of a class without its module.
    if "." not in stored.name:
        return None
    return make_node_codec(stored.name, write_fields(fields), children)


def _read_static_of_unregistered(stored: StoredType, registration: Registration) -> Any:
    """Returns the static data of a node that was stored before its type was registered."""
    try:
        if stored.auxdata is not None:
            return read_static(stored.auxdata)
        no_data: Any = None
        return registration.deserialize_auxdata(no_data)
    except Exception as e:
        raise FileFormatError(
            f"The static data of a {stored.name} are not stored: its type was not registered when "
            "it was written, and they are no plain values. deserialize_auxdata(None) should have "
            f"given them, and raised {type(e).__name__}: {e}. Register the type before the "
            "function is written, or have deserialize_auxdata return its static data for None."
        ) from e


def _reduce(spec: TreeSpec) -> tuple[Any, ...]:
    """Returns what `__reduce__` returns, with the stored names of types instead of the types."""
    return _unpickle, (_to_tuples(spec, StoredNames()),)


def _to_tuples(spec: TreeSpec, names: StoredNames) -> tuple[Any, ...]:
    try:
        node = names.stored(spec)
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
