"""CRC-32C, the checksum of checkpoints and TFRecord files.

Uses google-crc32c if it is installed, at the speed of memory, else NumPy. The polynomial is
Castagnoli's with reversed bits, see https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4. Long data
is cut into lanes, whose checksums are computed in parallel and then joined: a checksum is linear
over GF(2), so appending zeros is a multiplication by a matrix.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

_Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
_Bytes: TypeAlias = bytes | bytearray | memoryview

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_LANES = 4096
_PIECE_BYTES = 1 << 20
_MIN_LANES_BYTES = 1 << 14
"""Minimum length of data that is cut into lanes, which slow down shorter data."""


def crc32c(data: _Bytes, checksum: int = 0) -> int:
    """Computes the checksum of bytes; `checksum` is that of the bytes before them.

    >>> hex(crc32c(b"123456789")), hex(crc32c(b"6789", crc32c(b"12345")))
    ('0xe3069283', '0xe3069283')
    """
    view = memoryview(data).cast("B")
    extend = _load_google_extend()
    if extend is None:
        return _crc32c_by_numpy(view, checksum)
    for start in range(0, len(view), _PIECE_BYTES):
        checksum = extend(checksum, bytes(view[start : start + _PIECE_BYTES]))
    return checksum


def is_fast() -> bool:
    """Returns whether a checksum is as fast as reading memory."""
    return _load_google_extend() is not None


@functools.cache
def _load_google_extend() -> Callable[[int, bytes], int] | None:
    """Returns google-crc32c's function that continues a checksum; None if it is missing or slow."""
    try:
        with warnings.catch_warnings():
            # It warns if it has no compiled code, which makes it slower than NumPy.
            warnings.simplefilter("ignore")
            import google_crc32c
    except ImportError:
        return None
    extend: Callable[[int, bytes], int] = google_crc32c.extend
    return extend if google_crc32c.implementation == "c" else None


def _crc32c_by_numpy(view: memoryview, checksum: int = 0) -> int:
    state = checksum ^ 0xFFFFFFFF
    length = len(view) // (4 * _LANES) * 4 if len(view) >= _MIN_LANES_BYTES else 0
    if length:
        # The first of the equal lanes continues the state; the rest comes after the lanes.
        whole = length * _LANES
        columns = np.frombuffer(view[:whole], "<u4").reshape(_LANES, length // 4)
        lanes = np.zeros(_LANES, np.uint32)
        lanes[0] = state
        high, low = _make_wide_tables()
        for column in np.ascontiguousarray(columns.T):
            lanes ^= column
            lanes = low[lanes & 0xFFFF] ^ high[lanes >> 16]
        state = _join(lanes, length)
        view = view[whole:]
    table = _make_byte_table().tolist()
    for byte in view:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return int(state ^ 0xFFFFFFFF)


def mask_checksum(checksum: int) -> int:
    """Converts a checksum to the stored form: rotated, plus a constant.

    >>> hex(mask_checksum(0xE3069283))
    '0xc78ab0e5'
    """
    rotated = checksum >> 15 | checksum << 17
    return (rotated + _MASK_DELTA) & 0xFFFFFFFF


def unmask_checksum(stored: int) -> int:
    """Converts a stored checksum back: minus a constant, rotated.

    >>> hex(unmask_checksum(0xC78AB0E5))
    '0xe3069283'
    """
    rotated = (stored - _MASK_DELTA) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


@functools.cache
def _make_byte_table() -> _Words:
    """Tabulates the state after each byte, starting from the state 0."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


@functools.cache
def _make_wide_tables() -> tuple[_Words, _Words]:
    """Tabulates the state after four bytes, for the upper and lower 16 bits of state xor bytes."""
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    lower = np.arange(1 << 16, dtype=np.uint32)
    table = _make_byte_table()
    for _ in range(4):
        upper = table[upper & 0xFF] ^ upper >> 8
        lower = table[lower & 0xFF] ^ lower >> 8
    return upper, lower


def _join(lanes: _Words, length: int) -> int:
    """Joins the states of consecutive lanes of `length` bytes each."""
    behind = _make_zeros_matrix(length)
    while len(lanes) > 1:
        lanes = _multiply(behind, lanes[::2]) ^ lanes[1::2]
        behind = _multiply(behind, behind)
    return int(lanes[0])


def _make_zeros_matrix(count: int) -> _Words:
    """Computes the matrix for appending zero bytes: the image of each bit of the state."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    result, power = bits, _make_byte_table()[bits & 0xFF] ^ bits >> 8
    while count:
        if count & 1:
            result = _multiply(power, result)
        power = _multiply(power, power)
        count >>= 1
    return result


def _multiply(matrix: _Words, states: _Words) -> _Words:
    result = np.zeros_like(states)
    for bit in range(32):
        result ^= np.where(states >> np.uint32(bit) & 1, matrix[bit], np.uint32(0))
    return result
