"""Programs that are neural networks, whole or in part."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program_cases.record import Array, Call, Example, calls, integers, normal, program


def _layers(*widths: int, dtype: Any = np.float32) -> list[tuple[Array, Array]]:
    pairs = itertools.pairwise(widths)
    return [
        (normal(m, n, seed=i, dtype=dtype) / np.sqrt(m).astype(dtype), normal(n, dtype=dtype))
        for i, (m, n) in enumerate(pairs)
    ]


def _mlp(params: Any, x: Any) -> Any:
    *hidden, (last_weights, last_bias) = params
    for weights, bias in hidden:
        x = jax.nn.relu(x @ weights + bias)
    return x @ last_weights + last_bias


@program(seventeen=True, jit_compile=True)
def mlp_static() -> Example:
    params = _layers(28, 16, 10)
    return Example(_mlp, calls((params, normal(4, 28)), (params, normal(4, 28, seed=1))))


@program(polymorphic_shapes=(None, "(b, 28)"), seventeen=True, jit_compile=True)
def mlp_symbolic() -> Example:
    params = _layers(28, 16, 10)
    return Example(_mlp, calls(*((params, normal(b, 28)) for b in (1, 3, 8))))


@program(polymorphic_shapes=(None, "(b, 28)", "(b, 10)"), seventeen=True, jit_compile=True)
def mlp_vjp() -> Example:
    def pull_back(params: Any, x: Any, cotangent: Any) -> Any:
        _, vjp = jax.vjp(_mlp, params, x)
        return vjp(cotangent)

    params = _layers(28, 16, 10)
    return Example(
        pull_back, calls(*((params, normal(b, 28), normal(b, 10, seed=3)) for b in (1, 5)))
    )


@program(polymorphic_shapes="(b, 28)", jit_compile=True)
def mlp_captured() -> Example:
    """Weights that the function closes over; the C++ program serves it."""
    params = jax.tree_util.tree_map(jnp.asarray, _layers(28, 16, 10))
    return Example(
        lambda x: jax.nn.softmax(_mlp(params, x)), calls(*((normal(b, 28),) for b in (1, 3, 8)))
    )


def _convolution(x: Any, kernel: Any, **options: Any) -> Any:
    return lax.conv_general_dilated(
        x,
        kernel,
        options.pop("strides", (1, 1)),
        options.pop("padding", "SAME"),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        **options,
    )


@program(polymorphic_shapes=(None, "(b, 8, 8, 1)"), seventeen=True, jit_compile=True)
def conv_net() -> Example:
    def net(params: Any, images: Any) -> Any:
        first, second, dense = params
        x = jax.nn.relu(_convolution(images, first))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(_convolution(x, second, strides=(2, 2)))
        return x.reshape(x.shape[0], -1) @ dense

    params = (normal(3, 3, 1, 4) / 3, normal(3, 3, 4, 8) / 6, normal(32, 10) / 6)
    return Example(net, calls(*((params, normal(b, 8, 8, 1)) for b in (1, 3))))


@program(polymorphic_shapes=("(b, h, w, 4)", None, None), constraints=("h >= 4", "w >= 4"))
def conv_symbolic_image() -> Example:
    """Every dimension but the channels is open; dilated, depthwise, average-pooled."""

    def net(images: Any, kernel: Any, depthwise: Any) -> Any:
        x = _convolution(images, kernel, rhs_dilation=(2, 2))
        x = _convolution(x, depthwise, padding="VALID", feature_group_count=4)
        pooled = lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
        return jnp.mean(pooled, axis=(1, 2))

    kernels = (normal(3, 3, 4, 4) / 6, normal(2, 2, 1, 4))
    shapes = ((1, 6, 7), (2, 9, 4), (3, 4, 4))
    return Example(net, calls(*((normal(*s, 4), *kernels) for s in shapes)))


@program(polymorphic_shapes=("(b, 4, 4, 3)", None))
def conv_transposed() -> Example:
    def upsample(images: Any, kernel: Any) -> Any:
        return lax.conv_transpose(images, kernel, (2, 2), "SAME")

    kernel = normal(3, 3, 3, 2)
    return Example(upsample, calls(*((normal(b, 4, 4, 3), kernel) for b in (1, 2))))


def _attention(params: Any, x: Any) -> Any:
    queries, keys, values = (jnp.einsum("btd,dhk->bthk", x, params[k]) for k in "qkv")
    scores = jnp.einsum("bqhk,bshk->bhqs", queries, keys) / np.sqrt(keys.shape[-1])
    causal = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), dtype=bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
    return jnp.einsum("bhqs,bshk,hkd->bqd", weights, values, params["o"])


def _attention_params() -> dict[str, Array]:
    params = {k: normal(16, 2, 8, seed=i) / 4 for i, k in enumerate("qkv")}
    return {**params, "o": normal(2, 8, 16) / 4}


@program(polymorphic_shapes=(None, "(b, t, 16)"), seventeen=True, jit_compile=True)
def attention() -> Example:
    params = _attention_params()
    shapes = ((1, 1), (2, 5), (3, 7))
    return Example(_attention, calls(*((params, normal(*s, 16)) for s in shapes)))


def _layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-6) * scale + bias


@program(polymorphic_shapes=("(b, 12)", None, None))
def layer_norm() -> Example:
    return Example(
        _layer_norm, calls(*((normal(b, 12), normal(12), normal(12, seed=1)) for b in (1, 4)))
    )


@program(polymorphic_shapes=(None, "(b, t)"), jit_compile=True)
def transformer_block() -> Example:
    """Embedding, attention, layer norm, gelu and a tied output layer, rematerialised."""

    def block(params: Any, tokens: Any) -> Any:
        x = params["embedding"][tokens] + jnp.arange(tokens.shape[1])[:, None] * 0.01

        @jax.checkpoint
        def inner(x: Any) -> Any:
            x = x + _attention(params["attention"], _layer_norm(x, 1.0, 0.0))
            return x + jax.nn.gelu(_layer_norm(x, 1.0, 0.0) @ params["up"]) @ params["down"]

        return jax.nn.log_softmax(inner(x) @ params["embedding"].T)

    params = {
        "embedding": normal(11, 16),
        "attention": _attention_params(),
        "up": normal(16, 32) / 4,
        "down": normal(32, 16) / 6,
    }
    shapes = ((1, 4), (3, 6))
    return Example(block, calls(*((params, integers(0, 11, *s)) for s in shapes)))


@program(polymorphic_shapes=(None, "(b, t)"))
def embedding_lookup() -> Example:
    def lookup(table: Any, ids: Any) -> Any:
        return jnp.take(table, ids, axis=0), table[ids[:, 0]], jax.nn.one_hot(ids, 5)

    table = normal(9, 4)
    return Example(lookup, calls(*((table, integers(0, 9, *s)) for s in ((1, 3), (4, 2)))))


@program(polymorphic_shapes=(None, "(t, b, 6)"))
def gru_scan() -> Example:
    """A recurrent net over a symbolic number of steps."""

    def cell(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
        both = jnp.concatenate([x, state], axis=-1)
        reset, update = jax.nn.sigmoid(both @ params["r"]), jax.nn.sigmoid(both @ params["u"])
        candidate = jnp.tanh(jnp.concatenate([x, reset * state], axis=-1) @ params["c"])
        state = update * state + (1 - update) * candidate
        return state, state

    def net(params: Any, xs: Any) -> Any:
        return lax.scan(functools.partial(cell, params), jnp.zeros((xs.shape[1], 5)), xs)

    params = {k: normal(11, 5, seed=i) / 3 for i, k in enumerate("ruc")}
    return Example(net, calls(*((params, normal(*s, 6)) for s in ((1, 2), (6, 3)))))


@program(polymorphic_shapes="(b, 5)")
def custom_vjp() -> Example:
    """A gradient that is not the function's derivative, so that a re-derived one would show."""

    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.sin(x)

    def forward(x: Any) -> Any:
        return clipped(x), x

    def backward(x: Any, cotangent: Any) -> Any:
        return (jnp.clip(cotangent, -0.5, 0.5) * x,)

    clipped.defvjp(forward, backward)
    return Example(lambda x: clipped(x) * 2, calls(*((normal(b, 5),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 5)")
def custom_jvp() -> Example:
    @jax.custom_jvp
    def halved(x: Any) -> Any:
        return x**3

    @halved.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return halved(*primals), 0.5 * tangents[0]

    return Example(lambda x: halved(x) + x, calls(*((normal(b, 5),) for b in (1, 4))))


@program(polymorphic_shapes=(None, "(b, 4)", None))
def training_step() -> Example:
    """Value, gradient and an update with momentum; the state is a pytree in and out."""

    def step(state: Any, x: Any, rate: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean((_mlp(params, x) - jnp.sum(x, -1, keepdims=True)) ** 2)

        value, gradient = jax.value_and_grad(loss)(state["params"])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradient)
        params = jax.tree.map(lambda p, m: p - rate * m, state["params"], momentum)
        return {"params": params, "momentum": momentum}, value

    params = _layers(4, 6, 1)
    state = {"params": params, "momentum": jax.tree.map(np.zeros_like, params)}
    rate = np.float32(0.1)
    return Example(step, calls(*((state, normal(b, 4), rate) for b in (2, 5))))


@program(polymorphic_shapes=("(b, 6)", None), key_arguments=(1,))
def dropout() -> Example:
    """A typed PRNG key as an argument."""

    def drop(x: Any, key: Any) -> Any:
        key, other = jax.random.split(key)
        kept = jax.random.bernoulli(key, 0.7, x.shape)
        return jnp.where(kept, x / 0.7, 0.0), jax.random.normal(other, (3,))

    words = np.array([7, 11], np.uint32)
    return Example(drop, calls(*((normal(b, 6), words) for b in (1, 4))))


@program(polymorphic_shapes=("(b, 5)", "(b, 5)"))
def keyword_arguments() -> Example:
    def weighted(x: Any, y: Any, *, scale: Any, options: Any) -> Any:
        return {"sum": x * scale + options["offset"], "difference": x - y * options["factor"]}

    options = {"offset": normal(5, seed=2), "factor": np.float32(3)}
    return Example(
        weighted,
        tuple(
            Call((normal(b, 5), normal(b, 5, seed=1)), {"scale": np.float32(2), "options": options})
            for b in (1, 4)
        ),
    )
