"""Functions for targets without XLA, in .jaxfn files."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from jax2tf_bridge import PortableFunction, Target
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.serialization import deserialize, serialize

# A test reads as an older bridge would, by its newest version.
from jax2tf_bridge.serialization.jaxfn import _format
from tests.serialization.equality import assert_equal
from tests.serialization.forging import refused, sealed
from tests.serialization.records import simple, with_vjps


def without_xla() -> PortableFunction:
    return replace(simple(), target=Target.tensorflow("2.17", xla=False))


def _version(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 8)[0])


def test_the_target_comes_back() -> None:
    portable = without_xla()
    again = deserialize(serialize(portable))
    assert again.target == portable.target
    assert not again.target.xla
    assert_equal(again, portable)
    # One function and its gradient may differ.
    mixed = with_vjps(portable, b"the module of the VJP")
    assert_equal(deserialize(serialize(mixed)), mixed)


def test_only_such_files_need_the_version_that_knows_them() -> None:
    assert _version(serialize(without_xla())) == 3
    assert _version(serialize(simple())) == 1


def test_an_older_bridge_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_format, "VERSION", 2)
    with pytest.raises(FileFormatError, match="format version 3, this bridge reads up to 2"):
        deserialize(serialize(without_xla()))


def test_an_older_version_with_such_a_target_is_refused() -> None:
    data = bytearray(serialize(without_xla()))
    struct.pack_into("<I", data, 8, 2)
    refused(sealed(data), "target_xla: expected true in a file of version 2, got false")
