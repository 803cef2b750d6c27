"""Programs whose complex numbers are pairs compute what JAX computes, without complex tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import Target, export, to_tf

# LiteRT's target is not public.
TARGET = replace(Target.widest(xla=False), names_lines=True)
RANDOM = np.random.default_rng(0)
X, Y = (RANDOM.normal(size=(4, 6)).astype(np.float32) for _ in range(2))
Outputs = dict[str, Any]


def arithmetic(z: Any, w: Any) -> Outputs:
    return {
        "sum": z + w - (z - 2),
        "product": z * w * 2.0,
        "quotient": z / w + w / 3.0 + 1 / z,
        "tiny": z / (w * 1e-30) * 1e-30,
        "conjugate": -jnp.conj(z),
        "length": jnp.abs(z * 1e-30) + jnp.abs(z * 0),
        "angle": jnp.angle(z),
        "exponential": jnp.exp(z),
        "logarithm": jnp.log(z),
        "equal": (z == w) | (z == z) | (z != w),
        "root": jnp.sqrt(z),
    }


def movement(z: Any, w: Any) -> Outputs:
    i = jnp.argmax(jnp.real(z)) % 3
    return {
        "reshaped": z.T.reshape(3, 8)[:, ::-2],
        "joined": jnp.concatenate([z, w, jnp.real(z)], 0),
        "padded": jnp.pad(z, ((1, 0), (0, 2)), constant_values=1j),
        "gathered": z[:, jnp.array([2, 0])],
        "dynamic": lax.dynamic_slice(z, (i, 0), (1, 3)),
        "updated": lax.dynamic_update_slice(z, w[:1], (i, 0)),
        "selected": jnp.where(jnp.real(z) > 0, z, w),
        "set": z.at[1].set(2j),
        "added": z.at[:, jnp.array([1, 1])].add(w[:, :2]),
        "broadcast": jnp.broadcast_to(z[0], (3, 6)) + jnp.ones((3, 1)),
    }


def products(z: Any, w: Any) -> Outputs:
    return {
        "matrices": z @ w.T,
        "real": z @ jnp.ones((6, 2)),
        "weights": jnp.real(z) @ (np.eye(6) * (1 + 2j)).astype(np.complex64),
        "batch": jnp.einsum("ij,ij->i", z, w),
        "convolution": jnp.convolve(z[0], w[0]),
        "total": z.sum(0),
        "product": jnp.prod(z, 1),
        "running": jnp.cumsum(z, 1),
        "mean": jnp.mean(z),
    }


def control_flow(z: Any, w: Any) -> Outputs:
    poles = np.exp(1j * np.arange(6)).astype(np.complex64)

    def step(state: Any, row: Any) -> Any:
        state = poles * state + row
        return state, state.sum()

    return {
        "scan": lax.scan(step, jnp.zeros(6, jnp.complex64), z),
        "branch": lax.cond(jnp.real(z).sum() > 0, lambda a: a * w, lambda a: a - 1j, z),
        "outer": lax.fori_loop(0, 3, lambda i, a: a * w[0, 0], z),
        "switch": lax.switch(2, [lambda a: a, lambda a: -a, lambda a: a * 1j], z),
        "sorted": lax.sort((jnp.real(z), z), num_keys=1)[1],
    }


def has_complex(converted: Any) -> bool:
    graph = tf.function(converted, autograph=False).get_concrete_function(X, Y).graph
    return "DT_COMPLEX" in str(graph.as_graph_def())


@pytest.mark.parametrize("function", [arithmetic, movement, products, control_flow])
def test_values_are_those_of_jax(function: Callable[[Any, Any], Outputs]) -> None:
    def compute(x: Any, y: Any) -> Outputs:
        results = function(lax.complex(x, y), lax.complex(y, x * x))
        parts: Outputs = jax.tree.map(lambda z: (jnp.real(z), jnp.imag(z)), results)
        return parts

    exported = export(compute, target=TARGET)(X, Y)
    converted = to_tf(exported, with_gradient=False)
    expected = jax.jit(compute)(X, Y)
    for (path, a), b in zip(
        jax.tree_util.tree_leaves_with_path(converted(X, Y)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=str(path))
    assert not has_complex(converted)
    plain = export(compute, target=Target.widest(xla=False))(X, Y)
    assert has_complex(to_tf(plain, with_gradient=False))


def transforms(x: Any, length: int) -> Outputs:
    spectrum, half = jnp.fft.fft(x), jnp.fft.rfft(x)
    return {
        "magnitudes": jnp.abs(spectrum),
        "phases": jnp.angle(half),
        "shifted": jnp.real(jnp.fft.ifft(spectrum * 1j)),
        "inverse": jnp.fft.irfft(half * 2, n=length),
        "truncated": jnp.abs(jnp.fft.rfft(x, n=length // 2 + 1)),
    }


@pytest.mark.parametrize("length", [1, 2, 3, 8, 65, 96, 97, 1024])
def test_transforms_of_any_length(length: int) -> None:
    x = RANDOM.normal(size=(3, length)).astype(np.float32)

    def compute(x: Any) -> Outputs:
        return transforms(x, length)

    exported = export(compute, polymorphic_shapes="(b, ...)", target=TARGET)(x)
    converted = to_tf(exported, with_gradient=False)
    for name, expected in compute(x).items():
        scale = max(1.0, float(jnp.max(jnp.abs(expected))))
        np.testing.assert_allclose(
            converted(x)[name], expected, rtol=1e-4, atol=2e-6 * scale, err_msg=name
        )


def test_transforms_of_several_axes() -> None:
    x = RANDOM.normal(size=(2, 4, 6, 5)).astype(np.float32)

    def compute(x: Any) -> Any:
        half = jnp.fft.rfftn(x, axes=(1, 2, 3))
        return (
            jnp.abs(jnp.fft.fft2(x)),
            jnp.abs(half),
            jnp.fft.irfftn(half, s=(4, 6, 5), axes=(1, 2, 3)),
            jnp.real(jnp.fft.ifft2(jnp.fft.fft2(x) * 2j)),
        )

    converted = to_tf(export(compute, target=TARGET)(x), with_gradient=False)
    for a, b in zip(converted(x), compute(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5)


def test_arguments_and_results_stay_complex() -> None:
    z = (X + 1j * Y).astype(np.complex64)
    converted = to_tf(export(lambda z: (z * z, jnp.real(z)), target=TARGET)(z), with_gradient=False)
    for a, b in zip(converted(z), (z * z, X), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_functions_without_a_rule_stay_complex() -> None:
    """The runtime then refuses them, with the user's line."""

    def compute(x: Any, y: Any) -> Any:
        return jnp.real(jnp.tan(lax.complex(x, y)) + 1)

    converted = to_tf(export(compute, target=TARGET)(X, Y), with_gradient=False)
    np.testing.assert_allclose(converted(X, Y), compute(X, Y), rtol=1e-4, atol=1e-5)
