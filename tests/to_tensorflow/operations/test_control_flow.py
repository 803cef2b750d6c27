"""Loops and branches: what they compute, what their graphs hold, and what they refuse."""

import inspect
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.to_tensorflow import to_tf
from tests.to_tensorflow.operations.running import graph_of, op_names, portable_of, run, run_each

X = np.arange(6, dtype=np.float32).reshape(2, 3) + 1


def run_static(text: str, *args: Any) -> list[np.ndarray]:
    """Runs a module's main function where all sizes are known when the graph is made."""
    function = to_tf(portable_of(text), with_gradient=False)
    results = tf.function(function, autograph=False, jit_compile=False)(*args)
    found = results if isinstance(results, (tuple, list)) else [results]
    return [np.asarray(result) for result in found]


def counts(text: str, *args: Any) -> dict[str, int]:
    """Counts the operations of a module's graph and its functions by their kinds."""
    names = op_names(graph_of(to_tf(portable_of(text), with_gradient=False), args))
    return {name: names.count(name) for name in names}


CASE = """
func.func @main(%a: tensor<?x3xf32>, %i: tensor<i32>)
    -> (tensor<?x3xf32>, tensor<i32>, tensor<?xf32>) {
  %r:3 = "stablehlo.case"(%i) ({
    %s = stablehlo.add %a, %a : tensor<?x3xf32>
    %c = stablehlo.constant dense<10> : tensor<i32>
    %v = stablehlo.constant dense<[7., 8.]> : tensor<2xf32>
    %k = stablehlo.constant dense<2> : tensor<1xi32>
    %w = stablehlo.dynamic_reshape %v, %k : (tensor<2xf32>, tensor<1xi32>) -> tensor<?xf32>
    stablehlo.return %s, %c, %w : tensor<?x3xf32>, tensor<i32>, tensor<?xf32>
  }, {
    %n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
    %k = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
    %w = stablehlo.dynamic_iota %k, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
    stablehlo.return %a, %n, %w : tensor<?x3xf32>, tensor<i32>, tensor<?xf32>
  }, {
    %s = stablehlo.negate %a : tensor<?x3xf32>
    %c = stablehlo.constant dense<30> : tensor<i32>
    %k = stablehlo.reshape %i : (tensor<i32>) -> tensor<1xi32>
    %w = stablehlo.dynamic_iota %k, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
    stablehlo.return %s, %c, %w : tensor<?x3xf32>, tensor<i32>, tensor<?xf32>
  }) : (tensor<i32>) -> (tensor<?x3xf32>, tensor<i32>, tensor<?xf32>)
  %o = stablehlo.add %r#2, %r#2 : tensor<?xf32>
  return %r#0, %r#1, %o : tensor<?x3xf32>, tensor<i32>, tensor<?xf32>
}
"""


@pytest.mark.costly
def test_case_chooses_and_clamps_to_the_last_branch() -> None:
    expected = {
        0: (X + X, 10, [14, 16]),
        1: (X, 2, [0, 2]),
        2: (-X, 30, [0, 2]),
        5: (-X, 30, [0, 2, 4, 6, 8]),
    }
    for call in (run, run_static):
        for index, wanted in expected.items():
            for found, value in zip(call(CASE, X, np.int32(index)), wanted, strict=True):
                np.testing.assert_array_equal(found, value)
    # A negative index is out of range as well.
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(CASE, X, np.int32(-1))


BRANCHES = (
    """
func.func @main(%a: tensor<3xf32>, %i: tensor<i64>, %p: tensor<i1>)
    -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
  %j = stablehlo.convert %i : (tensor<i64>) -> tensor<i32>
  %two = "stablehlo.case"(%j) ({
    %s = stablehlo.add %a, %a : tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }, {
    stablehlo.return %a : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  %flag = stablehlo.convert %p : (tensor<i1>) -> tensor<i32>
  %cond = "stablehlo.case"(%flag) ({
    %s = stablehlo.negate %a : tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }, {
    stablehlo.return %a : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  %if = "stablehlo.if"(%p) ({
    %c = stablehlo.constant dense<1.0> : tensor<3xf32>
    stablehlo.return %c : tensor<3xf32>
  }, {
    %c = stablehlo.constant dense<[2.0, 3.0, 4.0]> : tensor<3xf32>
    stablehlo.return %c : tensor<3xf32>
  }) : (tensor<i1>) -> tensor<3xf32>
  %one = "stablehlo.case"(%j) ({
    %s = stablehlo.multiply %a, %a : tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  return %two, %cond, %if, %one : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}
"""
    ""
)


