"""Reads Flax's msgpack strictly, header by header, and skips the elements of arrays.

Arrays are checked against the bytes; their elements are read later, or never. A fast path reads
ordinary trees in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from jax2tf_bridge.errors import FileFormatError, StateDictError
from jax2tf_bridge.weights._paths import flatten_state, join_path
from jax2tf_bridge.weights._sources import (
    HEADER_ROOM,
    ByteSource,
    Span,
    Window,
    guess_format,
    view_array,
)
from jax2tf_bridge.weights._stored import (
    MAX_BYTES,
    MAX_RANK,
    StoredArray,
    StoredLeaf,
    StoredValue,
    fits_numpy,
    read_dtype,
)
from jax2tf_bridge.weights.msgpack._format import (
    ARRAY,
    ARRAY_CODE,
    BIN,
    CHUNKED_KEY,
    CHUNKS_KEY,
    COMPLEX_CODE,
    EXTENSION,
    HEADERS,
    KINDS,
    MAP,
    SCALAR_CODE,
    SHAPE_KEY,
    STR,
    UNUSED,
    VALUE,
    Fault,
    describe_header,
    make_end_fault,
    read_header,
)

_STORED: Final = (StoredArray, StoredValue)
_NO_KEY: Final = object()
# The limit of msgpack itself. Users of the tree may need a higher recursion limit.
_MAX_DEPTH: Final = 1024
# Keys with strong hashes; an attacker could make the hashes of others equal, for quadratic time.
_STRONG_KEYS: Final = (str, bytes, int, float, type(None), np.bool_, np.integer, np.floating)
_MAX_WEAK_KEYS: Final = 1024
_MAX_PATH_LENGTH: Final = 400
# A path repeats all keys above the leaf, so a small file could have very long paths.
_MAX_CHARACTERS_IN_PATHS: Final = 1 << 28
_TIMESTAMP: Final = -1
_MAX_NAME_LENGTH: Final = 64
_MAX_NANOSECONDS: Final = 999_999_999
_DAMAGED: Final = (
    "The bytes are cut short or damaged, or no weights: copy them anew, or write them again."
)


class MsgpackContents:
    """Contents of a source in Flax's msgpack.

    Attributes:
      format_name: "msgpack".
      metadata: empty.
    """

    format_name = "msgpack"

    def __init__(self, source: ByteSource) -> None:
        self.metadata: Mapping[str, str] = MappingProxyType({})
        self._source = source

    def leaves(self) -> dict[str, StoredLeaf]:
        """Maps paths to leaves.

        Raises:
          FileFormatError: the bytes are damaged, two leaves have the same path, or the paths
            take too much memory.
        """
        (tree,), _ = _read_structure(self._source)
        if _count_path_characters(tree) > _MAX_CHARACTERS_IN_PATHS:
            raise FileFormatError(
                f"{_name_source(self._source)} has leaves whose paths take more than "
                f"{_MAX_CHARACTERS_IN_PATHS} characters together. read_weights reads it as a tree.",
                file=self._source.file,
            )
        try:
            flat = flatten_state(tree)
        except StateDictError as e:
            raise FileFormatError(
                f"{_name_source(self._source)} has leaves that share a path: {e} read_weights "
                "reads it as a tree.",
                file=self._source.file,
            ) from e
        return {p: v if isinstance(v, _STORED) else StoredValue(v) for p, v in flat.items()}

    def tree(self) -> Any:
        """Reads the whole tree.

        Raises:
          FileFormatError: the bytes are damaged.
        """
        whole = self._source.get_whole()
        if whole is not None:
            try:
                return _QuickReader(whole).tree()
            except _NotOrdinary:
                pass
        root, stored = _read_structure(self._source)
        for items, key in stored:
            items[key] = items[key].read(self._source)
        return root[0]


class _ReadFrame:
    """Container that is being read.

    Attributes:
      items: the items so far, a dict or a list.
      left: the number of items still to come.
      start: the offset of its first byte.
      by_maps: whether it is nested in maps only; then it may be an array in chunks.
      first_stored: the number of stored leaves before it.
      key: the key of the next value; _NO_KEY if the key comes next.
      weak_keys: the number of keys whose hashes can be made equal.
    """

    __slots__ = ("by_maps", "first_stored", "items", "key", "left", "start", "weak_keys")

    def __init__(self, items: Any, left: int, start: int, by_maps: bool, first_stored: int) -> None:
        self.items, self.left, self.start = items, left, start
        self.by_maps, self.first_stored = by_maps, first_stored
        self.key: Any = _NO_KEY
        self.weak_keys = 0

    def position(self) -> str | None:
        """Returns the key or index of the item being read; None while a key is read."""
        if isinstance(self.items, list):
            return str(len(self.items))
        return None if self.key is _NO_KEY else str(self.key)[:80]


def _count_path_characters(tree: Any) -> int:
    """Counts the characters of the paths of all leaves, without escapes."""
    total = 0
    stack = [(tree, 0)] if type(tree) in (dict, list) else []
    while stack:
        node, length = stack.pop()
        items = node.items() if type(node) is dict else enumerate(node)
        for key, child in items:
            below = length + len(str(key)) + 1
            if type(child) in (dict, list) and child:
                stack.append((child, below))
            else:
                total += below
    return total


def _read_structure(source: ByteSource) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Reads the tree with a StoredArray or StoredValue for each leaf that is read later.

    Returns:
      A list with the tree as its only element; and the container and the key of each such leaf.
    """
    root: list[Any] = []
    stored: list[tuple[Any, Any]] = []
    stack = [_ReadFrame(root, 1, 0, True, 0)]
    try:
        end = _read(source, stored, stack)
        if end != source.size:
            raise Fault(end, "the end", f"{source.size - end} more bytes")
    except Fault as e:
        raise _make_error(source, e, stack) from None
    return root, stored


