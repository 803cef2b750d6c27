"""Branches, loops, and functions with rules of their own: of jax.lax and jax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.primitives.arguments import booleans, integers, matrix, normal, uniform
from tests.primitives.case import Case, cases

_WHILE = "a while loop has no reverse mode"


def _steps(f: Any, x: Any, **options: Any) -> Any:
    return f(lambda c, e: (jnp.tanh(c * e + 0.1), c + e), x[0], x, **options)


def _newton(f: Any, x: Any) -> Any:
    return f(
        lambda y: y * y - x,
        x,
        lambda g, y: lax.fori_loop(0, 20, lambda _, z: z - g(z) / (2 * z), y),
        lambda g, y: y / g(jnp.ones_like(y)),
    )


def _linear_solve(f: Any, a: Any, b: Any) -> Any:
    return f(
        lambda v: a @ v,
        b,
        lambda _, v: jnp.linalg.solve(a, v),
        lambda _, v: jnp.linalg.solve(a.T, v),
    )


def _with_vjp(f: Any, x: Any) -> Any:
    @f
    def function(x: Any) -> Any:
        return jnp.sin(x)

    function.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * 3 * x,))
    return function(x)


def _with_jvp(f: Any, x: Any) -> Any:
    @f
    def function(x: Any) -> Any:
        return jnp.sin(x)

    function.defjvp(lambda p, t: (jnp.sin(p[0]), t[0] * 3 * p[0]))
    return function(x)


def _with_vmap(f: Any, x: Any) -> Any:
    @f
    def function(x: Any) -> Any:
        return jnp.sin(x)

    function.def_vmap(lambda size, batched, x: (jnp.sin(x), batched[0]))
    return function(x)


def _mapped(f: Any, x: Any) -> Any:
    return jax.vmap(lambda row: f(row, "i"), axis_name="i")(x)


_ROUND = {"ppermute": [(i, (i + 1) % 5) for i in range(5)], "pshuffle": [1, 2, 3, 4, 0]}


def _constrained(f: Any, x: Any) -> Any:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))
    return f(x * 2, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i")))


def _reference(f: Any, x: Any) -> Any:
    ref = f(x)
    ref[0] = ref[0] * 2
    return ref[...]


CASES: tuple[Case, ...] = (
    *cases(
        "jax.lax.cond",
        booleans(),
        normal(3),
        normal(3),
        dtypes=("float32", "complex64"),
        call=lambda f, p, x, y: f(p, lambda a, b: a * b, lambda a, b: jnp.sin(a) - b, x, y),
    ),
    *cases(
        "jax.lax.switch",
        integers(-1, 5),
        normal(3),
        call=lambda f, i, x: f(i, [jnp.sin, jnp.cos, lambda a: a * a], x),
    ),
    *cases(
        "jax.lax.platform_dependent",
        normal(3),
        call=lambda f, x: f(x, cpu=jnp.sin, default=jnp.cos),
    ),
    *cases(
        "jax.lax.scan",
        uniform(-1, 1, 5, 3),
        call=_steps,
        dtypes=("float32", "bfloat16", "complex64"),
    ),
    *cases(
        "jax.lax.scan",
        uniform(-1, 1, 5, 3),
        label="reverse, unrolled",
        call=lambda f, x: _steps(f, x, reverse=True, unroll=2),
    ),
    *cases(
        "jax.lax.scan",
        uniform(-1, 1, 3),
        label="length",
        call=lambda f, x: f(lambda c, _: (jnp.sin(c), None), x, length=4)[0],
    ),
    *cases(
        "jax.lax.while_loop",
        uniform(1, 2, 3),
        no_gradient=_WHILE,
        call=lambda f, x: f(lambda s: jnp.sum(s[0]) < 50, lambda s: (s[0] * 2, s[1] + 1), (x, 0)),
    ),
    *cases(
        "jax.lax.while_loop",
        integers(1, 9),
        label="int32",
        call=lambda f, x: f(lambda s: s < 50, lambda s: s * 2, x),
    ),
    *cases(
        "jax.lax.fori_loop",
        uniform(-1, 1, 3),
        call=lambda f, x: f(0, 4, lambda i, a: jnp.sin(a) + i, x),
    ),
    *cases(
        "jax.lax.fori_loop",
        integers(1, 5),
        uniform(-1, 1, 3),
        label="open bound",
        no_gradient=_WHILE,
        call=lambda f, n, x: f(0, n, lambda i, a: jnp.sin(a) + i, x),
    ),
    *cases("jax.lax.map", normal(5, 3), call=lambda f, x: f(lambda row: jnp.sum(row * row), x)),
    *cases(
        "jax.lax.map",
        normal(5, 3),
        label="in batches",
        call=lambda f, x: f(lambda row: jnp.sum(row * row), x, batch_size=2),
    ),
    *cases(
        "jax.lax.associative_scan",
        normal(7, 3),
        call=lambda f, x: (f(jnp.add, x), f(jnp.multiply, x, reverse=True)),
    ),
    *cases("jax.lax.custom_root", uniform(1, 4), call=_newton),
    *cases(
        "jax.lax.custom_linear_solve",
        matrix(4),
        normal(4),
        call=_linear_solve,
        dtypes=("float32", "float64"),
    ),
    *cases(
        "jax.lax.composite",
        normal(3),
        call=lambda f, x: f(lambda a: jnp.sin(a) * 2, "own.double_sin")(x),
        no_gradient="JAX has no derivative of it",
        no_batch="JAX does not map it",
    ),
    *cases("jax.custom_vjp", normal(3), call=_with_vjp),
    *cases("jax.custom_jvp", normal(3), call=_with_jvp),
    *cases(
        "jax.custom_batching.custom_vmap",
        normal(3),
        call=_with_vmap,
        no_gradient="custom_vmap has no reverse mode",
    ),
    *cases("jax.checkpoint", normal(3), call=lambda f, x: f(lambda a: jnp.sin(jnp.sin(a)))(x)),
    *cases("jax.jit", normal(3), call=lambda f, x: f(lambda a: jnp.sin(a) * 2)(x)),
    *cases(
        "jax.named_call", normal(3), call=lambda f, x: f(lambda a: jnp.sin(a) * 2, name="own")(x)
    ),
    *cases("jax.grad", normal(3), call=lambda f, x: f(lambda a: jnp.sum(jnp.sin(a) ** 3))(x)),
    *cases(
        "jax.jvp",
        normal(3),
        normal(3),
        call=lambda f, x, t: f(lambda a: jnp.sin(a) ** 3, (x,), (t,)),
    ),
    *cases("jax.hessian", normal(3), call=lambda f, x: f(lambda a: jnp.prod(jnp.sin(a)))(x)),
    *cases(
        "jax.linearize",
        normal(3),
        normal(3),
        call=lambda f, x, t: f(lambda a: jnp.sin(a) ** 3, x)[1](t),
    ),
    *cases("jax.vmap", normal(5, 3), normal(3), call=lambda f, x, y: f(jnp.dot, (0, None))(x, y)),
    # Collectives over a mapped axis are sums and moves along it.
    *cases("jax.lax.all_gather", normal(5, 3), call=_mapped),
    *cases("jax.lax: psum pmean", normal(5, 3), call=_mapped),
    *cases("jax.lax: pmax pmin", integers(-9, 9, 5, 3), call=_mapped),
    *cases(
        "jax.lax: axis_index axis_size",
        normal(5, 3),
        call=lambda f, x: _mapped(lambda a, name: a * f(name), x),
    ),
    *cases(
        "jax.lax: ppermute pshuffle",
        normal(5, 3),
        label="mapped",
        call=lambda f, x: _mapped(lambda a, name: f(a, name, _ROUND[f.__name__]), x),
    ),
    *cases(
        "jax.lax.all_to_all", normal(5, 5), call=lambda f, x: _mapped(lambda a, n: f(a, n, 0, 0), x)
    ),
    *cases(
        "jax.lax.pswapaxes", normal(5, 5), call=lambda f, x: _mapped(lambda a, n: f(a, n, 0), x)
    ),
    *cases("jax.lax.psum_scatter", normal(5, 5), call=_mapped),
    # Operations over several devices, here on one.
    *cases("jax.lax.with_sharding_constraint", normal(4, 3), call=_constrained),
    *cases("jax.lax.after_all", normal(3), call=lambda f, x: (f(lax.create_token()), x)[1]),
    *cases("jax.lax.create_token", normal(3), call=lambda f, x: (lax.after_all(f()), x)[1]),
    *cases("jax.new_ref", normal(3), call=_reference),
)
