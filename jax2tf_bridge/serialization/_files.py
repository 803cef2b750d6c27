"""Reads and writes portable functions as bytes and as files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge.errors import FileFormatError, FunctionError
from jax2tf_bridge.portable import HoldsPortable, PortableFunction, as_portable_function
from jax2tf_bridge.serialization.jax_exported import read_exported
from jax2tf_bridge.serialization.jaxfn import (
    IDENTIFIER,
    MAX_STRUCTURE_SIZE,
    ValidatedStructure,
    copy_parts,
    file_label,
    make_file_parts,
    parse_header,
    read_part,
    read_parts,
    read_structure,
)
from jax2tf_bridge.storage import check_file_path, open_file, replace_file_at

# Most structures are smaller, so a single read suffices for a file without large modules.
_FIRST_READ_SIZE = 1 << 16


def serialize(
    portable: PortableFunction | HoldsPortable, *, vjp_order: int | None = None, arrays: bool = True
) -> bytes:
    """Returns the bytes of a .jaxfn file that holds a portable function.

    Equal functions give equal bytes. Every later version of the bridge reads them.

    >>> data = serialize(export(f)(x))  # doctest: +SKIP
    >>> deserialize(data).vjp()  # doctest: +SKIP

    Args:
      portable: the portable function, as `export(f)(x)` returns it.
      vjp_order: the number of VJPs to write; missing ones are made. None writes the VJPs that
        exist: those made by `with_vjp` or `vjp`, or read from a file.
      arrays: whether to write the captured arrays. Without them, `data` of each lifted constant
        is None when the function is read.

    Raises:
      SerializationError: the format cannot hold the function, or it has fewer than vjp_order VJPs.
      InconclusiveShapeError: making a VJP requires a decision about unknown sizes.
      ValueError: vjp_order is negative.
    """
    return b"".join(make_file_parts(portable, vjp_order=vjp_order, arrays=arrays))


def deserialize(
    data: bytes | bytearray | memoryview, *, file: str | None = None
) -> PortableFunction:
    """Reads a portable function that `serialize` or jax.export.Exported.serialize wrote.

    Nodes whose types are registered (with register_pytree_node_serialization or
    register_namedtuple_serialization) are rebuilt. A node of another type becomes a dict if its
    children have names, and a tuple otherwise.

    Args:
      data: the bytes, in either format.
      file: the name of their file, for messages.

    Raises:
      FileFormatError: the bytes are in another format, damaged, or of a newer version.
      FunctionError: `data` is not bytes.
    """
    try:
        view = memoryview(data)
    except TypeError as e:
        raise FunctionError(
            f"deserialize expected bytes. Got: {data!r:.80} of type {type(data).__name__}. Read a "
            "file with read_function(path)."
        ) from e
    view = view.cast("B") if view.c_contiguous else memoryview(bytes(view))
    if not _is_jaxfn(view):
        # VJPs are read from the bytes later, so the bytes must be immutable.
        return _read_jax_format(data if isinstance(data, bytes) else bytes(view), file)
    structure = _parse_structure(view, len(view), file)
    return structure.make_portable(copy_parts(view, structure.parts, file))


def write_function(
    path: str | os.PathLike[str],
    portable: PortableFunction | HoldsPortable,
    *,
    vjp_order: int | None = None,
    arrays: bool = True,
) -> None:
    """Writes a portable function as a .jaxfn file, atomically.

    >>> write_function("model.jaxfn", export(f)(x))  # doctest: +SKIP

    Args:
      path: a path on disk, or a URL ("gs://bucket/model.jaxfn"). An existing file is replaced
        once the new one is complete.
      portable: the portable function, as `export(f)(x)` returns it.
      vjp_order: the number of VJPs to write, as for `serialize`.
      arrays: whether to write the captured arrays, as for `serialize`.

    Raises:
      SerializationError: the format cannot hold the function, or it has fewer than vjp_order
        VJPs. No file is changed.
      InconclusiveShapeError: making a VJP requires a decision about unknown sizes.
      ValueError: vjp_order is negative.
      OSError: the file cannot be written. It is a FileExistsError if the path exists and is not a
        regular file.
    """
    portable = as_portable_function(portable, "write_function")
    check_file_path(path, bytes_of="serialize")
    parts = make_file_parts(portable, vjp_order=vjp_order, arrays=arrays)
    with replace_file_at(path, bytes_of="serialize") as handle:
        for part in parts:
            handle.write(part)


def read_function(path: str | os.PathLike[str]) -> PortableFunction:
    """Reads a portable function from a .jaxfn file, or a file of jax.export.Exported.serialize.

    A .jaxfn file is read completely, with its VJPs, verified, and closed.

    >>> read_function("model.jaxfn")  # doctest: +SKIP

    Raises:
      FileFormatError: the file is in another format, damaged, or of a newer version.
      OSError: the file cannot be read.
    """
    name = os.fspath(path)
    with open_file(path) as (handle, size):
        if size is None:
            raise FileFormatError(
                f"{name} is not a regular file: read its bytes and use deserialize.", file=name
            )
        start = read_part(handle, min(size, _FIRST_READ_SIZE), name)
        if len(start) == size:
            return deserialize(start, file=name)
        if not _is_jaxfn(memoryview(start)):
            _check_size(start, size, name)
            handle.seek(0)
            return _read_jax_format(read_part(handle, size, name), name)
        header = parse_header(start, size, name)
        if header.structure_size > len(start):
            start += read_part(handle, header.structure_size - len(start), name)
        structure = _parse_structure(memoryview(start), size, name)
        # Modules and arrays are read directly into the bytes that the function keeps.
        handle.seek(header.structure_size)
        return structure.make_portable(read_parts(handle, structure.parts, name))


def _is_jaxfn(start: memoryview) -> bool:
    return start[4:8] == IDENTIFIER


def _parse_structure(start: memoryview, size: int, file: str | None) -> ValidatedStructure:
    header = parse_header(start, size, file)
    return read_structure(header, start[: header.structure_size], file)


def _read_jax_format(data: bytes, file: str | None) -> PortableFunction:
    """Reads bytes without the .jaxfn identifier. The files of jax.export have no identifier."""
    _check_size(data[:8], len(data), file)
    if len(data) < 8:
        raise FileFormatError(
            f"{file_label(file)} has {len(data)} bytes and is not a function: neither a "
            ".jaxfn file nor one of jax.export. Copy it anew, or write it again.",
            file=file,
        )
    try:
        return read_exported(data, file=file)
    except FileFormatError as e:
        if (kind := _name_other_format(data, file)) is not None:
            raise FileFormatError(
                f"{file_label(file)} is {kind}, not an exported function. Pass the .jaxfn file "
                "that export wrote, or the folder of a SavedModel.",
                file=file,
            ) from e
        problem = (
            f"It cannot be read as a file of jax.export either: {e}{_suggest_read_weights(data)}"
        )
        raise _make_not_jaxfn_error(data, problem, file) from e


_STARTS: Mapping[tuple[int, bytes], str] = MappingProxyType(
    {
        (4, b"TFL3"): "a LiteRT model",
        (0, b"PK\x03\x04"): "a zip archive, as .npz and .keras files are",
        (0, b"\x89HDF"): "an HDF5 file",
    }
)
"""Names of other formats, by bytes and their place."""
_SUFFIXES: Mapping[str, str] = MappingProxyType(
    {".onnx": "an ONNX model", ".pb": "a graph of TensorFlow"}
)
"""Names of formats whose bytes do not tell, by the end of the file's name."""