def _read(source: ByteSource, stored: list[tuple[Any, Any]], stack: list[_ReadFrame]) -> int:
    """Reads one object into the only frame on the stack; returns the offset of its end."""
    size = source.size
    base, data = source.read_window(0)
    # Before the end of a window that is not the last one, the next window is read.
    safe = size if base + len(data) == size else base + len(data) - HEADER_ROOM
    at = 0
    while True:
        frame = stack[-1]
        if not frame.left:
            if len(stack) == 1:
                return at
            value = _complete(stack.pop(), stored)
            frame = stack[-1]
        else:
            if at > safe:
                base, data = source.read_window(at)
                safe = size if base + len(data) == size else base + len(data) - HEADER_ROOM
            if at >= size:
                raise Fault(at, "a msgpack object", "the end")
            # read_header is inlined, because this runs for every object.
            kind, value, unpack, width = HEADERS[data[at - base]]
            start = at
            at += 1
            if unpack is not None:
                if at + width > size:
                    raise make_end_fault(at, width, size - at)
                (value,) = unpack(data, at - base)
                at += width
            if kind != VALUE:
                if kind >= ARRAY:
                    _enter(stack, kind, value, start, size - at, len(stored))
                    continue
                start, at = at, at + value + (kind == EXTENSION)
                if at > size:
                    raise make_end_fault(start, at - start, size - start)
                if kind == EXTENSION:
                    value = _read_extension(source, Window(base, data), start, value)
                elif at <= base + len(data):
                    value = data[start - base : at - base]
                else:
                    value = source.read_bytes(Span(start, value))
                if kind == STR:
                    value = _decode_text(value, start)
        items = frame.items
        if type(items) is list:
            if isinstance(value, _STORED):
                stored.append((items, len(items)))
            items.append(value)
        elif frame.key is _NO_KEY:
            frame.key = _check_key(value, frame, source, at)
            continue
        else:
            if isinstance(value, _STORED):
                stored.append((items, frame.key))
            items[frame.key] = value
            frame.key = _NO_KEY
        frame.left -= 1


