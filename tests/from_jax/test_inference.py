"""Inference in export: what is added silently, what is asked for, and what the gradient adds."""

import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import AUTO, convert, export, to_tf
from jax2tf_bridge.errors import InconclusiveShapeError
from tests.from_jax.inferring import (
    best_five,
    exported,
    in_blocks,
)


def test_what_always_holds_is_added_silently(caplog: pytest.LogCaptureFixture) -> None:
    traces = []

    def traced(x: Any) -> Any:
        traces.append(str(x.shape))
        return in_blocks(x)

    with caplog.at_level(logging.INFO, "jax2tf_bridge"):
        portable = exported(traced, 3)
    assert portable.requirements == ()
    assert portable.constraints == ()
    assert traces == ["(b,)", "(b,)"]
    assert not caplog.records


def test_questions_are_shown_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: Any) -> Any:
        return in_blocks(x), best_five(x)

    with caplog.at_level(logging.DEBUG, "jax2tf_bridge"):
        exported(f, 7, constraints=AUTO)
    answered, again, asked, known = (r.message for r in caplog.records if r.name == "jax2tf_bridge")
    assert re.match(
        r"Tracing f continues, because mod\(.*\) == 0 holds\. JAX asked: Cannot divide", answered
    )
    assert again == "Tracing f again with all facts"
    assert asked.startswith("Tracing f, round 1: Symbolic dimension comparison 'b' < '5'")
    assert known == "Tracing f again: it requires b >= 5"


def test_all_that_is_missing_comes_in_one_error_and_is_enough() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.split(x, 2)[0] + y[:3].sum(), lax.top_k(y, 4)

    with pytest.raises(InconclusiveShapeError) as caught:
        exported(f, 4, 6, constraints=["c <= 20"])
    error = caught.value
    assert error.requirements == ("mod(b, 2) == 0", "c >= 4")
    assert "All its requirements:\n  - mod(b, 2) == 0\n  - c >= 4\n" in str(error)
    assert 'polymorphic_constraints=["c <= 20", "mod(b, 2) == 0", "c >= 4"])' in str(error)
    portable = exported(f, 4, 6, constraints=["c <= 20", *error.requirements])
    assert portable.requirements == ()
    assert portable.constraints == ("c <= 20", "mod(b, 2) == 0", "c >= 4")


def test_infer_lists_what_it_added() -> None:
    portable = exported(best_five, 7, constraints=AUTO)
    assert portable.requirements == ("b >= 5",)
    assert portable.constraints == ()
    assert "conditions on sizes: b >= 5" in repr(portable)
    portable = exported(best_five, 7, constraints=["b <= 9", AUTO])
    assert (portable.requirements, portable.constraints) == (("b >= 5",), ("b <= 9",))


def test_requirements_are_weakest_and_simple() -> None:
    def f(x: Any) -> Any:
        return x.reshape(2, -1), x.reshape(-1, 6), lax.top_k(x, 3)

    assert exported(f, 12, constraints=AUTO).requirements == ("mod(b, 6) == 0",)


def test_the_other_answer_is_tried_where_the_likelier_one_fails() -> None:
    def f(x: Any) -> Any:
        if x.shape[0] > 3:
            raise NotImplementedError("only short ones")
        return x

    with pytest.raises(InconclusiveShapeError, match="needs b <= 3"):
        exported(f, 2)
    assert exported(f, 2, constraints=AUTO).requirements == ("b <= 3",)


def test_names_of_variables_stay_the_users() -> None:
    def f(x: Any, y: Any) -> Any:
        half = x.shape[0] // 2
        return x + y, x[:half] + x[half:]

    portable = exported(f, 4, 4, constraints=AUTO)
    assert portable.requirements == ("b == c", "mod(c, 2) == 0")
    assert portable.polymorphic_shapes == {"x": "(b,)", "y": "(c,)"}
    names = {
        n
        for a in portable.out_avals
        for d in a.shape
        if not isinstance(d, int)
        for n in d.variables()
    }
    assert names <= {"b", "c"}


def test_checks_in_words_of_their_own_are_understood_by_experiment() -> None:
    def f(x: Any) -> Any:
        assert x.shape[0] % 3 == 0, "threes, please"
        return x

    with pytest.raises(InconclusiveShapeError, match=r"f needs mod\(b, 3\) == 0 at"):
        exported(f, 6)
    assert exported(f, 6, constraints=AUTO).requirements == ("mod(b, 3) == 0",)


def test_a_sample_of_an_open_population() -> None:
    def draw(population: Any) -> Any:
        key = jax.random.key(0)
        # Equal probabilities: JAX draws without them by a permutation, which needs a number.
        p = jnp.full(population.shape, 1 / population.shape[0])
        return jax.random.choice(key, population, shape=(3,), replace=False, p=p)

    with pytest.raises(InconclusiveShapeError, match="draw needs b >= 3 at"):
        exported(draw, 5)
    assert exported(draw, 5, constraints=AUTO).requirements == ("b >= 3",)


