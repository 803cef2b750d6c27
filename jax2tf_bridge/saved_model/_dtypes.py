"""The dtypes of TensorFlow's messages: those of numbers, and those that TensorFlow alone has."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge.portable._dtypes import ALL_DTYPES

STRING = "string"
"""The dtype of texts, whose elements have no fixed size."""

_TENSORFLOWS_OWN = {
    7: (STRING, 0),
    11: ("qint8", 8),
    12: ("quint8", 8),
    13: ("qint32", 32),
    15: ("qint16", 16),
    16: ("quint16", 16),
    20: ("resource", 0),
    21: ("variant", 0),
}
_NUMBERS = [(row, row.tensorflow) for row in ALL_DTYPES if row.tensorflow is not None]

DTYPES: Mapping[int, str] = MappingProxyType(
    {number: name for number, (name, _) in _TENSORFLOWS_OWN.items()}
    | {number: row.name for row, number in _NUMBERS}
)
"""The names of TensorFlow's dtypes, by their numbers in types.proto."""

STORED_BITS: Mapping[str, int] = MappingProxyType(
    {name: bits for name, bits in _TENSORFLOWS_OWN.values() if bits}
    # Those of fewer than 8 bits lie in a byte each.
    | {row.name: max(8, row.bits) for row, _ in _NUMBERS}
)
"""The bits of an element in a variable or constant, of the dtypes of a fixed size."""
