"""Models in Flax nnx: a U-Net, a mixture of experts, an actor-critic, a language model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.models.model import Built, integers, model, normal, random_weights


def _split(build: Callable[[nnx.Rngs], Any]) -> tuple[Any, Any]:
    """Splits a model into its structure and random weights by path; nothing is computed."""
    graph, state = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))))
    return graph, random_weights(nnx.to_pure_dict(state))


class _Resnet(nnx.Module):
    """Two convolutions beside a shortcut; the time is added between them."""

    def __init__(self, before: int, after: int, time: int, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.GroupNorm(before, num_groups=8, rngs=rngs)
        self.conv1 = nnx.Conv(before, after, (3, 3), rngs=rngs)
        self.time = nnx.Linear(time, after, rngs=rngs)
        self.norm2 = nnx.GroupNorm(after, num_groups=8, rngs=rngs)
        self.conv2 = nnx.Conv(after, after, (3, 3), rngs=rngs)
        self.shortcut = nnx.Conv(before, after, (1, 1), rngs=rngs)

    def __call__(self, x: Any, time: Any) -> Any:
        y = self.conv1(nnx.silu(self.norm1(x))) + self.time(time)[:, None, None]
        return self.shortcut(x) + self.conv2(nnx.silu(self.norm2(y)))


class _PixelAttention(nnx.Module):
    """Each pixel sees all others."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm = nnx.GroupNorm(width, num_groups=8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        b, h, w, c = x.shape
        y = self.attention(self.norm(x).reshape(b, h * w, c))
        return x + y.reshape(b, h, w, c)


class _UNet(nnx.Module):
    """Noise in an image, by way of a half and a quarter of its size."""

    def __init__(self, rngs: nnx.Rngs, width: int = 64) -> None:
        wide, time = 2 * width, 4 * width
        self.width = width
        self.time1 = nnx.Linear(width, time, rngs=rngs)
        self.time2 = nnx.Linear(time, time, rngs=rngs)
        self.first = nnx.Conv(3, width, (3, 3), rngs=rngs)
        self.down1 = _Resnet(width, width, time, rngs)
        self.smaller1 = nnx.Conv(width, width, (3, 3), strides=2, rngs=rngs)
        self.down2 = _Resnet(width, wide, time, rngs)
        self.smaller2 = nnx.Conv(wide, wide, (3, 3), strides=2, rngs=rngs)
        self.middle1 = _Resnet(wide, wide, time, rngs)
        self.attention = _PixelAttention(wide, rngs)
        self.middle2 = _Resnet(wide, wide, time, rngs)
        self.up2 = _Resnet(2 * wide, wide, time, rngs)
        self.up1 = _Resnet(wide + width, width, time, rngs)
        self.norm = nnx.GroupNorm(width, num_groups=8, rngs=rngs)
        self.last = nnx.Conv(width, 3, (3, 3), rngs=rngs)

    def __call__(self, x: Any, step: Any) -> Any:
        angles = step[:, None] * 1e4 ** -jnp.linspace(0, 1, self.width // 2)
        time = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        time = nnx.silu(self.time2(nnx.silu(self.time1(time))))
        full = self.down1(self.first(x), time)
        half = self.down2(self.smaller1(full), time)
        y = self.middle1(self.smaller2(half), time)
        y = self.middle2(self.attention(y), time)
        y = self.up2(jnp.concatenate([_like(y, half), half], axis=-1), time)
        y = self.up1(jnp.concatenate([_like(y, full), full], axis=-1), time)
        return self.last(nnx.silu(self.norm(y)))


def _like(x: Any, other: Any) -> Any:
    """Enlarged to the other's height and width."""
    return jax.image.resize(x, (*other.shape[:3], x.shape[-1]), "nearest")


@model("nnx", "(b, 4*h, 4*w, 3)", "(b,)", None)
def diffusion_unet() -> Built:
    """One denoising step with fresh noise; batch, height and width are open."""
    graph, params = _split(_UNet)
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, 1000, dtype=np.float32))

    def step(params: Any, x: Any, t: Any, key: Any) -> dict[str, Any]:
        noise = nnx.merge(graph, params)(x, t.astype(jnp.float32))
        now, before = (
            jnp.asarray(kept)[i][:, None, None, None] for i in (t, jnp.maximum(t - 1, 0))
        )
        clean = (x - jnp.sqrt(1 - now) * noise) / jnp.sqrt(now)
        beta = 1 - now / before
        mean = jnp.sqrt(before) * beta / (1 - now) * clean
        mean += jnp.sqrt(1 - beta) * (1 - before) / (1 - now) * x
        fresh = jax.random.normal(key, x.shape)
        return {"x": mean + jnp.sqrt(beta) * fresh, "noise": noise}

    def arguments(b: int, h: int, w: int) -> Any:
        return normal(b, h, w, 3), 900 - 7 * np.arange(b, dtype=np.int32), jax.random.key(b)

    return Built(step, params, arguments(2, 16, 12), [arguments(1, 24, 16), arguments(3, 8, 20)])


