"""Writes trees as msgpack, in Flax's bytes: msgpack_serialize, to_bytes, write_weights.

A tree is encoded as a whole, but for the elements of its arrays, before its first byte is written.
"""

from __future__ import annotations

import io
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgpack
import numpy as np

from jax2tf_bridge._utils import progress_bar
from jax2tf_bridge.errors import MissingDependencyError, SerializationError
from jax2tf_bridge.storage import replaced_file
from jax2tf_bridge.weights._state_dicts import to_state_dict
from jax2tf_bridge.weights._stored import stored_dtype
from jax2tf_bridge.weights._tensorflow_trees import without_tensorflow
from jax2tf_bridge.weights.msgpack import _format, _write_errors
from jax2tf_bridge.weights.msgpack._array_bytes import byte_blocks, host_array, is_jax_array
from jax2tf_bridge.weights.msgpack._headers import binary_header, extension_header

Block: TypeAlias = bytes | memoryview

_LONG = 2**28
"""From this many bytes on, a progress bar is shown."""

_BLOCK = 2**26
"""Bytes in a block, at most, so that a progress bar moves within a large array."""

_MAX_CACHED_KEYS = 4096
"""Keys that are written once and copied then."""

_PLAIN = frozenset({type(None), bool, int, float, str, msgpack.Timestamp})
_BINARY = frozenset({bytes, bytearray, memoryview})

_PLAIN_DTYPES = frozenset(map(np.dtype, "?bBhHiIlLqQefdFD" if sys.byteorder == "little" else ""))
"""Dtypes of arrays that Python's bytes take as they are, with the numbers as they are written."""


def msgpack_serialize(pytree: object, in_place: bool = False) -> bytes:
    r"""Writes a tree of dicts and lists in the bytes of flax.serialization.msgpack_serialize.

    Arrays and scalars of NumPy and JAX keep their dtype, also those of ml_dtypes and times;
    big-endian ones become little-endian. Arrays of more than 2**30 bytes are written in chunks,
    unless they are in a list. Beside the tree, memory holds only the result, and a copy of one JAX
    array on another device, or of a piece of an array that is not contiguous.

    Args:
      pytree: dicts and lists of str, bytes, bool, int, float, complex, None, arrays and scalars.
      in_place: whether dicts are written in their own order, as Flax does if it may change them,
        rather than sorted by their keys. The tree is not changed either way.

    Raises:
      SerializationError: msgpack cannot hold something, or Flax could not read it; the text has
        its path.

    >>> msgpack_serialize({"step": 7})
    b'\x81\xa4step\x07'
    """
    return encode(pytree, sort_keys=not in_place).joined()


def to_bytes(target: object) -> bytes:
    """Writes an object's state dict in the bytes of flax.serialization.to_bytes.

    Args:
      target: a tree of dicts, lists, tuples, named tuples and registered types, as for
        `to_state_dict`.

    Raises:
      SerializationError: as for `msgpack_serialize`.
      StateDictError: as for `to_state_dict`.

    >>> to_bytes((1, 2)) == msgpack_serialize({"0": 1, "1": 2})
    True
    """
    return encode(to_state_dict(target), sort_keys=False).joined()


