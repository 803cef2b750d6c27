"""Programs over every dtype, every kind of pytree, and shapes at the edge."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.program_cases.record import Array, Example, calls, integers, normal, program

BF16 = ml_dtypes.bfloat16


class Moments(NamedTuple):
    """A named tuple."""

    mean: Any
    variance: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Model:
    """A dataclass with data, other trees and a static field."""

    weights: Any
    extra: Any
    scale: int = dataclasses.field(metadata={"static": True}, default=2)


@program(polymorphic_shapes=("(b, 16)", None), tolerance=3e-2, seventeen=True, jit_compile=True)
def bf16() -> Example:
    def layer(x: Any, weights: Any) -> Any:
        return jax.nn.softmax(jnp.tanh(x @ weights)), jnp.sum(x.astype(jnp.float32), axis=-1)

    weights = normal(16, 8, dtype=BF16) / BF16(4)
    return Example(layer, calls(*((normal(b, 16, dtype=BF16), weights) for b in (1, 5))))


@program(polymorphic_shapes="(b, 6)", tolerance=5e-3)
def float16() -> Example:
    return Example(
        lambda x: (jnp.exp(-x * x), jnp.sum(x, -1)),
        calls(*((normal(b, 6, dtype=np.float16),) for b in (1, 4))),
    )


@program(polymorphic_shapes="(b, 6)", x64=True, tolerance=1e-12, jit_compile=True)
def float64() -> Example:
    """64-bit floats and integers, as they are with jax_enable_x64."""

    def several(x: Any) -> Any:
        return jnp.sin(x) * 1e-3, jnp.arange(x.shape[0]) + 2**40, jnp.float64(1) / 3 * x

    return Example(several, calls(*((normal(b, 6, dtype=np.float64),) for b in (1, 4))))


@program(polymorphic_shapes="(b, 6)")
def float64_as_float32() -> Example:
    """64-bit arguments of a function that JAX runs in 32 bits."""
    return Example(
        lambda x: (x * 2, jnp.arange(x.shape[0])),
        calls(*((normal(b, 6, dtype=np.float64),) for b in (1, 4))),
    )


@program(polymorphic_shapes="(b, 6)", differentiable=False, tolerance=0.0)
def small_integers() -> Example:
    def several(x: Any, y: Any, z: Any) -> Any:
        wide = lax.dot_general(x, x, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        return x + x, y // 3, y % 7, z << 2, z ^ 5, wide, x.astype(jnp.float32) / 2, -x

    def arguments(b: int) -> tuple[Array, ...]:
        kinds = ((np.int8, -128, 128), (np.uint8, 0, 256), (np.int16, -999, 999))
        return tuple(integers(low, high, b, 6, dtype=t) for t, low, high in kinds)

    return Example(several, calls(*(arguments(b) for b in (1, 4))))


@program(polymorphic_shapes="(b, 4)", differentiable=False, tolerance=0.0, x64=True)
def large_integers() -> Example:
    def several(x: Any, y: Any, z: Any) -> Any:
        return x * 3, lax.shift_right_logical(y, jnp.uint32(3)), lax.population_count(z), z | 1

    def arguments(b: int) -> tuple[Array, ...]:
        return (
            integers(-(2**40), 2**40, b, 4, dtype=np.int64),
            integers(0, 2**32, b, 4, dtype=np.uint32),
            integers(0, 2**60, b, 4, dtype=np.uint64),
        )

    return Example(several, calls(*(arguments(b) for b in (1, 4))))


@program(polymorphic_shapes="(b, 5)", differentiable=False, tolerance=0.0)
def booleans() -> Example:
    def several(x: Any, y: Any) -> Any:
        return x & y, ~x, jnp.any(x ^ y, axis=1), jnp.where(x, 1, 2), jnp.sum(x)

    return Example(
        several,
        calls(*((normal(b, 5) > 0, normal(b, 5, seed=1) > 0) for b in (1, 4))),
    )


@program(polymorphic_shapes=("(b, 4)", "(b, 4)"))
def mixed_arguments() -> Example:
    """Integers and floats, of which only the floats have a gradient."""
    return Example(
        lambda x, n: (x * n, n + 1, jnp.where(n > 0, x, 0.0)),
        calls(*((normal(b, 4), integers(-3, 3, b, 4)) for b in (1, 4))),
    )


@program(oldest_tensorflow="2.19", polymorphic_shapes="(b, 4)", differentiable=False, tolerance=0.0)
def int4_inside() -> Example:
    """4-bit values within the function, 8-bit ones at its boundary."""

    def several(x: Any) -> Any:
        narrow = x.astype(jnp.int4)
        return narrow.astype(jnp.int8), (narrow + narrow).astype(jnp.int32)

    return Example(several, calls(*((integers(-8, 8, b, 4, dtype=np.int8),) for b in (1, 4))))


@program(
    oldest_tensorflow="2.19",
    polymorphic_shapes=("(b, 4)", "(b, 4)", None),
    differentiable=False,
    tolerance=0.0,
)
def int4_arguments() -> Example:
    """4-bit values as arguments and results, which cross to TensorFlow as int8."""

    def several(x: Any, y: Any, weights: Any) -> Any:
        product = x.astype(jnp.int32) @ weights.astype(jnp.int32)
        return x, y, product, (x.astype(jnp.int8) >> 1).astype(jnp.int4)

    weights = integers(-8, 8, 4, 3).astype(ml_dtypes.int4)
    return Example(
        several,
        calls(
            *(
                (
                    integers(-8, 8, b, 4).astype(ml_dtypes.int4),
                    integers(0, 16, b, 4).astype(ml_dtypes.uint4),
                    weights,
                )
                for b in (1, 4)
            )
        ),
    )


@program(
    polymorphic_shapes=("(b, 8)", None), tolerance=1e-6, differentiable=False, jit_compile=True
)
def fp8_inside() -> Example:
    """8-bit floats within the function, as quantised layers use them.

    The bits of what is rounded are looked at, since XLA may leave out a conversion there and back
    (TensorFlow 2.17 does). The inputs have 8 significant bits, since XLA rounds longer ones twice
    below TensorFlow 2.21; the weights are 8-bit floats already.
    """

    def layer(x: Any, weights: Any) -> Any:
        kinds = (jnp.float8_e4m3fn, jnp.float8_e5m2)
        bits = [lax.bitcast_convert_type(x.astype(kind), jnp.uint8) for kind in kinds]
        narrow = weights.astype(jnp.float8_e4m3fn)
        return bits, lax.dot(narrow.T, narrow, preferred_element_type=jnp.float32)

    weights = normal(8, 3, dtype=ml_dtypes.float8_e4m3fn).astype(np.float32)
    return Example(
        layer, calls(*((normal(b, 8, dtype=BF16).astype(np.float32), weights) for b in (1, 4)))
    )


@program(polymorphic_shapes="(b, 8)", differentiable=False, tolerance=0.0)
def fp8_arguments() -> Example:
    def several(x: Any, y: Any) -> Any:
        return x, y.astype(jnp.float8_e4m3fn), x.astype(jnp.float32) * y.astype(jnp.float32)

    def arguments(b: int) -> tuple[Array, ...]:
        kinds = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
        return tuple(normal(b, 8, seed=i, dtype=t) for i, t in enumerate(kinds))

    return Example(several, calls(*(arguments(b) for b in (1, 4))))


@program(polymorphic_shapes="(b, 4)", jit_compile=True)
def complex64() -> Example:
    def several(z: Any) -> Any:
        return jnp.exp(1j * z) * z.conj(), jnp.abs(z), z.real, jnp.angle(z), z @ z.T

    return Example(several, calls(*((normal(b, 4, dtype=np.complex64),) for b in (1, 3))))


@program(polymorphic_shapes="(b, 4)", x64=True, tolerance=1e-10)
def complex128() -> Example:
    return Example(
        lambda z: (z**3, jnp.sum(jnp.abs(z) ** 2)),
        calls(*((normal(b, 4, dtype=np.complex128),) for b in (1, 3))),
    )


@program(polymorphic_shapes=(None, "(b, 4)"))
def nested_dicts() -> Example:
    """Keys in an order of their own; lists and tuples within."""

    def several(params: Any, x: Any) -> Any:
        z = x * params["b"]["scale"] + params["a"][0] - params["a"][1][0]
        return {"z": z, "a": [z * 2, (z[:1],)], "m": {"y": {"x": jnp.sum(z)}}}

    params = {"b": {"scale": np.float32(2)}, "a": [normal(4), (normal(4, seed=1),)]}
    return Example(several, calls(*((params, normal(b, 4)) for b in (1, 3))))


@program(polymorphic_shapes=(None, "(b, 4)"))
def named_tuples() -> Example:
    def normalise(moments: Moments, x: Any) -> Any:
        y = (x - moments.mean) / jnp.sqrt(moments.variance)
        return Moments(jnp.mean(y, 0), jnp.var(y, 0)), y

    moments = Moments(normal(4), np.abs(normal(4)) + 1)
    return Example(normalise, calls(*((moments, normal(b, 4)) for b in (2, 3))))


@program(polymorphic_shapes=(None, "(b, 4)"))
def dataclasses_and_none() -> Example:
    """A registered dataclass, None and empty containers, in and out."""

    def apply(model: Model, x: Any) -> Any:
        y = x @ model.weights * model.scale
        return Model(y, (None, {}, []), 3), None, {"empty": (), "y": y + model.extra["bias"]}

    model = Model(normal(4, 4), {"bias": normal(4), "nothing": None, "empty": []})
    return Example(apply, calls(*((model, normal(b, 4)) for b in (1, 3))))


@program(polymorphic_shapes="(b, 3)")
def no_results() -> Example:
    return Example(lambda x: (), calls(*((normal(b, 3),) for b in (1, 3))))


@program()
def no_arguments() -> Example:
    return Example(lambda: (jnp.arange(4.0), jnp.int32(7)), calls(()))


@program(polymorphic_shapes="(b, 3)")
def unused_and_untouched() -> Example:
    """An argument that is not used, one that is returned as it is, one result twice, a constant."""

    def several(x: Any, unused: Any, y: Any) -> Any:
        doubled = y * 2
        return x, doubled, doubled, jnp.ones((2,)), jnp.full_like(y, 3)

    return Example(several, calls(*(tuple(normal(b, 3, seed=s) for s in range(3)) for b in (1, 4))))


@program()
def scalars() -> Example:
    def several(x: Any, n: Any) -> Any:
        return x**2, x * n, n + 1, jnp.stack([x, x])

    return Example(several, calls((np.float32(1.5), np.int32(3)), (np.float32(-2), np.int32(0))))


@program(polymorphic_shapes=("(b, 4)", None))
def empty_arrays() -> Example:
    def several(x: Any, nothing: Any) -> Any:
        return x[:, :0], jnp.sum(x[:, :0], axis=1), jnp.concatenate([x, nothing @ x[:1].T @ x[:1]])

    return Example(several, calls(*((normal(b, 4), np.zeros((0, 4), np.float32)) for b in (1, 3))))


@program(polymorphic_shapes="(b, n)", constraints=("b == 2*n",))
def related_dimensions() -> Example:
    """A constraint that ties one dimension to another; sizes enter as numbers."""

    def several(x: Any) -> Any:
        b, n = x.shape
        return x.reshape(2, n * n) * n, jnp.sum(x) / b

    return Example(several, calls(*((normal(2 * n, n),) for n in (1, 3))))


@program(polymorphic_shapes=("(b, _, ...)", "b"))
def placeholders() -> Example:
    return Example(
        lambda x, y: jnp.sum(x, axis=(1, 2)) + y,
        calls(*((normal(b, 3, 2), normal(b)) for b in (1, 4))),
    )


@program(polymorphic_shapes=("(b, 3)", None), key_arguments=(1,), differentiable=False)
def keys_in_and_out() -> Example:
    """A batch of typed keys in, other keys and numbers out."""

    def several(x: Any, keys: Any) -> Any:
        numbers = jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys)
        return jax.random.split(keys[0], 2), x + numbers[0], jax.random.fold_in(keys[1], 5)

    words = integers(0, 2**32, 2, 2, dtype=np.uint32)
    return Example(several, calls(*((normal(b, 3), words) for b in (1, 3))))
