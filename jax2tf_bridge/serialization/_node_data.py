"""Converts node data to bytes: fields of named tuples, plain static data, and type names."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import StoredType

_MAX_DEPTH = 16
"""Maximum nesting depth of containers in static data."""


def write_fields(fields: Sequence[str]) -> bytes:
    """Writes the fields of a named tuple, or the keys of an OrderedDict, like jax.export."""
    return json.dumps(list(fields)).encode()


def read_fields(auxdata: bytes) -> tuple[str, ...]:
    """Reads the fields of a named tuple, or the keys of an OrderedDict.

    Raises:
      FileFormatError: the bytes are not a list of strings in JSON.
    """
    try:
        fields = json.loads(auxdata)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, list) or not all(isinstance(f, str) for f in fields):
        raise FileFormatError(
            "The names of a named tuple's fields, or of the keys of an OrderedDict, must be a list "
            f"of texts in JSON. Got: {auxdata[:80]!r}"
        )
    return tuple(fields)


def type_name(node_type: type) -> str:
    """Returns the module and qualified name of a type, for messages."""
    return f"{node_type.__module__}.{node_type.__qualname__}"


def shortest_public_name(node_type: type) -> str:
    """Returns the shortest public name of a type, such as "optax.EmptyState"."""
    return import_names_of(node_type)[0]


def import_names_of(node_type: type) -> list[str]:
    """Returns all names from which a type can be imported, the shortest public name first."""
    parts = node_type.__module__.split(".")
    public = itertools.takewhile(lambda part: part == "__main__" or part[:1] != "_", parts)
    names = []
    for prefix in itertools.accumulate(public, "{}.{}".format):
        value: Any = sys.modules.get(prefix)
        for part in node_type.__qualname__.split("."):
            # Not getattr: the __getattr__ of a module may import or warn.
            value = getattr(value, "__dict__", {}).get(part)
        if value is node_type:
            names.append(f"{prefix}.{node_type.__qualname__}")
    return list(dict.fromkeys([*names, type_name(node_type)]))


def write_static(static: Any) -> bytes | None:
    """Writes plain static data as JSON; None for static data that are not plain.

    Plain values are None, bool, int, float, str, bytes, and tuples, lists and dicts of these.
    Subclasses are not plain, since they would be read back as their base classes.
    """
    try:
        data = json.dumps(_encode(static, 1), separators=(",", ":")).encode()
        # Some values do not survive JSON or UTF-8, such as very long integers.
        return data if repr(read_static(data)) == repr(static) else None
    except (ValueError, RecursionError):
        return None


def read_static(data: bytes) -> Any:
    """Reads static data that `write_static` wrote.

    Raises:
      ValueError: the bytes have another format.
    """
    try:
        return _decode(json.loads(data), 1)
    except (ValueError, TypeError, RecursionError) as e:
        raise ValueError(f"expected plain values in JSON. Got: {data!r:.80}") from e


def write_definition(known: StoredType) -> bytes:
    """Writes the qualified name of a type, and the static data of its node if they are plain."""
    definition = {"type": known.name}
    if known.auxdata is not None:
        definition["static"] = known.auxdata.decode()
    return json.dumps(definition).encode()


def read_definition(data: bytes | None) -> StoredType | None:
    """Reads what `write_definition` wrote; None for other bytes, such as those of old versions."""
    try:
        match json.loads(data or b"null"):
            case {"type": str(name), "static": str(static), **others} if name and not others:
                return StoredType(name, is_registered=False, auxdata=static.encode())
            case {"type": str(name), **others} if name and not others:
                return StoredType(name, is_registered=False)
    except (ValueError, RecursionError):
        pass
    return None


def _encode(value: Any, depth: int) -> Any:
    """Converts plain values to those of JSON; raises ValueError for other values."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind not in (tuple, list, dict) or depth >= _MAX_DEPTH:
        raise ValueError("not plain")
    if kind is dict:
        return {"dict": [[_encode(k, depth + 1), _encode(v, depth + 1)] for k, v in value.items()]}
    items = [_encode(item, depth + 1) for item in value]
    return items if kind is list else {"tuple": items}


def _decode(value: Any, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, list):
        return [_decode(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tuple":
        return tuple(_decode(item, depth + 1) for item in content)
    if kind == "dict":
        return {_decode(k, depth + 1): _decode(v, depth + 1) for k, v in content}
    raise ValueError("no kind of value")