def write_weights(
    path: str | os.PathLike[str], target: object, *, progress: bool | None = None
) -> None:
    """Writes a tree of weights to a file as `to_bytes` does: all of it or nothing.

    Arrays are written from where they are: beside the tree, writing takes 16 MiB of memory at most,
    and a copy of one array at a time of those on other devices.

    Args:
      path: the file, on disk or behind a scheme ("gs://bucket/model.msgpack"); one of this name is
        replaced when the new one is complete.
      target: as for `to_bytes`. Variables and tensors of TensorFlow are written as arrays, and a
        flat mapping of them is nested by its paths: it may be `params` of a loaded model.
      progress: whether to show a progress bar; None shows it for 256 MiB or more on a terminal.

    Raises:
      SerializationError: as for `msgpack_serialize`, or the path names a safetensors file; no file
        is touched.
      StateDictError: as for `to_state_dict`; no file is touched.
      OSError: the file cannot be written; FileExistsError if something is there that is no
        regular file.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "model.msgpack")
    >>> write_weights(path, {"dense": {"kernel": np.ones((3, 2))}})
    """
    name = os.fspath(path)
    if name.lower().endswith(".safetensors"):
        raise SerializationError(
            f"{name} names a safetensors file, and write_weights writes msgpack: expected another "
            "name, such as weights.msgpack. For safetensors, use "
            # Without the copy it would silently write arrays in Fortran order wrong.
            "safetensors.numpy.save_file({name: numpy.array(leaf, order='C') for name, leaf in "
            "jax2tf_bridge.weights.flatten_state(jax2tf_bridge.weights.to_state_dict(target))"
            ".items()}, path)."
        )
    encoded = encode(to_state_dict(without_tensorflow(target)), sort_keys=False)
    show = False if progress is None and encoded.size < _LONG else progress
    label = f"writing {os.path.basename(name)}"
    with (
        replaced_file(path, bytes_of="to_bytes") as file,
        progress_bar(label, encoded.size, "B", show=show) as advance,
    ):
        for block in encoded.blocks():
            file.write(block)
            advance(len(block))


class _ContainerPlace(NamedTuple):
    """Keys that lead to a container, and the last of them in it, for messages."""

    around: tuple[Any, ...]
    key: Any

    def __str__(self) -> str:
        keys = self.around if self.key is _NO_KEY else (*self.around, self.key)
        return _write_errors.place(keys)


_NO_KEY = object()


class _Chunked(NamedTuple):
    """An array that is written in several chunks: itself, and what precedes the later ones."""

    array: Any
    chunks: tuple[tuple[bytes, int], ...]


