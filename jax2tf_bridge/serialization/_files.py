"""Portable functions as bytes and files: serialize, deserialize, write_function, read_function."""

from __future__ import annotations

import os
from collections.abc import Sequence

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._as_portable import HoldsPortable
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.serialization.jax_exported._read import read_exported
from jax2tf_bridge.serialization.jaxfn import _file_parts, _format
from jax2tf_bridge.serialization.jaxfn._read import Stored, read_structure
from jax2tf_bridge.storage._files import opened_file, replaced_file

# Most structures are smaller: then one read is enough for a file without large modules.
_FIRST_READ = 1 << 16


def serialize(
    portable: PortableFunction | HoldsPortable, *, vjp_order: int | None = None, arrays: bool = True
) -> bytes:
    """Writes a portable function as the bytes of a .jaxfn file.

    Equal functions give equal bytes. Every later version of the bridge reads them.

    >>> data = serialize(export(f)(x))  # doctest: +SKIP
    >>> deserialize(data).vjp()  # doctest: +SKIP

    Args:
      portable: what `export` made.
      vjp_order: how many VJPs are written with it, and made if they are not there; None for
        those that are there: of `with_vjp`, of a file, or asked for before.
      arrays: whether the captured arrays are written. Without them, `data` of each of the
        lifted constants is None when the function is read.

    Raises:
      SerializationError: the format cannot hold the function, or it has fewer VJPs than asked for.
      InconclusiveShapeError: making a VJP asked something about the sizes.
      ValueError: vjp_order is negative.
    """
    return b"".join(_parts(portable, vjp_order, arrays))


def deserialize(
    data: bytes | bytearray | memoryview, *, file: str | None = None
) -> PortableFunction:
    """Reads the portable function that `serialize` or jax.export.Exported.serialize wrote.

    Node types are rebuilt if they are registered (register_pytree_node_serialization,
    register_namedtuple_serialization). Otherwise a dict stands for a node whose children have
    names, and a tuple for any other.

    Args:
      data: the bytes of either format.
      file: where they come from, for messages.

    Raises:
      FileFormatError: the bytes are of another format, damaged, or of a newer version.
    """
    view = memoryview(data).cast("B") if memoryview(data).c_contiguous else memoryview(bytes(data))
    if not _is_jaxfn(view):
        # VJPs are read from the bytes when they are asked for.
        return _read_other(data if isinstance(data, bytes) else bytes(view), file)
    stored = _stored(view, len(view), file)
    return stored.portable(_file_parts.copied_parts(view, stored.parts, file))


def write_function(
    path: str | os.PathLike[str],
    portable: PortableFunction | HoldsPortable,
    *,
    vjp_order: int | None = None,
    arrays: bool = True,
) -> None:
    """Writes a portable function as a .jaxfn file, completely or not at all.

    >>> write_function("model.jaxfn", export(f)(x))  # doctest: +SKIP

    Args:
      path: the file, on disk or behind a scheme ("gs://bucket/model.jaxfn"); one of this name is
        replaced when the new one is complete.
      portable: what `export` made.
      vjp_order: as for `serialize`.
      arrays: as for `serialize`.

    Raises:
      SerializationError: the format cannot hold the function, or it has fewer VJPs than asked
        for; no file is touched.
      InconclusiveShapeError: making a VJP asked something about the sizes.
      ValueError: vjp_order is negative.
      OSError: the file cannot be written; FileExistsError if the path is no regular file.
    """
    parts = _parts(portable, vjp_order, arrays)
    with replaced_file(path, bytes_of="serialize") as handle:
        for part in parts:
            handle.write(part)


