"""Calls become the operations of the called functions, and what cannot be called stays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from jax2tf_bridge.bytecode import Attribute, Block, Function, Operation, Program, TensorType, Value
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.rewriting import inline_calls
from jax2tf_bridge.rewriting._inlining import _MAX_OPERATIONS  # the limit, to make it small
from tests.to_tensorflow.operations.running import run

F32 = TensorType((), "f32")


def unary(kind: str, x: Value, source: str | None = None, **attributes: Attribute) -> Operation:
    return Operation(kind, (x,), (Value(F32),), attributes, source=source)


def function(name: str, *chain: tuple[str, Mapping[str, Attribute]]) -> Function:
    """Makes a function that applies unary operations one after another."""
    x = argument = Value(F32)
    operations = []
    for kind, attributes in chain:
        operations.append(unary(kind, x, None, **attributes))
        (x,) = operations[-1].results
    end = Operation("return", (x,), (), {})
    return Function(name, Block((argument,), (*operations, end)))


def program(*functions: Function) -> Program:
    return Program({each.name: each for each in functions})


def call(name: str) -> tuple[str, Mapping[str, Attribute]]:
    return "call", {"callee": name}


def names(program: Program, function: str = "main") -> list[str]:
    return [each.name for each in program.functions[function].body.operations[:-1]]


def test_calls_of_calls() -> None:
    whole = program(
        function("main", call("twice"), ("negate", {}), call("twice")),
        function("twice", call("once"), call("once")),
        function("once", ("sine", {})),
        function("unused", ("cosine", {})),
    )
    inlined = inline_calls(whole, ())
    assert names(inlined) == ["sine", "sine", "negate", "sine", "sine"]
    assert list(inlined.functions) == ["main"]
    assert inline_calls(inlined, ()) is inlined
    results = [v for each in inlined.main.body.operations for v in each.results]
    assert len(set(results)) == len(results), "each copy has results of its own"
    for before, after in zip(results, inlined.main.body.operations[1:], strict=True):
        assert after.operands == (before,)


def test_composites_that_stay_keep_their_decomposition() -> None:
    def composite(name: str) -> tuple[str, Mapping[str, Attribute]]:
        return "composite", {"name": name, "decomposition": f"{name}.impl"}

    whole = program(
        function("main", composite("known"), composite("other")),
        function("known.impl", call("helper")),
        function("other.impl", ("cosine", {})),
        function("helper", ("sine", {})),
    )
    inlined = inline_calls(whole, {"known"})
    assert names(inlined) == ["composite", "cosine"]
    assert list(inlined.functions) == ["main", "known.impl"]
    assert names(inlined, "known.impl") == ["sine"]


def test_regions_and_lines() -> None:
    x = Value(F32)
    inner = unary("call", x, "model.py:3", callee="twice")
    region = Block((), (inner, Operation("return", inner.results, (), {})))
    branch = Operation("case", (x,), (Value(F32),), {}, (region,), "model.py:2")
    main = Block((x,), (branch, Operation("return", branch.results, (), {})))
    own = unary("sine", y := Value(F32), "layers.py:1")
    other = unary("cosine", own.results[0])
    body = Block((y,), (own, other, Operation("return", other.results, (), {})))
    whole = program(Function("main", main), Function("twice", body))
    (case, _) = inline_calls(whole, ()).main.body.operations
    lines = [(each.name, each.source) for each in case.regions[0].operations[:-1]]
    assert lines == [("sine", "layers.py:1"), ("cosine", "model.py:3")]


def test_operations_keep_the_calls_of_the_users_functions() -> None:
    """Operations of JAX's functions have the line of the call, those of the user's another one."""

    def body(name: str, *parts: tuple[str, str, str | None]) -> Function:
        x = argument = Value(F32)
        operations = []
        for kind, source, callee in parts:
            attributes: dict[str, Attribute] = {} if callee is None else {"callee": callee}
            operations.append(unary(kind, x, source, **attributes))
            (x,) = operations[-1].results
        return Function(name, Block((argument,), (*operations, Operation("return", (x,), (), {}))))

    whole = program(
        body("main", ("call", "m.py:1", "layer"), ("call", "m.py:1", "layer")),
        body("layer", ("call", "m.py:5", "silu"), ("call", "m.py:6", "dense")),
        body("dense", ("sine", "m.py:9", None)),
        body("silu", ("cosine", "m.py:5", None)),
    )
    inlined = inline_calls(whole, ()).main.body.operations[:-1]
    calls = [each.calls for each in inlined]
    assert [[c.name for c in each] for each in calls] == [["layer"], ["layer", "dense"]] * 2
    assert [calls[1][0].source, calls[1][1].source] == ["m.py:1", "m.py:6"]
    assert calls[0][0] is calls[1][0]
    assert calls[0][0] is not calls[2][0]
    assert calls[1][1] is not calls[3][1]


@pytest.mark.parametrize(
    "functions",
    [
        (function("main", call("missing")),),
        (function("main", call("a")), function("a", call("b")), function("b", call("a"))),
        (function("main", call("a")), Function("a", Block((), (Operation("return", (), (), {}),)))),
    ],
    ids=["missing", "endless", "no argument"],
)
def test_invalid_calls_stay(functions: tuple[Function, ...]) -> None:
    assert "call" in names(inline_calls(program(*functions), ()))


def test_too_many_operations_stay_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _MAX_OPERATIONS >= 1_000_000
    monkeypatch.setattr("jax2tf_bridge.rewriting._inlining._MAX_OPERATIONS", 5)
    doubling = [function(f"f{i}", call(f"f{i + 1}"), call(f"f{i + 1}")) for i in range(5)]
    whole = program(function("main", call("f0")), *doubling, function("f5", ("sine", {})))
    assert sum(names(inline_calls(whole, ()), name).count("call") for name in ("main", "f0")) > 0


CALLS = """module {{
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
        %0 = call @a(%x) : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32> }}
    func.func private @a(%x: tensor<3xf32>) -> tensor<3xf32> {{
        %0 = call @{callee}(%x) : (tensor<3xf32>) -> tensor<3xf32>
        return %0 : tensor<3xf32> }}
    func.func private @b(%x: tensor<3xf32>) -> tensor<3xf32> {{
        return %x : tensor<3xf32> }} }}"""


def test_functions_that_call_themselves_are_refused() -> None:
    x = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run(CALLS.format(callee="b"), x)[0], x)
    with pytest.raises(ModuleError, match="the module's functions call each other in a circle"):
        run(CALLS.format(callee="a"), x)
