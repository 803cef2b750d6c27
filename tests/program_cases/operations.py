"""Programs of single operations and control flow, mostly at symbolic shapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.program_cases.record import Example, calls, integers, normal, program


@program(seventeen=True, differentiable=False, jit_compile=True)
def control_flow() -> Example:
    """A scan, a while loop and a cond; a while loop has no reverse-mode gradient."""

    def loops(x: Any) -> Any:
        total, steps = lax.scan(lambda c, row: (c + row, jnp.tanh(c)), jnp.zeros(3), x)
        grown = lax.while_loop(lambda v: jnp.sum(v) < 100, lambda v: v * 2 + 1, jnp.abs(total))
        chosen = lax.cond(total[0] > 0, lambda v: v + 1, lambda v: v * 3, total)
        return total, steps, grown, chosen

    return Example(loops, calls((normal(4, 3),), (-np.abs(normal(4, 3)),)))


def _sorted_and_top(x: Any) -> Any:
    values, indices = lax.top_k(x, 3)
    return jnp.sort(x, axis=-1), jnp.argsort(x, axis=0), values, indices


@program(seventeen=True)
def sort_top_k() -> Example:
    return Example(_sorted_and_top, calls((normal(4, 6),), (normal(4, 6, seed=1),)))


@program(polymorphic_shapes="(b, 6)", seventeen=True)
def sort_top_k_symbolic() -> Example:
    return Example(_sorted_and_top, calls(*((normal(b, 6),) for b in (1, 4))))


@program(polymorphic_shapes="(n,)", constraints=("n >= 2",))
def top_k_of_symbolic() -> Example:
    """Sorts along an open size, for which StableHLO has no operation."""
    return Example(lambda x: lax.top_k(x, 2), calls(*((normal(n),) for n in (2, 9))))


@program(seventeen=True, differentiable=False, jit_compile=True)
def prng() -> Example:
    def numbers(seed: Any) -> Any:
        key, *others = jax.random.split(jax.random.key(seed), 5)
        return (
            jax.random.normal(key, (3, 4)),
            jax.random.uniform(others[0], (5,)),
            jax.random.randint(others[1], (6,), 0, 100),
            jax.random.permutation(others[2], 7),
            jax.random.categorical(others[3], jnp.arange(4.0), shape=(5,)),
        )

    return Example(numbers, calls((np.int32(0),), (np.int32(42),)))


@program(polymorphic_shapes="(b, 2)", differentiable=False)
def prng_symbolic() -> Example:
    def numbers(x: Any) -> Any:
        key = jax.random.key(3)
        return jax.random.normal(key, x.shape) + x, jax.random.truncated_normal(key, -1, 1, x.shape)

    return Example(numbers, calls(*((normal(b, 2),) for b in (1, 5))))


@program(seventeen=True, jit_compile=True)
def fft() -> Example:
    def transforms(x: Any) -> Any:
        spectrum = jnp.fft.rfft(x)
        filtered = jnp.fft.irfft(spectrum * jnp.exp(-jnp.arange(5.0)), n=8)
        return jnp.abs(jnp.fft.fft2(x)), spectrum.real, spectrum.imag, filtered

    return Example(transforms, calls((normal(4, 8),), (normal(4, 8, seed=1),)))


@program(polymorphic_shapes="(b, 8)")
def fft_symbolic() -> Example:
    return Example(
        lambda x: jnp.real(jnp.fft.ifft(jnp.fft.fft(x) ** 2)),
        calls(*((normal(b, 8),) for b in (1, 3))),
    )


@program(polymorphic_shapes=("(b, 7)", "(b, 3)"))
def gather_in_batches() -> Example:
    """Indexing under vmap, along an axis, and by pairs: gathers with batching dimensions."""

    def gathers(x: Any, indices: Any) -> Any:
        rows = jax.vmap(lambda row, i: row[i])(x, indices)
        window = jax.vmap(lambda row, i: lax.dynamic_slice(row, (i,), (2,)))(x, indices[:, 0])
        along = jnp.take_along_axis(x, indices, axis=1)
        return rows, window, along, x[jnp.arange(x.shape[0]), indices[:, 1]]

    return Example(gathers, calls(*((normal(b, 7), integers(0, 7, b, 3)) for b in (1, 4))))


@program(polymorphic_shapes=("(b, 7)", "(b, 3)", "(b, 3)"))
def scatter_in_batches() -> Example:
    def scatters(x: Any, indices: Any, updates: Any) -> Any:
        added = jax.vmap(lambda row, i, u: row.at[i].add(u))(x, indices, updates)
        replaced = jax.vmap(lambda row, i, u: row.at[i[0]].set(u[0]))(x, indices, updates)
        return added, replaced, x.at[:, 2].multiply(3.0), x.at[indices[0, 0] % 1].max(0.5)

    return Example(
        scatters,
        calls(*((normal(b, 7), integers(0, 7, b, 3), normal(b, 3, seed=2)) for b in (1, 4))),
    )


# JAX 0.12 asks for an accurate exp in the derivative of erf, which TF 2.19 is the first to read.
@program(polymorphic_shapes="(b, 6)", oldest_for_gradient="2.19")
def gelu_and_erf() -> Example:
    def several(x: Any) -> Any:
        inside = jnp.tanh(x) * 0.9
        return (
            jax.nn.gelu(x, approximate=False),
            jax.nn.gelu(x),
            lax.erf(x),
            lax.erfc(x),
            lax.erf_inv(inside),
        )

    return Example(several, calls(*((normal(b, 6),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 4)")
def special_functions() -> Example:
    def several(x: Any) -> Any:
        positive = jnp.abs(x) + 0.5
        return (
            lax.lgamma(positive),
            lax.digamma(positive),
            jax.scipy.special.gammainc(positive, positive + 1.0).sum(),
            jax.scipy.special.i0e(x),
            jnp.arctan2(x, positive),
            jnp.sinh(x) + jnp.arcsinh(x) + jnp.arctanh(jnp.tanh(x)),
            jnp.log1p(positive) + jnp.expm1(x) + jnp.cbrt(positive),
            jax.nn.logsumexp(x, axis=-1),
        )

    return Example(several, calls(*((normal(b, 4),) for b in (1, 3))))


@program(polymorphic_shapes="(b, 6)")
def cumulative() -> Example:
    def several(x: Any) -> Any:
        return (
            jnp.cumsum(x, axis=0),
            jnp.cumprod(x, axis=1),
            lax.cummax(x, axis=1, reverse=True),
            lax.cumlogsumexp(x, axis=1),
        )

    return Example(several, calls(*((normal(b, 6),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 6)")
def associative_scan() -> Example:
    return Example(
        lambda x: lax.associative_scan(lambda a, b: a * b + a, x, axis=1),
        calls(*((normal(b, 6),) for b in (1, 3))),
    )


@program(polymorphic_shapes="(b, n)")
def reductions() -> Example:
    """JAX has no gradient of a product whose other dimensions are symbolic."""

    def several(x: Any) -> Any:
        return (
            jnp.argmax(x, axis=1),
            jnp.argmin(x, axis=0),
            jnp.max(x),
            jnp.prod(lax.stop_gradient(x), axis=1),
            jnp.std(x, axis=1),
            jnp.any(x > 1, axis=0),
            jnp.mean(x, axis=0) * x.shape[0],
        )

    return Example(several, calls(*((normal(*s),) for s in ((2, 3), (5, 4)))))


@program(polymorphic_shapes=("(b, 8)", None))
def dynamic_slices() -> Example:
    def several(x: Any, start: Any) -> Any:
        piece = lax.dynamic_slice_in_dim(x, start, 3, axis=1)
        return piece, lax.dynamic_update_slice(x, piece * 2, (0, start + 1)), x[:, 1:-1:2]

    starts = (np.int32(0), np.int32(9))
    return Example(
        several, calls(*((normal(b, 8), s) for b, s in zip((1, 3), starts, strict=True)))
    )


@program(polymorphic_shapes=("(b, n, 3)", "(b, m, 3)"))
def einsum() -> Example:
    def several(x: Any, y: Any) -> Any:
        distances = jnp.sum((x[:, :, None] - y[:, None]) ** 2, axis=-1)
        return jnp.einsum("bnd,bmd->bnm", x, y), jnp.tensordot(x[0].T, x[0], 1), distances

    shapes = ((1, 2, 4), (3, 5, 1))
    return Example(several, calls(*((normal(b, n, 3), normal(b, m, 3)) for b, n, m in shapes)))


@program(polymorphic_shapes="(b, n)", constraints=("n >= 2",))
def reshapes() -> Example:
    """Shape arithmetic: products of symbols, concatenation, padding, sizes as numbers."""

    def several(x: Any) -> Any:
        b, n = x.shape
        flat = x.reshape(b * n)
        doubled = jnp.concatenate([x, x[::-1]], axis=0)
        padded = jnp.pad(x, ((0, 0), (1, 2)), constant_values=7)
        return (
            flat + jnp.arange(b * n),
            doubled,
            padded,
            jnp.roll(x, 1, axis=1),
            jnp.tile(x, (2, 1)),
            x[:, 1:] - x[:, :-1],
            jnp.broadcast_to(x[:1], (b, n)).T,
            jnp.linspace(0.0, 1.0, n),
        )

    return Example(several, calls(*((normal(*s),) for s in ((1, 2), (3, 5)))))


@program(polymorphic_shapes="(b, 5)", jit_compile=True)
def differentiable_loops() -> Example:
    """A loop of a fixed length, a switch, a map and a rematerialised scan."""

    def several(x: Any) -> Any:
        powers = lax.fori_loop(0, 4, lambda i, v: v * jnp.cos(x) + i, x)
        branches = [jnp.sin, jnp.cos, lambda v: v * 2]
        chosen = lax.switch(x.shape[0] % 3, branches, x)
        mapped = lax.map(lambda row: row / (1 + jnp.sum(row**2)), x)
        scanned, _ = lax.scan(
            jax.checkpoint(lambda c, _: (jnp.sin(c) * 1.1, None)), x, None, length=3
        )
        return powers, chosen, mapped, scanned

    return Example(several, calls(*((normal(b, 5),) for b in (1, 4))))


@program(polymorphic_shapes=("(n, 3)", "(n,)"))
def segments() -> Example:
    def several(values: Any, ids: Any) -> Any:
        return (
            jax.ops.segment_sum(values, ids, num_segments=4),
            jax.ops.segment_max(values, ids, num_segments=4, indices_are_sorted=False),
            jnp.bincount(ids, length=4),
        )

    return Example(several, calls(*((normal(n, 3), np.arange(n) % 4) for n in (4, 9))))


@program(polymorphic_shapes=("(b,)", None, None))
def interpolation() -> Example:
    def several(x: Any, knots: Any, values: Any) -> Any:
        return jnp.interp(x, knots, values), jnp.searchsorted(knots, x), jnp.digitize(x, knots)

    knots = np.linspace(-2, 2, 9, dtype=np.float32)
    return Example(several, calls(*((normal(b), knots, np.sin(knots)) for b in (1, 6))))


@program(polymorphic_shapes="(b, 4)")
def selections() -> Example:
    def several(x: Any) -> Any:
        return (
            jnp.where(x > 0, x, 0.1 * x),
            jnp.clip(x, -0.5, 0.5),
            lax.select_n(jnp.sign(x).astype(jnp.int32) + 1, x, x * 2, x * 3),
            jnp.nextafter(lax.stop_gradient(x), 9.0),
            jnp.nan_to_num(jnp.log(x), nan=-1.0),
            jnp.round(x, 1),
            jnp.floor(x) + lax.rem(x, jnp.full_like(x, 0.3)),
        )

    return Example(several, calls(*((normal(b, 4),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 3)")
def nested_jit() -> Example:
    """Functions within functions, with a donated and a static argument."""

    @jax.jit
    def inner(x: Any) -> Any:
        return jnp.sin(x) * constant

    constant = jnp.asarray(normal(3))
    middle = jax.jit(lambda x, twice: inner(inner(x)) if twice else x, static_argnums=1)
    outer = jax.jit(lambda x: middle(x, True) + middle(x, False), donate_argnums=0)
    return Example(outer, calls(*((normal(b, 3),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 3)", differentiable=False)
def while_loop_symbolic() -> Example:
    def newton(x: Any) -> Any:
        def step(state: Any) -> Any:
            root, count = state
            return 0.5 * (root + jnp.abs(x) / root), count + 1

        return lax.while_loop(
            lambda state: jnp.any(jnp.abs(state[0] ** 2 - jnp.abs(x)) > 1e-3) & (state[1] < 50),
            step,
            (jnp.ones_like(x), jnp.int32(0)),
        )[0]

    return Example(newton, calls(*((normal(b, 3),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 6)")
def hessian_vector_product() -> Example:
    """Forward over reverse mode inside of the function."""

    def product(x: Any) -> Any:
        def energy(v: Any) -> Any:
            return jnp.sum(jnp.tanh(v) ** 2) + jnp.prod(v)

        return jax.vmap(lambda row: jax.jvp(jax.grad(energy), (row,), (row,))[1])(x)

    return Example(product, calls(*((normal(b, 6),) for b in (1, 3))))