@pytest.mark.parametrize("index", [0, 1, 9, -3])
@pytest.mark.parametrize("flag", [False, True])
def test_branches_of_two(index: int, flag: bool) -> None:
    a = X[0]
    two, cond, if_, one = run(BRANCHES, a, np.int64(index), np.bool_(flag))
    np.testing.assert_array_equal(two, a + a if index == 0 else a)
    np.testing.assert_array_equal(cond, a if flag else -a)
    np.testing.assert_array_equal(if_, [1, 1, 1] if flag else [2, 3, 4])
    np.testing.assert_array_equal(one, a * a)


def test_branches_of_two_are_conditionals() -> None:
    found = counts(BRANCHES, X[0], np.int64(0), np.bool_(True))
    assert found["StatelessIf"] == 3
    assert "StatelessCase" not in found
    assert found["NotEqual"] == 1  # lax.cond's flag is not compared again


KNOWN = """
func.func @main(%a: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>, tensor<3xf32>) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %far = stablehlo.constant dense<7> : tensor<i32>
  %yes = stablehlo.constant dense<true> : tensor<i1>
  %0 = "stablehlo.case"(%one) ({
    %s = func.call @impossible(%a) : (tensor<3xf32>) -> tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }, {
    stablehlo.return %a : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  %1 = "stablehlo.case"(%far) ({
    stablehlo.return %a : tensor<3xf32>
  }, {
    %s = stablehlo.negate %a : tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }) : (tensor<i32>) -> tensor<3xf32>
  %2 = "stablehlo.if"(%yes) ({
    %s = stablehlo.add %a, %a : tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }, {
    %s = func.call @impossible(%a) : (tensor<3xf32>) -> tensor<3xf32>
    stablehlo.return %s : tensor<3xf32>
  }) : (tensor<i1>) -> tensor<3xf32>
  return %0, %1, %2 : tensor<3xf32>, tensor<3xf32>, tensor<3xf32>
}
func.func private @impossible(%x: tensor<3xf32>) -> tensor<3xf32> {
  %n = stablehlo.constant dense<2> : tensor<i32>
  %s = stablehlo.set_dimension_size %x, %n, dim = 0
      : (tensor<3xf32>, tensor<i32>) -> tensor<?xf32, #stablehlo.bounds<3>>
  return %x : tensor<3xf32>
}
"""


def test_only_the_branch_that_is_known_to_run_is_made() -> None:
    a = X[0]
    for found, expected in zip(run(KNOWN, a), (a, -a, a + a), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert not {"StatelessCase", "StatelessIf", "Case", "If"} & set(counts(KNOWN, a))


LOOP = """
func.func @main(%a: tensor<?x3xf32>, %n: tensor<i32>)
    -> (tensor<?x3xf32>, tensor<i32>, tensor<?x3xf32>, tensor<3xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %ones = stablehlo.constant dense<1.0> : tensor<3xf32>
  %w:5 = stablehlo.while(%p = %a, %i = %zero, %sum = %a, %limit = %n, %v = %ones)
      : tensor<?x3xf32>, tensor<i32>, tensor<?x3xf32>, tensor<i32>, tensor<3xf32>
    cond {
      %f = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %f : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      %q = func.call @twice(%p) : (tensor<?x3xf32>) -> tensor<?x3xf32>
      %more = stablehlo.add %sum, %q : tensor<?x3xf32>
      %u = stablehlo.add %v, %v : tensor<3xf32>
      stablehlo.return %p, %next, %more, %limit, %u
          : tensor<?x3xf32>, tensor<i32>, tensor<?x3xf32>, tensor<i32>, tensor<3xf32>
    }
  return %w#0, %w#1, %w#2, %w#4 : tensor<?x3xf32>, tensor<i32>, tensor<?x3xf32>, tensor<3xf32>
}
func.func private @twice(%x: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %y = stablehlo.add %x, %x : tensor<?x3xf32>
  return %y : tensor<?x3xf32>
}
"""


def test_loops() -> None:
    for call in (run, run_static):
        for n in (0, 1, 4):
            found = call(LOOP, X, np.int32(n))
            expected = (X, n, X + 2 * n * X, np.full(3, 2.0**n))
            for result, value in zip(found, expected, strict=True):
                np.testing.assert_array_equal(result, value)


def test_what_a_loop_does_not_change_is_no_state() -> None:
    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([], tf.int32)]
    function = tf.function(
        to_tf(portable_of(LOOP), with_gradient=False), input_signature=specs, autograph=False
    )
    graph = function.get_concrete_function().graph
    (loop,) = (op for op in graph.get_operations() if "While" in op.type)
    # TensorFlow's counter and its limit, the state, and what the body captures.
    shapes = [tensor.shape.as_list() for tensor in loop.outputs]
    assert shapes[2:5] == [[], [None, 3], [3]]
    assert len(loop.inputs) == 7


