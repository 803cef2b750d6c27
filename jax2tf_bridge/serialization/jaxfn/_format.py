"""Defines the .jaxfn format: its versions, its header and its tables.

A file is a FlatBuffer (schema/jaxfn.fbs) with a header between its identifier and its tables. The
StableHLO modules and the lifted arrays follow the FlatBuffer, which is called the structure:

    bytes    what
    0-3      the offset of the root of the FlatBuffer
    4-7      the identifier "JXFN"
    8-11     the format version
    12-15    the CRC-32 of the structure without these four bytes
    16-23    the size of the structure, which begins at byte 0
    24-31    the size of the file
    32-      the tables of the FlatBuffer; after the structure, the modules, then the arrays

There are no gaps between modules. Each array begins at the next multiple of 64 bytes, after zero
bytes as padding. Numbers are little-endian and unsigned. The identifier and the version keep their
positions in every later version, so that an older bridge can report the version of a newer file.

The tables repeat schema/jaxfn.fbs, which explains each field and exists for other tools. A test
compares the two. Enums are ubytes here.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import AxisType, MemorySpace, NodeKind
from jax2tf_bridge.serialization._flatbuffer import Field

IDENTIFIER = b"JXFN"

HISTORY = {
    1: "November 2026, the first: all of a PortableFunction with its VJPs and lifted arrays",
    2: "November 2026: TensorFlow graphs that modules call; written only where there are any",
    3: "November 2026: targets without XLA, and functions that TensorFlow differentiates itself; "
    "written only for those",
}
"""Date and reason of each version of the format.

Every later release of the bridge reads all versions. Add a version for each change that an older
bridge would misread or ignore, which includes every new field. An older bridge refuses a file with
a newer version, so it never ignores a part of a file.
"""

VERSION = max(HISTORY)
"""Newest version that the bridge reads."""

FIRST_VERSION = 1
"""Oldest version; the bridge writes it unless a file needs a later one."""

GRAPH_FUNCTIONS_VERSION = 2
"""First version with TensorFlow graphs."""

WITHOUT_XLA_VERSION = 3
"""First version with targets without XLA, and with functions that TensorFlow differentiates."""

MAX_STRUCTURE_SIZE = 2**31 - 1
"""Maximum size of the structure in bytes, due to the offsets of FlatBuffers.

