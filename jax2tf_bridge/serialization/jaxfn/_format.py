"""Defines the .jaxfn format: its versions, and the header that stands before everything else.

A file is a FlatBuffer (schema/jaxfn.fbs), with a header between its identifier and its tables,
and the StableHLO modules and the lifted arrays behind it:

    bytes    what
    0-3      the FlatBuffer's offset to its root
    4-7      the identifier "JXFN"
    8-11     the format version
    12-15    the CRC-32 of the structure without these four bytes
    16-23    the size of the structure, which begins at byte 0
    24-31    the size of the file
    32-      the FlatBuffer's tables; where the structure ends, the modules follow, then the arrays

Modules follow each other without a gap.  Each array begins at the next multiple of 64 bytes, and
the bytes before it are zero.  Numbers are little-endian and unsigned.  Identifier and version stay
where they are in every later version, so that an older bridge can name what it cannot read.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from jax2tf_bridge.errors import FileFormatError

IDENTIFIER = b"JXFN"

HISTORY = {
    1: "November 2026, the first: all of a PortableFunction with its VJPs and lifted arrays",
    2: "November 2026: TensorFlow graphs that modules call; written only where there are any",
    3: "November 2026: targets without XLA, and functions that TensorFlow differentiates itself; "
    "written only for those",
}
"""Each version of the format, when it came, and why.

Every later version of the bridge reads all of them. A version is added whenever a bridge that
does not know the change would read something wrong, or leave something out: also for a new field.
So there are no additions that an older bridge may pass over, and it refuses a newer file by name.
"""

VERSION = max(HISTORY)
"""Newest version that is read."""

FIRST_VERSION = 1
"""Version that is written, unless a file needs a later one."""

GRAPH_FUNCTIONS_VERSION = 2
"""First version with TensorFlow graphs."""

WITHOUT_XLA_VERSION = 3
"""First version with targets without XLA, and functions that TensorFlow differentiates."""

MAX_STRUCTURE_SIZE = 2**31 - 1
"""FlatBuffers' offsets reach no further. Modules and arrays lie behind and have no limit."""

ARRAY_ALIGNMENT = 64
"""Where arrays begin is a multiple of this, so that they can be used where a file is mapped."""

MAX_VJP_ORDER = 200
"""How many VJPs a file may hold."""

_HEADER = struct.Struct("<I4sIIQQ")
HEADER_SIZE = _HEADER.size
HEADER_ROOM = HEADER_SIZE - 8
"""How many bytes a writer leaves free after the identifier."""
_VERSION_AT, _CHECKSUM_AT = 8, 12


@dataclass(frozen=True)
class Header:
    """Header of a .jaxfn file.

    Attributes:
      version: of the format.
      checksum: the CRC-32 of the structure without this number.
      structure_size: bytes from the beginning of the file to the first module.
      file_size: of everything.
    """

    version: int
    checksum: int
    structure_size: int
    file_size: int


def damaged(problem: str, file: str | None) -> FileFormatError:
    """Returns the error for damaged bytes; `problem` says where and how."""
    return FileFormatError(
        f"{place(file)} cannot be read as a .jaxfn file: {problem} The bytes are cut short or "
        "damaged: copy them anew, or write the file again.",
        file=file,
    )


def place(file: str | None) -> str:
    """Returns how messages call the file, or the data without one."""
    return file or "The data"


def parse_header(start: bytes | memoryview, size: int, file: str | None) -> Header:
    """Reads the header of a file of `size` bytes, whose identifier was checked.

    Raises:
      FileFormatError: the file is of a newer version, or not as long as it says.
    """
    if len(start) < _VERSION_AT + 4:
        raise damaged(f"expected a header of {HEADER_SIZE} bytes, got {size}.", file)
    (version,) = struct.unpack_from("<I", start, _VERSION_AT)
    if version > VERSION:
        raise FileFormatError(
            f"{place(file)} is written by format version {version}, this bridge reads up to "
            f"{VERSION}: upgrade jax2tf-bridge.",
            file=file,
        )
    if version < 1:
        raise damaged(f"expected a format version from 1 to {VERSION}, got {version}.", file)
    if len(start) < HEADER_SIZE:
        raise damaged(f"expected a header of {HEADER_SIZE} bytes, got {size}.", file)
    _, _, _, checksum, structure_size, file_size = _HEADER.unpack_from(start)
    if file_size != size:
        raise damaged(f"by its header it has {file_size} bytes, but there are {size}.", file)
    if not HEADER_SIZE <= structure_size <= min(size, MAX_STRUCTURE_SIZE):
        raise damaged(
            f"its header has a structure of {structure_size} bytes in a file of {size}.", file
        )
    return Header(version, checksum, structure_size, file_size)


def check_structure(header: Header, structure: bytes | memoryview, file: str | None) -> None:
    """Compares the structure with its checksum.

    Raises:
      FileFormatError: they differ.
    """
    found = _structure_checksum(structure)
    if found != header.checksum:
        raise damaged(
            f"the checksum of the structure (bytes 0 to {header.structure_size - 1}) is "
            f"{found:08x}, but its header has {header.checksum:08x}.",
            file,
        )


def array_start(end: int) -> int:
    """Rounds `end` up to where the next array begins."""
    return end + -end % ARRAY_ALIGNMENT


def fill_header(structure: bytearray, rest_size: int, version: int = FIRST_VERSION) -> None:
    """Writes the header into a finished structure, which left room for it.

    Args:
      structure: of the file.
      rest_size: the bytes behind it.
      version: of the format.
    """
    root, identifier = struct.unpack_from("<I4s", structure)
    sizes = len(structure), len(structure) + rest_size
    _HEADER.pack_into(structure, 0, root, identifier, version, 0, *sizes)
    struct.pack_into("<I", structure, _CHECKSUM_AT, _structure_checksum(structure))


def _structure_checksum(structure: bytes | bytearray | memoryview) -> int:
    view = memoryview(structure)
    return zlib.crc32(view[_CHECKSUM_AT + 4 :], zlib.crc32(view[:_CHECKSUM_AT]))