NESTED = """
func.func @main(%a: tensor<3xf32>, %n: tensor<i32>) -> (tensor<3xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %size = stablehlo.constant dense<2.0> : tensor<f32>
  %wide = stablehlo.broadcast_in_dim %size, dims = [] : (tensor<f32>) -> tensor<3xf32>
  %w:3 = stablehlo.while(%i = %zero, %x = %a, %t = %zero)
      : tensor<i32>, tensor<3xf32>, tensor<i32>
    cond {
      %f = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %f : tensor<i1>
    } do {
      %v:3 = stablehlo.while(%j = %zero, %y = %x, %u = %t)
          : tensor<i32>, tensor<3xf32>, tensor<i32>
        cond {
          %f = stablehlo.compare LT, %j, %i, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %f : tensor<i1>
        } do {
          %odd = stablehlo.compare EQ, %j, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          %z = "stablehlo.if"(%odd) ({
            %m = stablehlo.multiply %y, %wide : tensor<3xf32>
            stablehlo.return %m : tensor<3xf32>
          }, {
            %m = stablehlo.add %y, %x : tensor<3xf32>
            stablehlo.return %m : tensor<3xf32>
          }) : (tensor<i1>) -> tensor<3xf32>
          %k = stablehlo.add %j, %one : tensor<i32>
          %s = stablehlo.add %u, %one : tensor<i32>
          stablehlo.return %k, %z, %s : tensor<i32>, tensor<3xf32>, tensor<i32>
        }
      %k = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %k, %v#1, %v#2 : tensor<i32>, tensor<3xf32>, tensor<i32>
    }
  %r = stablehlo.multiply %w#1, %wide : tensor<3xf32>
  return %r, %w#2 : tensor<3xf32>, tensor<i32>
}
"""


def _nested(a: np.ndarray, n: int) -> tuple[np.ndarray, int]:
    total = 0
    for i in range(n):
        x = a
        for j in range(i):
            a = a * 2 if j == 1 else a + x
            total += 1
    return a * 2, total


def test_loops_and_branches_in_each_other() -> None:
    """Cached tensors of an inner graph are never used in the graph around it."""
    calls = [(X[0], np.int32(n)) for n in (0, 1, 4)]
    for n, (found, total) in zip((0, 1, 4), run_each(NESTED, calls), strict=True):
        expected = _nested(X[0], n)
        np.testing.assert_array_equal(found, expected[0])
        assert total == expected[1]


GROWING = """
func.func @main(%a: tensor<?xf32>, %n: tensor<i32>) -> (tensor<?xf32>, tensor<?xf32>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %w:3 = stablehlo.while(%i = %zero, %x = %a, %y = %a)
      : tensor<i32>, tensor<?xf32>, tensor<?xf32>
    cond {
      %f = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %f : tensor<i1>
    } do {
      %k = stablehlo.add %i, %one : tensor<i32>
      %z = stablehlo.concatenate %x, %y, dim = 0
          : (tensor<?xf32>, tensor<?xf32>) -> tensor<?xf32>
      stablehlo.return %k, %z, %y : tensor<i32>, tensor<?xf32>, tensor<?xf32>
    }
  %d = stablehlo.add %w#1, %w#1 : tensor<?xf32>
  %s = stablehlo.get_dimension_size %d, dim = 0 : (tensor<?xf32>) -> tensor<i32>
  return %d, %w#2, %s : tensor<?xf32>, tensor<?xf32>, tensor<i32>
}
"""


def test_state_whose_size_the_body_changes() -> None:
    a = X[0]
    for call in (run, run_static):
        for n in (0, 3):
            doubled, same, size = call(GROWING, a, np.int32(n))
            np.testing.assert_array_equal(doubled, np.tile(2 * a, n + 1))
            np.testing.assert_array_equal(same, a)
            assert size == 3 * (n + 1)


