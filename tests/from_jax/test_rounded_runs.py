"""Rounded results show the size of rounding errors, and nothing else changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, export, to_tf

# Private: names of operations are compared with the table.
from jax2tf_bridge._operations import COMPOSITES, OPERATIONS
from jax2tf_bridge.from_jax import run_rounded
from jax2tf_bridge.portable import PortableFunction, apply_target
from jax2tf_bridge.rewriting import EXACT_COMPOSITES, ROUNDED

X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
SEEDS = range(4)


def _run_in_jax(portable: PortableFunction) -> list[Any]:
    return [np.asarray(result) for (result,) in run_rounded(portable, [X], SEEDS)]


def _run_in_tensorflow(portable: PortableFunction) -> list[Any]:
    portable = apply_target(portable, Target.widest(xla=False))
    targets = [dataclasses.replace(portable.target, rounding_seed=seed) for seed in SEEDS]
    functions = [to_tf(dataclasses.replace(portable, target=target)) for target in targets]
    return [function(tf.constant(X)).numpy() for function in functions]


each_runner = pytest.mark.parametrize("run", [_run_in_jax, _run_in_tensorflow])


def _measure(run: Callable[..., Any], function: Callable[..., Any]) -> tuple[float, float]:
    """Returns the largest and the smallest relative error of the runs."""
    expected = np.asarray(jax.jit(function)(X))
    results = run(export(function, platforms=["cpu"])(X))
    scale = float(np.abs(expected).max()) or 1.0
    errors = [float(np.abs(result - expected).max()) / scale for result in results]
    return max(errors), min(errors)


def triple(x: Any) -> Any:
    return x * 3


def add_rows(x: Any) -> Any:
    """A counted loop."""
    return lax.fori_loop(0, len(x), lambda i, total: total + x[i], jnp.zeros(5))


def choose(x: Any) -> Any:
    return lax.cond(x[0, 0] > 5, lambda x: x, lambda x: jnp.sin(x), x)


def call(x: Any) -> Any:
    return jax.nn.softmax(jax.jit(jnp.tanh)(x))


@each_runner
@pytest.mark.parametrize("function", [triple, add_rows, choose, call, jnp.cumsum, jnp.fft.fft])
def test_results_are_rounded(run: Any, function: Any) -> None:
    largest, _ = _measure(run, function)
    assert 2.0**-21 < largest < 2.0**-14


def solve(x: Any) -> Any:
    """A loop that would not end if its body rounded results."""

    def improve(state: Any) -> Any:
        y, _ = state
        new = y - (y * y - 2) / (2 * y)
        return new, jnp.abs(new - y)

    start = (jnp.float32(2), jnp.float32(1))
    root, _ = lax.while_loop(lambda state: state[1] > 2e-7, jax.jit(improve), start)
    return root * x


@each_runner
def test_loops_that_depend_on_results_end(run: Any) -> None:
    largest, _ = _measure(run, solve)
    assert 2.0**-21 < largest < 2.0**-14


@each_runner
@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.floor(jnp.round(x * 4) * 2) / 4,
        lambda x: (jnp.max(x, 0) == jnp.max(x[::-1], 0)).astype(jnp.int32),
        lambda x: jnp.argsort(x + 1).astype(jnp.float32).sum(),
        lambda x: (x.astype(jnp.int32) + jnp.arange(5)) @ jnp.ones((5, 2), jnp.int32),
    ],
    ids=["short", "comparison", "order", "integers"],
)
def test_exact_results_stay_exact(run: Any, function: Any) -> None:
    assert _measure(run, function) == (0, 0)


def test_rounded_operations_exist() -> None:
    assert OPERATIONS.keys() >= ROUNDED
    assert COMPOSITES.keys() >= EXACT_COMPOSITES


@each_runner
def test_both_parts_of_complex_numbers_are_rounded(run: Any) -> None:
    def take_part(x: Any) -> Any:
        return jnp.imag(jnp.fft.ifft(jnp.fft.fft(x)))

    largest, _ = _measure(run, take_part)
    assert 1e-8 < largest < 1e-4