@dataclass
class _Leaves:
    """The arrays and binaries of a tree, in order.

    There may be very many: so there is no object for each, and lists beside each other instead.

    Attributes:
      headers: what is written before each.
      values: each, or a _Chunked.
      sizes: of its elements in bytes; of those of the first chunk.
      around, keys: its place.
    """

    headers: list[bytes] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    around: list[tuple[Any, ...]] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        leaves = zip(self.headers, self.values, self.sizes, self.around, self.keys, strict=True)
        for header, value, size, around, key in leaves:
            is_chunked = type(value) is _Chunked
            array, later = value if is_chunked else (value, ())
            yield from _leaf_blocks(array, ((header, size), *later), _ContainerPlace(around, key))

    def parts(self) -> list[Any] | None:
        """Returns headers and arrays in turn, if Python takes their memory for what is written.

        Arrays of JAX it takes or refuses itself: they say where they are when they are read.
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
        return [part for leaf in zip(self.headers, self.values, strict=True) for part in leaf]


def _leaf_blocks(
    value: Any, chunks: Sequence[tuple[bytes, int]], place: _ContainerPlace
) -> Iterator[Block]:
    rest = _elements(value, place)
    left = memoryview(b"")
    for header, size in chunks:
        yield header
        while size:
            if not left:
                left = next(rest, left)
            if not left:
                raise SerializationError(
                    f"{place} became smaller while it was written: expected a tree that "
                    "stays as it is. Nothing was written; write a copy, or write before it is "
                    "resized."
                )
            block = left[: min(size, _BLOCK)]
            yield block
            size -= len(block)
            left = left[len(block) :]


def _elements(value: Any, place: _ContainerPlace) -> Iterator[memoryview]:
    if type(value) in _BINARY:
        yield memoryview(value).cast("B")
        return
    try:
        array = host_array(value)
    except Exception as e:
        # Errors in the computation of a JAX array are raised here.
        raise SerializationError(
            f"{place} is an array that could not be copied to the host: {e!s:.400}. "
            "Nothing was written; jax.block_until_ready(tree) raises the same where the array "
            "is made."
        ) from e
    yield from byte_blocks(array)


@dataclass(frozen=True)
class EncodedTree:
    """A tree in msgpack; the elements of its arrays are still where they were.

    Attributes:
      size: in bytes.
    """

    size: int
    _leaves: _Leaves
    _end: bytes

    def blocks(self) -> Iterator[Block]:
        """Yields all bytes in order, without copies of arrays that lie in memory as in the file.

        Raises:
          SerializationError: a JAX array has no value, since its computation failed; or something
            has fewer bytes than when it was encoded.
        """
        yield from self._leaves.blocks()
        yield self._end

    def joined(self) -> bytes:
        parts = self._leaves.parts()
        if parts is not None:
            parts.append(self._end)
            try:
                whole = b"".join(parts)
            except (BufferError, TypeError, ValueError, RuntimeError):
                pass  # of JAX's arrays; below it is told what is wrong, if anything is
            else:
                if len(whole) == self.size:
                    return whole
        # The buffer's memory becomes the result's; join would need copies of all arrays at once.
        result = io.BytesIO()
        for block in self.blocks():
            result.write(block)
        return result.getvalue()


def encode(
    tree: object, *, sort_keys: bool, max_chunk_size: int = _format.MAX_CHUNK_SIZE
) -> EncodedTree:
    """Encodes a tree of plain dicts and lists, which is not changed.

    Args:
      tree: dicts and lists of msgpack's values, complex numbers, NumPy's scalars, and arrays.
      sort_keys: whether dicts are sorted by their keys.
      max_chunk_size: in bytes; larger arrays are written in chunks, unless they are in a list.

    Raises:
      SerializationError: msgpack cannot hold something; the text has its path.
    """
    return _Encoder(sort_keys, max_chunk_size).encode(tree)


class _Entered(NamedTuple):
    """A dict or a list on the stack, with the rest of its items."""

    container: dict[Any, Any] | list[Any]
    items: Iterator[tuple[Any, Any]]
    only_dicts: bool
    """True if it and all containers around it are dicts; readers join chunks only there."""
    keys: tuple[Any, ...]
    """Those that lead to it."""


@dataclass
class _Encoder:
    sort_keys: bool
    max_chunk_size: int
    packer: Any = field(default_factory=lambda: msgpack.Packer(strict_types=True))
    leaves: _Leaves = field(default_factory=_Leaves)
    size_of_leaves: int = 0
    pending: bytearray = field(default_factory=bytearray)
    entered: list[_Entered] = field(default_factory=list)
    item_key: Any = _NO_KEY
    """Key of the current item in the container that was entered last."""
    inside: set[int] = field(default_factory=set)
    """The ids of the containers entered."""
    dtypes: dict[np.dtype[Any], str | None] = field(default_factory=dict)
    jax_types: set[type] = field(default_factory=set)
    """Types whose objects are all arrays of JAX."""
    shardings: dict[int, Any] = field(default_factory=dict)
    """Those of JAX's arrays that were checked, by identity: all parts are in this process."""
    headers: dict[tuple[tuple[int, ...], np.dtype[Any]], tuple[bytes, int]] = field(
        default_factory=dict
    )
    """Bytes before the elements of arrays in one chunk, and their size, by shape and dtype."""
    written_keys: dict[str, bytes] = field(default_factory=dict)
    """Most layers have parameters of the same names."""

    def encode(self, tree: object) -> EncodedTree:
        # A loop, since the room for recursion depends on the caller.
        self.value(tree, only_dicts=True)
        while self.entered:
            top = self.entered[-1]
            has_keys = isinstance(top.container, dict)
            for key, value in top.items:
                if has_keys:
                    self.item_key = _NO_KEY
                    written = self.written_keys.get(key) if type(key) is str else None
                    if written is None:
                        self.key(key)
                    else:
                        self.pending += written
                self.item_key = key
                kind = type(value)
                if not (
                    (kind is np.ndarray and self.known_array(value))
                    or (kind in self.jax_types and self.known_jax_array(value))
                ):
                    self.value(value, only_dicts=top.only_dicts)
                    if self.entered[-1] is not top:
                        break
            else:
                self.entered.pop()
                self.inside.discard(id(top.container))
        end = bytes(self.pending)
        return EncodedTree(self.size_of_leaves + len(end), self.leaves, end)

    def value(self, value: Any, *, only_dicts: bool) -> None:
        kind = type(value)
        if kind is dict or kind is list:
            self.enter(value, only_dicts=only_dicts)
        elif isinstance(value, np.ndarray) or self.is_jax_array(value):
            self.array(value, chunked=only_dicts)
        elif kind in _BINARY:
            self.binary(value)
        else:
            self.pending += self.scalar(value, self.place)

    def is_jax_array(self, value: Any) -> bool:
        # JAX takes its time to tell.
        if type(value) in self.jax_types:
            return True
        if not is_jax_array(value):
            return False
        if not isinstance(value, sys.modules["jax"].core.Tracer):
            self.jax_types.add(type(value))
        return True

    def key(self, key: Any) -> None:
        if isinstance(key, str) and key == _format.CHUNKED_KEY:
            raise self.error(
                f"is a dict with the key {key!r}, by which readers know arrays in chunks: expected "
                "other keys. Rename it, or write the array itself."
            )
        if type(key) in _BINARY:
            self.pending += self.packer.pack(key)
            return
        written = self.scalar(key, lambda: _write_errors.key_place(key, self.place()))
        if type(key) is str and len(self.written_keys) < _MAX_CACHED_KEYS:
            self.written_keys[key] = written
        self.pending += written

    def scalar(self, value: Any, place: Any) -> bytes:
        if type(value) in _PLAIN:
            try:
                packed: bytes = self.packer.pack(value)
            except (ValueError, OverflowError) as e:
                raise _write_errors.out_of_range(place(), value, e) from e
            return packed
        if isinstance(value, np.generic):
            array = np.asarray(value)
            prelude = self.prelude(array, (), array.nbytes, place)
            content = b"".join([prelude, *byte_blocks(array)])
            return extension_header(_format.NUMPY_SCALAR, len(content)) + content
        if isinstance(value, complex):
            content = b"\x92\xcb%b\xcb%b" % (
                struct.pack(">d", value.real),
                struct.pack(">d", value.imag),
            )
            return extension_header(_format.COMPLEX, len(content)) + content
        if type(value) is msgpack.ExtType and value.code not in _format.EXTENSIONS:
            return bytes(self.packer.pack(value))
        raise _write_errors.unsupported_type(place(), value)

    def enter(self, value: dict[Any, Any] | list[Any], *, only_dicts: bool) -> None:
        if id(value) in self.inside:
            raise self.error("contains itself: expected a tree. Remove the cycle.")
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
                    raise self.error(
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
        self.entered.append(_Entered(value, items, only_dicts, self.keys()))
        self.item_key = _NO_KEY

    def check_depth(self, more: int) -> None:
        if len(self.entered) + more > _format.MAX_DEPTH:
            raise self.error(
                f"is more than {_format.MAX_DEPTH} dicts and lists deep: expected no more, since "
                "readers of msgpack take no more. Flatten it: flatten_state makes one dict of "
                "paths."
            )

    def binary(self, value: bytes | bytearray | memoryview) -> None:
        view = memoryview(value)
        if not view.c_contiguous:
            raise self.error(
                "is a memoryview that is not contiguous: expected one that is. Write bytes(x)."
            )
        if view.nbytes > _format.MAX_ITEM_SIZE:
            raise self.error(
                f"has {view.nbytes} bytes: expected at most {_format.MAX_ITEM_SIZE}, msgpack's "
                "limit. Write it as a numpy.uint8 array in a dict: that is written in chunks."
            )
        self.pending += binary_header(view.nbytes)
        self.leaf(value, self.taken(), view.nbytes)

    def known_array(self, value: Any) -> bool:
        """Writes an array whose headers are known; tells whether they are."""
        found = self.headers.get((value.shape, value.dtype))
        if found is None:
            return False
        header, size = found
        self.pending += header
        self.leaf(value, self.taken(), size)
        return True

    def known_jax_array(self, value: Any) -> bool:
        """Writes an array of JAX that is like one before; tells whether it is."""
        is_known = id(value.sharding) in self.shardings and not value.is_deleted()
        return is_known and self.known_array(value)

    def array(self, value: Any, *, chunked: bool) -> None:
        _write_errors.check_array(self.place, value)
        if type(value) in self.jax_types:
            self.shardings[id(value.sharding)] = value.sharding
        if self.known_array(value):
            return
        shape, itemsize = value.shape, value.dtype.itemsize
        size = value.size * itemsize
        if size <= self.max_chunk_size:
            before = self.taken()
            self.array_headers(value, shape, size)
            self.headers[shape, value.dtype] = (self.taken(), size)
            self.pending += before
            self.known_array(value)
            return
        if not chunked:
            self.array_headers(value, shape, size)
            self.leaf(value, self.taken(), size)
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
            self.array_headers(value, (elements,), elements * itemsize)
            chunks.append((self.taken(), elements * itemsize))
        (header, size), *later = chunks
        self.leaf(_Chunked(value, tuple(later)), header, size)
        self.size_of_leaves += sum(len(header) + size for header, size in later)

    def array_headers(self, array: Any, shape: tuple[int, ...], size: int) -> None:
        prelude = self.prelude(array, shape, size, self.place)
        if len(prelude) + size > _format.MAX_ITEM_SIZE:
            raise self.error(
                f"is an array of {size} bytes within a list: expected at most 4 GiB, since only "
                "arrays in dicts are written in chunks. Use a dict for the list, or use to_bytes "
                "or write_weights, which write lists as dicts."
            )
        self.pending += extension_header(_format.ARRAY, len(prelude) + size)
        self.pending += prelude

    def prelude(self, array: Any, shape: tuple[int, ...], size: int, place: Any) -> bytes:
        """Encodes what precedes the elements in an extension's content."""
        name = self.dtype_name(array.dtype)
        if name is None:
            raise _write_errors.unsupported_dtype(place(), array)
        parts = [
            self.packer.pack_array_header(3),
            self.packer.pack(list(shape)),
            self.packer.pack(name),
            binary_header(size),
        ]
        return b"".join(parts)

    def dtype_name(self, dtype: np.dtype[Any]) -> str | None:
        """Returns the name by which readers know a dtype; None if they do not."""
        if dtype not in self.dtypes:
            try:
                found = stored_dtype(dtype.name, None)
            except MissingDependencyError:
                found = ""
            known = isinstance(found, np.dtype) and found == dtype.newbyteorder("=")
            self.dtypes[dtype] = dtype.name if known else None
        return self.dtypes[dtype]

    def pack(self, *values: object) -> None:
        for value in values:
            self.pending += self.packer.pack(value)

    def taken(self) -> bytes:
        """Takes the bytes since the last array."""
        found = bytes(self.pending)
        self.pending.clear()
        return found

    def leaf(self, value: Any, header: bytes, size: int) -> None:
        leaves = self.leaves
        leaves.headers.append(header)
        leaves.values.append(value)
        leaves.sizes.append(size)
        leaves.around.append(self.entered[-1].keys if self.entered else ())
        leaves.keys.append(self.item_key)
        self.size_of_leaves += len(header) + size

    def keys(self) -> tuple[Any, ...]:
        """Returns the keys that lead to the current item, or to the container if it has none."""
        around = self.entered[-1].keys if self.entered else ()
        return around if self.item_key is _NO_KEY else (*around, self.item_key)

    def place(self) -> str:
        return _write_errors.place(self.keys())

    def error(self, text: str) -> SerializationError:
        return SerializationError(f"{self.place()} {text}")