def read_function(path: str | os.PathLike[str]) -> PortableFunction:
    """Reads the portable function in a .jaxfn file, or in one of jax.export.Exported.serialize.

    A .jaxfn file is read and verified as a whole, with its VJPs, and closed.

    >>> read_function("model.jaxfn")  # doctest: +SKIP

    Raises:
      FileFormatError: the file is of another format, damaged, or of a newer version.
      OSError: the file cannot be read.
    """
    name = os.fspath(path)
    with opened_file(path) as (handle, size):
        if size is None:
            raise FileFormatError(
                f"{name} is no regular file: read its bytes and use deserialize.", file=name
            )
        start = _file_parts.read_part(handle, min(size, _FIRST_READ), name)
        if len(start) == size:
            return deserialize(start, file=name)
        if not _is_jaxfn(memoryview(start)):
            _check_size(start, size, name)
            handle.seek(0)
            return _read_other(_file_parts.read_part(handle, size, name), name)
        header = _format.parse_header(start, size, name)
        if header.structure_size > len(start):
            start += _file_parts.read_part(handle, header.structure_size - len(start), name)
        stored = _stored(memoryview(start), size, name)
        # Each module and array is read into the bytes that the function keeps: nothing is copied.
        handle.seek(header.structure_size)
        return stored.portable(_file_parts.read_parts(handle, stored.parts, name))


def _parts(
    portable: PortableFunction | HoldsPortable, vjp_order: int | None, arrays: bool
) -> Sequence[bytes | bytearray]:
    # Here, since reading needs neither flatbuffers nor NumPy.
    from jax2tf_bridge.serialization.jaxfn._write import file_parts

    return file_parts(portable, vjp_order=vjp_order, arrays=arrays)


def _is_jaxfn(start: memoryview) -> bool:
    return start[4:8] == _format.IDENTIFIER


def _stored(start: memoryview, size: int, file: str | None) -> Stored:
    header = _format.parse_header(start, size, file)
    return read_structure(header, start[: header.structure_size], file)


def _read_other(data: bytes, file: str | None) -> PortableFunction:
    """Reads bytes without our identifier, which can only be JAX's: its files have none."""
    _check_size(data[:8], len(data), file)
    if len(data) < 8:
        raise FileFormatError(
            f"{_format.place(file)} has {len(data)} bytes, which is no function: neither a .jaxfn "
            "file nor one of jax.export. Copy it anew, or write it again.",
            file=file,
        )
    try:
        return read_exported(data, file=file)
    except FileFormatError as e:
        raise FileFormatError(
            f"{_format.place(file)} is no .jaxfn file: its bytes 4 to 7 are {data[4:8]!r}, not "
            f"{_format.IDENTIFIER!r}. Nor can it be read as what jax.export wrote: {e}"
            f"{_weights_hint(data)}",
            file=file,
        ) from e


def _weights_hint(data: bytes) -> str:
    """Names the format of bytes that begin as weights do."""
    if data[8:9] == b"{":
        kind = "safetensors"
    elif _is_msgpack_of_names(data):
        kind = "msgpack"
    else:
        return ""
    return f" The bytes seem to be weights in {kind}: read them with read_weights."


def _is_msgpack_of_names(data: bytes) -> bool:
    """Tells whether bytes begin as a mapping of msgpack whose first key is text."""
    count_bytes = {0xDE: 2, 0xDF: 4}.get(data[0], 0)
    if not (count_bytes or 0x81 <= data[0] <= 0x8F):
        return False
    key = data[1 + count_bytes]
    return 0xA0 <= key <= 0xBF or 0xD9 <= key <= 0xDB


def _check_size(start: bytes, size: int, file: str | None) -> None:
    """Refuses a file that is too large to be JAX's, before it is read."""
    if size > _format.MAX_STRUCTURE_SIZE:
        raise FileFormatError(
            f"{_format.place(file)} is no .jaxfn file: its bytes 4 to 7 are {start[4:8]!r}, not "
            f"{_format.IDENTIFIER!r}. Nor is it what jax.export wrote: it has {size} bytes, and "
            f"that format holds up to {_format.MAX_STRUCTURE_SIZE}. Check that it is the right "
            "file.",
            file=file,
        )
