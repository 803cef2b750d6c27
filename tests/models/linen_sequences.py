"""Models of sequences and graphs in Flax linen."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.models.model import Built, integers, model, normal, random_weights


class _Attention(nn.Module):
    """Attention after a normalization, added to what came in."""

    heads: int

    @nn.compact
    def __call__(self, x: Any, mask: Any, memory: Any = None) -> Any:
        y = nn.LayerNorm(use_bias=False)(x)
        seen = y if memory is None else memory
        return x + nn.MultiHeadDotProductAttention(self.heads, use_bias=False)(y, seen, mask=mask)


class _Gated(nn.Module):
    """Half of a block, which sees each position alone."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        width = x.shape[-1]
        y = nn.LayerNorm(use_bias=False)(x)
        y = nn.gelu(nn.Dense(2 * width)(y)) * nn.Dense(2 * width)(y)
        return x + nn.Dense(width)(y)


class _EncoderDecoder(nn.Module):
    """Scores of the next word of a translation, from the words so far and the whole source."""

    words: int = 8000
    width: int = 256
    heads: int = 8
    depth: int = 3

    @nn.compact
    def __call__(self, source: Any, lengths: Any, target: Any) -> Any:
        embed = nn.Embed(self.words, self.width)
        valid = jnp.arange(source.shape[1])[None] < lengths[:, None]
        memory = self._placed(embed(source))
        for i in range(self.depth):
            mask = nn.make_attention_mask(valid, valid)
            memory = _Gated(name=f"encoder{i}_gated")(
                _Attention(self.heads, name=f"encoder{i}_attention")(memory, mask)
            )
        memory = nn.LayerNorm(name="memory_norm")(memory)
        x = self._placed(embed(target))
        for i in range(self.depth):
            x = _Attention(self.heads, name=f"decoder{i}_attention")(x, nn.make_causal_mask(target))
            across = nn.make_attention_mask(jnp.ones_like(target), valid)
            x = _Attention(self.heads, name=f"decoder{i}_across")(x, across, memory)
            x = _Gated(name=f"decoder{i}_gated")(x)
        return embed.attend(nn.LayerNorm(name="norm")(x))

    def _placed(self, x: Any) -> Any:
        """With sines of each position added."""
        rates = 1e4 ** -jnp.linspace(0, 1, self.width // 2)
        angles = jnp.arange(x.shape[1])[:, None] * rates
        return x * self.width**0.5 + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)


@model("linen", "(b, n)", "(b,)", "(b, m)")
def encoder_decoder() -> Built:
    """A transformer with cross attention and masks, of 3 + 3 blocks; both lengths are open."""
    net = _EncoderDecoder()

    def arguments(b: int, n: int, m: int) -> Any:
        lengths = 1 + np.arange(n - b, n, dtype=np.int32) % n
        return integers(b, n, below=8000), lengths, integers(b, m, below=8000, seed=1)

    example = arguments(2, 9, 7)
    params = random_weights(jax.eval_shape(net.init, jax.random.key(0), *example))
    return Built(net.apply, params, example, [arguments(1, 16, 5), arguments(3, 6, 12)])


class _Recogniser(nn.Module):
    """Frames of sound to the letters that they could be: two bidirectional layers of LSTMs."""

    width: int = 256

    @nn.compact
    def __call__(self, frames: Any, lengths: Any) -> Any:
        x = frames
        for layer in range(2):
            forward, backward = (
                nn.RNN(nn.OptimizedLSTMCell(self.width), name=f"{way}{layer}")
                for way in ("forward", "backward")
            )
            x = nn.Bidirectional(forward, backward)(x, seq_lengths=lengths)
            x = nn.LayerNorm(name=f"norm{layer}")(x)
        return nn.log_softmax(nn.Dense(32, name="letters")(x))


@model("linen", "(b, t, 80)", "(b,)")
def lstm() -> Built:
    """Two bidirectional LSTM layers, scanned over a length that is open, with padded rows."""
    net = _Recogniser()

    def arguments(b: int, t: int) -> Any:
        lengths = np.arange(t, t - b, -1, dtype=np.int32)
        return normal(b, t, 80), lengths

    example = arguments(2, 6)
    params = random_weights(jax.eval_shape(net.init, jax.random.key(0), *example))
    return Built(net.apply, params, example, [arguments(1, 9), arguments(4, 5)])


class _Perceptron(nn.Module):
    """Two dense layers and a normalization."""

    width: int

    @nn.compact
    def __call__(self, *parts: Any) -> Any:
        x = jnp.concatenate(parts, axis=-1)
        return nn.LayerNorm()(nn.Dense(self.width)(nn.silu(nn.Dense(self.width)(x))))


class _GraphNet(nn.Module):
    """Messages along edges, weighed by attention, and a number for each graph."""

    width: int = 128
    rounds: int = 4

    @nn.compact
    def __call__(self, graph: dict[str, Any]) -> dict[str, Any]:
        senders, receivers, owner = graph["senders"], graph["receivers"], graph["owner"]
        count, graphs = graph["nodes"].shape[0], graph["globals"].shape[0]
        nodes = nn.Dense(self.width, name="nodes")(graph["nodes"])
        edges = nn.Dense(self.width, name="edges")(graph["edges"])
        state = nn.Dense(self.width, name="globals")(graph["globals"])
        for i in range(self.rounds):
            pair = nodes[senders], nodes[receivers]
            edges = edges + _Perceptron(self.width, name=f"edge{i}")(edges, *pair)
            weights = _softmax_by(nn.Dense(1, name=f"weight{i}")(edges), receivers, count)
            heard = jax.ops.segment_sum(weights * edges, receivers, count)
            nodes = nodes + _Perceptron(self.width, name=f"node{i}")(nodes, heard, state[owner])
            total = jax.ops.segment_sum(nodes, owner, graphs)
            state = state + _Perceptron(self.width, name=f"global{i}")(state, total)
        energy = nn.Dense(1, name="energy")(state)[:, 0]
        return {"energy": energy, "forces": nn.Dense(3, name="forces")(nodes)}


def _softmax_by(scores: Any, segments: Any, count: Any) -> Any:
    largest = jax.ops.segment_max(scores, segments, count)
    scores = jnp.exp(scores - jax.lax.stop_gradient(largest)[segments])
    return scores / jax.ops.segment_sum(scores, segments, count)[segments]


_GRAPH = {
    "nodes": "(n, 16)",
    "edges": "(e, 4)",
    "senders": "(e,)",
    "receivers": "(e,)",
    "owner": "(n,)",
    "globals": "(g, 8)",
}


@model("linen", _GRAPH)
def graph_net() -> Built:
    """Four rounds of messages; the numbers of nodes, edges and graphs are open."""
    net = _GraphNet()

    def arguments(n: int, e: int, g: int) -> Any:
        graph = {"nodes": normal(n, 16), "edges": normal(e, 4), "globals": normal(g, 8)}
        graph |= {"senders": integers(e, below=n), "receivers": integers(e, below=n, seed=1)}
        return ({**graph, "owner": np.sort(integers(n, below=g))},)

    example = arguments(6, 10, 2)
    params = random_weights(jax.eval_shape(net.init, jax.random.key(0), *example))
    return Built(net.apply, params, example, [arguments(20, 60, 3), arguments(5, 7, 1)])
