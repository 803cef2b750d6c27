"""Writes trees in Flax's msgpack format: msgpack_serialize, to_bytes, write_weights.

The whole tree, except for the elements of arrays, is encoded before its first byte is written.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import msgpack
import numpy as np

from jax2tf_bridge._utils import progress_bar
from jax2tf_bridge.errors import MissingDependencyError, SerializationError
from jax2tf_bridge.storage import replace_file_at
from jax2tf_bridge.weights._state_dicts import to_state_dict
from jax2tf_bridge.weights._stored import read_dtype
from jax2tf_bridge.weights.msgpack import _format, _write_errors
from jax2tf_bridge.weights.msgpack._arrays import (
    byte_blocks,
    host_array,
    is_jax_array,
    replace_tensors,
)
from jax2tf_bridge.weights.msgpack._format import make_binary_header, make_extension_header

Block: TypeAlias = bytes | memoryview

_MIN_PROGRESS_BYTES = 2**28
"""Minimum size in bytes for a progress bar."""

_MAX_BLOCK_BYTES = 2**26
"""Maximum size of a block in bytes, so that a progress bar moves within a large array."""

_MAX_CACHED_KEYS = 4096
"""Maximum number of encoded keys that are cached."""

_PLAIN = frozenset({type(None), bool, int, float, str, msgpack.Timestamp})
_BINARY = frozenset({bytes, bytearray, memoryview})

_PLAIN_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefdFD" if sys.byteorder == "little" else ""))
"""Dtypes with the buffer protocol and the byte order of the file."""


def msgpack_serialize(pytree: object, in_place: bool = False) -> bytes:
    r"""Encodes a tree of dicts and lists as the same bytes as flax.serialization.msgpack_serialize.

    NumPy and JAX arrays and scalars keep their dtype, including ml_dtypes and times; big-endian
    arrays become little-endian. Arrays of more than 2**30 bytes are written in chunks, unless they
    are in a list. The only copies in memory are the result and either one JAX array on another
    device or a piece of a non-contiguous array.

    Args:
      pytree: dicts and lists of str, bytes, bool, int, float, complex, None, arrays and scalars.
      in_place: whether to keep the order of dicts, as Flax does with in_place=True, rather than
        sort them by key. The tree is never changed.

    Raises:
      SerializationError: msgpack does not support a value, or Flax could not read it; the text has
        its path.

    >>> msgpack_serialize({"step": 7})
    b'\x81\xa4step\x07'
    """
    return encode(pytree, sort_keys=not in_place).join_bytes()


def to_bytes(target: object) -> bytes:
    """Encodes the state dict of an object as the same bytes as flax.serialization.to_bytes.

    Args:
      target: a tree of dicts, lists, tuples, named tuples and registered types, as in
        `to_state_dict`.

    Raises:
      SerializationError: as in `msgpack_serialize`.
      StateDictError: as in `to_state_dict`.

    >>> to_bytes((1, 2)) == msgpack_serialize({"0": 1, "1": 2})
    True
    """
    return encode(to_state_dict(target), sort_keys=False).join_bytes()


def write_weights(
    path: str | os.PathLike[str], target: object, *, progress: bool | None = None
) -> None:
    """Writes a tree of weights to a file, in the format of `to_bytes`; completely or not at all.

    Arrays are not copied: writing takes at most 16 MiB of memory, and the memory of one array at a
    time for arrays on other devices.

    Args:
      path: the file, on disk or behind a scheme ("gs://bucket/model.msgpack"); an existing file is
        replaced when the new one is complete.
      target: the tree, as in `to_bytes`. Variables and tensors of TensorFlow and of Keras on
        TensorFlow are written as arrays, and a flat mapping of them, such as `params` of a loaded
        model or of a KerasLayer, is nested by its paths.
      progress: whether to show a progress bar; None shows it for 256 MiB or more on a terminal.

    Raises:
      SerializationError: as in `msgpack_serialize`, or the path names a safetensors file; no file
        is changed.
      StateDictError: as in `to_state_dict`; no file is changed.
      OSError: the file cannot be written; FileExistsError if `path` is not a regular file.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.msgpack")
    >>> write_weights(path, {"dense": {"kernel": np.ones((3, 2))}})
    """
    name = os.fspath(path)
    if name.lower().endswith(".safetensors"):
        raise SerializationError(
            f"{name} names a safetensors file, and write_weights writes msgpack: expected another "
            "name, such as weights.msgpack. For safetensors, use "
            # Without the copy, save_file would silently write arrays in Fortran order incorrectly.
            "safetensors.numpy.save_file({name: numpy.array(leaf, order='C') for name, leaf in "
            "jax2tf_bridge.weights.flatten_state(jax2tf_bridge.weights.to_state_dict(target))"
            ".items()}, path)."
        )
    encoded = encode(to_state_dict(replace_tensors(target)), sort_keys=False)
    show = False if progress is None and encoded.size < _MIN_PROGRESS_BYTES else progress
    label = f"writing {os.path.basename(name)}"
    with (
        replace_file_at(path, bytes_of="to_bytes") as file,
        progress_bar(label, encoded.size, "B", show=show) as advance,
    ):
        for block in encoded.blocks():
            file.write(block)
            advance(len(block))


class _LeafPlace(NamedTuple):
    """Keys of a container's path, and the key of a leaf in it, for messages."""

    around: tuple[Any, ...]
    key: Any

    def __str__(self) -> str:
        keys = self.around if self.key is _NO_KEY else (*self.around, self.key)
        return _write_errors.describe_place(keys)


