"""Tests that simplified modules have no equal operations, and compute the same."""

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2tf_bridge as bridge
from jax2tf_bridge.from_jax import ir, jax_compat
from jax2tf_bridge.from_jax.stablehlo import StableHloModule

V = "tensor<2xf32>"
REDUCED = f"""
    %r = "stablehlo.reduce"(%x, %zero) <{{dimensions = array<i64: 0>}}> ({{
    ^bb0(%left: tensor<f32>, %right: tensor<f32>):
      %s = stablehlo.OPERATION %left, %right : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }}) : ({V}, tensor<f32>) -> tensor<f32>
    stablehlo.return %r : tensor<f32>"""


def _simplified(body: str) -> Counter[str]:
    """Counts the operations of main(%i, %j, %x) that are left."""
    text = f"func.func public @main(%i: tensor<i32>, %j: tensor<i32>, %x: {V}) -> {V} {{{body}}}"
    with jax_compat.make_ir_context():
        module = ir.Module.parse(text)
        StableHloModule(module).simplify()
        assert module.operation.verify()
        return Counter(re.findall(r"stablehlo\.(\w+)", str(module)))


def _case(*branches: str, index: str = "%i", result: str = V) -> str:
    regions = ", ".join(f"{{{branch}}}" for branch in branches)
    return f'"stablehlo.case"({index}) ({regions}) : (tensor<i32>) -> {result}'


def _branch(operation: str, operand: str = "%x") -> str:
    return f"\n%b = stablehlo.{operation} {operand} : {V}\nstablehlo.return %b : {V}\n"


def _constant(value: int) -> str:
    return f"\n%b = stablehlo.constant dense<{value}.0> : {V}\nstablehlo.return %b : {V}\n"


def _compared(direction: str) -> str:
    return f"""
        %flag = stablehlo.compare {direction}, %x, %other : ({V}, {V}) -> tensor<2xi1>
        %b = stablehlo.select %flag, %x, %other : tensor<2xi1>, {V}
        stablehlo.return %b : {V}
        """


def _summed(kind: str) -> str:
    """Converts to another type and back: the names and operands of its operations are the same."""
    return f"""
        %there = stablehlo.convert %x : ({V}) -> tensor<{kind}>
        %b = stablehlo.convert %there : (tensor<{kind}>) -> {V}
        stablehlo.return %b : {V}
        """


def test_equal_branches_become_one() -> None:
    # Also the choice on which the choice depends, and the constants of that one, which nothing uses
    # any more.
    index = _case(
        *("\nstablehlo.return %zero : tensor<i32>\n", "\nstablehlo.return %one : tensor<i32>\n"),
        result="tensor<i32>",
    )
    found = _simplified(
        f"""
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %index = {index}
        %y = {_case(_branch("sine"), _branch("sine"), _branch("sine"), index="%index")}
        return %y : {V}"""
    )
    assert found == {"sine": 1}


def test_choices_within_choices_become_one() -> None:
    inner = f"\n%c = {_case(_branch('sine'), _branch('sine'))}\nstablehlo.return %c : {V}\n"
    found = _simplified(f"%y = {_case(inner, inner, index='%j')}\nreturn %y : {V}")
    assert found == {"sine": 1}


@pytest.mark.parametrize(
    "branches",
    [
        (_branch("sine"), _branch("cosine")),
        (_branch("sine"), _branch("sine"), _branch("sine", "%other")),
        (_branch("sine"), f"\nstablehlo.return %x : {V}\n"),
        (_constant(1), _constant(2)),
        (_compared("LT"), _compared("GT")),
        (_summed("2xf32"), _summed("2xi32")),
    ],
)
def test_other_branches_stay(branches: tuple[str, ...]) -> None:
    found = _simplified(
        f"""
        %other = stablehlo.exponential %x : {V}
        %y = {_case(*branches)}
        %z = stablehlo.add %y, %other : {V}
        return %z : {V}"""
    )
    assert (found["case"], found["return"]) == (1, len(branches))


def _complex_branch(value: str) -> str:
    return f"""
        %c = stablehlo.constant dense<{value}> : tensor<2xcomplex<f32>>
        %b = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> {V}
        stablehlo.return %b : {V}
        """


@pytest.mark.parametrize(
    ("values", "branches"),
    [
        (("(1.0,2.0)", "(1.0,2.0)"), 0),
        (("(1.0,2.0)", "(1.0,3.0)"), 2),
        (("(1.0,2.0)", "[(1.0,2.0),(1.0,2.0)]"), 0),
        (("(1.0,2.0)", "[(1.0,2.0),(1.0,2.0000002)]"), 2),
    ],
)
def test_complex_constants_are_compared(values: tuple[str, str], branches: int) -> None:
    # jaxlib's bindings end the process if such an attribute becomes a Python object.
    case = _case(*map(_complex_branch, values))
    found = _simplified(f"%y = {case}\nreturn %y : {V}")
    assert (found["case"], found["return"]) == (min(branches, 1), branches)


@pytest.mark.parametrize("holder", ["custom_call", "dictionary", "list"])
def test_complex_numbers_in_attributes_of_calls(holder: str) -> None:
    value = "dense<(1.0,2.0)> : tensor<complex<f32>>"
    value = {"dictionary": f"{{a = {value}}}", "list": f"[{value}]"}.get(holder, value)
    call = f"stablehlo.custom_call @call(%x) {{alpha = {value}}} : ({V}) -> {V}"
    branch = f"\n%b = {call}\nstablehlo.return %b : {V}\n"
    assert _simplified(f"%y = {_case(branch, branch)}\nreturn %y : {V}") == {"custom_call": 1}


