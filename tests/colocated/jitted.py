"""Transformed functions at the top of a module, for tests of how they are sent."""

from typing import Any

import jax


@jax.jit
def jitted(x: Any) -> Any:
    return x * 2


@jax.custom_vjp
def with_vjp(x: Any) -> Any:
    return x * 2


with_vjp.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 5,))


@jax.custom_jvp
def with_jvp(x: Any) -> Any:
    return x * 2


with_jvp.defjvp(lambda p, t: (p[0] * 2, t[0] * 7))