Modules and arrays are not part of the structure, and have no limit.
"""

ARRAY_ALIGNMENT = 64
"""Alignment of arrays in bytes, so that they can be used from a memory-mapped file."""

MAX_VJP_ORDER = 200
"""Maximum number of VJPs in a file."""

_HEADER = struct.Struct("<I4sIIQQ")
HEADER_SIZE = _HEADER.size
HEADER_ROOM = HEADER_SIZE - 8
"""Number of bytes that a writer leaves free after the identifier."""
_VERSION_POSITION, _CHECKSUM_POSITION = 8, 12


@dataclass(frozen=True)
class Header:
    """Header of a .jaxfn file.

    Attributes:
      version: the version of the format.
      checksum: the CRC-32 of the structure, without the bytes of the checksum itself.
      structure_size: the size of the structure in bytes, from the start of the file.
      file_size: the size of the file in bytes.
    """

    version: int
    checksum: int
    structure_size: int
    file_size: int


def damaged_error(problem: str, file: str | None) -> FileFormatError:
    """Returns the error for a damaged file; `problem` is a sentence that says where and how."""
    return FileFormatError(
        f"{file_label(file)} cannot be read as a .jaxfn file: {problem} The bytes are cut short or "
        "damaged: copy them anew, or write the file again.",
        file=file,
    )


def file_label(file: str | None) -> str:
    """Returns the name of the file for messages; "The data" if there is no file."""
    return file or "The data"


def parse_header(start: bytes | memoryview, size: int, file: str | None) -> Header:
    """Reads the header of a file of `size` bytes. The caller has checked the identifier.

    Raises:
      FileFormatError: the file has a newer version, or its size differs from that in the header.
    """
    if len(start) < _VERSION_POSITION + 4:
        raise damaged_error(f"expected a header of {HEADER_SIZE} bytes, got {size}.", file)
    (version,) = struct.unpack_from("<I", start, _VERSION_POSITION)
    if version > VERSION:
        raise FileFormatError(
            f"{file_label(file)} is written by format version {version}, this bridge reads up to "
            f"{VERSION}: upgrade jax2tf-bridge.",
            file=file,
        )
    if version < 1:
        raise damaged_error(f"expected a format version from 1 to {VERSION}, got {version}.", file)
    if len(start) < HEADER_SIZE:
        raise damaged_error(f"expected a header of {HEADER_SIZE} bytes, got {size}.", file)
    _, _, _, checksum, structure_size, file_size = _HEADER.unpack_from(start)
    if file_size != size:
        raise damaged_error(
            f"its header says that it has {file_size} bytes, but it has {size}.", file
        )
    if not HEADER_SIZE <= structure_size <= min(size, MAX_STRUCTURE_SIZE):
        raise damaged_error(
            f"its header says that the structure has {structure_size} bytes, in a file of {size}.",
            file,
        )
    return Header(version, checksum, structure_size, file_size)


def check_structure(header: Header, structure: bytes | memoryview, file: str | None) -> None:
    checksum = _compute_checksum(structure)
    if checksum != header.checksum:
        raise damaged_error(
            f"the checksum of the structure (bytes 0 to {header.structure_size - 1}) is "
            f"{checksum:08x}, but its header has {header.checksum:08x}.",
            file,
        )


def align_array_start(end: int) -> int:
    """Returns the position of the next array: `end` rounded up to the alignment."""
    return end + -end % ARRAY_ALIGNMENT


def fill_header(structure: bytearray, rest_size: int, version: int = FIRST_VERSION) -> None:
    """Writes the header into a finished structure that has room for it.

    Args:
      structure: the structure of the file; changed in place.
      rest_size: the number of bytes after the structure.
      version: the version of the format.
    """
    root, identifier = struct.unpack_from("<I4s", structure)
    sizes = len(structure), len(structure) + rest_size
    _HEADER.pack_into(structure, 0, root, identifier, version, 0, *sizes)
    struct.pack_into("<I", structure, _CHECKSUM_POSITION, _compute_checksum(structure))


def _compute_checksum(structure: bytes | bytearray | memoryview) -> int:
    view = memoryview(structure)
    return zlib.crc32(view[_CHECKSUM_POSITION + 4 :], zlib.crc32(view[:_CHECKSUM_POSITION]))


NODE_KINDS: tuple[NodeKind, ...] = (
    "leaf",
    "none",
    "tuple",
    "list",
    "dict",
    "namedtuple",
    "custom",
    "custom",  # with names for its children
)
LEAF, NONE, TUPLE, LIST, DICT, NAMEDTUPLE, CUSTOM, NAMED_CUSTOM = range(8)

KEY_INDEX_FLAG = 1 << 31
"""Flag in Trees.keys: the other bits are an index into File.keys, not into the texts."""

KEY_KINDS = ("none", "boolean", "integer", "real", "text", "bytes", "tuple")
MEMORY_SPACES: tuple[MemorySpace, ...] = ("device", "host", "any")
AXIS_TYPES: tuple[AxisType, ...] = ("auto", "explicit", "manual")


# Each class describes a table of schema/jaxfn.fbs: its members are the fields.


class KeyRecord(Field):
    """Key of a dictionary that is not a string."""

    KIND = "ubyte"
    DATA = "[ubyte]"
    ITEMS = "[Key]"


class NodeTypeRecord(Field):
    """Type of a named tuple or custom node."""

    NAME = "uint"
    SERIALIZED_NAME = "uint", None
    AUXDATA = "[ubyte]"


class TreesRecord(Field):
    KINDS = "[ubyte]"
    COUNTS = "[uint]"
    KEYS = "[uint]"
    TYPES = "[uint]"


class AvalsRecord(Field):
    DTYPES = "[uint]"
    RANKS = "[uint]"
    ELEMENT_RANKS = "[uint]"
    MEMORY_SPACES = "[ubyte]"
    SIZES = "[long]"
    DIMENSIONS = "[uint]"


class DeviceRecord(Field):
    KIND = "uint"
    PLATFORM = "uint"
    NUM_CORES = "uint", None


class MeshRecord(Field):
    AXIS_NAMES = "[uint]"
    AXIS_SIZES = "[ulong]"
    AXIS_TYPES = "[ubyte]"
    DEVICE = "Device"


class ShardingRecord(Field):
    """Distribution of an array over devices."""

    MESH = "uint", None
    PARTITION_SIZES = "[uint]"
    AXES = "[uint]"
    UNREDUCED = "[uint]"
    REDUCED = "[uint]"
    MEMORY_KIND = "uint", None
    HLO = "[ubyte]"


class LoweringRecord(Field):
    """Settings that functions were lowered with, and their target."""

    STABLEHLO_VERSION = "[uint]"
    CALLING_CONVENTION_VERSION = "uint"
    PLATFORMS = "[uint]"
    DROPPED_PLATFORMS = "[uint]"
    DROPPED_BECAUSE = "[uint]"
    DISABLED_CHECKS = "[uint]"
    NR_DEVICES = "uint", 1
    USES_SHAPE_POLYMORPHISM = "bool"
    CONSTRAINTS = "[uint]"
    CONSTRAINTS_KNOWN = "bool", True
    PRODUCER = "uint"
    TARGET_NAME = "uint"
    TARGET_STABLEHLO_VERSIONS = "[uint]"
    TARGET_CALLING_CONVENTION = "uint"
    TARGET_XLA = "bool", True


class GraphFunctionRecord(Field):
    """TensorFlow graph that modules call."""

    NAME = "uint"
    GRAPH = "[ubyte]"


class FunctionRecord(Field):
    """Function or VJP."""

    NAME = "uint"
    IN_AVALS = "[uint]"
    OUT_AVALS = "[uint]"
    ARGUMENT_NAMES = "[uint]"
    LOWERING = "uint"
    REQUIREMENTS = "[uint]"
    ORDERED_EFFECTS = "[uint]"
    UNORDERED_EFFECTS = "[uint]"
    MODULE_KEPT_VAR_IDX = "[uint]"
    IN_SHARDINGS = "[uint]"
    OUT_SHARDINGS = "[uint]"
    USES_GLOBAL_CONSTANTS = "bool"
    LIFTED_AVALS = "[uint]"
    LIFTED_DIGESTS = "[uint]"
    LIFTED_NAMES = "[uint]"
    MODULE_SIZE = "ulong"
    MODULE_CRC32 = "uint"
    GRAPH_FUNCTIONS = "[uint]"
    TENSORFLOW_DIFFERENTIATES = "bool"


class FileRecord(Field):
    """Root table of a file."""

    TEXT = "string"
    TEXT_SIZES = "[uint]"
    BRIDGE_VERSION = "uint"
    FUNCTIONS = "[Function]"
    VJP_MISSING_BECAUSE = "uint"
    LOWERINGS = "[Lowering]"
    AVALS = "Avals"
    TREES = "Trees"
    KEYS = "[Key]"
    NODE_TYPES = "[NodeType]"
    SHARDINGS = "[Sharding]"
    MESHES = "[Mesh]"
    ARRAY_DIGESTS = "[uint]"
    ARRAY_SIZES = "[ulong]"
    GRAPH_FUNCTIONS = "[GraphFunction]"
