"""Reads and writes the .jaxfn format."""

from jax2tf_bridge.serialization.jaxfn._file_parts import copy_parts as copy_parts
from jax2tf_bridge.serialization.jaxfn._file_parts import read_part as read_part
from jax2tf_bridge.serialization.jaxfn._file_parts import read_parts as read_parts
from jax2tf_bridge.serialization.jaxfn._format import HEADER_SIZE as HEADER_SIZE
from jax2tf_bridge.serialization.jaxfn._format import IDENTIFIER as IDENTIFIER
from jax2tf_bridge.serialization.jaxfn._format import MAX_STRUCTURE_SIZE as MAX_STRUCTURE_SIZE
from jax2tf_bridge.serialization.jaxfn._format import file_label as file_label
from jax2tf_bridge.serialization.jaxfn._format import parse_header as parse_header
from jax2tf_bridge.serialization.jaxfn._read import ValidatedStructure as ValidatedStructure
from jax2tf_bridge.serialization.jaxfn._read import read_structure as read_structure
from jax2tf_bridge.serialization.jaxfn._write import make_file_parts as make_file_parts
