"""Lays out, finds, reads and verifies the parts behind a file's structure: modules and arrays.

Each array is there once. Checksums are computed while the file is read.
"""

from __future__ import annotations

import hashlib
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from jax2tf_bridge.errors import FileFormatError, SerializationError
from jax2tf_bridge.portable._array_sizes import array_size
from jax2tf_bridge.portable._aval import LiftedConstant
from jax2tf_bridge.serialization._flatbuffer import Table
from jax2tf_bridge.serialization.jaxfn import _format
from jax2tf_bridge.serialization.jaxfn import _schema as schema
from jax2tf_bridge.serialization.jaxfn._pools import look_up_all
from jax2tf_bridge.storage._files import OpenedFile

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

# Below, a thread costs more than it saves.
_ALONE = 1 << 22
_MOST_THREADS = 4
_STEP = 1 << 20


class _Checksum(Protocol):
    """A checksum of bytes that come one after the other."""

    def update(self, data: memoryview, /) -> None:
        """Takes the next bytes."""

    def hexdigest(self) -> str:
        """Gives the checksum of all that came."""


class _Crc32:
    """CRC-32 with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        return crc32_text(self._value)


def crc32_text(value: int) -> str:
    """Formats a CRC-32 for messages.

    >>> crc32_text(255)
    '000000ff'
    """
    return f"{value:08x}"


Kind: TypeAlias = Literal["module", "array"]


class Part(NamedTuple):
    """Module or array in a file.

    Attributes:
      kind: which of the two.
      name: of the module's function ("the function"), or of the array.
      start, size: its place in the file, in bytes.
      expected: the CRC-32 of a module, the SHA-256 of an array, in hexadecimal.
    """

    kind: Kind
    name: str
    start: int
    size: int
    expected: str

    @property
    def end(self) -> int:
        """Returns where the bytes behind it begin."""
        return self.start + self.size

    def check(self, found: str, file: str | None) -> None:
        """Compares a checksum with the expected one.

        Raises:
          FileFormatError: they differ.
        """
        if found == self.expected:
            return
        place = f"(bytes {self.start} to {self.end - 1})"
        if self.kind == "module":
            problem = (
                f"the checksum of the module of {self.name} {place} is {found}, "
                f"expected {self.expected}."
            )
        else:
            problem = (
                f"the SHA-256 of the array {self.name!r:.80} {place} is {found}, and its digest "
                f"is {self.expected}."
            )
        raise _format.damaged(problem, file)


def module_parts(tables: Sequence[Table], end: int) -> list[Part]:
    """Finds where the modules lie; the structure ends at `end`."""
    modules = []
    for order, table in enumerate(tables):
        part = Part(
            "module",
            f"the VJP of order {order}" if order else "the function",
            end,
            table.integer(schema.Function.MODULE_SIZE),
            crc32_text(table.integer(schema.Function.MODULE_CRC32)),
        )
        modules.append(part)
        end = part.end
    return modules


def distinct_arrays(constants: Iterable[LiftedConstant]) -> dict[str, bytes]:
    """Collects the arrays of these constants by their digests, in the order in which they come.

    Raises:
      SerializationError: the digest of one is not that of its bytes.
    """
    arrays: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for constant in constants:
        if constant.data is None:
            continue
        data = constant.data if isinstance(constant.data, bytes) else bytes(constant.data)
        first = arrays.setdefault(constant.digest, data)
        names.setdefault(constant.digest, constant.name)
        if first is not data and first != data:
            raise _other_bytes(constant.name, constant.digest)
    found = hexdigests(["array"] * len(arrays), list(arrays.values()))
    for digest, checksum in zip(arrays, found, strict=True):
        if checksum != digest:
            raise _other_bytes(names[digest], digest)
    return arrays


def _other_bytes(name: str, digest: str) -> SerializationError:
    return SerializationError(
        f"The data of the lifted constant {name!r:.80} is not what its digest, {digest}, is of: "
        "expected the SHA-256 of the data."
    )


def with_padding(arrays: Iterable[bytes], end: int) -> list[bytes]:
    """Lays the arrays out behind what ends at `end`, with zeros before each."""
    found = []
    for data in arrays:
        start = _format.array_start(end)
        found += [bytes(start - end), data]
        end = start + len(data)
    return found


def array_parts(
    root: Table, texts: Sequence[str], constants: Iterable[LiftedConstant], end: int
) -> list[Part]:
    """Finds where the arrays lie in a file whose modules end at `end`.

    Args:
      root: of the file.
      texts: of the file.
      constants: of its functions, all of them consistent.
      end: in bytes.

    Raises:
      FileFormatError: the stored arrays are not those of the constants.
    """
    field = schema.File.ARRAY_DIGESTS
    if not (root.has(field) or root.has(schema.File.ARRAY_SIZES)):
        return []
    digests = look_up_all(root, field, texts)
    sizes = root.integers(schema.File.ARRAY_SIZES)
    if len(digests) != len(sizes):
        raise root.error(
            field, "a digest and a size each array", f"{len(digests)} and {len(sizes)}"
        )
    stored = dict(zip(digests, sizes, strict=True))
    if len(stored) != len(digests):
        raise root.error(field, "digests that differ", "one of them twice")
    names = _names(root, constants, stored)
    parts = []
    for digest, size in stored.items():
        if digest not in names:
            raise root.error(field, "digests of lifted constants", f"{digest!r:.80}")
        part = Part("array", names[digest], _format.array_start(end), size, digest)
        parts.append(part)
        end = part.end
    return parts


def _names(
    root: Table, constants: Iterable[LiftedConstant], stored: Mapping[str, int]
) -> dict[str, str]:
    """Names the arrays that are stored, after comparing their sizes."""
    names: dict[str, str] = {}
    sizes: dict[int, int | str] = {}
    for constant in constants:
        # Files name abstract values by number: each object is looked at once.
        aval = id(constant.aval)
        if aval not in sizes:
            sizes[aval] = array_size(constant.aval)
        size = stored.get(constant.digest)
        if size is None:
            continue
        if size != sizes[aval]:
            raise root.error(
                schema.File.ARRAY_SIZES,
                f"{sizes[aval]} bytes for {constant.aval!s:.80}",
                f"{size}",
            )
        names.setdefault(constant.digest, constant.name)
    return names


def read_part(handle: OpenedFile, size: int, file: str) -> bytes:
    """Reads the next `size` bytes of a file that had them a moment ago.

    Raises:
      FileFormatError: they are no longer there, or do not fit into memory.
    """
    room = _room(size, file)
    with room.getbuffer() as view:
        for _ in _fill(view, handle, size, file):
            pass
    return room.getvalue()


def read_parts(handle: OpenedFile, parts: Sequence[Part], file: str) -> list[bytes]:
    """Reads the parts of a file from where it stands, and verifies them.

    Raises:
      FileFormatError: a checksum is wrong, or as for `read_part`.
    """
    checksums = [_Crc32() if part.kind == "module" else hashlib.sha256() for part in parts]
    rooms: list[io.BytesIO] = []
    at = handle.tell()
    with _Checksums([part.size for part in parts]) as running:
        for part, checksum in zip(parts, checksums, strict=True):
            if at != part.start:
                check_gap(read_part(handle, part.start - at, file), at, file)
            room = _room(part.size, file)
            update = running.begin(checksum, part.size)
            with room.getbuffer() as view:
                for start, end in _fill(view, handle, _STEP, file):
                    update(view[start:end])
            rooms.append(room)
            at = part.end
    for part, checksum in zip(parts, checksums, strict=True):
        part.check(checksum.hexdigest(), file)
    # Now that nobody else looks at them, nothing is copied.
    return [room.getvalue() for room in rooms]


def copied_parts(data: memoryview, parts: Sequence[Part], file: str | None) -> list[bytes]:
    """Copies the parts of a file in memory, and verifies them.

    Raises:
      FileFormatError: a checksum is wrong.
    """
    found = []
    start = parts[0].start
    for part in parts:
        if start != part.start:
            check_gap(data[start : part.start], start, file)
        start = part.end
        found.append(bytes(data[part.start : start]))
    checksums = hexdigests([part.kind for part in parts], found)
    for part, checksum in zip(parts, checksums, strict=True):
        part.check(checksum, file)
    return found


def hexdigests(kinds: Sequence[Kind], contents: Sequence[bytes]) -> list[str]:
    """Computes the checksum of each of the contents."""
    if sum(map(len, contents)) < _ALONE:
        return list(map(_hexdigest, kinds, contents))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(_MOST_THREADS) as threads:
        return list(threads.map(_hexdigest, kinds, contents))


def _hexdigest(kind: Kind, data: bytes) -> str:
    return crc32_text(zlib.crc32(data)) if kind == "module" else hashlib.sha256(data).hexdigest()


def check_gap(gap: bytes | memoryview, start: int, file: str | None) -> None:
    """Refuses bytes before an array that are not zero."""
    if any(gap):
        raise _format.damaged(
            f"bytes {start} to {start + len(gap) - 1}, before an array, are not zero.", file
        )


def _room(size: int, file: str) -> io.BytesIO:
    """Allocates bytes that BytesIO hands out without copying them."""
    try:
        return io.BytesIO(bytes(size))
    except MemoryError:
        raise FileFormatError(
            f"{file} cannot be read: {size} bytes of it do not fit into memory.", file=file
        ) from None


def _fill(view: memoryview, handle: OpenedFile, step: int, file: str) -> Iterator[tuple[int, int]]:
    """Fills `view` from a file; yields from where to where, after each step."""
    at = 0
    while at < len(view):
        with view[at : at + step] as part:
            count = handle.readinto(part)
        if not count:
            raise _format.damaged("it became shorter while it was read.", file)
        yield at, at + count
        at += count


Update: TypeAlias = Callable[[memoryview], object]


class _Checksums:
    """Computes checksums while the caller goes on: in threads, if that is worth it."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """Starts threads for contents of these sizes, in bytes."""
        self._threads: list[ThreadPoolExecutor] = []
        if sum(sizes) >= _ALONE:
            from concurrent.futures import ThreadPoolExecutor

            count = min(len(sizes), os.cpu_count() or 1, _MOST_THREADS)
            self._threads = [ThreadPoolExecutor(1) for _ in range(count)]
        self._loads = [0] * len(self._threads)

    def __enter__(self) -> _Checksums:
        return self

    def __exit__(self, *_: object) -> None:
        """Waits until all is computed."""
        for thread in self._threads:
            thread.shutdown()

    def begin(self, checksum: _Checksum, size: int) -> Update:
        """Returns a function that takes the next of `size` bytes, which must not change."""
        if not self._threads:
            return checksum.update
        # Of one thread, so that they come in order.
        chosen = self._loads.index(min(self._loads))
        self._loads[chosen] += size
        thread = self._threads[chosen]

        def update(data: memoryview) -> None:
            with data:
                checksum.update(data)

        return lambda data: thread.submit(update, data)
