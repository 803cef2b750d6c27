"""Graphs are read when they are asked for, without copies, and errors name the place."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model import (
    CallScope,
    Cast,
    GraphConstant,
    Input,
    MetaGraph,
    ModuleResult,
    ProtoMessage,
    bytes_field,
    read_array,
    varint_field,
)

# Private: nodes are read without a model around them.
from jax2tf_bridge.saved_model._entry_points import iterate_modules
from tests.saved_model import by_hand
from tests.saved_model.by_hand import function


def meta_graph(*nodes: bytes, functions: bytes = b"", signatures: bytes = b"") -> MetaGraph:
    graph = b"".join(bytes_field(1, node) for node in nodes) + bytes_field(2, functions)
    data = bytes_field(2, graph) + signatures
    return MetaGraph(ProtoMessage(data, "a graph", "saved_model.pb"))


def test_modules_and_constants_are_not_copied() -> None:
    graph = meta_graph(by_hand.Call(b"a module").node(), by_hand.constant("k", (3,))).graph
    (module,) = iterate_modules(graph, 0)
    node = graph.main.by_name["k"]
    assert module.module.obj is node.message.data
    tensor = node.tensor("value")
    assert tensor is not None
    array = read_array(tensor, np.dtype)
    np.testing.assert_array_equal(array, np.zeros(3, np.float32), strict=True)
    assert np.shares_memory(array, np.frombuffer(node.message.data, np.uint8))


def test_what_is_not_asked_for_is_not_read() -> None:
    damaged = bytes_field(1, "damaged") + b"\xff"
    whole = meta_graph(by_hand.node("n", "NoOp") + b"\xff", functions=function("f", damaged))
    assert list(whole.graph.functions) == ["f"]
    assert whole.graph.functions["f"].arguments == ("x",)
    with pytest.raises(FileFormatError, match="in a node of the function f, at byte"):
        _ = whole.graph.functions["f"].nodes
    with pytest.raises(FileFormatError, match="in a node of the graph, at byte"):
        _ = whole.graph.main.nodes


def test_attributes_that_are_only_looked_through_are_not_kept() -> None:
    attributes = {f"a{i}": varint_field(3, i) for i in range(20)}
    nodes = (by_hand.node(f"n{i}", "NoOp", attributes=attributes) for i in range(200))
    found = meta_graph(*nodes).graph.main.nodes
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert not any(node.calls or node.gradient_type for node in found)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 100 * len(found)


def test_control_inputs_are_no_data() -> None:
    node = meta_graph(by_hand.node("n", "Identity", ["x", "^before"])).graph.main.by_name["n"]
    assert (node.inputs, node.controls) == (("x",), ("before",))


def test_nodes_of_one_name_are_both_counted() -> None:
    graph = meta_graph(by_hand.Call(b"one").node(), by_hand.Call(b"two").node()).graph
    assert [bytes(m.module) for m in iterate_modules(graph, 0)] == [b"one", b"two"]


def test_signatures_of_tensorflow_itself_are_left_out() -> None:
    names = ("__saved_model_init_op", "__saved_model_train_op", "f", "__saved_model_of_mine")
    entries = (bytes_field(5, by_hand.map_entry(name, b"")) for name in names)
    found = meta_graph(signatures=b"".join(entries)).signatures
    assert list(found) == ["f", "__saved_model_of_mine"]


LIBRARY = (
    function("f", by_hand.node("log", "Log", ["x"]), results="y", returned="gone:0")
    + function("g", results="y")
    + function("h", results="y", returned="x:7")
    + function("self", by_hand.calling("c", "self"), results="y", returned="c:0")
)


@pytest.mark.parametrize(
    ("nodes", "tensor", "problem"),
    [
        ([], "a", "in a graph, at byte 0, there is no operation 'a'"),
        ([], "a:b", "there is no operation 'a:b'"),
        ([by_hand.Call(b"m", name="n").node()], "n:1", "the operation 'n' has no result 1"),
        ([by_hand.node("n", "Identity")], "n:0", "the operation 'n' has no result 0"),
        ([by_hand.node("n", "f", ["x"])], "n:1", "in the function f, at byte .*, it has no resu"),
        ([by_hand.node("n", "f", ["x"])], "n", "in the function f, .* there is no operation 'gon"),
        ([by_hand.node("n", "f")], "n", "'n' calls f with other arguments"),
        (
            [by_hand.node("n", "g", ["x"])],
            "n",
            "in the function g, .* it does not define its result y",
        ),
        ([by_hand.node("n", "self", ["x"])], "n", "functions call each other without end"),
        ([by_hand.node("n", "Identity", ["n"])], "n", "operations depend on themselves"),
    ],
)
def test_what_does_not_belong_together_is_told(
    monkeypatch: pytest.MonkeyPatch, nodes: list[bytes], tensor: str, problem: str
) -> None:
    monkeypatch.setattr("jax2tf_bridge.saved_model._dataflow._MAX_STEPS", 1000)
    model = meta_graph(*nodes, functions=LIBRARY)
    with pytest.raises(FileFormatError, match=rf"saved_model\.pb cannot be read: .*{problem}"):
        CallScope.of_graph(model, {}).value(tensor)


def test_outputs_are_followed_to_modules_and_constants() -> None:
    two = (by_hand.FLOAT32, by_hand.FLOAT32)
    nodes = (by_hand.Call(b"a module", results=two).node(), by_hand.constant("k", (3,)))
    scope = CallScope.of_graph(meta_graph(*nodes), {})
    value = scope.value("XlaCallModule:1")
    assert isinstance(value, ModuleResult)
    assert (value.call.place, value.index) == ("XlaCallModule", 1)
    assert isinstance(scope.value("k"), GraphConstant)


def test_calls_and_casts_one_after_the_other_are_followed() -> None:
    cast = {"DstT": varint_field(6, by_hand.INT32)}
    body = by_hand.node("c", "Cast", ["x"], cast)
    nodes = [by_hand.node(f"n{i + 1}", "f", [f"n{i}"]) for i in range(3000)]
    functions = function("f", body, results="y", returned="c:y:0")
    scope = CallScope.of_graph(meta_graph(*nodes, functions=functions), {"input": "n0"})
    value = scope.value("n3000")
    casts = 0
    while isinstance(value, Cast):
        value, casts = value.value, casts + 1
    assert (value, casts) == (Input("input"), 3000)


def test_functions_that_call_each_other_twice_are_followed() -> None:
    model = meta_graph(by_hand.node("n", "f9", ["k"]), functions=by_hand.doubling(9))
    assert CallScope.of_graph(model, {"input": "k"}).value("n") == Input("input")


@pytest.mark.parametrize(
    ("tensor", "problem"),
    [
        (varint_field(1, 1) + bytes_field(5, b"abc"), "a constant's values are cut short"),
        (varint_field(1, 8) + b"\x4d" + bytes(4), "a constant's values are cut short"),
        (varint_field(1, 1) + varint_field(5, 1), "a constant's values are cut short"),
        (varint_field(1, 99), "a constant has the dtype 'dtype 99', which is not read"),
        (
            varint_field(1, 1) + bytes_field(4, b"abc"),
            "elements of a constant does not match its shape",
        ),
        (varint_field(1, 3) + bytes_field(5, b"\0\0\xc0\x7f"), "of int32 has values of float32"),
        (bytes_field(2, by_hand.shape([None])), "a tensor has no known shape"),
        (varint_field(1, 1) + bytes_field(2, by_hand.shape([2**40])), "has 1099511627776 elem"),
        (varint_field(1, 1) + bytes_field(2, by_hand.shape([1] * 100)), "which NumPy's arrays can"),
        (varint_field(1, 1) + bytes_field(2, by_hand.shape([2**62, 2**62, 0])), "has the shape"),
        (varint_field(1, 1) + bytes_field(15, b""), "has values in the field 15, which is not r"),
    ],
)
def test_constants_that_are_damaged(tensor: bytes, problem: str) -> None:
    message = ProtoMessage(tensor, "a constant", "saved_model.pb")
    with pytest.raises(FileFormatError, match=problem):
        read_array(message, np.dtype)


@pytest.mark.parametrize(
    ("number", "values", "expected"),
    [
        (1, lambda: b"\x2d" + np.float32(1.5).tobytes(), np.array([1.5, 1.5], np.float32)),
        (
            2,
            lambda: bytes_field(6, np.array([1, 2], np.float64).tobytes()),
            np.array([1, 2], np.float64),
        ),
        (3, lambda: varint_field(7, -3) + varint_field(7, 4), np.array([-3, 4], np.int32)),
        (23, lambda: varint_field(17, 2**64 - 1), np.array([2**64 - 1] * 2, np.uint64)),
        (19, lambda: varint_field(13, 0x3C00), np.array([1, 1], np.float16)),
        (25, lambda: bytes_field(18, b"\x3c"), np.array([1.5, 1.5], ml_dtypes.float8_e4m3fn)),
        (10, lambda: b"", np.array([False, False])),
    ],
)
def test_constants_as_numbers(
    number: int, values: Callable[[], bytes], expected: np.ndarray[Any, Any]
) -> None:
    shape = bytes_field(2, by_hand.shape([2]))
    message = ProtoMessage(varint_field(1, number) + shape + values(), "a constant")
    np.testing.assert_array_equal(read_array(message, np.dtype), expected, strict=True)


def test_only_constants_that_few_bytes_make_large_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jax2tf_bridge.saved_model._tensors._MAX_TENSOR_BYTES", 8)
    start = varint_field(1, 1) + bytes_field(2, by_hand.shape([3]))
    numbers = np.array([1, 2, 3], np.float32)
    for field in (4, 5):
        whole = ProtoMessage(start + bytes_field(field, numbers.tobytes()), "a constant")
        np.testing.assert_array_equal(read_array(whole, np.dtype), numbers, strict=True)
    repeated = ProtoMessage(start + bytes_field(5, numbers[:1].tobytes()), "a constant")
    with pytest.raises(FileFormatError, match="a constant has 3 elements"):
        read_array(repeated, np.dtype)
