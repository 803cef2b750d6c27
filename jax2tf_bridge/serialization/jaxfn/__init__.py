"""Reads and writes the .jaxfn format."""

from jax2tf_bridge.serialization.jaxfn._file_parts import copy_parts, read_part, read_parts
from jax2tf_bridge.serialization.jaxfn._format import (
    HEADER_SIZE,
    IDENTIFIER,
    MAX_STRUCTURE_SIZE,
    file_label,
    parse_header,
)
from jax2tf_bridge.serialization.jaxfn._read import ValidatedStructure, read_structure
from jax2tf_bridge.serialization.jaxfn._write import file_parts

__all__ = [
    "HEADER_SIZE",
    "IDENTIFIER",
    "MAX_STRUCTURE_SIZE",
    "ValidatedStructure",
    "copy_parts",
    "file_label",
    "file_parts",
    "parse_header",
    "read_part",
    "read_parts",
    "read_structure",
]
