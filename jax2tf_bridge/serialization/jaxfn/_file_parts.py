"""Lays out, finds, reads and verifies the modules and arrays that follow the structure of a file.

Each array is stored only once. Checksums are computed while the file is read.
"""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable import LiftedConstant, array_size
from jax2tf_bridge.serialization._flatbuffer import FlatBufferTable
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn._format import FileRecord, FunctionRecord
from jax2tf_bridge.serialization.jaxfn._pools import look_up_all
from jax2tf_bridge.storage import OpenedFile

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Below this size in bytes, a thread costs more than it saves.
_MIN_SIZE_FOR_THREADS = 1 << 22
_MAX_THREADS = 4
_CHUNK_SIZE = 1 << 20


class _Checksum(Protocol):
    """Checksum of a stream of bytes, with the interface of hashlib."""

    def update(self, data: memoryview, /) -> None:
        """Adds the next bytes."""

    def hexdigest(self) -> str:
        """Returns the checksum of all bytes so far."""


class _Crc32:
    """CRC-32 with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


Kind: TypeAlias = Literal["module", "array"]


class Part(NamedTuple):
    """Module or array in a file.

    Attributes:
      kind: "module" or "array".
      name: the name of the array; for a module, a description of its function ("the function").
      start: the position of the first byte in the file.
      size: the number of bytes.
      expected: the CRC-32 of a module, or the SHA-256 of an array, in hexadecimal.
    """

    kind: Kind
    name: str
    start: int
    size: int
    expected: str

    @property
    def end(self) -> int:
        return self.start + self.size

    def check(self, checksum: str, file: str | None) -> None:
        if checksum == self.expected:
            return
        place = f"(bytes {self.start} to {self.end - 1})"
        if self.kind == "module":
            problem = (
                f"the checksum of the module of {self.name} {place} is {checksum}, "
                f"expected {self.expected}."
            )
        else:
            problem = (
                f"the SHA-256 of the array {self.name!r:.80} {place} is {checksum}, and its digest "
                f"is {self.expected}."
            )
        raise _format.damaged_error(problem, file)


def locate_modules(tables: Sequence[FlatBufferTable], end: int) -> list[Part]:
    """Returns the modules of the functions. The first begins at `end`, after the structure."""
    parts = []
    for order, table in enumerate(tables):
        part = Part(
            "module",
            f"the VJP of order {order}" if order else "the function",
            end,
            table.integer(FunctionRecord.MODULE_SIZE),
            f"{table.integer(FunctionRecord.MODULE_CRC32):08x}",
        )
        parts.append(part)
        end = part.end
    return parts


def collect_arrays(constants: Iterable[LiftedConstant]) -> dict[str, bytes]:
    """Collects the arrays of the constants by digest, in the order in which they first occur.

    Raises:
      SerializationError: the digest of an array does not match its bytes.
    """
    arrays: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for constant in constants:
        if constant.data is None:
            continue
        data = constant.data if isinstance(constant.data, bytes) else bytes(constant.data)
        first_data = arrays.setdefault(constant.digest, data)
        names.setdefault(constant.digest, constant.name)
        if first_data is not data and first_data != data:
            raise _make_digest_error(constant.name, constant.digest)
    checksums = compute_hexdigests(["array"] * len(arrays), list(arrays.values()))
    for digest, checksum in zip(arrays, checksums, strict=True):
        if checksum != digest:
            raise _make_digest_error(names[digest], digest)
    return arrays


def _make_digest_error(name: str, digest: str) -> SerializationError:
    return SerializationError(
        f"The data of the lifted constant {name!r:.80} does not match its digest, {digest}: "
        "expected the SHA-256 of the data."
    )


def pad_arrays(arrays: Iterable[bytes], end: int) -> list[bytes]:
    """Returns the arrays, each preceded by zeros that align it; `end` is the end of the modules."""
    parts = []
    for data in arrays:
        start = _format.align_array_start(end)
        parts += [bytes(start - end), data]
        end = start + len(data)
    return parts


def locate_arrays(
    root: FlatBufferTable, texts: Sequence[str], constants: Iterable[LiftedConstant], end: int
) -> list[Part]:
    """Returns the arrays in a file.

    Args:
      root: the root table of the file.
      texts: the texts of the file.
      constants: the lifted constants of all functions, which must be consistent.
      end: the position after the last module, in bytes.

    Raises:
      FileFormatError: the stored arrays do not match the constants.
    """
    field = FileRecord.ARRAY_DIGESTS
    if not (root.has(field) or root.has(FileRecord.ARRAY_SIZES)):
        return []
    digests = look_up_all(root, field, texts)
    sizes = root.integers(FileRecord.ARRAY_SIZES)
    if len(digests) != len(sizes):
        raise root.error(
            field, "a digest and a size for each array", f"{len(digests)} and {len(sizes)}"
        )
    size_by_digest = dict(zip(digests, sizes, strict=True))
    if len(size_by_digest) != len(digests):
        raise root.error(field, "digests that differ", "one of them twice")
    names = _map_digests_to_names(root, constants, size_by_digest)
    parts = []
    for digest, size in size_by_digest.items():
        if digest not in names:
            raise root.error(field, "digests of lifted constants", f"{digest!r:.80}")
        part = Part("array", names[digest], _format.align_array_start(end), size, digest)
        parts.append(part)
        end = part.end
    return parts


def _map_digests_to_names(
    root: FlatBufferTable, constants: Iterable[LiftedConstant], size_by_digest: Mapping[str, int]
) -> dict[str, str]:
    """Returns the names of the stored arrays by digest, after checking their sizes."""
    names: dict[str, str] = {}
    sizes: dict[int, int | str] = {}
    for constant in constants:
        # Constants share the objects of abstract values, so compute each size only once.
        aval = id(constant.aval)
        if aval not in sizes:
            sizes[aval] = array_size(constant.aval)
        size = size_by_digest.get(constant.digest)
        if size is None:
            continue
        if size != sizes[aval]:
            raise root.error(
                FileRecord.ARRAY_SIZES,
                f"{sizes[aval]} bytes for {constant.aval!s:.80}",
                f"{size}",
            )
        names.setdefault(constant.digest, constant.name)
    return names


def read_part(handle: OpenedFile, size: int, file: str) -> bytes:
    """Reads the next `size` bytes of a file.

    Raises:
      FileFormatError: the file has become shorter, or the bytes do not fit into memory.
    """
    buffer = _allocate(size, file)
    with buffer.getbuffer() as view:
        for _ in _read_into(view, handle, size, file):
            pass
    return buffer.getvalue()


def read_parts(handle: OpenedFile, parts: Sequence[Part], file: str) -> list[bytes]:
    """Reads and verifies the parts of a file, from the current position of `handle`.

    Raises:
      FileFormatError: a checksum is wrong, the file has become shorter, or the parts do not fit
        into memory.
    """
    checksums = [_make_checksum(part.kind) for part in parts]
    buffers: list[io.BytesIO] = []
    position = handle.tell()
    with _Checksums([part.size for part in parts]) as running:
        for part, checksum in zip(parts, checksums, strict=True):
            if position != part.start:
                check_gap(read_part(handle, part.start - position, file), position, file)
            buffer = _allocate(part.size, file)
            update = running.begin(checksum, part.size)
            with buffer.getbuffer() as view:
                for start, end in _read_into(view, handle, _CHUNK_SIZE, file):
                    update(view[start:end])
            buffers.append(buffer)
            position = part.end
    for part, checksum in zip(parts, checksums, strict=True):
        part.check(checksum.hexdigest(), file)
    # getvalue() does not copy, since all views of the buffers are released.
    return [buffer.getvalue() for buffer in buffers]


def copy_parts(data: memoryview, parts: Sequence[Part], file: str | None) -> list[bytes]:
    """Copies and verifies the parts of a file that is in memory.

    Raises:
      FileFormatError: a checksum is wrong.
    """
    contents = []
    start = parts[0].start
    for part in parts:
        if start != part.start:
            check_gap(data[start : part.start], start, file)
        start = part.end
        contents.append(bytes(data[part.start : start]))
    checksums = compute_hexdigests([part.kind for part in parts], contents)
    for part, checksum in zip(parts, checksums, strict=True):
        part.check(checksum, file)
    return contents


def compute_hexdigests(kinds: Sequence[Kind], contents: Sequence[bytes]) -> list[str]:
    """Computes the checksum of each part, in threads if the parts are large."""
    checksums = list(map(_make_checksum, kinds))
    with _Checksums(list(map(len, contents))) as running:
        for checksum, data in zip(checksums, contents, strict=True):
            running.begin(checksum, len(data))(memoryview(data))
    return [checksum.hexdigest() for checksum in checksums]


def _make_checksum(kind: Kind) -> _Checksum:
    return _Crc32() if kind == "module" else hashlib.sha256()


def check_gap(gap: bytes | memoryview, start: int, file: str | None) -> None:
    if any(gap):
        raise _format.damaged_error(
            f"bytes {start} to {start + len(gap) - 1}, before an array, are not zero.", file
        )


def _allocate(size: int, file: str) -> io.BytesIO:
    """Allocates a buffer whose getvalue() does not copy."""
    try:
        return io.BytesIO(bytes(size))
    except MemoryError:
        raise FileFormatError(
            f"{file} cannot be read: {size} bytes of it do not fit into memory.", file=file
        ) from None


def _read_into(
    view: memoryview, handle: OpenedFile, chunk_size: int, file: str
) -> Iterator[tuple[int, int]]:
    """Reads a file into `view`; yields the start and end of each chunk after reading it."""
    start = 0
    while start < len(view):
        with view[start : start + chunk_size] as part:
            count = handle.readinto(part)
        if not count:
            raise _format.damaged_error("it became shorter while it was read.", file)
        yield start, start + count
        start += count


Update: TypeAlias = Callable[[memoryview], object]


class _Checksums:
    """Computes checksums, in background threads if the contents are large."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Starts threads if needed; `sizes` are the sizes of all contents in bytes."""
        self._threads: list[ThreadPoolExecutor] = []
        if sum(sizes) >= _MIN_SIZE_FOR_THREADS:
            from concurrent.futures import ThreadPoolExecutor

            count = min(len(sizes), os.cpu_count() or 1, _MAX_THREADS)
            self._threads = [ThreadPoolExecutor(1) for _ in range(count)]
        self._loads = [0] * len(self._threads)

    def __enter__(self) -> _Checksums:
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown() waits until all checksums are computed.
        for thread in self._threads:
            thread.shutdown()

    def begin(self, checksum: _Checksum, size: int) -> Update:
        """Returns a function that adds bytes to a checksum. The bytes must not change.

        `size` is the total number of bytes that the checksum gets.
        """
        if not self._threads:
            return checksum.update
        # All updates of one checksum run in the same thread, so that they stay in order.
        index = self._loads.index(min(self._loads))
        self._loads[index] += size
        thread = self._threads[index]

        def update(data: memoryview) -> None:
            with data:
                checksum.update(data)

        return lambda data: thread.submit(update, data)
