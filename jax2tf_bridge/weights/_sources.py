"""Sources of bytes for the readers of weights, and the detection of formats."""

from __future__ import annotations

import io
import mmap
import os
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.storage import OpenedFile, StoragePath, as_path

HEADER_ROOM = 2048
"""Minimum size of a window in bytes, except at the end; enough for the headers of any array."""

# Sizes of windows: long for sequences of small leaves, short between skipped large ones.
_LONG_WINDOW = 1 << 16
_SHORT_WINDOW = 1 << 12
OTHER_CHECKPOINTS_ADVICE = (
    "Load other checkpoints, or a SavedModel, with the library that wrote them, and pass the "
    "arrays as a state dict."
)
# Some systems limit the size of one read.
_MAX_READ_BYTES = 1 << 30


class Span(NamedTuple):
    """Range of bytes of a source."""

    start: int
    size: int


class Window(NamedTuple):
    """Bytes of a source, with their offset.

    Attributes:
      base: the offset of the first byte in the source.
      data: the bytes.
    """

    base: int
    data: bytes


class ByteSource(ABC):
    """Source of bytes and of arrays.

    Attributes:
      file: the name of the file, for messages; None for bytes in memory.
      size: the size in bytes.
    """

    file: str | None
    size: int

    def get_whole(self) -> bytes | None:
        """Returns all bytes if they are in memory, else None."""
        return None

    @abstractmethod
    def read_window(self, start: int) -> Window:
        """Returns bytes from the offset `start`, and possibly from before."""

    @abstractmethod
    def read_bytes(self, span: Span) -> bytes:
        """Returns the bytes of a span, which must lie within the source."""

    @abstractmethod
    def read_array(self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Returns the array at the offset `start`; it must lie within the source."""

    @abstractmethod
    def read_into(self, span: Span, out: memoryview) -> None:
        """Copies a span into a buffer of its size."""

    def read_spans(
        self, spans: Sequence[Span], dtype: np.dtype[Any], shape: tuple[int, ...]
    ) -> np.ndarray:
        """Copies several spans into a new array, whose size is their total."""
        out = np.empty(shape, dtype)
        room = out.reshape(-1).view(np.uint8).data
        at = 0
        for span in spans:
            self.read_into(span, room[at : at + span.size])
            at += span.size
        return out


class MemorySource(ByteSource):
    """Bytes in memory; arrays are read-only views of them."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        """Stores bytes, which must not change while the arrays are in use.

        Raises:
          SerializationError: `data` is not bytes.
        """
        try:
            view = memoryview(data)
        except (TypeError, ValueError) as e:
            raise SerializationError(
                f"Encoded weights must be bytes. Got: {data!r:.80} of type {type(data).__name__}. "
                "Read a file with read_weights(path)."
            ) from e
        self._whole = data if isinstance(data, bytes) else None
        self._view = (view if view.c_contiguous else memoryview(bytes(view))).cast("B").toreadonly()
        self.file, self.size = None, len(self._view)

    def get_whole(self) -> bytes | None:
        return self._whole

    def read_window(self, start: int) -> Window:
        if self._whole is not None:
            return Window(0, self._whole)
        return Window(start, bytes(self._view[start : start + _LONG_WINDOW]))

    def read_bytes(self, span: Span) -> bytes:
        return bytes(self._view[span.start : span.start + span.size])

    def read_array(self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        return view_array(self._view, start, dtype, shape)

    def read_into(self, span: Span, out: memoryview) -> None:
        out[:] = self._view[span.start : span.start + span.size]


class FileSource(ByteSource):
    """File that is read in pieces; arrays are new, aligned and writable.

    The file stays open, so another file may take its name. If its size or modification time
    changes, the next read raises an error.
    """

    file: str

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens the file.

        Raises:
          FileFormatError: it is not a regular file.
          OSError: it cannot be opened.
        """
        self.file = os.fspath(path)
        self._path = as_path(path)
        # The mode is checked first, because opening a pipe waits for its writer.
        mode = self._path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise FileFormatError(
                f"{self.file} is a directory: expected a file of msgpack or safetensors. "
                f"read_weights reads a checkpoint of Orbax. {OTHER_CHECKPOINTS_ADVICE}",
                file=self.file,
            )
        if not stat.S_ISREG(mode):
            raise FileFormatError(
                f"{self.file} is not a regular file: read its bytes and use msgpack_restore.",
                file=self.file,
            )
        self._handle = self._open()
        self._opened = self._state()
        self.size = self._opened[0]
        self._windows_end = 0
        # Only one thread at a time may seek and read.
        self._lock = threading.Lock()

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Returns whether `close` was called."""
        return self._handle.closed

    def close(self) -> None:
        """Closes the file; arrays stay usable."""
        self._handle.close()

    def check(self) -> None:
        """Checks that the file did not change since it was opened.

        Raises:
          FileFormatError: its size or modification time changed.
          ValueError: it was closed.
        """
        if self._handle.closed:
            raise ValueError(f"{self.file} was closed: open it again.")
        state = self._state()
        if state != self._opened:
            raise self._make_changed_error(f"it has {state[0]} bytes, modified at {state[1]}")

    def read_window(self, start: int) -> Window:
        is_next = start < self._windows_end
        size = min(_LONG_WINDOW if is_next else _SHORT_WINDOW, self.size - start)
        self._windows_end = start + size
        return Window(start, self.read_bytes(Span(start, size)))

    def read_bytes(self, span: Span) -> bytes:
        self._check_before_read()
        with self._lock:
            self._handle.seek(span.start)
            chunk = self._handle.read(min(span.size, _MAX_READ_BYTES))
        if len(chunk) == span.size:
            return chunk
        room = bytearray(span.size)
        self.read_into(span, memoryview(room))
        return bytes(room)

    def read_array(self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        out = np.empty(shape, dtype)
        self.read_into(Span(start, out.nbytes), out.reshape(-1).view(np.uint8).data)
        return out

    def read_into(self, span: Span, out: memoryview) -> None:
        self._check_before_read()
        with self._lock:
            self._handle.seek(span.start)
            at = 0
            while at < span.size:
                count = self._handle.readinto(out[at : min(at + _MAX_READ_BYTES, span.size)])
                if not count:
                    raise self._make_changed_error(f"it ends at byte {span.start + at}")
                at += count

    def _open(self) -> OpenedFile:
        return io.FileIO(self.file)

    def _check_before_read(self) -> None:
        self.check()

    def _state(self) -> tuple[int, str]:
        """Returns size and modification time, which do not depend on names or links."""
        status = os.fstat(self._handle.fileno())
        return status.st_size, f"{np.datetime64(status.st_mtime_ns, 'ns')} UTC"

    def _make_changed_error(self, state: str) -> FileFormatError:
        size, modified = self._opened
        return FileFormatError(
            f"{self.file} changed while it was open: it had {size} bytes, modified at "
            f"{modified}; now {state}. Open it again. Replace files instead of "
            "rewriting them, as write_weights does, or read them with mmap=False.",
            file=self.file,
        )


class MappedSource(FileSource):
    """File whose arrays are read-only views of mapped pages, even after it is closed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens and maps the file; raises what FileSource raises."""
        super().__init__(path)
        self._map: mmap.mmap | None = None
        if self.size:
            try:
                self._map = mmap.mmap(self._handle.fileno(), self.size, access=mmap.ACCESS_READ)
            except ValueError:
                self.check()  # raises if the file became shorter
                raise

    def close(self) -> None:
        """Closes the file; it stays mapped while arrays are views of it."""
        self._map = None
        super().close()

    def read_array(self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        self.check()
        return view_array(self._map or b"", start, dtype, shape)


class StoredSource(FileSource):
    """File behind a scheme: arrays are new, and only their bytes are read."""

    _path: StoragePath

    def _open(self) -> OpenedFile:
        return self._path.open("rb")

    def _check_before_read(self) -> None:
        # A status request takes as long as a read, so only `check` sends one, once per leaf.
        if self._handle.closed:
            self.check()

    def _state(self) -> tuple[int, str]:
        status = self._path.find()
        return (-1, "no time: it is gone") if status is None else (status.size, status.state)


def file_source(path: str | os.PathLike[str], *, mmap: bool) -> FileSource:
    """Opens a file: on disk, mapped or not, or behind a scheme.

    Raises:
      FileFormatError: it is no regular file.
      OSError: it cannot be opened.
    """
    path = as_path(path)
    if isinstance(path, StoragePath):
        return StoredSource(path)
    return MappedSource(path) if mmap else FileSource(path)


def view_array(
    data: bytes | memoryview | mmap.mmap, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> np.ndarray:
    """Makes a read-only array that is a view of read-only bytes."""
    if 0 in shape:
        out = np.empty(shape, dtype)
        out.flags.writeable = False
        return out
    return np.ndarray(shape, dtype, data, start)


_PICKLE = "a pickle: load it with the library that wrote it, and pass the object"
_FORMATS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", "a gzip file: decompress it first"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd file: decompress it first"),
    (0, b"BZh", "a bzip2 file: decompress it first"),
    (0, b"\xfd7zXZ\x00", "an xz file: decompress it first"),
    (
        0,
        b"PK\x03\x04",
        "a zip file, as numpy.savez, Keras and PyTorch write: load it with the library that wrote "
        "it, and pass the arrays by their paths",
    ),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file: load it with Keras or h5py, and pass the arrays"),
    (0, b"\x93NUMPY", "an array of numpy.save: load it, and pass a state dict that has it"),
    *((0, bytes([0x80, protocol]), _PICKLE) for protocol in (2, 3, 4, 5)),
    (4, b"JXFN", "a .jaxfn file, which holds a function, not weights: read it with read_function"),
    (0, b"{", "JSON, which is text"),
)


def guess_format(start: bytes) -> str | None:
    r"""Names the format of bytes that are not msgpack, with a remedy; None if unknown.

    >>> guess_format(b"PK\x03\x04")[:10], guess_format(b"")
    ('a zip file', 'empty: copy them anew, or write them again')
    """
    if not start:
        return "empty: copy them anew, or write them again"
    names = (name for at, magic, name in _FORMATS if start[at : at + len(magic)] == magic)
    return next(names, None)