def test_tokens_and_tuples_carry_nothing() -> None:
    text = """
    func.func @main(%a: tensor<3xf32>, %n: tensor<i32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %token = stablehlo.create_token : !stablehlo.token
      %both = stablehlo.after_all %token, %token : !stablehlo.token
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %w:3 = stablehlo.while(%i = %zero, %t = %both, %x = %a)
          : tensor<i32>, !stablehlo.token, tensor<3xf32>
        cond {
          %f = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %f : tensor<i1>
        } do {
          %k = stablehlo.add %i, %one : tensor<i32>
          %u = stablehlo.after_all %t : !stablehlo.token
          %y = stablehlo.add %x, %a : tensor<3xf32>
          stablehlo.return %k, %u, %y : tensor<i32>, !stablehlo.token, tensor<3xf32>
        }
      %c:2 = "stablehlo.case"(%n) ({
        stablehlo.return %w#1, %a : !stablehlo.token, tensor<3xf32>
      }, {
        stablehlo.return %w#1, %w#2 : !stablehlo.token, tensor<3xf32>
      }) : (tensor<i32>) -> (!stablehlo.token, tensor<3xf32>)
      %p = stablehlo.tuple %c#1, %a : tuple<tensor<3xf32>, tensor<3xf32>>
      %q = stablehlo.get_tuple_element %p[1]
          : (tuple<tensor<3xf32>, tensor<3xf32>>) -> tensor<3xf32>
      %r = stablehlo.get_tuple_element %p[0]
          : (tuple<tensor<3xf32>, tensor<3xf32>>) -> tensor<3xf32>
      %o:2 = stablehlo.optimization_barrier %r, %q : tensor<3xf32>, tensor<3xf32>
      return %o#0, %o#1 : tensor<3xf32>, tensor<3xf32>
    }
    """
    summed, same = run(text, X[0], np.int32(2))
    np.testing.assert_array_equal(summed, 3 * X[0])
    np.testing.assert_array_equal(same, X[0])


def _chain(n: int) -> str:
    functions = [
        f"func.func private @f{i}(%x: tensor<f32>) -> tensor<f32> {{\n"
        f"%y = func.call @f{i + 1}(%x) : (tensor<f32>) -> tensor<f32>\n"
        f"%z = stablehlo.add %y, %x : tensor<f32>\nreturn %z : tensor<f32>\n}}"
        for i in range(n)
    ]
    return "\n".join(
        [
            "func.func @main(%x: tensor<f32>) -> tensor<f32> {\n"
            "%y = func.call @f0(%x) : (tensor<f32>) -> tensor<f32>\nreturn %y : tensor<f32>\n}",
            *functions,
            f"func.func private @f{n}(%x: tensor<f32>) -> tensor<f32> {{\n"
            "return %x : tensor<f32>\n}",
        ]
    )


@pytest.mark.slow
def test_calls_are_no_deeper_in_python() -> None:
    assert run(_chain(600), np.float32(2))[0] == 1202


def test_functions_that_call_themselves_are_refused() -> None:
    text = """
    func.func @main(%x: tensor<f32>) -> tensor<f32> {
      %y = func.call @f(%x) : (tensor<f32>) -> tensor<f32>
      return %y : tensor<f32>
    }
    func.func private @f(%x: tensor<f32>) -> tensor<f32> {
      %y = func.call @f(%x) : (tensor<f32>) -> tensor<f32>
      return %y : tensor<f32>
    }
    """
    with pytest.raises(ModuleError, match="call each other in a circle"):
        run(text, np.float32(1))


def test_in_control_flow_of_the_user_and_graphs_of_tensorflow_1() -> None:
    f = to_tf(portable_of(LOOP), with_gradient=False)

    @tf.function(autograph=False)
    def outer(x: tf.Tensor) -> tf.Tensor:
        total = tf.while_loop(
            lambda i, _: i < 3, lambda i, x: (i + 1, f(x, i)[2]), (tf.constant(0), x)
        )[1]
        return tf.cond(tf.reduce_sum(x) > 0, lambda: f(total, tf.constant(1))[2], lambda: total)

    np.testing.assert_array_equal(outer(X), X * 3 * 5 * 3)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None, 3])
        found = session.run(f(x, tf.constant(2))[2], {x: X})
    np.testing.assert_array_equal(found, X * 5)


def _nested_branches(depth: int) -> str:
    inner = "stablehlo.return %x : tensor<f32>"
    for i in range(depth):
        inner = f"""
        %r{i} = "stablehlo.if"(%p) ({{
          {inner}
        }}, {{
          stablehlo.return %x : tensor<f32>
        }}) : (tensor<i1>) -> tensor<f32>
        stablehlo.return %r{i} : tensor<f32>"""
    body = inner.rpartition("stablehlo.return")[0]
    return f"""
    func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {{
      {body}
      return %r{depth - 1} : tensor<f32>
    }}
    """


def test_branches_within_branches_are_no_matter_of_pythons_stack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = _nested_branches(25)
    assert run(text, np.bool_(True), np.float32(3))[0] == 3
    f = to_tf(portable_of(text), with_gradient=False)
    limit = sys.getrecursionlimit()
    with tf.Graph().as_default():
        arguments = tf.constant(True), tf.constant(3.0)
        # TensorFlow's cleanup of a graph reaches the low limit, too.
        monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
        sys.setrecursionlimit(len(inspect.stack(0)) + 250)
        try:
            with pytest.raises(ModuleError, match="nested too deep"):
                f(*arguments)
        finally:
            sys.setrecursionlimit(limit)
