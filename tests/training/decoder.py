"""A small decoder with a cache, in plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, WORDS, LENGTH = 2, 32, 2, 50, 64


def make_params() -> dict[str, Any]:
    """Draws the weights."""
    random = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return random.normal(0, 0.3, shape).astype(np.float32)

    layers = [
        {"qkv": draw(WIDTH, 3 * WIDTH), "out": draw(WIDTH, WIDTH), "mlp": draw(WIDTH, WIDTH)}
        for _ in range(LAYERS)
    ]
    return {"words": draw(WORDS, WIDTH), "positions": draw(LENGTH, WIDTH), "layers": layers}


def make_cache() -> dict[str, Any]:
    """Makes the cache of a text without words."""
    shape = (LAYERS, LENGTH, HEADS, WIDTH // HEADS)
    keys, values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    return {"keys": keys, "values": values, "length": np.int32(0)}


def read_words(params: Any, cache: Any, words: Any) -> tuple[Any, Any]:
    """Reads the next words of a text; returns the scores of the word after them, and the cache.

    Args:
      params: the weights.
      cache: what the layers computed for the words before.
      words: the words, int32[n].
    """
    start, count = cache["length"], words.shape[0]
    places = start + jnp.arange(count)
    x = params["words"][words] + params["positions"][places]
    keys, values = cache["keys"], cache["values"]
    visible = jnp.arange(LENGTH)[None] <= places[:, None]
    for number, layer in enumerate(params["layers"]):
        qkv = (x @ layer["qkv"]).reshape(count, 3, HEADS, WIDTH // HEADS)
        keys = jax.lax.dynamic_update_slice(keys, qkv[None, :, 1], (number, start, 0, 0))
        values = jax.lax.dynamic_update_slice(values, qkv[None, :, 2], (number, start, 0, 0))
        scores = jnp.einsum("nhd,mhd->hnm", qkv[:, 0], keys[number]) / np.sqrt(WIDTH // HEADS)
        weights = jax.nn.softmax(jnp.where(visible[None], scores, -1e9), axis=-1)
        mixed = jnp.einsum("hnm,mhd->nhd", weights, values[number]).reshape(count, WIDTH)
        x = x + mixed @ layer["out"]
        x = x + jax.nn.gelu(x @ layer["mlp"])
    new = {"keys": keys, "values": values, "length": start + count}
    return x[-1] @ params["words"].T, new


def decode(state: Any, words: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads words, and returns the most probable next one; the cache is a part of the state."""
    scores, cache = read_words(state["params"], state["cache"], words)
    return {"word": jnp.argmax(scores)}, {"cache": cache}


def generate(params: Any, prompt: Any, key: Any, temperature: Any) -> Any:
    """Draws 32 words after a prompt of any length, in one call."""
    scores, cache = read_words(params, make_cache(), prompt)

    def draw(carry: Any, key: Any) -> Any:
        scores, cache = carry
        word = jax.random.categorical(key, scores / temperature).astype(jnp.int32)
        return read_words(params, cache, word[None]), word

    _, words = jax.lax.scan(draw, (scores, cache), jax.random.split(key, 32))
    return {"words": words}