def _enter(
    stack: list[_ReadFrame], kind: int, count: int, start: int, room: int, first_stored: int
) -> None:
    """Pushes a container of `count` items, for which at most `room` bytes remain."""
    if kind == UNUSED:
        raise Fault(start, "the first byte of a msgpack object", KINDS[kind])
    if count * (1 + (kind == MAP)) > room:
        raise Fault(start, f"{KINDS[kind]} that fits into the {room} bytes left", f"{count} items")
    if len(stack) > _MAX_DEPTH:
        raise Fault(start, f"at most {_MAX_DEPTH} containers within each other", "one more")
    outer = stack[-1]
    by_maps = outer.by_maps and (len(stack) == 1 or type(outer.items) is dict)
    stack.append(_ReadFrame({} if kind == MAP else [], count, start, by_maps, first_stored))


def _complete(frame: _ReadFrame, stored: list[tuple[Any, Any]]) -> Any:
    """Returns a completely read container, or the array in chunks that it represents."""
    items = frame.items
    if type(items) is dict and frame.by_maps and CHUNKED_KEY in items:
        chunks = _join_chunks(items, frame.start)
        del stored[frame.first_stored :]
        return chunks
    return items


def _decode_text(data: bytes, start: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        got = f"0x{data[e.start]:02x} ({e.reason})"
        raise Fault(start + e.start, "UTF-8 in a str", got) from None


def _check_key(value: Any, frame: _ReadFrame, source: ByteSource, end: int) -> Any:
    """Checks and returns a map's key, which ends at `end`."""
    if type(value) is str and value not in frame.items:
        return value
    if isinstance(value, _STORED):
        value = value.read(source)
    if isinstance(value, dict | list | np.ndarray):
        raise Fault(end, "a map's key that is a single value", f"one of {type(value).__name__}")
    if value in frame.items:
        raise Fault(end, "each key of a map once", f"{value!r:.80} again")
    if not isinstance(value, _STRONG_KEYS):
        frame.weak_keys += 1
        if frame.weak_keys > _MAX_WEAK_KEYS:
            expected = (
                f"at most {_MAX_WEAK_KEYS} keys of a map that are neither text nor real numbers"
            )
            raise Fault(end, expected, "one more")
    return value


def _read_extension(source: ByteSource, window: Window, code_at: int, size: int) -> Any:
    """Converts an extension to a leaf.

    Args:
      source: the source, for contents outside of the window.
      window: the bytes from `code_at`.
      code_at: the offset of the extension's code.
      size: the number of bytes after the code, which lie within the source.

    Returns:
      A StoredArray or StoredValue, a complex number or a msgpack.Timestamp.

    Raises:
      Fault: the contents do not match the code.
      MissingDependencyError: the dtype needs ml_dtypes, which is not installed.
    """
    code = window.data[code_at - window.base]
    start = code_at + 1
    if code in (ARRAY_CODE, SCALAR_CODE):
        return _read_array(window, start, start + size, code == SCALAR_CODE, source.file)
    if code == COMPLEX_CODE:
        return _read_complex(window, start, start + size)
    # Imported late, because only msgpack's own types need it.
    from msgpack import ExtType

    if code < 0x80:
        return StoredValue(ExtType(code, source.read_bytes(Span(start, size))))
    if code - 0x100 != _TIMESTAMP:
        raise Fault(code_at, "an extension of code -1 or 0 to 127", f"code {code - 0x100}")
    if size not in (4, 8, 12):
        raise Fault(code_at, "a timestamp of 4, 8 or 12 bytes", str(size))
    return _read_timestamp(source.read_bytes(Span(start, size)), start)


def _read_array(
    window: Window, start: int, end: int, is_scalar: bool, file: str | None
) -> StoredArray:
    """Checks the array (shape, dtype's name, elements) in the bytes from `start` to `end`."""
    base, data = window
    last = min(end - base, len(data))
    at = _read_array_header(data, start - base, last, base, 3, "an array's shape, dtype, data")
    shape, at = _read_shape(data, at, last, base)
    if is_scalar and shape:
        raise Fault(base + at, "() as the shape of a scalar", f"{shape}"[:80])
    dtype, at = _read_dtype(data, at, last, base, file)
    kind, size, body = read_header(data, at, last, base)
    if kind not in (BIN, STR):
        raise Fault(base + at, "the data of an array, as bin", describe_header(kind, size))
    needed = prod(shape) * dtype.itemsize
    if needed != size or not needed:
        _check_size(shape, dtype, base + at)
    if needed != size:
        expected = f"{needed} bytes of data for {dtype.name} of shape {shape}"
        raise Fault(base + at, expected, f"{size}")
    if base + body + size != end:
        left = f"{end - base - body} bytes until the end of the array"
        raise Fault(base + body, f"{size} bytes of data", left)
    return StoredArray(base + body, dtype, shape, is_scalar)


def _read_shape(data: bytes, at: int, last: int, base: int) -> tuple[tuple[int, ...], int]:
    start = at
    kind, rank, at = read_header(data, at, last, base)
    if kind != ARRAY:
        raise Fault(base + start, "the shape of an array", describe_header(kind, rank))
    if rank > MAX_RANK:
        raise Fault(base + start, f"a shape of at most {MAX_RANK} dimensions", f"{rank}")
    shape = []
    for _ in range(rank):
        kind, size, after = read_header(data, at, last, base)
        if kind != VALUE or type(size) is not int or size < 0:
            raise Fault(base + at, "a size in a shape, 0 or more", describe_header(kind, size))
        shape.append(size)
        at = after
    return tuple(shape), at


def _read_dtype(
    data: bytes, at: int, last: int, base: int, file: str | None
) -> tuple[np.dtype[Any], int]:
    kind, length, start = read_header(data, at, last, base)
    if kind not in (STR, BIN):
        raise Fault(base + at, "the name of a dtype", describe_header(kind, length))
    if length > _MAX_NAME_LENGTH:
        raise Fault(base + at, "the name of a dtype", f"{length} bytes")
    if start + length > last:
        raise make_end_fault(base + start, length, last - start)
    name = data[start : start + length].decode("ascii", "backslashreplace")
    dtype_or_text = read_dtype(name, file)
    if isinstance(dtype_or_text, str):
        raise Fault(base + at, dtype_or_text, f"{name!r:.80}")
    return dtype_or_text, start + length


def _read_complex(window: Window, start: int, end: int) -> complex:
    base, data = window
    last = min(end - base, len(data))
    at = _read_array_header(data, start - base, last, base, 2, "a complex number's two parts")
    parts = []
    for _ in range(2):
        kind, value, after = read_header(data, at, last, base)
        if kind != VALUE or type(value) not in (int, float):
            raise Fault(base + at, "a part of a complex number", describe_header(kind, value))
        parts.append(value)
        at = after
    if base + at != end:
        raise Fault(base + at, "the end of a complex number", f"{end - base - at} more bytes")
    return complex(*parts)


def _read_array_header(data: bytes, at: int, last: int, base: int, count: int, name: str) -> int:
    """Reads the header of an array of msgpack of this length; returns the offset after it."""
    kind, length, after = read_header(data, at, last, base)
    if (kind, length) != (ARRAY, count):
        expected = f"{name}: {describe_header(ARRAY, count)}"
        raise Fault(base + at, expected, describe_header(kind, length))
    return after


def _read_timestamp(data: bytes, at: int) -> Any:
    from msgpack import Timestamp

    whole = int.from_bytes(data[-8:], "big")
    if len(data) == 12:
        nanoseconds, seconds = int.from_bytes(data[:4], "big"), whole - (whole >> 63 << 64)
    elif len(data) == 8:
        nanoseconds, seconds = whole >> 34, whole & (1 << 34) - 1
    else:
        nanoseconds, seconds = 0, whole
    if nanoseconds > _MAX_NANOSECONDS:
        raise Fault(at, f"at most {_MAX_NANOSECONDS} nanoseconds", f"{nanoseconds}")
    return Timestamp(seconds, nanoseconds)


def _join_chunks(items: dict[Any, Any], at: int) -> StoredArray:
    """Returns the array in chunks that the map at the offset `at` represents."""
    expected = {CHUNKED_KEY, SHAPE_KEY, CHUNKS_KEY}
    if items.keys() != expected or items[CHUNKED_KEY] is not True:
        keys = ", ".join(f"{key!r:.40}" for key in list(items)[:5])
        expected_keys = f"the keys {CHUNKED_KEY!r} (True), {SHAPE_KEY!r} and {CHUNKS_KEY!r}"
        raise Fault(at, f"{expected_keys}, which belong to an array in chunks", f"{keys:.200}")
    shape = _sort_by_index(items[SHAPE_KEY], at, "the shape of an array in chunks")
    if len(shape) > MAX_RANK:
        raise Fault(at, f"a shape of at most {MAX_RANK} dimensions", f"{len(shape)}")
    for size in shape:
        if type(size) is not int or size < 0:
            raise Fault(at, "a size in the shape of an array in chunks, 0 or more", f"{size!r:.80}")
    chunks = _sort_by_index(items[CHUNKS_KEY], at, "the chunks of an array")
    if not chunks:
        raise Fault(at, "one chunk of an array or more", "none")
    for chunk in chunks:
        plain = isinstance(chunk, StoredArray) and not (chunk.is_scalar or chunk.chunks)
        if not plain or len(chunk.shape) != 1:
            raise Fault(at, "arrays of one dimension as chunks of an array", _describe_value(chunk))
        if chunk.dtype != chunks[0].dtype:
            raise Fault(at, f"chunks of one dtype, {chunks[0].dtype.name}", chunk.dtype.name)
    dtype = chunks[0].dtype
    count, total = prod(shape), sum(chunk.shape[0] for chunk in chunks)
    _check_size(shape, dtype, at)
    if count != total:
        raise Fault(at, f"{count} elements for an array of shape {shape}", f"{total}")
    spans = tuple(Span(chunk.start, chunk.shape[0] * dtype.itemsize) for chunk in chunks)
    return StoredArray(spans[0].start, dtype, shape, chunks=spans)


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], at: int) -> None:
    if not fits_numpy(shape, dtype):
        text = str(shape)
        shown = text if len(text) <= 80 else f"{text[:76]} ..."
        raise Fault(at, f"at most {MAX_BYTES} bytes", f"an array of shape {shown}")