_NO_KEY = object()


class _Chunked(NamedTuple):
    """Array in several chunks, with the headers of the later ones."""

    array: Any
    chunks: tuple[tuple[bytes, int], ...]


@dataclass
class EncodedTree:
    """Encoded tree, which refers to its arrays and binaries without copying them.

    Parallel lists are used instead of one object each, because there may be very many.

    Attributes:
      size: the total size in bytes.
      headers: the encoded bytes before each value.
      values: the values; a _Chunked for an array in chunks.
      sizes: the sizes of the elements, or of the first chunk, in bytes.
      around, keys: the places of the values.
      end: the encoded bytes after the last value.
    """

    size: int = 0
    headers: list[bytes] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    around: list[tuple[Any, ...]] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    end: bytes = b""

    def blocks(self) -> Iterator[Block]:
        """Yields all bytes in order, without copies of arrays that have the file's layout.

        Raises:
          SerializationError: the computation of a JAX array failed, or a value has another size
            than when it was encoded.
        """
        leaves = zip(self.headers, self.values, self.sizes, self.around, self.keys, strict=True)
        for header, value, size, around, key in leaves:
            is_chunked = type(value) is _Chunked
            array, later = value if is_chunked else (value, ())
            yield from _iter_leaf_blocks(array, ((header, size), *later), _LeafPlace(around, key))
        yield self.end

    def join_bytes(self) -> bytes:
        parts = self._list_parts()
        if parts is not None:
            try:
                whole = b"".join(parts)
            except (BufferError, TypeError, ValueError, RuntimeError):
                pass  # a JAX array refused; the code below works, or raises the error
            else:
                if len(whole) == self.size:
                    return whole
        # getvalue shares the buffer's memory; join would need copies of all arrays at once.
        result = io.BytesIO()
        for block in self.blocks():
            result.write(block)
        return result.getvalue()

    def _list_parts(self) -> list[Any] | None:
        """Lists headers and arrays in turn if all arrays support the buffer protocol, else None.

        JAX arrays may refuse that when they are read.
        """
        for value, size in zip(self.values, self.sizes, strict=True):
            if type(value) is np.ndarray:
                if (
                    value.nbytes != size
                    or value.dtype not in _PLAIN_DTYPES
                    or not value.flags.c_contiguous
                ):
                    return None
            elif not is_jax_array(value):
                return None
        return [*chain.from_iterable(zip(self.headers, self.values, strict=True)), self.end]


def _iter_leaf_blocks(
    value: Any, chunks: Sequence[tuple[bytes, int]], place: _LeafPlace
) -> Iterator[Block]:
    rest = _iter_elements(value, place)
    left = memoryview(b"")
    for header, size in chunks:
        yield header
        while size:
            if not left:
                left = next(rest, left)
            if not left:
                raise SerializationError(
                    f"{place} became smaller while it was written: expected a tree that "
                    "does not change. Nothing was written; write a copy, or write before it is "
                    "resized."
                )
            block = left[: min(size, _MAX_BLOCK_BYTES)]
            yield block
            size -= len(block)
            left = left[len(block) :]


