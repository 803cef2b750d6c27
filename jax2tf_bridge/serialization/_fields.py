"""Named tuples and OrderedDicts in files: their fields or keys as jax.export writes them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._tree_spec import NodeCodec


def write_fields(fields: Sequence[str]) -> bytes:
    """Writes the fields of a named tuple, or the keys of an OrderedDict, as jax.export does."""
    return json.dumps(list(fields)).encode()


def read_fields(auxdata: bytes) -> tuple[str, ...]:
    """Reads the fields of a named tuple, or the keys of an OrderedDict.

    Raises:
      FileFormatError: it is no list of texts.
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
      FileFormatError: they are not one for each child.
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
