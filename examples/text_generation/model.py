"""A GPT-2 of Keras Hub as pure functions, which read a prompt and then one token after another.

Keras must have the backend jax.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import jax.numpy as jnp
import keras
import keras_hub
import numpy as np

State: TypeAlias = dict[str, Any]
"""Weights, the cache of keys and values, and the number of tokens that the cache holds."""


class Generator:
    """Functions of one model.

    Attributes:
      length: the maximum number of tokens of a text, with its prompt.
    """

    def __init__(self, model: Any) -> None:
        """Takes a model.

        Args:
          model: a `GPT2CausalLM`, or another causal language model with the same cache.
        """
        backbone = model.backbone
        self.length: int = backbone.max_sequence_length
        self._model = model
        head_size = backbone.hidden_dim // backbone.num_heads
        self._layers: int = backbone.num_layers
        self._cache_shape = (1, self.length, backbone.num_heads, head_size)

    def make_state(self) -> State:
        """Returns the weights with an empty cache."""
        params = {variable.path: np.asarray(variable.value) for variable in self._model.weights}
        empty = np.zeros(self._cache_shape, np.float32)
        cache = [{"keys": empty, "values": empty} for _ in range(self._layers)]
        return {"params": params, "cache": cache, "length": np.int32(0)}

    def prefill(self, state: State, tokens: Any) -> tuple[dict[str, Any], State]:
        """Begins a text: reads the prompt, int32[1,n]; returns the next token and new state."""
        empty = jnp.zeros(self._cache_shape)
        cache = [{"keys": empty, "values": empty} for _ in range(self._layers)]
        token, cache = self._read(state["params"], tokens, cache, 0)
        return {"next_token": token}, {"cache": cache, "length": jnp.int32(tokens.shape[1])}

    def decode(self, state: State, token: Any) -> tuple[dict[str, Any], State]:
        """Goes on: reads one token, int32[1]; returns the next token and new state."""
        length = state["length"]
        token, cache = self._read(state["params"], token[:, None], state["cache"], length)
        return {"next_token": token}, {"cache": cache, "length": length + 1}

    def predict(self, state: State, tokens: Any) -> dict[str, Any]:
        """Reads a whole text, int32[1,n]; returns the next token, and keeps nothing."""
        return self.prefill(state, tokens)[0]

    def start(self, params: Any, tokens: Any) -> dict[str, Any]:
        """Does what `prefill` does, with the cache as a result."""
        outputs, new = self.prefill({"params": params}, tokens)
        return {**outputs, "new_cache": new["cache"]}

    def go_on(self, params: Any, token: Any, cache: Any, length: Any) -> dict[str, Any]:
        """Does what `decode` does, with the cache as an argument and a result."""
        state = {"params": params, "cache": cache, "length": length}
        outputs, new = self.decode(state, token)
        return {**outputs, "new_cache": new["cache"]}

    def _read(self, params: Any, tokens: Any, cache: Any, start: Any) -> tuple[Any, Any]:
        """Reads tokens, the first of which is number `start` of the text."""
        joined = jnp.stack([jnp.stack([c["keys"], c["values"]], axis=1) for c in cache], axis=1)
        weights = [(variable, params[variable.path]) for variable in self._model.weights]
        with keras.StatelessScope(state_mapping=weights):
            scores, _, joined = self._model.call_with_cache(tokens, joined, start)
        layers = [joined[:, number] for number in range(self._layers)]
        cache = [{"keys": layer[:, 0], "values": layer[:, 1]} for layer in layers]
        return jnp.argmax(scores[:, -1], axis=-1).astype(jnp.int32), cache


def make_model(*, layers: int, width: int, heads: int, words: int, length: int) -> Any:
    """Makes a GPT-2 with random weights, which generates the most probable tokens."""
    keras.utils.set_random_seed(0)
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=words,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        intermediate_dim=4 * width,
        max_sequence_length=length,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone)
    model.compile(sampler="greedy")
    return model


def generate_in_keras(model: Any, prompt: Any, count: int) -> Any:
    """Returns the tokens that Keras Hub itself generates after a prompt, int32[n]."""
    missing = (0, count)
    inputs = {
        "token_ids": np.pad(prompt, missing)[None],
        "padding_mask": np.pad(np.ones_like(prompt), missing)[None],
    }
    generate = model.make_generate_function()
    return np.asarray(generate(inputs)["token_ids"])[0, len(prompt) :]
