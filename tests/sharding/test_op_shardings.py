"""Annotations say of every mesh and specification what JAX's own words for it say."""

import math

from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jax2tf_bridge.portable import AbstractMesh, AxisType, Sharding
from jax2tf_bridge.serialization.jax_exported import REPLICATED, replace_device_grid, to_op_sharding

# Messages are compared by their fields, and no public function reads these.
from jax2tf_bridge.serialization.jax_exported._shardings import _parse_fields
from tests.sharding.meshes import mesh

_TYPE, _TILES, _DEVICES, _COPIES, _GRID = 1, 3, 4, 6, 9
_RANK = 3


@st.composite
def spreads(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    """Draws the sizes of a mesh, and for each dimension of an array the axes it is spread over."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4))
    order = draw(st.permutations("abcd"[: len(sizes)]))
    places = draw(st.lists(st.integers(0, _RANK), min_size=len(sizes), max_size=len(sizes)))
    each = tuple(
        tuple(axis for axis, place in zip(order, places, strict=True) if place == i)
        for i in range(_RANK)
    )
    return tuple(sizes), each


@given(spreads())
def test_annotations_agree_with_jax(
    spread: tuple[tuple[int, ...], tuple[tuple[str, ...], ...]],
) -> None:
    sizes, partitions = spread
    names = tuple("abcd"[: len(sizes)])
    theirs = NamedSharding(
        mesh(sizes, names), PartitionSpec(*(axes or None for axes in partitions))
    )._to_xla_hlo_sharding(_RANK)
    kinds: tuple[AxisType, ...] = tuple("auto" for _ in sizes)
    ours = Sharding(AbstractMesh(names, sizes, kinds), partitions)
    as_grid = to_op_sharding(ours, _RANK)
    assert as_grid is not None
    if as_grid == REPLICATED:
        # JAX 0.8 writes a mesh of one device as a split into one piece.
        assert theirs.is_replicated() or math.prod(sizes) == 1
        assert replace_device_grid(as_grid) == REPLICATED
        return
    fields = _parse_fields(replace_device_grid(as_grid))
    assert fields is not None
    assert fields[_TILES] == list(theirs.tile_assignment_dimensions())
    assert fields[_DEVICES] == list(theirs.tile_assignment_devices())
    assert fields.get(_COPIES, [0]) == [int(theirs.replicate_on_last_tile_dim())]
    assert _GRID not in fields
    # And JAX's own message comes out the same, whichever grid it chose.
    message = theirs.to_proto().SerializeToString()
    assert replace_device_grid(message) == replace_device_grid(as_grid)
    assert math.prod(fields[_TILES]) == math.prod(sizes)


def test_a_list_that_is_there_stays() -> None:
    listed = b"\x08\x03\x1a\x01\x02\x22\x02\x01\x00"
    assert replace_device_grid(listed) == listed
    assert replace_device_grid(REPLICATED) == REPLICATED
    assert replace_device_grid(b"") == b""