class _Experts(nnx.Module):
    """Each word goes to two of eight dense nets, as far as these have room for it."""

    def __init__(self, width: int, rngs: nnx.Rngs, experts: int = 8) -> None:
        self.experts = experts
        self.router = nnx.Linear(width, experts, use_bias=False, rngs=rngs)
        draw = nnx.initializers.lecun_normal(batch_axis=0)
        self.wide = nnx.Param(draw(rngs.params(), (experts, width, 4 * width)))
        self.narrow = nnx.Param(draw(rngs.params(), (experts, 4 * width, width)))

    def __call__(self, x: Any) -> tuple[Any, Any]:
        room = (2 * x.shape[1] + self.experts - 1) // self.experts + 1
        odds = jax.nn.softmax(self.router(x))
        weights, chosen = jax.lax.top_k(odds, 2)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        picked = jax.nn.one_hot(chosen, self.experts)
        b, n, k, e = picked.shape
        place = (jnp.cumsum(picked.reshape(b, n * k, e), axis=1) - 1).reshape(picked.shape)
        seat = jax.nn.one_hot((place * picked).sum(axis=-1).astype(jnp.int32), room)
        sent = picked[..., None] * seat[..., None, :]
        inside = jnp.einsum("bnkes,bnd->besd", sent, x)
        inside = jax.nn.gelu(jnp.einsum("besd,edf->besf", inside, self.wide[...]))
        inside = jnp.einsum("besf,efd->besd", inside, self.narrow[...])
        out = jnp.einsum("bnkes,bnk,besd->bnd", sent, weights, inside)
        load = self.experts * (odds.mean(axis=(0, 1)) * picked.mean(axis=(0, 1, 2))).sum()
        return out, load


