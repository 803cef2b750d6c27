"""Node data as bytes: fields of named tuples, plain static data, and where a type is defined."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._tree_spec import StoredType

_MAX_DEPTH = 16
"""Of containers in containers."""
_CONTAINERS = (tuple, list, dict)


def write_fields(fields: Sequence[str]) -> bytes:
    """Writes the fields of a named tuple, or the keys of an OrderedDict, as jax.export does."""
    return json.dumps(list(fields)).encode()


def read_fields(auxdata: bytes) -> tuple[str, ...]:
    """Reads the fields of a named tuple, or the keys of an OrderedDict.

    Raises:
      FileFormatError: the bytes are no list of texts in JSON.
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


def defined_name(node_type: type) -> str:
    """Returns the shortest public name by which a type is imported, as "optax.EmptyState"."""
    return names_of(node_type)[0]


def names_of(node_type: type) -> list[str]:
    """Returns all names by which a type is imported, the shortest public one first."""
    defined = f"{node_type.__module__}.{node_type.__qualname__}"
    parts = node_type.__module__.split(".")
    public = itertools.takewhile(lambda part: part == "__main__" or part[:1] != "_", parts)
    found = []
    for prefix in itertools.accumulate(public, "{}.{}".format):
        value: Any = sys.modules.get(prefix)
        for step in node_type.__qualname__.split("."):
            # Without __getattr__, which may import or warn.
            value = getattr(value, "__dict__", {}).get(step)
        if value is node_type:
            found.append(f"{prefix}.{node_type.__qualname__}")
    return list(dict.fromkeys([*found, defined]))


def write_static(static: Any) -> bytes | None:
    """Writes plain static data as JSON; None if they hold anything else.

    Plain values are None, bool, int, float, str, bytes, and tuples, lists and dicts of these.
    Subclasses are not plain: they would be read as what they derive from.
    """
    if not _is_plain(static, 1):
        return None
    try:
        written = json.dumps(_encoded(static), separators=(",", ":")).encode()
        # Not what JSON or UTF-8 has no place for, such as very long integers.
        return written if repr(read_static(written)) == repr(static) else None
    except (ValueError, RecursionError):
        return None


def read_static(data: bytes) -> Any:
    """Reads the static data that `write_static` wrote.

    Raises:
      ValueError: the bytes are something else.
    """
    try:
        return _decoded(json.loads(data), 1)
    except (ValueError, TypeError, RecursionError) as e:
        raise ValueError(f"expected plain values in JSON. Got: {data!r:.80}") from e


def write_definition(known: StoredType) -> bytes:
    """Writes where a type is defined, and the static data of its node if they are plain."""
    definition = {"type": known.name}
    if known.auxdata is not None:
        definition["static"] = known.auxdata.decode()
    return json.dumps(definition).encode()


def read_definition(data: bytes | None) -> StoredType | None:
    """Reads what `write_definition` wrote; None for anything else, as of earlier versions."""
    try:
        match json.loads(data or b"null"):
            case {"type": str(name), "static": str(static), **others} if name and not others:
                return StoredType(name, is_registered=False, auxdata=static.encode())
            case {"type": str(name), **others} if name and not others:
                return StoredType(name, is_registered=False)
    except (ValueError, RecursionError):
        pass
    return None


def _is_plain(value: Any, depth: int) -> bool:
    if type(value) not in _CONTAINERS:
        return value is None or type(value) in (bool, int, float, str, bytes)
    if depth >= _MAX_DEPTH:
        return False
    items = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_is_plain(item, depth + 1) for item in items)


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return list(map(_encoded, value))
    if isinstance(value, tuple):
        return {"tuple": list(map(_encoded, value))}
    if isinstance(value, dict):
        return {"dict": [[_encoded(k), _encoded(v)] for k, v in value.items()]}
    return value


def _decoded(value: Any, depth: int) -> Any:
    if depth > 2 * _MAX_DEPTH:
        raise ValueError("too deep")
    if isinstance(value, list):
        return [_decoded(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tuple":
        return tuple(_decoded(item, depth + 1) for item in content)
    if kind == "dict":
        return {_decoded(k, depth + 1): _decoded(v, depth + 1) for k, v in content}
    raise ValueError("no kind of value")
