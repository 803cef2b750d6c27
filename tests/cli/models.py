"""Functions that the tests of the command line export."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify

WEIGHTS = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
params = {"w": WEIGHTS, "b": np.ones(2, np.float32)}
example_args = (params, np.ones((4, 3), np.float32))
scale_of_two = np.float32(2)


class Pair(NamedTuple):
    """A named tuple is one argument, and not all of them."""

    first: Any
    second: Any


pair = Pair(np.ones(3, np.float32), np.ones(3, np.float32))


def make_params() -> dict[str, Any]:
    return params


def fails() -> Any:
    raise OSError("the checkpoint\nis gone")


def predict(params: Any, x: Any) -> Any:
    return {"y": x @ params["w"] + params["b"], "n": [jnp.sum(x)]}


def checked(x: Any) -> Any:
    checkify.check(jnp.all(x >= 0), "negative")
    return x * 2


def total(params: Any, z: Any) -> Any:
    return (z @ params["w"]).sum(1)


def normed(variables: Any, x: Any) -> Any:
    return (x - variables["batch_stats"]["mean"]) * variables["params"]["scale"]


def scaled(x: Any, *, scale: Any) -> Any:
    return jnp.sin(x) * scale


def cube(x: Any) -> Any:
    return x**3


def until_large(x: Any) -> Any:
    return jax.lax.while_loop(lambda v: jnp.all(v < 10), lambda v: v * 2, x)


def halves(x: Any) -> Any:
    middle = x.shape[0] // 2
    return x[:middle] + x[-middle:]


def product(pair: Any) -> Any:
    return pair[0] * pair[1]


def noise(key: Any) -> Any:
    return jax.random.normal(key, (3,))


def solve(a: Any, b: Any) -> Any:
    return jnp.linalg.solve(a, b)


def per_platform(x: Any) -> Any:
    return jax.lax.platform_dependent(x, cpu=jnp.sin, tpu=jnp.cos)


def breaks(x: Any) -> Any:
    raise RuntimeError(f"no {x.shape}\nof the second line")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A pytree of arrays that can be called."""

    weights: Any

    def __call__(self, x: Any) -> Any:
        return x @ self.weights


layer = Layer(WEIGHTS)


def call(layer: Any, x: Any) -> Any:
    return layer(x)


class Net:
    """An object with a method to export."""

    def apply(self, x: Any) -> Any:
        return x + 1


net = Net()


def ones(x: Any) -> Any:
    return x + sum(1 for _ in range(x.shape[0]))


def real_words(ids: Any) -> Any:
    """Knows padding by the number 1."""
    return (ids != 1).sum(1)


def masked(x: Any, mask: Any) -> Any:
    return (x * mask).sum() / jnp.maximum(mask.sum(), 1)


def masked_twice(x: Any, mask: Any, weight: Any) -> Any:
    """Divides what is real, and sees by a sign how the rest is padded."""
    return masked(x, mask) + (x * weight).sum() - jnp.minimum(x, 0).sum()


def kernel(x: Any) -> Any:
    return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def exits() -> Any:
    raise SystemExit("no checkpoint")
