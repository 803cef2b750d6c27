"""Calls with side effects: neither dropped nor repeated by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import BridgeError, convert, export
from jax2tf_bridge.calling_tf import call_tf

X = jnp.array([1.0, 2.0])


def draws(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.uniform([2])


def unused(f: Callable[..., Any]) -> Callable[..., Any]:
    def program(x: Any) -> Any:
        f(x)
        return x

    return program


def kept(f: Callable[..., Any]) -> int:
    """Counts the operations that are left when the program is compiled."""
    return jax.jit(unused(f)).lower(X).as_text().count("stablehlo.rng")


def test_unused_calls_with_side_effects_are_kept() -> None:
    assert kept(call_tf(draws)) == 1
    assert kept(call_tf(draws, has_side_effects=False)) == 0


@pytest.mark.parametrize("asked", [True, False])
def test_has_side_effects_is_an_effect_of_the_program(asked: bool) -> None:
    f = call_tf(tf.sin, has_side_effects=asked)
    assert [str(e) for e in jax.make_jaxpr(f)(X).effects] == ["CallTfEffect"] * asked
    exported = jax.export.export(jax.jit(unused(f)))(X)
    assert ("sine" in exported.mlir_module()) == asked
    # JAX writes the effect by its type.
    assert len(jax.export.deserialize(exported.serialize()).unordered_effects) == asked


def test_portable_functions_have_no_effect_of_tracing() -> None:
    portable = export(call_tf(draws))(X)
    assert (portable.unordered_effects, portable.ordered_effects) == ((), ())


@pytest.mark.parametrize("ordered", [False, True])
def test_effects_in_control_flow(ordered: bool) -> None:
    f = call_tf(draws, ordered=ordered)

    def program(x: Any) -> Any:
        x, rows = jax.lax.scan(lambda c, _: (c, f(c)), x, None, length=3)
        return jax.lax.cond(x.sum() > 0, f, lambda x: x, x), rows

    last, rows = jax.jit(program)(X)
    for row in (*rows, last):
        assert np.all((row >= X) & (row < X + 1))
    assert len(np.unique(rows)) > 2


def test_ordered_calls_keep_their_order() -> None:
    f = call_tf(draws, ordered=True)
    closed = jax.make_jaxpr(lambda x: (f(x), f(x)))(X)
    assert [type(e).__name__ for e in closed.effects] == ["OrderedCallTfEffect"]
    (effect,) = jax.make_jaxpr(call_tf(draws))(X).effects
    assert type(effect).__name__ == "StatefulCallTfEffect"
    # The order of pure functions cannot be observed.
    (effect,) = jax.make_jaxpr(call_tf(tf.sin, ordered=True))(X).effects
    assert type(effect).__name__ == "CallTfEffect"


def test_gradients_of_calls_with_side_effects() -> None:
    f = call_tf(draws)
    gradient = jax.jit(jax.grad(lambda x: (f(x) * 3).sum()))(X)
    assert gradient.tolist() == [3, 3]


def test_checkpoint_which_would_call_twice_is_an_error() -> None:
    f = jax.checkpoint(lambda x: (x * call_tf(draws)(x)).sum())
    with pytest.raises(NotImplementedError, match=r"Effects not supported in .*checkpoint"):
        jax.jit(jax.grad(f))(X)


def test_random_numbers_are_drawn_in_converted_functions_too() -> None:
    converted = convert(lambda x: call_tf(draws)(x) * 2)
    drawn = converted(np.zeros(2, np.float32)).numpy()
    assert np.all((drawn >= 0) & (drawn < 2))
    assert len(np.unique(drawn)) == 2


def test_ordered_calls_cannot_be_converted() -> None:
    with pytest.raises(BridgeError, match="effect"):
        convert(call_tf(draws, ordered=True))(np.zeros(2, np.float32))