@pytest.mark.parametrize(("second", "left"), [("add", 0), ("maximum", 1)])
def test_what_is_inside_of_operations_is_compared(second: str, left: int) -> None:
    branches = [REDUCED.replace("OPERATION", name) for name in ("add", second)]
    found = _simplified(
        f"""
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %y = {_case(*branches, result="tensor<f32>")}
        %z = stablehlo.broadcast_in_dim %y, dims = [] : (tensor<f32>) -> {V}
        return %z : {V}"""
    )
    assert (found["case"], found["reduce"]) == (left, 1 + left)


def test_results_whose_types_leave_sizes_open_stay_so() -> None:
    opened = "tensor<?xf32>"
    found = _simplified(
        f"""
        %y = {_case(_branch("sine"), _branch("sine"), result=opened)}
        %z = stablehlo.custom_call @take(%y) : ({opened}) -> {V}
        return %z : {V}"""
    )
    assert found["case"] == 1


def test_regions_take_nothing_from_around_them() -> None:
    """Readers reject outer values in a reducer, but not in a case, even within a reducer."""
    text = f"""
        func.func public @main(%x: {V}) -> {V} {{
          %zero = stablehlo.constant dense<0.0> : tensor<f32>
          %two = stablehlo.constant dense<2.0> : tensor<f32>
          %four = stablehlo.add %two, %two : tensor<f32>
          %wide = stablehlo.broadcast_in_dim %four, dims = [] : (tensor<f32>) -> {V}
          %scaled = stablehlo.multiply %x, %wide : {V}
          %r = "stablehlo.reduce"(%scaled, %zero) <{{dimensions = array<i64: 0>}}> ({{
          ^bb0(%left: tensor<f32>, %right: tensor<f32>):
            %2 = stablehlo.constant dense<2.0> : tensor<f32>
            %4 = stablehlo.add %2, %2 : tensor<f32>
            %s = stablehlo.add %left, %right : tensor<f32>
            %index = stablehlo.constant dense<0> : tensor<i32>
            %n = "stablehlo.case"(%index) ({{
              %5 = stablehlo.minimum %s, %4 : tensor<f32>
              stablehlo.return %5 : tensor<f32>
            }}, {{
              %5 = stablehlo.maximum %s, %4 : tensor<f32>
              stablehlo.return %5 : tensor<f32>
            }}) : (tensor<i32>) -> tensor<f32>
            stablehlo.return %n : tensor<f32>
          }}) : ({V}, tensor<f32>) -> tensor<f32>
          %y = stablehlo.broadcast_in_dim %r, dims = [] : (tensor<f32>) -> {V}
          return %y : {V}
        }}"""
    with jax_compat.make_ir_context():
        module = ir.Module.parse(text)
        StableHloModule(module).simplify()
        assert module.operation.verify()
        _, reducer = str(module).split(" reducer")
    reducer, _ = reducer.split("\n    }\n")
    head, body = reducer.split(" {\n", 1)
    own = set(re.findall(r"%\w+", head)) | set(re.findall(r"(%\w+) =", body))
    assert set(re.findall(r"%\w+", body)) <= own
    assert body.count("stablehlo.add") == 2


def test_what_is_drawn_is_drawn_again() -> None:
    types = f"(tensor<f32>, tensor<f32>, tensor<1xi64>) -> {V}"
    draw = f"%low, %high, %shape, distribution = UNIFORM : {types}"
    found = _simplified(
        f"""
        %low = stablehlo.constant dense<0.0> : tensor<f32>
        %high = stablehlo.constant dense<1.0> : tensor<f32>
        %shape = stablehlo.constant dense<2> : tensor<1xi64>
        %a = stablehlo.rng {draw}
        %b = stablehlo.rng {draw}
        %c = stablehlo.custom_call @effect(%x) {{has_side_effect = true}} : ({V}) -> {V}
        %d = stablehlo.custom_call @effect(%x) {{has_side_effect = true}} : ({V}) -> {V}
        %e = stablehlo.sine %x : {V}
        %f = stablehlo.sine %x : {V}
        %y = stablehlo.add %a, %b : {V}
        %z = stablehlo.add %e, %f : {V}
        %sum = stablehlo.add %y, %z : {V}
        return %sum : {V}"""
    )
    assert (found["rng"], found["custom_call"], found["sine"]) == (2, 2, 1)


def test_functions_with_complex_constants_are_exported() -> None:
    def choose(i: Any, x: Any) -> Any:
        y = jax.lax.cond(i > 0, lambda x: x + 1, lambda x: x * 3, x)
        return jnp.cumsum(jax.nn.sigmoid(y))

    arguments = np.int32(0), np.array([0.5, -1 + 2j], np.complex64)
    exported = bridge.to_exported(bridge.export(choose)(*arguments))
    np.testing.assert_allclose(exported.call(*arguments), choose(*arguments), rtol=1e-6)


def test_four_platforms_are_as_long_as_one() -> None:
    def layers(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(3):
            x = jnp.tanh(x @ w + jnp.ones(8))
        return x

    arguments = np.ones((2, 8), np.float32), np.ones((8, 8), np.float32)
    shapes = ["(b, 8)", None]
    texts = [
        bridge.export(layers, polymorphic_shapes=shapes, platforms=platforms)(*arguments)
        for platforms in (None, ["cpu"])
    ]
    everywhere, on_cpu = (
        Counter(re.findall(r"stablehlo\.(\w+)", bridge.to_exported(p).mlir_module())) for p in texts
    )
    assert len(texts[0].platforms) == 4
    assert everywhere == on_cpu
    # The sizes for the three additions are computed once.
    assert (everywhere["dot_general"], everywhere["concatenate"]) == (3, 1)