def test_reshapes_that_jax_does_not_check_are_requirements() -> None:
    def f(x: Any) -> Any:
        return x.reshape(x.shape[0] // 4, 4)

    assert exported(f, 8).requirements == ("mod(b, 4) == 0",)
    assert exported(f, 8, constraints=["mod(b, 8) == 0"]).requirements == ()
    with pytest.raises(InconclusiveShapeError, match="b == b \\+ 1 never holds"):
        exported(lambda x: x.reshape(x.shape[0] + 1), 8)


def test_symbolic_arguments_of_jax_keep_their_constraints() -> None:
    (b,) = jax.export.symbolic_shape("b", constraints=["b >= 5"])
    portable = export(best_five, platforms=["cpu"])(jax.ShapeDtypeStruct((b,), np.float32))
    assert portable.constraints == ("b >= 5",)
    assert portable.requirements == ()


class TestVjp:
    """Questions of the gradient's own."""

    @staticmethod
    def with_gradient(rule: Any) -> Any:
        @jax.custom_vjp
        def f(x: Any) -> Any:
            return 2 * x

        f.defvjp(lambda x: (2 * x, None), lambda _, g: (rule(g),))
        return f

    def test_what_always_holds_is_added_silently(self) -> None:
        f = self.with_gradient(lambda g: in_blocks(g).reshape(-1)[: g.shape[0]])
        portable = exported(f, 3)
        assert portable.vjp().requirements == ()
        assert [str(a) for a in portable.vjp().out_avals] == ["float32[b]"]

    def test_requirements_bind_the_gradient_alone(self) -> None:
        f = self.with_gradient(lambda g: g.at[:5].add(lax.top_k(g, 5)[0]))
        portable = exported(f, 7, constraints=AUTO)
        module = portable.module.data
        assert portable.vjp().requirements == ("b >= 5",)
        assert portable.requirements == ()
        assert portable.module.data is module
        assert portable.vjp().vjp().requirements == ("b >= 5",)

    def test_by_default_they_are_an_error_when_the_gradient_is_asked_for(self) -> None:
        f = self.with_gradient(lambda g: g.at[:5].add(lax.top_k(g, 5)[0]))
        portable = exported(f, 7)
        problem = portable.gradient_problem()
        assert problem is not None
        assert problem.startswith("the gradient of f needs b >= 5 at")
        assert (
            "export(f, polymorphic_shapes=['(b,)'], polymorphic_constraints=[\"b >= 5\"])"
            in problem
        )
        with pytest.raises(InconclusiveShapeError):
            portable.vjp()

    def test_what_fails_is_traced_once(self) -> None:
        traces = []

        def rule(g: Any) -> Any:
            traces.append(str(g.shape))
            return g.at[:5].add(lax.top_k(g, 5)[0])

        portable = exported(self.with_gradient(rule), 7)
        problem = portable.gradient_problem()
        assert problem is not None
        count = len(traces)
        assert count > 0
        for _ in range(2):
            with pytest.raises(InconclusiveShapeError) as caught:
                portable.vjp()
            assert str(caught.value) == portable.gradient_problem() == problem
        assert len(traces) == count

    @pytest.mark.parametrize("uses_size", [False, True])
    def test_a_loop_without_a_derivative_is_traced_at_one_size_at_most(
        self, uses_size: bool
    ) -> None:
        sizes = []

        def until_large(x: Any) -> Any:
            sizes.append(x.shape[0])
            limit = jnp.asarray(x.shape[0]) if uses_size else 100
            return lax.cond(
                x.sum() > 0,
                lambda x: lax.while_loop(lambda y: y.sum() < limit, lambda y: y * 2, x),
                lambda x: x,
                x,
            )

        problem = exported(until_large, 7).gradient_problem()
        assert problem is not None
        assert "Reverse-mode differentiation does not work" in problem
        assert [size for size in sizes if isinstance(size, int)] == [7] * uses_size

    def test_a_loop_over_an_open_size_is_about_sizes(self) -> None:
        portable = exported(lambda x: lax.fori_loop(0, x.shape[0], lambda i, y: y * 2, x), 3)
        problem = portable.gradient_problem()
        assert problem is not None
        assert "needs a size as a Python number" in problem

    def test_the_forward_functions_requirements_hold_in_the_gradient(self) -> None:
        portable = exported(best_five, 7, constraints=AUTO)
        assert portable.vjp().requirements == ("b >= 5",)
        assert exported(best_five, 7, constraints=["b >= 5"]).vjp().constraints == ("b >= 5",)


def test_names_that_look_like_the_bridges_own_are_the_users() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.split(x, 2)[0] + y

    shapes = ["(b,)", "(b_over_2,)"]
    portable = exported(f, 8, 4, shapes=shapes, constraints=["mod(b, 2) == 0", AUTO])
    (requirement,) = portable.requirements
    assert set(re.findall(r"\w*b\w*", requirement)) == {"b", "b_over_2"}


@pytest.mark.parametrize(
    "constraints",
    [
        pytest.param(["b >= 4", "b == c", "mod(b, 3) == 0"], marks=pytest.mark.slow),
        ["b >= 4", AUTO],
    ],
    ids=str,
)
def test_a_size_of_known_remainder_may_be_equal_to_another(constraints: list[Any]) -> None:
    portable = exported(lambda x, y: (x.reshape(3, -1), x + y), 6, 6, constraints=constraints)
    assert portable.requirements == (("mod(b, 3) == 0", "b == c") if AUTO in constraints else ())
    halves, total = portable.out_avals
    assert (str(halves), str(total)) == ("float32[3,floordiv(b, 3)]", "float32[b]")


@pytest.mark.costly
def test_sizes_of_known_remainders_may_be_equal() -> None:
    def f(x: Any, y: Any) -> Any:
        return x.reshape(3, -1), y.reshape(2, -1), x + y

    constraints = ["b >= 4", "b == c", "mod(b, 3) == 0", "mod(c, 2) == 0"]
    assert exported(f, 6, 6, constraints=constraints).requirements == ()


def test_the_bridges_own_names_stay_inside() -> None:
    def f(x: Any, y: Any) -> Any:
        return jnp.split(x, 2)[0] + y, x.view(np.int32).reshape(-1, 2)

    portable = exported(f, 8, 4, constraints=AUTO)
    for each in (portable, portable.vjp(), portable.vjp().vjp()):
        assert "_over_" not in repr(each)


def strided(x: Any) -> Any:
    return lax.conv_general_dilated(
        x, jnp.ones((3, 1, 2)), (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
    )


@pytest.mark.parametrize(("size", "requirement"), [(16, "mod(n, 2) == 0"), (15, "mod(n, 2) == 1")])
def test_a_padding_that_must_be_a_number_is_that_of_the_example(
    size: int, requirement: str
) -> None:
    x = np.ones((2, size, 1), np.float32)
    portable = export(
        strided,
        polymorphic_shapes="(b, n, 1)",
        polymorphic_constraints=AUTO,
        platforms=["cpu"],
    )(x)
    assert portable.requirements == ()
    gradient = portable.vjp()
    assert gradient.requirements == (requirement,)
    assert gradient.in_avals[0].shape == portable.in_avals[0].shape
    assert gradient.out_avals[0].shape == portable.in_avals[0].shape
    cotangent = tf.ones((2, (size + 1) // 2, 2))
    (found,) = to_tf(gradient)(tf.constant(x), cotangent)
    expected = jax.grad(lambda x: strided(x).sum())(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_without_an_example_a_padding_is_that_of_the_most_sizes() -> None:
    f = convert(strided, polymorphic_shapes="(b, n, 1)", polymorphic_constraints=AUTO)
    x = tf.ones((2, 16, 1))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 1))], autograph=False)
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    expected = jax.grad(lambda x: strided(x).sum())(x.numpy())
    np.testing.assert_allclose(gradient(x), expected, rtol=1e-5)


def test_areas_that_must_be_a_number_come_to_an_end() -> None:
    def f(w: Any, x: Any) -> Any:
        for _ in range(2):
            x = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return x.reshape(x.shape[0], -1) @ w

    with pytest.raises(InconclusiveShapeError):
        export(
            f,
            polymorphic_shapes=[None, "(b, h, w, 8)"],
            polymorphic_constraints=AUTO,
            platforms=["cpu"],
        )(np.ones((128, 4), np.float32), np.ones((2, 16, 16, 8), np.float32))


def test_a_question_of_lowering_names_the_line_of_the_operation() -> None:
    def running_minimum(x: Any) -> Any:
        rest = x[1:] * 2
        return lax.cummin(rest, axis=0)  # JAX compares sizes when it lowers this

    with pytest.raises(InconclusiveShapeError, match="needs b >= 2") as caught:
        exported(running_minimum, 7)
    line = running_minimum.__code__.co_firstlineno + 2
    assert f"test_inference.py:{line} (running_minimum)" in str(caught.value)


def test_a_question_of_lowering_in_a_function_of_jax_names_the_line_of_the_call() -> None:
    def running_sum(x: Any) -> Any:
        total = jnp.cumsum(x)
        return total[1:] + jnp.cumsum(x[1:])  # jnp.cumsum is jitted

    with pytest.raises(InconclusiveShapeError, match="needs b >= 2") as caught:
        exported(running_sum, 7)
    line = running_sum.__code__.co_firstlineno + 2
    assert f"test_inference.py:{line} (running_sum)" in str(caught.value)