class _ExpertBlock(nnx.Module):
    """A block whose second half is the experts."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.norm1 = nnx.RMSNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(8, width, decode=False, rngs=rngs)
        self.norm2 = nnx.RMSNorm(width, rngs=rngs)
        self.experts = _Experts(width, rngs)

    def __call__(self, x: Any) -> tuple[Any, Any]:
        mask = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm1(x), mask=mask)
        y, load = self.experts(self.norm2(x))
        return x + y, load


class _MixtureOfExperts(nnx.Module):
    """A language model of four such blocks."""

    def __init__(self, rngs: nnx.Rngs, width: int = 256, words: int = 4000) -> None:
        self.embed = nnx.Embed(words, width, rngs=rngs)
        self.blocks = nnx.Dict({f"block{i}": _ExpertBlock(width, rngs) for i in range(4)})
        self.norm = nnx.RMSNorm(width, rngs=rngs)

    def __call__(self, words: Any) -> dict[str, Any]:
        x, loads = self.embed(words) * 16, []
        for i in range(4):
            x, load = self.blocks[f"block{i}"](x)
            loads.append(load)
        return {"scores": self.embed.attend(self.norm(x)), "load": jnp.stack(loads)}


@model("nnx", "(b, n)", gradient_tolerance=3e-3)
def mixture_of_experts() -> Built:
    """Top-2 routing to eight experts with as much room as the length, which is open, asks for."""
    graph, params = _split(_MixtureOfExperts)

    def scores(params: Any, words: Any) -> Any:
        return nnx.merge(graph, params)(words)

    calls = [(integers(1, 11, below=4000),), (integers(3, 8, below=4000),)]
    return Built(scores, params, (integers(2, 7, below=4000),), calls)


class _ActorCritic(nnx.Module):
    """Four frames of a game to a choice among 18 actions, and what the frames are worth."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(4, 32, (8, 8), strides=4, padding="VALID", rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (4, 4), strides=2, padding="VALID", rngs=rngs)
        self.conv3 = nnx.Conv(64, 64, (3, 3), padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(7 * 7 * 64, 512, rngs=rngs)
        self.actor = nnx.Linear(512, 18, rngs=rngs)
        self.critic = nnx.Linear(512, 1, rngs=rngs)

    def __call__(self, frames: Any) -> tuple[Any, Any]:
        x = frames.astype(jnp.float32) / 255
        for conv in (self.conv1, self.conv2, self.conv3):
            x = nnx.relu(conv(x))
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return jax.nn.log_softmax(self.actor(x)), self.critic(x)[:, 0]


@model("nnx", "(b, 84, 84, 4)", None)
def actor_critic() -> Built:
    """Draws an action with the caller's key; the frames are uint8, so that only weights learn."""
    graph, params = _split(_ActorCritic)

    def act(params: Any, frames: Any, key: Any) -> dict[str, Any]:
        odds, value = nnx.merge(graph, params)(frames)
        action = jax.random.categorical(key, odds)
        log_odds = jnp.take_along_axis(odds, action[:, None], axis=1)[:, 0]
        entropy = -(jnp.exp(odds) * odds).sum(axis=-1)
        return {"action": action, "log_odds": log_odds, "value": value, "entropy": entropy}

    def arguments(b: int) -> Any:
        return integers(b, 84, 84, 4, below=256, dtype=np.uint8), jax.random.key(b)

    return Built(act, params, arguments(2), [arguments(1), arguments(5)])


class _CachedBlock(nnx.Module):
    """A block that sees the words before by what it has kept of them."""

    def __init__(self, width: int, rngs: nnx.Rngs, heads: int = 8) -> None:
        self.heads = heads
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.joint = nnx.Linear(width, 3 * width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.wide = nnx.Linear(width, 4 * width, rngs=rngs)
        self.narrow = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Any, kept: Any, at: Any) -> tuple[Any, Any]:
        """`x` are the words from position `at` on; `kept` has room for all, (2, b, room, ...)."""
        b, n, width = x.shape
        joint = self.joint(self.norm1(x)).reshape(b, n, 3, self.heads, -1)
        query, new = joint[:, :, 0], jnp.moveaxis(joint[:, :, 1:], 2, 0)
        kept = jax.lax.dynamic_update_slice(kept, new, (0, 0, at, 0, 0))
        keys, values = kept
        scores = jnp.einsum("bnhd,bmhd->bhnm", query, keys) / (width // self.heads) ** 0.5
        seen = jnp.arange(keys.shape[1])[None] <= at + jnp.arange(n)[:, None]
        odds = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        y = jnp.einsum("bhnm,bmhd->bnhd", odds, values).reshape(b, n, width)
        x = x + self.out(y)
        return x + self.narrow(nnx.gelu(self.wide(self.norm2(x)))), kept


class _LanguageModel(nnx.Module):
    """Four such blocks."""

    def __init__(self, rngs: nnx.Rngs, width: int = 256, words: int = 4000) -> None:
        self.width = width
        self.embed = nnx.Embed(words, width, rngs=rngs)
        self.blocks = nnx.Dict({f"block{i}": _CachedBlock(width, rngs) for i in range(4)})
        self.norm = nnx.LayerNorm(width, rngs=rngs)

    def __call__(self, words: Any, kept: Any, at: Any) -> tuple[Any, Any]:
        rates = 1e4 ** -jnp.linspace(0, 1, self.width // 2)
        angles = (at + jnp.arange(words.shape[1]))[:, None] * rates
        x = self.embed(words) * 16
        x = x + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
        after = []
        for i in range(4):
            x, now = self.blocks[f"block{i}"](x, kept[i], at)
            after.append(now)
        return self.embed.attend(self.norm(x)), jnp.stack(after)


_NEW_WORDS = 6


@model("nnx", "(b, n)")
def language_model() -> Built:
    """Reads a prompt of an open length, and goes on by six words with what it kept of the rest."""
    graph, params = _split(_LanguageModel)

    def generate(params: Any, prompt: Any) -> dict[str, Any]:
        net = nnx.merge(graph, params)
        b, n = prompt.shape
        kept = jnp.zeros((4, 2, b, n + _NEW_WORDS, 8, 32))
        scores, kept = net(prompt, kept, 0)

        def step(state: Any, i: Any) -> Any:
            last, kept = state
            word = jnp.argmax(last, axis=-1).astype(jnp.int32)
            odds = jnp.max(jax.nn.log_softmax(last), axis=-1)
            scores, kept = net(word[:, None], kept, n + i)
            return (scores[:, 0], kept), (word, odds)

        first = (scores[:, -1], kept)
        _, (words, odds) = jax.lax.scan(step, first, jnp.arange(_NEW_WORDS))
        return {"words": words.T, "odds": odds.T}

    calls = [(integers(1, 9, below=4000),), (integers(3, 4, below=4000),)]
    return Built(generate, params, (integers(2, 5, below=4000),), calls)
