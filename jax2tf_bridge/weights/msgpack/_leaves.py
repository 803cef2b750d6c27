"""The leaves of Flax's msgpack: arrays, NumPy scalars, complex numbers, arrays in chunks.

They are checked against the bytes, and described; their numbers are read later, or never.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from jax2tf_bridge.weights._array_dtypes import MAX_BYTES, MAX_RANK, stored_dtype
from jax2tf_bridge.weights._files import StoredArray, StoredChunks, StoredValue
from jax2tf_bridge.weights._sources import Source, Span, Window
from jax2tf_bridge.weights.msgpack import _heads as heads
from jax2tf_bridge.weights.msgpack._format import (
    ARRAY,
    CHUNKED_KEY,
    CHUNKS_KEY,
    COMPLEX,
    NUMPY_SCALAR,
    SHAPE_KEY,
)
from jax2tf_bridge.weights.msgpack._heads import Fault, cut_short, described, read_head

_TIMESTAMP = -1
_LONGEST_NAME = 64
_MOST_NANOSECONDS = 999_999_999


def extension_leaf(source: Source, window: Window, code_at: int, size: int) -> Any:
    """The leaf that an extension stands for.

    Args:
      source: what is read.
      window: its bytes from `code_at` on.
      code_at: the byte of the extension's code.
      size: how many bytes follow it; all of them are there.

    Returns:
      A StoredArray or StoredValue, a complex number or a msgpack.Timestamp.

    Raises:
      Fault: it is not what its code says.
      MissingDependencyError: its dtype is one of ml_dtypes, which is not installed.
    """
    code = window.data[code_at - window.base]
    start = code_at + 1
    if code in (ARRAY, NUMPY_SCALAR):
        return _array(window, start, start + size, code == NUMPY_SCALAR, source.file)
    if code == COMPLEX:
        return _complex(window, start, start + size)
    # Here, since msgpack is needed for its own types alone.
    from msgpack import ExtType

    if code < 0x80:
        return StoredValue(ExtType(code, source.content(Span(start, size))))
    if code - 0x100 != _TIMESTAMP:
        raise Fault(code_at, "an extension of code -1 or 0 to 127", f"code {code - 0x100}")
    if size not in (4, 8, 12):
        raise Fault(code_at, "a timestamp of 4, 8 or 12 bytes", str(size))
    return _timestamp(source.content(Span(start, size)), start)


def _array(window: Window, start: int, end: int, is_scalar: bool, file: str | None) -> StoredArray:
    """The array (shape, dtype's name, elements) that takes the bytes from `start` to `end`."""
    base, data = window
    last = min(end - base, len(data))
    at = _expect(data, start - base, last, base, heads.ARRAY, 3, "an array's shape, dtype, data")
    shape, at = _shape(data, at, last, base)
    if is_scalar and shape:
        raise Fault(base + at, "() as the shape of a scalar", f"{shape}"[:80])
    dtype, at = _dtype(data, at, last, base, file)
    kind, size, body = read_head(data, at, last, base)
    if kind not in (heads.BIN, heads.STR):
        raise Fault(base + at, "the data of an array, as bin", described(kind, size))
    needed = prod(shape) * dtype.itemsize
    if needed != size or not needed:
        _check_size(shape, dtype, base + at)
    if needed != size:
        what = f"{needed} bytes of data for {dtype.name} of shape {shape}"
        raise Fault(base + at, what, f"{size}")
    if base + body + size != end:
        left = f"{end - base - body} bytes until the end of the array"
        raise Fault(base + body, f"{size} bytes of data", left)
    return StoredArray(base + body, dtype, shape, is_scalar)


def _shape(data: bytes, at: int, last: int, base: int) -> tuple[tuple[int, ...], int]:
    start = at
    kind, rank, at = read_head(data, at, last, base)
    if kind != heads.ARRAY:
        raise Fault(base + start, "the shape of an array", described(kind, rank))
    if rank > MAX_RANK:
        raise Fault(base + start, f"a shape of at most {MAX_RANK} dimensions", f"{rank}")
    shape = []
    for _ in range(rank):
        kind, size, after = read_head(data, at, last, base)
        if kind != heads.VALUE or type(size) is not int or size < 0:
            raise Fault(base + at, "a size in a shape, 0 or more", described(kind, size))
        shape.append(size)
        at = after
    return tuple(shape), at


def _dtype(
    data: bytes, at: int, last: int, base: int, file: str | None
) -> tuple[np.dtype[Any], int]:
    kind, length, start = read_head(data, at, last, base)
    if kind not in (heads.STR, heads.BIN):
        raise Fault(base + at, "the name of a dtype", described(kind, length))
    if length > _LONGEST_NAME:
        raise Fault(base + at, "the name of a dtype", f"{length} bytes")
    if start + length > last:
        raise cut_short(base + start, length, last - start)
    name = data[start : start + length].decode("ascii", "backslashreplace")
    found = stored_dtype(name, file)
    if isinstance(found, str):
        raise Fault(base + at, found, f"{name!r:.80}")
    return found, start + length


def _complex(window: Window, start: int, end: int) -> complex:
    base, data = window
    last = min(end - base, len(data))
    at = _expect(data, start - base, last, base, heads.ARRAY, 2, "a complex number's two parts")
    parts = []
    for _ in range(2):
        kind, value, after = read_head(data, at, last, base)
        if kind != heads.VALUE or type(value) not in (int, float):
            raise Fault(base + at, "a part of a complex number", described(kind, value))
        parts.append(value)
        at = after
    if base + at != end:
        raise Fault(base + at, "the end of a complex number", f"{end - base - at} more bytes")
    return complex(*parts)


def _expect(data: bytes, at: int, last: int, base: int, kind: int, count: int, what: str) -> int:
    """Where the elements begin of what must be of this kind and length."""
    found, length, after = read_head(data, at, last, base)
    if found != kind or length != count:
        raise Fault(base + at, f"{what}: {described(kind, count)}", described(found, length))
    return after


def _timestamp(data: bytes, at: int) -> Any:
    from msgpack import Timestamp

    whole = int.from_bytes(data[-8:], "big")
    if len(data) == 12:
        nanoseconds, seconds = int.from_bytes(data[:4], "big"), whole - (whole >> 63 << 64)
    elif len(data) == 8:
        nanoseconds, seconds = whole >> 34, whole & (1 << 34) - 1
    else:
        nanoseconds, seconds = 0, whole
    if nanoseconds > _MOST_NANOSECONDS:
        raise Fault(at, f"at most {_MOST_NANOSECONDS} nanoseconds", f"{nanoseconds}")
    return Timestamp(seconds, nanoseconds)


def joined_chunks(items: dict[Any, Any], at: int) -> StoredChunks:
    """The array that a map with the key of chunked arrays stands for; the map begins at `at`.

    Raises:
      Fault: it is no such array.
    """
    expected = {CHUNKED_KEY, SHAPE_KEY, CHUNKS_KEY}
    if items.keys() != expected or items[CHUNKED_KEY] is not True:
        keys = ", ".join(f"{key!r:.40}" for key in list(items)[:5])
        what = f"the keys {CHUNKED_KEY!r} (True), {SHAPE_KEY!r} and {CHUNKS_KEY!r}"
        raise Fault(at, f"{what}, which belong to an array in chunks", f"{keys:.200}")
    shape = _numbered(items[SHAPE_KEY], at, "the shape of an array in chunks")
    if len(shape) > MAX_RANK:
        raise Fault(at, f"a shape of at most {MAX_RANK} dimensions", f"{len(shape)}")
    for size in shape:
        if type(size) is not int or size < 0:
            raise Fault(at, "a size in the shape of an array in chunks, 0 or more", f"{size!r:.80}")
    chunks = _numbered(items[CHUNKS_KEY], at, "the chunks of an array")
    if not chunks:
        raise Fault(at, "one chunk of an array or more", "none")
    for chunk in chunks:
        if not isinstance(chunk, StoredArray) or chunk.is_scalar or len(chunk.shape) != 1:
            raise Fault(at, "arrays of one dimension as chunks of an array", _named(chunk))
        if chunk.dtype != chunks[0].dtype:
            raise Fault(at, f"chunks of one dtype, {chunks[0].dtype.name}", chunk.dtype.name)
    dtype = chunks[0].dtype
    count, held = prod(shape), sum(chunk.shape[0] for chunk in chunks)
    _check_size(shape, dtype, at)
    if count != held:
        raise Fault(at, f"{count} elements for an array of shape {shape}", f"{held}")
    spans = tuple(Span(chunk.start, chunk.shape[0] * dtype.itemsize) for chunk in chunks)
    return StoredChunks(spans, dtype, shape)


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], at: int) -> None:
    """NumPy has arrays of this shape; for it a size of 0 does not excuse the others."""
    if prod(filter(None, shape)) * dtype.itemsize > MAX_BYTES:
        text = str(shape)
        shown = text if len(text) <= 80 else f"{text[:76]} ..."
        raise Fault(at, f"at most {MAX_BYTES} bytes", f"an array of shape {shown}")


def _numbered(items: Any, at: int, what: str) -> tuple[Any, ...]:
    """The values of a map whose keys are "0", "1" and so on, in this order."""
    if not isinstance(items, dict):
        raise Fault(at, f"{what}: a map", _named(items))
    try:
        return tuple(items[str(index)] for index in range(len(items)))
    except KeyError as e:
        raise Fault(at, f"{what}: the key {e}", "a map without it") from None


def _named(value: Any) -> str:
    if isinstance(value, StoredArray | StoredChunks):
        return f"an array {value.info}"[:200]
    return f"{type(value).__name__}"
