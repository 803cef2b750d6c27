"""TensorFlow graphs that a module calls, in .jaxfn files and in JAX's format."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from jax2tf_bridge import PortableFunction, serialize_exported
from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.portable import GraphFunction, StoredGradient
from jax2tf_bridge.serialization import deserialize, serialize
from tests.serialization.equality import assert_equal
from tests.serialization.forging import forged, refused, rows, sealed
from tests.serialization.records import simple, with_vjps

SINE, COSINE = GraphFunction("sine", b"graph of sine"), GraphFunction("cosine", b"\x00\xff" * 9)


def with_graphs() -> PortableFunction:
    """A function that calls two graphs, and a VJP that calls one of them and another."""
    portable = replace(simple(), graph_functions=(SINE, COSINE))
    portable = with_vjps(portable, b"the module of the VJP")
    vjp = replace(portable.vjp(), graph_functions=(COSINE, GraphFunction("sine", b"its gradient")))
    return replace(portable, gradient=StoredGradient(vjp))


def _version(data: bytes) -> int:
    return int(struct.unpack_from("<I", data, 8)[0])


def test_graphs_come_back_in_their_order_those_of_the_vjp_too() -> None:
    portable = with_graphs()
    data = serialize(portable)
    assert_equal(deserialize(data), portable)
    assert serialize(deserialize(data)) == data


def test_a_graph_that_several_modules_call_is_written_once() -> None:
    assert serialize(with_graphs()).count(COSINE.graph) == 1


def test_only_files_with_graphs_need_the_version_that_knows_them() -> None:
    assert _version(serialize(with_graphs())) == 2
    assert _version(serialize(simple())) == 1


def test_an_older_version_with_graphs_is_refused() -> None:
    data = bytearray(serialize(with_graphs()))
    struct.pack_into("<I", data, 8, 1)
    refused(sealed(data), "expected none in a file of version 1, got 3")


def test_a_place_that_no_graph_has_is_refused() -> None:
    data = serialize(with_graphs())
    # The vector of the VJP's two indices, 1 and 2.
    indices = struct.pack("<III", 2, 1, 2)
    assert data.count(indices) == 1
    other = data.replace(indices, struct.pack("<III", 2, 1, 3))
    refused(sealed(other), "graph_functions: expected indices below 3, got 3")


def test_an_empty_graph_is_refused() -> None:
    data = forged(file__graph_functions=[rows("GraphFunction", graph=b"")])
    data = data[:8] + struct.pack("<I", 2) + data[12:]
    refused(sealed(data), "graph: expected a graph, got no bytes")


def test_jax_has_no_place_for_graphs() -> None:
    with pytest.raises(SerializationError, match=r"calls TensorFlow graphs \(sine, cosine\)"):
        serialize_exported(with_graphs(), vjp_order=0)