def _iter_elements(value: Any, place: _LeafPlace) -> Iterator[memoryview]:
    if type(value) in _BINARY:
        yield memoryview(value).cast("B")
        return
    try:
        array = host_array(value)
    except Exception as e:
        # A failed computation of a JAX array raises its error here.
        raise SerializationError(
            f"{place} is an array that could not be copied to the host: {e!s:.400}. "
            "Nothing was written; jax.block_until_ready(tree) raises the same error where the "
            "array is computed."
        ) from e
    yield from byte_blocks(array)


def encode(
    tree: object, *, sort_keys: bool, max_chunk_size: int = _format.MAX_CHUNK_SIZE
) -> EncodedTree:
    """Encodes a tree of plain dicts and lists, without changing it.

    Args:
      tree: dicts and lists of msgpack's values, complex numbers, NumPy scalars, and arrays.
      sort_keys: whether to sort dicts by key.
      max_chunk_size: the maximum size in bytes of an array without chunks, outside of lists.

    Raises:
      SerializationError: msgpack does not support a value; the text has its path.
    """
    return _Encoder(sort_keys, max_chunk_size).encode(tree)


class _OpenContainer(NamedTuple):
    """Dict or list on the stack, with an iterator over its remaining items."""

    container: dict[Any, Any] | list[Any]
    items: Iterator[tuple[Any, Any]]
    only_dicts: bool
    """True if it and all enclosing containers are dicts: readers only join chunks there."""
    keys: tuple[Any, ...]
    """Keys of its path."""


