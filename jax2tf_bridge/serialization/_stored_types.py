"""Names and codecs of nodes that are stored, by which another process finds their types."""

from __future__ import annotations

import copyreg
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable._tree_spec import NodeCodec, StoredType, TreeSpec
from jax2tf_bridge.serialization import _jax_registrations as in_jax
from jax2tf_bridge.serialization._node_data import (
    defined_name,
    read_static,
    write_fields,
    write_static,
)
from jax2tf_bridge.serialization._registry import (
    Registration,
    codec_by,
    codec_for,
    fields_codec,
    registration_of,
    serialization_of,
)


class StoredNames:
    """Cache of the names of one function's node types.

    A type that the bridge does not know is looked up by letting JAX write and read a file.
    """

    def __init__(self) -> None:
        # By type, and for named tuples their fields in the order of the portable function.
        self._named_tuples: dict[tuple[type, tuple[Hashable, ...]], StoredType] = {}
        self._unregistered: dict[type, str] = {}

    def stored(self, spec: TreeSpec) -> TreeSpec:
        """Returns a node as files and pickles have it: with the name by which its type is found.

        A type that is not registered is named by where it is defined, with its static data if they
        are plain values.

        Raises:
          SerializationError: the registered function failed on the static data.
        """
        if spec.kind not in ("namedtuple", "custom") or spec.serialized_name or spec.codec is None:
            return spec
        if spec.kind == "custom":
            return replace(spec, stored_type=self._stored_type(spec, spec.codec))
        key = spec.codec.node_type, spec.keys
        if key not in self._named_tuples:
            self._named_tuples[key] = self._stored_type(spec, spec.codec)
        return replace(spec, stored_type=self._named_tuples[key])

    def _stored_type(self, spec: TreeSpec, codec: NodeCodec) -> StoredType:
        name = self._unregistered.get(codec.node_type)
        if name is None:
            found = serialization_of(spec)
            if found is not None:
                return StoredType(found[0], True, found[1])
            name = self._unregistered[codec.node_type] = defined_name(codec.node_type)
        static = None if spec.kind == "namedtuple" else write_static(codec.static)
        return StoredType(name, False, static)


def codec_of(spec: TreeSpec) -> NodeCodec | None:
    """Makes the codec of a node that was stored; None if its type is not known here.

    Raises:
      FileFormatError: the type does not fit the stored data.
    """
    if spec.kind not in ("namedtuple", "custom"):
        return None
    known = _stored_type(spec)
    if not known.is_registered:
        return _codec_of_unregistered(spec, known)
    auxdata = known.auxdata
    if auxdata is None:
        auxdata = write_fields([str(k) for k in spec.keys]) if spec.kind == "namedtuple" else b""
    return codec_for(known.name, auxdata, len(spec.children), spec.children)


def codec_if_it_fits(spec: TreeSpec) -> NodeCodec | None:
    """Makes the codec of a node that is read; None if its type is not known or does not fit.

    A type that was registered only after the node was written may not fit. It must not keep the
    rest from being read; `with_types` raises where the type is needed.

    Raises:
      FileFormatError: the node was written with a registration, and the one here does not fit.
    """
    try:
        return codec_of(spec)
    except FileFormatError:
        if _stored_type(spec).is_registered:
            raise
        return None


def _stored_type(spec: TreeSpec) -> StoredType:
    if spec.serialized_name:
        return StoredType(spec.serialized_name, is_registered=True, auxdata=spec.auxdata)
    return spec.stored_type or StoredType(spec.name, is_registered=False)


def with_types(spec: TreeSpec) -> TreeSpec:
    """Adds to a structure the codecs of types that are known by now.

    Raises:
      FileFormatError: one of them does not fit the stored data.
    """
    children = tuple(map(with_types, spec.children))
    if any(new is not old for new, old in zip(children, spec.children, strict=True)):
        spec = replace(spec, children=children)
    codec = spec.codec or codec_of(spec)
    return spec if codec is spec.codec else replace(spec, codec=codec)


