"""call_tf does without each private name of JAX and TensorFlow that it uses, or says so."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import tensorflow as tf

from jax2tf_bridge import convert

# Private: a seam is what is tested.
from jax2tf_bridge.calling_tf import _jax_compat, _tf_compat, call_tf
from jax2tf_bridge.errors import ExportError, GradientError
from tests.house.seams import take_away

JAX_SEAM, TF_SEAM = _jax_compat.SEAM, _tf_compat.SEAM
X = jnp.array([1.0, 2.0])


@pytest.fixture(autouse=True)
def _effects_are_made_anew() -> Iterator[None]:
    _jax_compat._register_effects.cache_clear()
    yield
    _jax_compat._register_effects.cache_clear()


def draws(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([2])


def _is_kept() -> bool:
    """Returns whether a call whose results are not used stays in the program."""
    f = call_tf(draws)

    def program(x: Any) -> Any:
        f(x)
        return x

    return "stablehlo.rng" in jax.jit(program).lower(X).as_text()


def _again(without: Callable[[], None]) -> None:
    without()
    _jax_compat._register_effects.cache_clear()


def _effect(without: Callable[[], None]) -> None:
    assert _is_kept()
    _again(without)
    assert not _is_kept()


def _control_flow(without: Callable[[], None]) -> None:
    def scan() -> Any:
        return jax.lax.scan(lambda c, _: (call_tf(draws)(c), None), X, None, length=2)

    scan()
    _again(without)
    with pytest.raises(NotImplementedError, match="Effects not supported in `scan`"):
        scan()


def _custom_derivatives(without: Callable[[], None]) -> None:
    def call() -> Any:
        f = jax.custom_vjp(call_tf(draws))
        f.defvjp(lambda x: (x, None), lambda _, g: (g,))
        with jax.enable_checks(True):
            return jax.jit(f)(X)

    call()
    _again(without)
    with pytest.raises(NotImplementedError, match="Effects not supported in `custom_vjp`"):
        call()


def _checkpoint(without: Callable[[], None]) -> None:
    def differentiate() -> Any:
        f = jax.checkpoint(lambda x: call_tf(tf.sin)(x).sum())
        return jax.jit(jax.grad(f))(X)

    differentiate()
    _again(without)
    with pytest.raises(NotImplementedError, match=r"Effects not supported in .*checkpoint"):
        differentiate()


def _ordered(without: Callable[[], None]) -> None:
    def tokens() -> int:
        text = jax.jit(call_tf(draws, ordered=True)).lower(X).as_text()
        return text.count("!stablehlo.token") + text.count("tokens")

    assert tokens() or "jax.token" in jax.jit(call_tf(draws, ordered=True)).lower(X).as_text()
    _again(without)
    assert not tokens()


def _transformations(without: Callable[[], None]) -> None:
    def differentiate() -> Any:
        sine = call_tf(convert(jnp.sin))
        return jax.jit(jax.grad(lambda x: sine(x).sum()))(X)

    differentiate()
    without()
    with pytest.raises(ExportError, match="called inside a JAX transformation"):
        differentiate()


def _op_definitions(without: Callable[[], None]) -> None:
    def effects() -> list[str]:
        return [str(effect) for effect in jax.make_jaxpr(call_tf(tf.sin))(X).effects]

    assert effects() == ["CallTfEffect"]
    without()
    assert effects() == ["StatefulCallTfEffect"]


def _tapes(without: Callable[[], None]) -> None:
    def differentiate() -> Any:
        f = convert(jax.grad(lambda x: call_tf(tf.sin)(x).sum()))
        return tf.function(f, autograph=False)(tf.ones(2))

    differentiate()
    without()
    with pytest.raises(GradientError, match="sin cannot be differentiated while TensorFlow traces"):
        differentiate()


BEHAVIOURS: dict[str, Callable[[Callable[[], None]], None]] = {
    "Effect": _effect,
    "lowerable_effects": _effect,
    "control_flow_allowed_effects": _control_flow,
    "custom_derivatives_allowed_effects": _custom_derivatives,
    "remat_allowed_effects": _checkpoint,
    "ordered_effects": _ordered,
    "trace_ctx": _transformations,
    "eval_context": _transformations,
    "top_axis_env": _transformations,
    "get": _op_definitions,
    "TFE_Py_TapeSetStopOnThread": _tapes,
    "TFE_Py_TapeSetRestartOnThread": _tapes,
}


@pytest.mark.parametrize("name", [entry.name for entry in (*JAX_SEAM, *TF_SEAM)])
def test_without_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First with the name, then without it: a test that sees no difference would prove nothing."""
    seam = JAX_SEAM if name in {entry.name for entry in JAX_SEAM} else TF_SEAM
    BEHAVIOURS[name](lambda: take_away(monkeypatch, seam, name))
