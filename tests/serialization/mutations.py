"""Damages bytes in the ways that readers of files meet."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from hypothesis import strategies as st

_WORDS = [0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


@st.composite
def mutated(draw: st.DrawFn, contents: Sequence[bytes]) -> bytes:
    """Draws one of the contents, with a few bytes changed, cut, inserted or copied."""
    content = bytearray(draw(st.sampled_from(contents)))
    last = len(content) - 1
    # Tables lie before and after a module: either end is as likely as the whole.
    places = st.integers(0, last) | st.integers(max(0, last - 900), last)
    for _ in range(draw(st.integers(1, 6))):
        position = min(draw(places), len(content) - 1)
        match draw(st.sampled_from(["byte", "bit", "word", "cut", "insert", "copy"])):
            case "byte":
                content[position] = draw(st.integers(0, 255))
            case "bit":
                content[position] ^= 1 << draw(st.integers(0, 7))
            case "word":
                content[position : position + 4] = struct.pack("<I", draw(st.sampled_from(_WORDS)))
            case "cut":
                del content[max(position, 1) :]
            case "insert":
                content[position:position] = draw(st.binary(min_size=1, max_size=8))
            case "copy":
                other = draw(st.integers(0, len(content) - 1))
                content[position : position + 16] = content[other : other + 16]
    return bytes(content)