def registration_call(spec: TreeSpec) -> str:
    """Returns the source of the call that registers a node's type for files."""
    if spec.codec is not None:
        static = write_static(spec.codec.static)
        known = StoredType(defined_name(spec.codec.node_type), False, static)
    elif spec.serialized_name:
        known = StoredType(spec.serialized_name, True)
    else:
        known = spec.stored_type or StoredType(spec.name, False)
    shown = known.name.removeprefix("__main__.")
    if known.is_registered or not all(part.isidentifier() for part in shown.split(".")):
        shown = "..."
    arguments = f"{shown}, serialized_name={known.name!r}"
    if spec.kind == "namedtuple":
        return f"register_namedtuple_serialization({arguments})"
    # Plain static data are read without further functions.
    if not known.is_registered and known.auxdata is not None:
        return f"register_pytree_node_serialization({arguments})"
    call = (
        f"register_pytree_node_serialization({arguments}, serialize_auxdata=..., "
        "deserialize_auxdata=...)"
    )
    if known.is_registered or spec.codec is not None:
        return call
    return f"{call}; deserialize_auxdata(None) has to give the static data, which were not stored"


def _codec_of_unregistered(spec: TreeSpec, stored: StoredType) -> NodeCodec | None:
    """Makes the codec of a node whose type was not registered when it was stored.

    It finds types that are registered by now, and the named tuples of jax.numpy and jax.scipy.

    Raises:
      FileFormatError: a named tuple has other fields here, the static data cannot be read, or the
        node is named by its class alone and several types have that name.
    """
    fields = tuple(str(key) for key in spec.keys) if spec.kind == "namedtuple" else None
    registration = registration_of(stored.name, fields)
    children = len(spec.children)
    if fields is None:
        if registration is None:
            return None
        return codec_by(registration, _static_of_unregistered(stored, registration), children)
    if registration is not None:
        return fields_codec(registration.node_type, fields, children)
    if not in_jax.is_imported():
        return None
    of_jax = in_jax.named_tuple_of_jax(stored.name, fields)
    if of_jax is not None:
        return fields_codec(of_jax, fields, children)
    if "." not in stored.name:  # under which jax.export may know an unrelated type
        return None
    return codec_for(stored.name, write_fields(fields), children)


def _static_of_unregistered(stored: StoredType, registration: Registration) -> Any:
    """Reads the static data of a node that was stored before its type was registered."""
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


def _pickled(spec: TreeSpec) -> tuple[Any, ...]:
    """Reduces a structure for pickles: its types are found by their names where it is read."""
    return _unpickled, (_as_tuples(spec, StoredNames()),)


def _as_tuples(spec: TreeSpec, names: StoredNames) -> tuple[Any, ...]:
    try:
        node = names.stored(spec)
    except SerializationError:  # the children still stand for it
        node = spec
    children = tuple(_as_tuples(child, names) for child in spec.children)
    fields = (node.kind, node.name, node.keys, children, node.serialized_name, node.auxdata)
    return (*fields, node.stored_type)


def _unpickled(fields: tuple[Any, ...]) -> TreeSpec:
    """Makes the pickled structure, with the types that are known here."""
    return _from_tuples(fields, {})


def _from_tuples(fields: tuple[Any, ...], codecs: dict[Hashable, NodeCodec | None]) -> TreeSpec:
    kind, name, keys, nested, serialized_name, auxdata, stored_type = fields
    children = tuple(_from_tuples(child, codecs) for child in nested)
    spec = TreeSpec(kind, name, keys, children, None, serialized_name, auxdata, stored_type)
    if kind not in ("namedtuple", "custom"):
        return spec
    key = (kind, name, keys, len(children), serialized_name, auxdata, stored_type)
    if key not in codecs:
        try:
            codecs[key] = codec_of(spec)
        except FileFormatError:  # said where the types are needed
            codecs[key] = None
    return replace(spec, codec=codecs[key])


# Whatever makes structures of types imports this module: from_jax and the readers of files.
copyreg.pickle(TreeSpec, _pickled)
