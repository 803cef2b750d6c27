"""Recognizes files of other formats by their first bytes, for messages."""

from __future__ import annotations

_PICKLE = "a pickle: load it with the library that wrote it, and give the object"
_FORMATS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", "a gzip file: decompress it before"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file: decompress it before"),
    (0, b"BZh", "a bzip2 file: decompress it before"),
    (0, b"\xfd7zXZ\x00", "an xz file: decompress it before"),
    (
        0,
        b"PK\x03\x04",
        "a zip file, as numpy.savez, Keras and PyTorch write: load it with the library that wrote "
        "it, and give the arrays by their paths",
    ),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file: load it with Keras or h5py, and give the arrays"),
    (0, b"\x93NUMPY", "an array of numpy.save: load it, and give a state dict with it"),
    *((0, bytes([0x80, protocol]), _PICKLE) for protocol in (2, 3, 4, 5)),
    (4, b"JXFN", "a .jaxfn file: it holds a function, which read_function reads, and no weights"),
    (0, b"{", "JSON, so text"),
)


def guess_format(start: bytes) -> str | None:
    r"""Names the format of bytes that are not msgpack, and what to do with it; None if unknown.

    >>> guess_format(b"PK\x03\x04")[:10], guess_format(b"")
    ('a zip file', 'empty: copy them anew, or write them again')
    """
    if not start:
        return "empty: copy them anew, or write them again"
    found = (what for at, magic, what in _FORMATS if start[at : at + len(magic)] == magic)
    return next(found, None)