def _sort_by_index(items: Any, at: int, name: str) -> tuple[Any, ...]:
    """Returns the values of a map with the keys "0", "1" and so on, in this order."""
    if not isinstance(items, dict):
        raise Fault(at, f"{name}: a map", _describe_value(items))
    try:
        return tuple(items[str(index)] for index in range(len(items)))
    except KeyError as e:
        raise Fault(at, f"{name}: the key {e}", "a map without it") from None


def _describe_value(value: Any) -> str:
    if isinstance(value, StoredArray):
        return f"an array {value.info}"[:200]
    return f"{type(value).__name__}"


def _make_error(source: ByteSource, fault: Fault, stack: list[_ReadFrame]) -> FileFormatError:
    positions = [frame.position() for frame in stack[1:]]
    path = join_path([position for position in positions if position is not None])
    if len(path) > _MAX_PATH_LENGTH:
        path = f"{path[: _MAX_PATH_LENGTH // 2]}...{path[-_MAX_PATH_LENGTH // 2 :]}"
    where = f"byte {fault.at}" + (f", in {path}" if path else "")
    known = guess_format(source.read_window(0).data[:16])
    likely = f"The bytes seem to be {known}." if known else _DAMAGED
    return FileFormatError(
        f"{_name_source(source)} cannot be read as weights in msgpack: {where}: expected "
        f"{fault.expected}, got {fault.got}. {likely}",
        file=source.file,
    )


