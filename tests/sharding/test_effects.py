"""Effects: calls for debugging can be left out of an export; all others are errors that say why."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import checkify, io_callback

import jax2tf_bridge as bridge
from jax2tf_bridge import DisabledSafetyCheck
from jax2tf_bridge.errors import GradientError, NotExportableError
from tests.sharding.meshes import X

LEFT_OUT = (DisabledSafetyCheck.debug_effects(),)
ROW = X[1]


def same(a: Any) -> Any:
    return jax.ShapeDtypeStruct(a.shape, a.dtype)


def printing(a: Any) -> Any:
    jax.debug.print("a = {}", a)
    return a * 2


def calling(a: Any) -> Any:
    jax.debug.callback(print, a)
    return a * 2


def stopping(a: Any) -> Any:
    jax.debug.breakpoint()
    return a * 2


def inspecting(a: Any) -> Any:
    jax.debug.inspect_array_sharding(a, callback=print)
    return a * 2


def in_loops(a: Any) -> Any:
    def body(total: Any, value: Any) -> Any:
        jax.debug.print("total = {}", total)
        return total + value, value

    def double(values: Any) -> Any:
        jax.debug.print("values = {}", values)
        return values * 2

    a = lax.cond(a[0] > 0, double, lambda values: values * 2, a)
    return jax.vmap(lambda v: (jax.debug.print("v = {}", v), v)[1])(a) * lax.scan(body, 0.0, a)[0]


@jax.custom_vjp
def gradient_prints(a: Any) -> Any:
    return a * 2


def _forward(a: Any) -> Any:
    return a * 2, None


def _backward(_: None, cotangent: Any) -> Any:
    jax.debug.print("cotangent = {}", cotangent)
    return (cotangent * 2,)


gradient_prints.defvjp(_forward, _backward)


@pytest.mark.parametrize(
    ("function", "called"),
    [
        (printing, "jax.debug.print"),
        (calling, "jax.debug.callback"),
        (stopping, "jax.debug.breakpoint"),
        (inspecting, "jax.debug.inspect_array_sharding"),
    ],
)
def test_calls_for_debugging_can_be_left_out(
    function: Callable[[Any], Any], called: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotExportableError) as caught:
        bridge.export(function)(ROW)
    text = str(caught.value)
    assert text.startswith(f"{function.__name__} calls back to Python by ")
    assert called in text
    assert "test_effects.py" in text
    assert text.endswith(
        "Remove the call, or add DisabledSafetyCheck.debug_effects() to the disabled checks, which "
        "drops it."
    )
    converted = bridge.convert(function, native_serialization_disabled_checks=LEFT_OUT)
    x = tf.constant(ROW)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = converted(x)
    np.testing.assert_allclose(result, ROW * 2)
    np.testing.assert_allclose(tape.gradient(result, x), np.full_like(ROW, 2))
    assert capfd.readouterr().out == ""


def test_what_is_left_out_leaves_no_effect() -> None:
    portable = bridge.export(printing, disabled_checks=LEFT_OUT)(ROW)
    assert portable.ordered_effects == portable.unordered_effects == ()
    assert portable.tensorflow_releases[0] == "2.15"
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")
    stored = bridge.deserialize(bridge.serialize(portable))
    np.testing.assert_allclose(bridge.to_tf(stored)(ROW), ROW * 2)


def test_calls_in_branches_loops_and_maps_are_left_out() -> None:
    portable = bridge.export(in_loops, disabled_checks=LEFT_OUT)(ROW)
    np.testing.assert_allclose(bridge.to_tf(portable)(ROW), in_loops(ROW), rtol=1e-6)


def test_calls_in_gradients_alone() -> None:
    portable = bridge.export(gradient_prints)(ROW)
    assert "the gradient of gradient_prints calls back to Python by jax.debug.print" in str(
        portable.gradient_problem()
    )
    with pytest.raises(GradientError, match=r"debug_effects\(\) to the disabled checks"):
        portable.vjp()
    allowed = bridge.export(gradient_prints, disabled_checks=LEFT_OUT)(ROW)
    (pulled,) = bridge.to_tf(allowed.vjp())(ROW, ROW)
    np.testing.assert_allclose(pulled, ROW * 2)


def test_ordered_calls_are_not_left_out() -> None:
    def printing_in_order(a: Any) -> Any:
        jax.debug.print("a = {}", a, ordered=True)
        return a

    def calling_in_order(a: Any) -> Any:
        jax.debug.callback(print, a, ordered=True)
        return a

    for function in (printing_in_order, calling_in_order):
        with pytest.raises(
            NotExportableError,
            match=r"It is ordered, and only unordered calls can be dropped: write it without "
            r"ordered=True, or remove it",
        ):
            bridge.export(function, disabled_checks=LEFT_OUT)(ROW)


@pytest.mark.parametrize(
    ("called", "function"),
    [
        ("jax.pure_callback", lambda a: jax.pure_callback(np.sin, same(a), a)),
        ("jax.experimental.io_callback", lambda a: io_callback(np.sin, same(a), a)),
        ("jax.experimental.io_callback", lambda a: io_callback(np.sin, same(a), a, ordered=True)),
    ],
    ids=["pure", "io", "ordered io"],
)
def test_callbacks_that_give_values_are_never_left_out(called: str, function: Any) -> None:
    with pytest.raises(
        NotExportableError,
        match=rf"<lambda> calls back to Python by {called} at .*test_effects.py.* do that work in "
        "TensorFlow before or after",
    ):
        bridge.export(function, disabled_checks=LEFT_OUT)(ROW)


def test_checks_need_someone_who_takes_their_errors() -> None:
    def checked(a: Any) -> Any:
        checkify.check(jnp.all(a >= 0), "negative")
        return a * 2

    with pytest.raises(
        NotExportableError,
        match=r"checked calls checkify\.check at .*test_effects\.py.*, but nothing handles its err",
    ):
        bridge.export(checked)(ROW)
    without = bridge.export(lambda *args: checkify.checkify(checked)(*args)[1])(ROW)
    np.testing.assert_allclose(bridge.to_tf(without)(ROW), ROW * 2)


def test_tokens_are_no_results() -> None:
    def second(a: Any) -> Any:
        return a * 2, lax.create_token()

    with pytest.raises(
        NotExportableError, match=r"second returns a token \(jax\.lax\.create_token\)"
    ):
        bridge.export(second)(ROW)


def test_tokens_of_which_nothing_is_left_are_fine() -> None:
    def with_token(a: Any) -> Any:
        lax.create_token()
        return a * 2

    portable = bridge.export(with_token)(ROW)
    assert portable.module.calling_convention_version == 8
    np.testing.assert_allclose(bridge.to_tf(portable)(ROW), ROW * 2)
