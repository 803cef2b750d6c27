"""Reads bytes of msgpack by msgpack's own C code, where nothing in them is out of the ordinary.

Many small leaves are read several times as fast as header by header. What is ordinary is a part of
what _read accepts, and comes out the same; whatever else there is, _read reads, and says what is
wrong. The limits here keep msgpack from setting aside memory that the bytes do not fill.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from jax2tf_bridge.weights._sources import view
from jax2tf_bridge.weights._stored import StoredArray
from jax2tf_bridge.weights.msgpack._format import ARRAY, CHUNKED_KEY, NUMPY_SCALAR

MAX_QUICK_BYTES: Final = 1 << 16
"""Bytes of an array or binary, at most: msgpack copies each before it can be looked at."""

# Room for all items of a list or map is set aside when it begins: of each that is open.
_MAX_LIST_LENGTH: Final = 1 << 10
_MAX_MAP_LENGTH: Final = 1 << 15
_MIN_BYTES_PER_ITEM: Final = 32
# The bytes before the elements: (shape, name, and the header of a bin).
_PRELUDE: Final = re.compile(
    rb"\x93[\x90-\x9f](?:[\0-\x7f]|\xcc.|\xcd..|\xce.{4})*[\xa1-\xbf][\w\[\]]+"
    rb"(?:\xc4.|\xc5..|\xc6.{4})",
    re.DOTALL,
)
_STR: Final = frozenset({str})


class NotOrdinary(Exception):
    """The bytes have something for _read."""


class QuickReader:
    """Reads the whole tree in some bytes."""

    def __init__(self, data: bytes, describe: Callable[[int, bytes], StoredArray | None]) -> None:
        """Takes the bytes.

        Args:
          data: arrays are views of them.
          describe: checks an extension, of which it gets code and content, and returns the
            StoredArray for which it stands, with its place in the content; None if it is none.
        """
        self._data, self._describe = data, describe
        self._at = 0
        self._preludes: dict[tuple[bytes, int, int], tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def tree(self) -> Any:
        """Returns the tree.

        Raises:
          NotOrdinary: it is to be read in the other way.
        """
        # Imported late: the other way does without it.
        from msgpack import unpackb

        try:
            return unpackb(
                self._data,
                raw=False,
                strict_map_key=True,
                object_pairs_hook=_checked_dict,
                ext_hook=self._extension,
                max_str_len=MAX_QUICK_BYTES,
                max_bin_len=MAX_QUICK_BYTES,
                max_ext_len=MAX_QUICK_BYTES,
                max_array_len=_MAX_LIST_LENGTH,
                max_map_len=min(_MAX_MAP_LENGTH, len(self._data) // _MIN_BYTES_PER_ITEM + 1),
            )
        # Errors of msgpack for input that it cannot or must not read; UnicodeDecodeError is one.
        except (ValueError, TypeError, OverflowError):
            raise NotOrdinary from None

    def _extension(self, code: int, content: bytes) -> Any:
        """Returns the array that an extension stands for, as a view of the whole bytes."""
        prelude = _PRELUDE.match(content)
        if prelude is None or (code != ARRAY and code != NUMPY_SCALAR):
            raise NotOrdinary
        size = len(content)
        body = prelude.end()
        known = self._preludes.get((content[:body], size, code))
        if known is None:
            known = self._known(code, content, body)
        # The content is found where it is, or where the same bytes are.
        start = self._data.find(content, self._at)
        self._at = start + size
        dtype, shape = known
        array = view(self._data, start + body, dtype, shape)
        return array if code == ARRAY else array[()]

    def _known(self, code: int, content: bytes, body: int) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Checks an extension, for all that begin like it and have its size."""
        stored = self._describe(code, content)
        if stored is None or stored.start != body:
            raise NotOrdinary
        known = self._preludes[content[:body], len(content), code] = stored.dtype, stored.shape
        return known


def _checked_dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Makes a dict of a map's items, whose keys are texts, each once."""
    made = dict(pairs)
    if len(made) != len(pairs) or not _STR.issuperset(map(type, made)) or CHUNKED_KEY in made:
        raise NotOrdinary
    return made