def _name_source(source: ByteSource) -> str:
    return source.file or "The data"


# Fast path, with the C code of the msgpack library: several times as fast for many small leaves.
#
# It accepts a subset of what _read accepts, with the same result; _read handles everything else,
# including errors. The limits keep msgpack from allocating memory that the bytes do not fill.

_MAX_QUICK_BYTES: Final = 1 << 16
"""Maximum size of an array or binary in bytes, because msgpack copies each of them."""

# msgpack allocates memory for all items at the start of a list or map, on each level.
_MAX_LIST_LENGTH: Final = 1 << 10
_MAX_MAP_LENGTH: Final = 1 << 15
_MIN_BYTES_PER_ITEM: Final = 32
# The bytes before the elements: shape, name, and the header of a bin.
_PRELUDE: Final = re.compile(
    rb"\x93[\x90-\x9f](?:[\0-\x7f]|\xcc.|\xcd..|\xce.{4})*[\xa1-\xbf][\w\[\]]+"
    rb"(?:\xc4.|\xc5..|\xc6.{4})",
    re.DOTALL,
)
_STR: Final = frozenset({str})


class _NotOrdinary(Exception):
    """Raised for bytes that the fast path does not read."""


class _QuickReader:
    """Reads the tree in some bytes; arrays are views of them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._preludes: dict[tuple[bytes, int, int], tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def tree(self) -> Any:
        # Imported late, because files are read without it.
        from msgpack import unpackb

        try:
            return unpackb(
                self._data,
                raw=False,
                strict_map_key=True,
                object_pairs_hook=_make_checked_dict,
                ext_hook=self._read_extension,
                max_str_len=_MAX_QUICK_BYTES,
                max_bin_len=_MAX_QUICK_BYTES,
                max_ext_len=_MAX_QUICK_BYTES,
                max_array_len=_MAX_LIST_LENGTH,
                max_map_len=min(_MAX_MAP_LENGTH, len(self._data) // _MIN_BYTES_PER_ITEM + 1),
            )
        # msgpack's errors for bad input and exceeded limits; UnicodeDecodeError is a ValueError.
        except (ValueError, TypeError, OverflowError):
            raise _NotOrdinary from None

    def _read_extension(self, code: int, content: bytes) -> Any:
        """Converts an extension to an array, as a view of all bytes."""
        prelude = _PRELUDE.match(content)
        if prelude is None or (code != ARRAY_CODE and code != SCALAR_CODE):
            raise _NotOrdinary
        size = len(content)
        body = prelude.end()
        known = self._preludes.get((content[:body], size, code))
        if known is None:
            known = self._check_extension(code, content, body)
        # The search finds the content itself, or equal bytes, which serve as well.
        start = self._data.find(content, self._at)
        self._at = start + size
        dtype, shape = known
        array = view_array(self._data, start + body, dtype, shape)
        return array if code == ARRAY_CODE else array[()]

    def _check_extension(
        self, code: int, content: bytes, body: int
    ) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Checks an extension; the result is cached for others with the same prelude and size."""
        try:
            stored = _read_array(Window(0, content), 0, len(content), code == SCALAR_CODE, None)
        except Fault:
            raise _NotOrdinary from None
        if stored.start != body:
            raise _NotOrdinary
        known = self._preludes[content[:body], len(content), code] = stored.dtype, stored.shape
        return known


def _make_checked_dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Makes a dict of a map's items; the keys must be distinct texts."""
    items = dict(pairs)
    if len(items) != len(pairs) or not _STR.issuperset(map(type, items)) or CHUNKED_KEY in items:
        raise _NotOrdinary
    return items