def _name_other_format(data: bytes, file: str | None) -> str | None:
    for (place, start), kind in _STARTS.items():
        if data.startswith(start, place):
            return kind
    return _SUFFIXES.get(os.path.splitext(file or "")[1])


def _suggest_read_weights(data: bytes) -> str:
    """Returns a sentence that names the format of bytes that look like weights; "" for others."""
    if data[8:9] == b"{":
        kind = "safetensors"
    elif _is_msgpack_of_names(data):
        kind = "msgpack"
    else:
        return ""
    return f" The bytes seem to be weights in {kind}: read them with read_weights."


def _is_msgpack_of_names(data: bytes) -> bool:
    # A map whose first key is text.
    count_bytes = {0xDE: 2, 0xDF: 4}.get(data[0], 0)
    if not (count_bytes or 0x81 <= data[0] <= 0x8F):
        return False
    key = data[1 + count_bytes]
    return 0xA0 <= key <= 0xBF or 0xD9 <= key <= 0xDB


def _check_size(start: bytes, size: int, file: str | None) -> None:
    """Raises FileFormatError if a file is too large for the format of jax.export."""
    if size > MAX_STRUCTURE_SIZE:
        problem = (
            f"It is not a file of jax.export either: it has {size} bytes, and that format holds "
            f"at most {MAX_STRUCTURE_SIZE}. Check that it is the right file."
        )
        raise _make_not_jaxfn_error(start, problem, file)


def _make_not_jaxfn_error(start: bytes, problem: str, file: str | None) -> FileFormatError:
    return FileFormatError(
        f"{file_label(file)} is not a .jaxfn file: its bytes 4 to 7 are {start[4:8]!r}, not "
        f"{IDENTIFIER!r}. {problem}",
        file=file,
    )