@dataclass
class _Encoder:
    sort_keys: bool
    max_chunk_size: int
    packer: Any = field(default_factory=lambda: msgpack.Packer(strict_types=True))
    encoded: EncodedTree = field(default_factory=EncodedTree)
    pending: bytearray = field(default_factory=bytearray)
    entered: list[_OpenContainer] = field(default_factory=list)
    item_key: Any = _NO_KEY
    """Key of the current item in the innermost container."""
    inside: set[int] = field(default_factory=set)
    """Ids of the entered containers."""
    dtypes: dict[np.dtype[Any], str | None] = field(default_factory=dict)
    jax_types: set[type] = field(default_factory=set)
    """Types known to be JAX arrays."""
    shardings: dict[int, Any] = field(default_factory=dict)
    """Checked shardings of JAX arrays by id; all their parts are in this process."""
    headers: dict[tuple[tuple[int, ...], np.dtype[Any]], tuple[bytes, int]] = field(
        default_factory=dict
    )
    """Encoded bytes before the elements, and the size of the elements, by shape and dtype."""
    key_cache: dict[str, bytes] = field(default_factory=dict)
    """Cache of encoded keys, because most layers have parameters of the same names."""

    def encode(self, tree: object) -> EncodedTree:
        # A loop, because the caller may have used up the recursion limit.
        self.write_value(tree, only_dicts=True)
        while self.entered:
            top = self.entered[-1]
            has_keys = isinstance(top.container, dict)
            for key, value in top.items:
                if has_keys:
                    self.item_key = _NO_KEY
                    written = self.key_cache.get(key) if type(key) is str else None
                    if written is None:
                        self.write_key(key)
                    else:
                        self.pending += written
                self.item_key = key
                kind = type(value)
                if not (
                    (kind is np.ndarray and self.write_known_array(value))
                    or (kind in self.jax_types and self.write_known_jax_array(value))
                ):
                    self.write_value(value, only_dicts=top.only_dicts)
                    if self.entered[-1] is not top:
                        break
            else:
                self.entered.pop()
                self.inside.discard(id(top.container))
        self.encoded.end = self.take_bytes()
        self.encoded.size += len(self.encoded.end)
        return self.encoded

    def write_value(self, value: Any, *, only_dicts: bool) -> None:
        kind = type(value)
        if kind is dict or kind is list:
            self.enter(value, only_dicts=only_dicts)
        elif isinstance(value, np.ndarray) or self.is_jax_array(value):
            self.write_array(value, chunked=only_dicts)
        elif kind in _BINARY:
            self.write_binary(value)
        else:
            self.pending += self.encode_scalar(value, self.describe_place)

    def is_jax_array(self, value: Any) -> bool:
        # The check of a JAX array is slow, so its result is cached by type.
        if type(value) in self.jax_types:
            return True
        if not is_jax_array(value):
            return False
        if not isinstance(value, sys.modules["jax"].core.Tracer):
            self.jax_types.add(type(value))
        return True

    def write_key(self, key: Any) -> None:
        if isinstance(key, str) and key == _format.CHUNKED_KEY:
            raise self.make_error(
                f"is a dict with the key {key!r}, which marks arrays in chunks for readers: "
                "expected other keys. Rename it, or write the array itself."
            )
        if type(key) in _BINARY:
            self.pending += self.packer.pack(key)
            return
        written = self.encode_scalar(
            key, lambda: _write_errors.describe_key_place(key, self.describe_place())
        )
        if type(key) is str and len(self.key_cache) < _MAX_CACHED_KEYS:
            self.key_cache[key] = written
        self.pending += written

    def encode_scalar(self, value: Any, place: Any) -> bytes:
        if type(value) in _PLAIN:
            try:
                packed: bytes = self.packer.pack(value)
            except (ValueError, OverflowError) as e:
                raise _write_errors.make_range_error(place(), value, e) from e
            return packed
        if isinstance(value, np.generic):
            array = np.asarray(value)
            prelude = self.encode_prelude(array, (), array.nbytes, place)
            content = b"".join([prelude, *byte_blocks(array)])
            return make_extension_header(_format.SCALAR_CODE, len(content)) + content
        if isinstance(value, complex):
            content = b"\x92\xcb%b\xcb%b" % (
                struct.pack(">d", value.real),
                struct.pack(">d", value.imag),
            )
            return make_extension_header(_format.COMPLEX_CODE, len(content)) + content
        if type(value) is msgpack.ExtType and value.code not in _format.CODES:
            return bytes(self.packer.pack(value))
        raise _write_errors.make_type_error(place(), value)

    def enter(self, value: dict[Any, Any] | list[Any], *, only_dicts: bool) -> None:
        if id(value) in self.inside:
            raise self.make_error("contains itself: expected a tree. Remove the cycle.")
        self.check_depth(1)
        items: Any
        if isinstance(value, dict):
            items = iter(value.items())
            if self.sort_keys:
                try:
                    keys = sorted(value)
                    items = zip(keys, map(value.__getitem__, keys), strict=True)
                except TypeError as e:
                    kinds = ", ".join(sorted({type(key).__name__ for key in value}))
                    raise self.make_error(
                        f"is a dict with keys that have no order, of the types {kinds}: expected "
                        "keys that can be sorted. Use one type, or in_place=True, which keeps the "
                        "dict's order."
                    ) from e
            self.pending += self.packer.pack_map_header(len(value))
        else:
            items = enumerate(value)
            self.pending += self.packer.pack_array_header(len(value))
        self.inside.add(id(value))
        only_dicts = only_dicts and isinstance(value, dict)
        self.entered.append(_OpenContainer(value, items, only_dicts, self.list_keys()))
        self.item_key = _NO_KEY

    def check_depth(self, more: int) -> None:
        if len(self.entered) + more > _format.MAX_DEPTH:
            raise self.make_error(
                f"is more than {_format.MAX_DEPTH} dicts and lists deep: expected no more, since "
                "readers of msgpack take no more. Flatten it: flatten_state makes one dict of "
                "paths."
            )

    def write_binary(self, value: bytes | bytearray | memoryview) -> None:
        view = memoryview(value)
        if not view.c_contiguous:
            raise self.make_error(
                "is a memoryview that is not contiguous: expected one that is. Write bytes(x)."
            )
        if view.nbytes > _format.MAX_ITEM_SIZE:
            raise self.make_error(
                f"has {view.nbytes} bytes: expected at most {_format.MAX_ITEM_SIZE}, msgpack's "
                "limit. Write it as a numpy.uint8 array in a dict: that is written in chunks."
            )
        self.pending += make_binary_header(view.nbytes)
        self.add_leaf(value, self.take_bytes(), view.nbytes)

    def write_known_array(self, value: Any) -> bool:
        """Writes an array if its headers are cached; returns whether they were."""
        cached = self.headers.get((value.shape, value.dtype))
        if cached is None:
            return False
        header, size = cached
        self.pending += header
        self.add_leaf(value, self.take_bytes(), size)
        return True

    def write_known_jax_array(self, value: Any) -> bool:
        """Writes a JAX array if its sharding and headers are cached; returns whether they were."""
        is_known = id(value.sharding) in self.shardings and not value.is_deleted()
        return is_known and self.write_known_array(value)

    def write_array(self, value: Any, *, chunked: bool) -> None:
        _write_errors.check_array(self.describe_place, value)
        if type(value) in self.jax_types:
            self.shardings[id(value.sharding)] = value.sharding
        if self.write_known_array(value):
            return
        shape, itemsize = value.shape, value.dtype.itemsize
        size = value.size * itemsize
        if size <= self.max_chunk_size:
            before = self.take_bytes()
            self.write_array_headers(value, shape, size)
            self.headers[shape, value.dtype] = (self.take_bytes(), size)
            self.pending += before
            self.write_known_array(value)
            return
        if not chunked:
            self.write_array_headers(value, shape, size)
            self.add_leaf(value, self.take_bytes(), size)
            return
        self.check_depth(2)
        self.pending += self.packer.pack_map_header(3)
        self.pack(_format.CHUNKED_KEY, True, _format.SHAPE_KEY)
        self.pack({str(i): dim for i, dim in enumerate(shape)})
        self.pack(_format.CHUNKS_KEY)
        count = max(1, self.max_chunk_size // itemsize)
        starts = range(0, value.size, count)
        self.pending += self.packer.pack_map_header(len(starts))
        chunks = []
        for i, start in enumerate(starts):
            self.pack(str(i))
            elements = min(count, value.size - start)
            self.write_array_headers(value, (elements,), elements * itemsize)
            chunks.append((self.take_bytes(), elements * itemsize))
        (header, size), *later = chunks
        self.add_leaf(_Chunked(value, tuple(later)), header, size)
        self.encoded.size += sum(len(header) + size for header, size in later)

    def write_array_headers(self, array: Any, shape: tuple[int, ...], size: int) -> None:
        prelude = self.encode_prelude(array, shape, size, self.describe_place)
        if len(prelude) + size > _format.MAX_ITEM_SIZE:
            raise self.make_error(
                f"is an array of {size} bytes within a list: expected at most 4 GiB, since only "
                "arrays in dicts are written in chunks. Use a dict for the list, or use to_bytes "
                "or write_weights, which write lists as dicts."
            )
        self.pending += make_extension_header(_format.ARRAY_CODE, len(prelude) + size)
        self.pending += prelude

    def encode_prelude(self, array: Any, shape: tuple[int, ...], size: int, place: Any) -> bytes:
        """Encodes the part of an extension's content before the elements."""
        name = self.find_dtype_name(array.dtype)
        if name is None:
            raise _write_errors.make_dtype_error(place(), array)
        packer = self.packer
        start: bytes = packer.pack_array_header(3) + packer.pack(list(shape)) + packer.pack(name)
        return start + make_binary_header(size)

    def find_dtype_name(self, dtype: np.dtype[Any]) -> str | None:
        """Returns the name of a dtype for readers; None if readers do not support it."""
        if dtype not in self.dtypes:
            try:
                read_back = read_dtype(dtype.name, None)
            except MissingDependencyError:
                read_back = ""
            is_readable = isinstance(read_back, np.dtype) and read_back == dtype.newbyteorder("=")
            self.dtypes[dtype] = dtype.name if is_readable else None
        return self.dtypes[dtype]

    def pack(self, *values: object) -> None:
        for value in values:
            self.pending += self.packer.pack(value)

    def take_bytes(self) -> bytes:
        """Returns and clears the bytes since the last array."""
        pending = bytes(self.pending)
        self.pending.clear()
        return pending

    def add_leaf(self, value: Any, header: bytes, size: int) -> None:
        encoded = self.encoded
        encoded.headers.append(header)
        encoded.values.append(value)
        encoded.sizes.append(size)
        encoded.around.append(self.entered[-1].keys if self.entered else ())
        encoded.keys.append(self.item_key)
        encoded.size += len(header) + size

    def list_keys(self) -> tuple[Any, ...]:
        """Returns the keys of the current item's path, or of the container's before its items."""
        around = self.entered[-1].keys if self.entered else ()
        return around if self.item_key is _NO_KEY else (*around, self.item_key)

    def describe_place(self) -> str:
        return _write_errors.describe_place(self.list_keys())

    def make_error(self, text: str) -> SerializationError:
        return SerializationError(f"{self.describe_place()} {text}")
