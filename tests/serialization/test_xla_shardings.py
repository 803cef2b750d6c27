"""Shardings in XLA's words: what a mesh says is said, and what is said is put on a mesh."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jax2tf_bridge.portable import AbstractMesh, Sharding
from jax2tf_bridge.serialization import bytes_field, varint, varint_field
from jax2tf_bridge.serialization.jax_exported import (
    REPLICATED,
    replace_device_grid,
    to_named_sharding,
    to_op_sharding,
)


def places(sharding: Sharding) -> npt.NDArray[np.int64]:
    """For each device which block of each dimension it holds."""
    assert sharding.mesh is not None
    sizes = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_sizes, strict=True))
    devices = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    index = dict(zip(sizes, devices, strict=True))
    blocks = []
    for axes in sharding.partitions:
        block = np.zeros(math.prod(sizes.values()), np.int64)
        for axis in axes:
            block = block * sizes[axis] + index[axis]
        blocks.append(block)
    return np.array(blocks)


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    names = tuple("abcd"[: len(sizes)])
    order = draw(st.permutations(names))
    cuts = sorted(draw(st.lists(st.integers(0, len(names)), min_size=3, max_size=3)))
    parts = [tuple(order[i:j]) for i, j in itertools.pairwise([0, *cuts])]
    mesh = AbstractMesh(names, tuple(sizes), tuple("auto" for _ in sizes))
    return Sharding(mesh, tuple(parts))


@given(shardings())
def test_there_and_back(sharding: Sharding) -> None:
    assert sharding.mesh is not None
    hlo = to_op_sharding(sharding, 3)
    assert hlo is not None
    back = to_named_sharding(hlo, 3, math.prod(sharding.mesh.axis_sizes))
    assert back is not None
    np.testing.assert_array_equal(places(back), places(sharding))


def test_joined_axes_come_apart() -> None:
    # devices=[2,2,2]<=[2,4]T(1,0) last_tile_dim_replicate, as JAX writes P("y", "z") over x, y, z.
    hlo = bytes.fromhex("08031a0302020230014a0202045202" + "0100")
    found = to_named_sharding(hlo, 2, 8)
    assert found is not None
    assert found.mesh is not None
    assert found.mesh.axis_sizes == (2, 2, 2)
    assert found.partitions == (("axis_1",), ("axis_2",))


def test_everything_on_every_device() -> None:
    mesh = AbstractMesh(("x",), (2,), ("auto",))
    assert to_op_sharding(Sharding(mesh, ((), ())), 2) == REPLICATED
    for hlo in (REPLICATED, b""):
        assert to_named_sharding(hlo, 2, 8) == Sharding(
            AbstractMesh(("axis_0",), (8,), ("auto",)), ((), ())
        )


def test_what_xla_has_no_words_for() -> None:
    mesh = AbstractMesh(("x", "y"), (2, 2), ("auto", "auto"))
    assert to_op_sharding(Sharding(mesh, (("x",),), unreduced=("y",)), 1) is None
    assert to_op_sharding(Sharding(mesh, (("x",),), reduced=("y",)), 1) is None
    assert to_op_sharding(Sharding(mesh, (("x",), ("x",))), 2) is None
    assert to_op_sharding(Sharding(mesh, (("x",), ())), 1) is None


@pytest.mark.parametrize(
    "hlo",
    [
        "0801",  # on one device alone
        "08031a020201220200015801",  # a field that is not understood
        "08031a0202014a01035201" + "00",  # three devices
        "08031a0203014a0106520100",  # six devices
        "08031a0202014a0102520101",  # no permutation
        "08031a0102",  # no devices at all
        "08031a0202014a010252",  # cut short
        "0b",  # no wire type
        "08ffffffffffffffffffff01",  # a number of more than 64 bits
    ],
)
def test_what_no_mesh_says(hlo: str) -> None:
    assert to_named_sharding(bytes.fromhex(hlo), 2, 2) is None


@given(st.binary(max_size=40))
@example(bytes.fromhex("08034a0102520105"))  # axis 5 of a grid with one axis
@example(bytes.fromhex("08034a06ffffffffff01520100"))  # a grid of 2**36 devices
@example(bytes.fromhex("08034a0700ffffffffff0152020100"))  # 2**36 devices, times none
def test_any_bytes(hlo: bytes) -> None:
    assert isinstance(replace_device_grid(hlo), bytes)
    found = to_named_sharding(hlo, 2, 4)
    assert found is None or (found.mesh is not None and math.prod(found.mesh.axis_sizes) == 4)


@pytest.mark.parametrize("sizes", [[8, *[1] * 30_000], [*[1] * 30_000, 8], [2**63] * 30_000])
def test_long_grids_take_no_longer_than_their_bytes(sizes: Sequence[int]) -> None:
    tiles = bytes_field(3, bytes([8]))
    hlo = varint_field(1, 3) + tiles + bytes_field(9, b"".join(map(varint, sizes)))
    start = time.process_time()
    listed = replace_device_grid(hlo)
    named = to_named_sharding(hlo, 1, 8)
    names = tuple(f"axis_{i}" for i in range(len(sizes)))
    mesh = AbstractMesh(names, tuple(sizes), tuple("auto" for _ in sizes))
    grid = to_op_sharding(Sharding(mesh, (names[:1],)), 1)
    assert time.process_time() - start < 1
    is_valid = 8 in sizes
    assert (grid is not None) == is_valid
    assert (listed != hlo) == is_valid
    assert (named is not None) == is_valid
