"""Reads Flax's msgpack strictly, header by header; the numbers of arrays are passed over."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from jax2tf_bridge.errors import FileFormatError, StateDictError
from jax2tf_bridge.weights._files import StoredArray, StoredChunks, StoredLeaf, StoredValue
from jax2tf_bridge.weights._other_formats import other_format
from jax2tf_bridge.weights._paths import flatten_state, join_path
from jax2tf_bridge.weights._sources import HEADER_ROOM, Source, Span, Window
from jax2tf_bridge.weights.msgpack import _heads as heads
from jax2tf_bridge.weights.msgpack._format import CHUNKED_KEY
from jax2tf_bridge.weights.msgpack._heads import HEADS, KINDS, Fault, cut_short
from jax2tf_bridge.weights.msgpack._leaves import extension_leaf, joined_chunks

_STORED: Final = (StoredArray, StoredChunks, StoredValue)
_NO_KEY: Final = object()
# As many as msgpack itself reads; what is handed out may need a higher limit of recursion.
_MAX_DEPTH: Final = 1024
# The hashes of others can be made equal at will: a map of many takes the square of the time.
_STRONG_KEYS: Final = (str, bytes, int, float, type(None), np.bool_, np.integer, np.floating)
_MOST_WEAK_KEYS: Final = 1024
_LONGEST_PATH: Final = 400
# Each leaf has all keys above it in its path: of few bytes a file could make very many.
_MOST_IN_PATHS: Final = 1 << 28
_DAMAGED: Final = (
    "The bytes are cut short or damaged, or no weights: copy them anew, or write them again."
)


class MsgpackContents:
    """What a source in Flax's msgpack holds.

    Attributes:
      format_name: "msgpack".
      metadata: empty.
    """

    format_name = "msgpack"

    def __init__(self, source: Source) -> None:
        """Nothing is read yet."""
        self.metadata: Mapping[str, str] = MappingProxyType({})
        self._source = source

    def leaves(self) -> dict[str, StoredLeaf]:
        """Each leaf by its path.

        Raises:
          FileFormatError: the bytes are damaged, two leaves have the same path, or the paths
            take too much memory.
        """
        structure = _read_structure(self._source)
        if _length_of_paths(structure.tree) > _MOST_IN_PATHS:
            raise FileFormatError(
                f"{_place(self._source)} has leaves whose paths take more than {_MOST_IN_PATHS} "
                "characters together. read_weights reads it as a tree.",
                file=self._source.file,
            )
        try:
            flat = flatten_state(structure.tree)
        except StateDictError as e:
            raise FileFormatError(
                f"{_place(self._source)} has leaves that no path tells apart: {e} read_weights "
                "reads it as a tree.",
                file=self._source.file,
            ) from e
        return {p: v if isinstance(v, _STORED) else StoredValue(v) for p, v in flat.items()}

    def tree(self) -> Any:
        """All of it, with arrays out of the source.

        Raises:
          FileFormatError: the bytes are damaged.
        """
        structure = _read_structure(self._source)
        for items, key in structure.stored:
            items[key] = items[key].read(self._source)
        return structure.tree


class _Structure(NamedTuple):
    """What was read, with a description in the place of each array.

    Attributes:
      root: holds the tree as its only element.
      stored: the container and the key of each description.
    """

    root: list[Any]
    stored: list[tuple[Any, Any]]

    @property
    def tree(self) -> Any:
        return self.root[0]


class _Frame:
    """A container that is being read.

    Attributes:
      items: a dict or a list.
      left: how many items are still to come.
      start: where it begins.
      by_maps: whether maps alone lead to it; then it may stand for an array in chunks.
      first_stored: how many descriptions had been found before it.
      key: of the value that is next; _NO_KEY if the key is next.
      weak_keys: how many keys have hashes that can be made equal.
    """

    __slots__ = ("by_maps", "first_stored", "items", "key", "left", "start", "weak_keys")

    def __init__(self, items: Any, left: int, start: int, by_maps: bool, first_stored: int) -> None:
        self.items, self.left, self.start = items, left, start
        self.by_maps, self.first_stored = by_maps, first_stored
        self.key: Any = _NO_KEY
        self.weak_keys = 0

    def position(self) -> str | None:
        """Where in it reading is, as a part of a path; None while a key is read."""
        if isinstance(self.items, list):
            return str(len(self.items))
        return None if self.key is _NO_KEY else str(self.key)[:80]


def _length_of_paths(tree: Any) -> int:
    """How many characters the paths of all leaves have together, up to escapes."""
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


def _read_structure(source: Source) -> _Structure:
    structure = _Structure([], [])
    stack = [_Frame(structure.root, 1, 0, True, 0)]
    try:
        end = _read(source, structure.stored, stack)
        if end != source.size:
            raise Fault(end, "the end", f"{source.size - end} more bytes")
    except Fault as e:
        raise _error(source, e, stack) from None
    return structure


def _read(source: Source, stored: list[tuple[Any, Any]], stack: list[_Frame]) -> int:
    """Reads one object into the one frame on the stack; gives where it ends."""
    size = source.size
    base, data = source.window(0)
    # A window that does not reach the end is left before a header could.
    safe = size if base + len(data) == size else base + len(data) - HEADER_ROOM
    at = 0
    while True:
        frame = stack[-1]
        if not frame.left:
            if len(stack) == 1:
                return at
            value = _completed(stack.pop(), stored)
            frame = stack[-1]
        else:
            if at > safe:
                base, data = source.window(at)
                safe = size if base + len(data) == size else base + len(data) - HEADER_ROOM
            if at >= size:
                raise Fault(at, "a msgpack object", "the end")
            # As read_head, in place: this is done for every object.
            kind, value, unpack, width = HEADS[data[at - base]]
            start = at
            at += 1
            if unpack is not None:
                if at + width > size:
                    raise cut_short(at, width, size - at)
                (value,) = unpack(data, at - base)
                at += width
            if kind != heads.VALUE:
                if kind >= heads.ARRAY:
                    _enter(stack, kind, value, start, size - at, len(stored))
                    continue
                start, at = at, at + value + (kind == heads.EXTENSION)
                if at > size:
                    raise cut_short(start, at - start, size - start)
                if kind == heads.EXTENSION:
                    value = extension_leaf(source, Window(base, data), start, value)
                elif at <= base + len(data):
                    value = data[start - base : at - base]
                else:
                    value = source.content(Span(start, value))
                if kind == heads.STR:
                    value = _text(value, start)
        items = frame.items
        if type(items) is list:
            if isinstance(value, _STORED):
                stored.append((items, len(items)))
            items.append(value)
        elif frame.key is _NO_KEY:
            frame.key = _checked_key(value, frame, source, at)
            continue
        else:
            if isinstance(value, _STORED):
                stored.append((items, frame.key))
            items[frame.key] = value
            frame.key = _NO_KEY
        frame.left -= 1


def _enter(stack: list[_Frame], kind: int, count: int, start: int, room: int, found: int) -> None:
    """Puts a container of `count` items on the stack; `room` bytes are left for them."""
    if kind == heads.UNUSED:
        raise Fault(start, "the first byte of a msgpack object", KINDS[kind])
    if count * (1 + (kind == heads.MAP)) > room:
        raise Fault(start, f"{KINDS[kind]} that fits into the {room} bytes left", f"{count} items")
    if len(stack) > _MAX_DEPTH:
        raise Fault(start, f"at most {_MAX_DEPTH} containers within each other", "one more")
    outer = stack[-1]
    by_maps = outer.by_maps and (len(stack) == 1 or type(outer.items) is dict)
    stack.append(_Frame({} if kind == heads.MAP else [], count, start, by_maps, found))


def _completed(frame: _Frame, stored: list[tuple[Any, Any]]) -> Any:
    """A container whose items were all read, or the array that its chunks are."""
    items = frame.items
    if type(items) is dict and frame.by_maps and CHUNKED_KEY in items:
        chunks = joined_chunks(items, frame.start)
        del stored[frame.first_stored :]
        return chunks
    return items


def _text(data: bytes, start: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as e:
        got = f"0x{data[e.start]:02x} ({e.reason})"
        raise Fault(start + e.start, "UTF-8 in a str", got) from None


def _checked_key(value: Any, frame: _Frame, source: Source, end: int) -> Any:
    """A key of a map; it ends at `end`."""
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
        if frame.weak_keys > _MOST_WEAK_KEYS:
            what = f"at most {_MOST_WEAK_KEYS} keys of a map that are neither text nor real numbers"
            raise Fault(end, what, "one more")
    return value


def _error(source: Source, fault: Fault, stack: list[_Frame]) -> FileFormatError:
    positions = [frame.position() for frame in stack[1:]]
    path = join_path([position for position in positions if position is not None])
    if len(path) > _LONGEST_PATH:
        path = f"{path[: _LONGEST_PATH // 2]}...{path[-_LONGEST_PATH // 2 :]}"
    where = f"byte {fault.at}" + (f", in {path}" if path else "")
    known = other_format(source.window(0).data[:16])
    likely = f"The bytes seem to be {known}." if known else _DAMAGED
    return FileFormatError(
        f"{_place(source)} cannot be read as weights in msgpack: {where}: expected "
        f"{fault.expected}, got {fault.got}. {likely}",
        file=source.file,
    )


def _place(source: Source) -> str:
    return source.file or "The data"
