"""What a file is that holds no weights in a format that is read here: for messages alone."""

from __future__ import annotations

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
    (0, b"\x80\x02", "a pickle: load it with what wrote it, and give the object"),
    (0, b"\x80\x03", "a pickle: load it with what wrote it, and give the object"),
    (0, b"\x80\x04", "a pickle: load it with what wrote it, and give the object"),
    (0, b"\x80\x05", "a pickle: load it with what wrote it, and give the object"),
    (4, b"JXFN", "a .jaxfn file: it holds a function, which read_function reads, and no weights"),
    (0, b"{", "JSON, so text"),
)


def other_format(start: bytes) -> str | None:
    r"""What begins with these bytes, and what to do with it; None if that is unknown.

    No more than a guess: only for bytes that turned out not to be msgpack.

    >>> other_format(b"PK\x03\x04")[:10], other_format(b"")
    ('a zip file', 'empty: copy them anew, or write them again')
    """
    if not start:
        return "empty: copy them anew, or write them again"
    found = (what for at, magic, what in _FORMATS if start[at : at + len(magic)] == magic)
    return next(found, None)
