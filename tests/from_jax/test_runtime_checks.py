"""Checks of values that run with the function: refused with the user's line, or left out."""

import inspect
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir

from jax2tf_bridge import Signature, Target, convert, export, save, to_tf
from jax2tf_bridge.errors import FunctionError, NotExportableError
from tests.from_jax.inferring import line_of, module_text

X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
INVALID = np.array([[-1.0, 2.0], [3.0, 4.0]], np.float32)


def checked(x: Any) -> Any:
    x = eqx.error_if(x, x < 0, "x must not be negative")
    return jnp.sqrt(jnp.abs(x))


def root(x: Any) -> Any:
    return np.sqrt(np.abs(x))


def in_a_batch(x: Any) -> Any:
    return jax.vmap(checked)(x)


def in_a_loop(x: Any) -> Any:
    def body(state: Any) -> Any:
        i, y = state
        return i + 1, eqx.error_if(y, y < 0, "negative") + 1

    return jnp.sqrt(jnp.abs(jax.lax.while_loop(lambda state: state[0] < 3, body, (0, x))[1] - 3))


def beside_a_choice(x: Any) -> Any:
    return jax.lax.cond(x.sum() > 1e6, lambda y: y * 2, checked, x)


@jax.custom_jvp
def within_primitive(x: Any) -> Any:
    return hidden_p.bind(x)


@within_primitive.defjvp
def _within_primitive_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    y = within_primitive(x)
    return y, t * 0.5 / y


# Like lineax.linear_solve, a library's primitive whose equations appear only in its lowering.
hidden_p = Primitive("tests_hidden_check")
hidden_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(hidden_p, mlir.lower_fun(checked, multiple_results=False))


@jax.custom_jvp
def hidden_in_gradient(x: Any) -> Any:
    return x * x


@hidden_in_gradient.defjvp
def _hidden_in_gradient_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    return x * x, hidden_linear_p.bind(t) * x * 2


hidden_linear_p = Primitive("tests_hidden_linear_check")
hidden_linear_p.def_abstract_eval(lambda t: t)
mlir.register_lowering(
    hidden_linear_p,
    mlir.lower_fun(lambda t: eqx.error_if(t, jnp.any(t > 1e6), "large"), multiple_results=False),
)
ad.deflinear2(hidden_linear_p, lambda ct, _: [hidden_linear_p.bind(ct)])


def by_checkify(x: Any) -> Any:
    checkify.check(jnp.all(x >= 0), "negative")
    return jnp.sqrt(jnp.abs(x))


FUNCTIONS = [checked, in_a_batch, in_a_loop, beside_a_choice, within_primitive, by_checkify]


def test_the_users_line_and_the_way_out_are_named() -> None:
    with pytest.raises(NotExportableError) as caught:
        export(checked)(X)
    assert str(caught.value) == (
        "checked checks values while it runs ('x must not be negative') at "
        f"{__file__}:{line_of(checked)} (checked). Such a check of Equinox (equinox.error_if) "
        "calls back to Python, which is not available where the model is served. Leave the checks "
        "out with runtime_checks='drop': the function then returns what it computes, whatever the "
        "values."
    )


def test_the_line_is_that_of_each_call() -> None:
    def second(x: Any) -> Any:
        return eqx.error_if(x, x < 0, "x must not be negative") * 2

    # Equinox jits its check: the second export gets the trace of the first.
    for function in (checked, second):
        with pytest.raises(NotExportableError, match=rf"{line_of(function)} \({function.__name__}"):
            export(function)(X)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_dropped_checks_leave_values_and_gradients(function: Any) -> None:
    f = convert(function, polymorphic_shapes="(b, 2)", runtime_checks="drop")
    if function is not in_a_loop:  # JAX has no gradient of it
        x = tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        np.testing.assert_allclose(tape.gradient(y, x), 0.5 / root(X), rtol=1e-5)
    np.testing.assert_allclose(f(X), root(X), rtol=1e-5)
    np.testing.assert_allclose(f(INVALID), root(INVALID), rtol=1e-5)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_none_is_dropped_unasked(function: Any) -> None:
    with pytest.raises(NotExportableError, match=r"runtime_checks='drop'"):
        export(function, platforms=["cpu"])(X)


def test_nothing_is_left_of_a_check() -> None:
    portable = export(checked, platforms=["cpu"], runtime_checks="drop")(X)
    assert not re.search(r"case|stablehlo\.if|custom_call", module_text(portable))


def test_without_xla() -> None:
    target = Target.widest(xla=False)
    portable = export(in_a_batch, polymorphic_shapes="(b, 2)", target=target, runtime_checks="drop")
    np.testing.assert_allclose(to_tf(portable(X))(INVALID), root(INVALID), rtol=1e-5)


def test_values_that_only_python_makes_are_never_dropped() -> None:
    def calls_back(x: Any) -> Any:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    hidden = Primitive("tests_hidden_callback")
    hidden.def_abstract_eval(lambda x: x)
    mlir.register_lowering(hidden, mlir.lower_fun(calls_back, multiple_results=False))
    for function, place in ((calls_back, "at "), (hidden.bind, "within a primitive of a library")):
        with pytest.raises(NotExportableError, match=f"by jax.pure_callback {place}"):
            export(function, runtime_checks="drop")(X)


def test_a_gradient_that_cannot_be_exported_is_left_out_of_a_model(tmp_path: Path) -> None:
    signature = Signature(hidden_in_gradient, args=[X], polymorphic_shapes="(b, 2)")
    saved = save(tmp_path / "without", signature, warm_up=False)
    (note,) = saved.notes
    assert note.startswith(
        "saved without a gradient: the gradient of hidden_in_gradient checks values while it runs"
    )
    assert "runtime_checks='drop'" in note
    loaded = tf.saved_model.load(tmp_path / "without")
    np.testing.assert_allclose(loaded.serving_default(X), X * X)
    with pytest.raises(LookupError, match="the gradient of hidden_in_gradient checks values"):
        differentiate(loaded.serving_default)
    with pytest.raises(NotExportableError, match="the gradient of hidden_in_gradient checks"):
        save(tmp_path / "asked", signature, vjp_order=1)
    with_drop = Signature(
        hidden_in_gradient, args=[X], polymorphic_shapes="(b, 2)", runtime_checks="drop"
    )
    assert save(tmp_path / "with", with_drop, warm_up=False).notes == ()
    loaded = tf.saved_model.load(tmp_path / "with")
    np.testing.assert_allclose(differentiate(loaded.serving_default), X * 2)


def differentiate(f: Any) -> Any:
    x = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


def test_other_words_are_refused() -> None:
    wrong: Any = "dorp"
    for caller in (export, convert):
        with pytest.raises(
            FunctionError,
            match=r"runtime_checks must be 'drop', which leaves out checks of values, or None\. "
            r"Got: 'dorp': did you mean 'drop'\?",
        ):
            caller(checked, runtime_checks=wrong)


def test_every_way_to_export_takes_it() -> None:
    for function in (export, convert, Signature):
        assert "runtime_checks" in inspect.signature(function).parameters
