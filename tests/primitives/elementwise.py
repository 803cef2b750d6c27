"""Functions of numbers, one by one: of jax.lax."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.primitives.arguments import booleans, distinct, fixed, integers, normal, uniform
from tests.primitives.case import COMPLEX, FLOATS, INTEGERS, Case, cases

_ALL_INEXACT = (*FLOATS, *COMPLEX)
_ORDERED = ("float32", "bfloat16", "int32", "uint8")

CASES: tuple[Case, ...] = (
    # Everywhere, real and complex.
    *cases(
        "jax.lax: neg sin cos tanh exp sinh cosh atan asinh expm1 square sign exp2 logistic",
        normal(3, 4),
        dtypes=_ALL_INEXACT,
    ),
    *cases("jax.lax: one_minus_square", normal(3, 4), dtypes=("float32", "complex64")),
    *cases("jax.lax: tan", uniform(-1.2, 1.2, 3, 4), dtypes=_ALL_INEXACT),
    *cases("jax.lax: asin acos atanh", uniform(-0.9, 0.9, 3, 4), dtypes=_ALL_INEXACT),
    *cases(
        "jax.lax: log log1p log2 sqrt rsqrt acosh reciprocal",
        uniform(1.1, 4.0, 3, 4),
        dtypes=_ALL_INEXACT,
    ),
    *cases("jax.lax: neg square sign abs", normal(3, 4), dtypes=("int32", "int8"), label="whole"),
    *cases("jax.lax.abs", normal(3, 4), dtypes=_ALL_INEXACT),
    *cases(
        "jax.lax.integer_pow",
        uniform(0.5, 2, 3, 4),
        call=lambda f, x: (f(x, 3), f(x, -2)),
        dtypes=("float32", "bfloat16", "complex64"),
    ),
    *cases(
        "jax.lax.integer_pow",
        integers(-4, 5, 3, 4, dtype=None),
        call=lambda f, x: f(x, 4),
        dtypes=("int32",),
    ),
    *cases(
        "jax.lax.polynomial", uniform(-1, 1, 3, 4), call=lambda f, x: f(x, [0.5, -1.0, 2.0, 0.25])
    ),
    *cases("jax.lax.cbrt", uniform(0.2, 8, 3, 4), dtypes=FLOATS),
    # Steps.
    *cases("jax.lax: floor ceil is_finite", normal(3, 4), dtypes=FLOATS),
    *cases(
        "jax.lax.is_finite",
        fixed([1.0, float("inf"), float("nan"), -float("inf")]),
        label="not finite",
        dtypes=("float32", "bfloat16"),
    ),
    *cases(
        "jax.lax.round",
        fixed([-2.5, -1.5, -0.5, 0.4, 0.5, 1.5, 2.5]),
        call=lambda f, x: (f(x), f(x, lax.RoundingMethod.TO_NEAREST_EVEN)),
        dtypes=FLOATS,
    ),
    # Its derivative is new in JAX 0.11.
    *cases(
        "jax.lax.nextafter",
        normal(3, 4),
        normal(3, 4),
        dtypes=("float32", "float64", "bfloat16"),
        call=lambda f, x, y: f(lax.stop_gradient(x), lax.stop_gradient(y)),
    ),
    *cases(
        "jax.lax.reduce_precision",
        normal(3, 4),
        call=lambda f, x: f(x, 5, 7),
        dtypes=("float32", "float64"),
    ),
    # Complex numbers and their parts.
    *cases("jax.lax: real imag", normal(3, 4), dtypes=COMPLEX),
    *cases("jax.lax.conj", normal(3, 4), dtypes=("float32", *COMPLEX)),
    *cases("jax.lax.complex", normal(3, 4), normal(3, 4), dtypes=("float32", "float64")),
    # Two numbers.
    *cases(
        "jax.lax: add sub mul",
        normal(3, 4),
        normal(3, 4),
        dtypes=(*_ALL_INEXACT, *INTEGERS, "int8"),
    ),
    *cases(
        "jax.lax.mul",
        normal(3, 4),
        normal(3, 4),
        call=lambda f, x, y: f(x, y, out_dtype=jnp.float32),
        dtypes=("bfloat16",),
        label="wider result",
        needs="jax.lax.mulhi",
    ),
    *cases("jax.lax.div", normal(3, 4), uniform(1, 3, 3, 4), dtypes=_ALL_INEXACT),
    *cases(
        "jax.lax: div rem",
        integers(-9, 10, 3, 4, dtype=None),
        integers(1, 5, 3, 4, dtype=None),
        dtypes=("int32", "int8", "int64"),
    ),
    *cases(
        "jax.lax: div rem",
        integers(0, 20, 3, 4, dtype=None),
        integers(1, 5, 3, 4, dtype=None),
        dtypes=("uint8", "uint32"),
    ),
    *cases("jax.lax.rem", normal(3, 4), uniform(1, 3, 3, 4), dtypes=FLOATS),
    *cases("jax.lax: max min", distinct(3, 4), distinct(3, 4), dtypes=(*_ORDERED, "float64")),
    *cases("jax.lax: max min", booleans(3, 4), booleans(3, 4), label="bool"),
    *cases("jax.lax.pow", uniform(0.3, 2, 3, 4), normal(3, 4), dtypes=_ALL_INEXACT),
    *cases("jax.lax.pow", uniform(0.3, 2, 3, 4), integers(-2, 4, 3, 4), label="integer exponent"),
    *cases("jax.lax.atan2", normal(3, 4), normal(3, 4), dtypes=FLOATS),
    *cases(
        "jax.lax.clamp",
        fixed(np.full((3, 4), -0.5)),
        normal(3, 4),
        fixed(np.full((3, 4), 1.5)),
        dtypes=("float32", "bfloat16"),
    ),
    *cases(
        "jax.lax.clamp", fixed(2), integers(0, 9, 3, 4, dtype=None), fixed(6), dtypes=("int32",)
    ),
    *cases(
        "jax.lax: eq ne",
        integers(0, 3, 3, 4, dtype=None),
        integers(0, 3, 3, 4, dtype=None),
        dtypes=(*_ORDERED, "complex64"),
    ),
    *cases(
        "jax.lax: lt le gt ge",
        integers(0, 3, 3, 4, dtype=None),
        integers(0, 3, 3, 4, dtype=None),
        dtypes=_ORDERED,
    ),
    # Bits.
    *cases(
        "jax.lax: bitwise_and bitwise_or bitwise_xor",
        integers(0, 90, 3, 4, dtype=None),
        integers(0, 90, 3, 4, dtype=None),
        dtypes=INTEGERS,
    ),
    *cases(
        "jax.lax: bitwise_and bitwise_or bitwise_xor", booleans(3, 4), booleans(3, 4), label="bool"
    ),
    *cases("jax.lax.bitwise_not", integers(0, 90, 3, 4, dtype=None), dtypes=INTEGERS),
    *cases("jax.lax.bitwise_not", booleans(3, 4), label="bool"),
    *cases("jax.lax: clz population_count", integers(0, 90, 3, 4, dtype=None), dtypes=INTEGERS),
    *cases(
        "jax.lax: shift_left shift_right_logical shift_right_arithmetic",
        integers(0, 90, 3, 4, dtype=None),
        integers(0, 7, 3, 4, dtype=None),
        dtypes=INTEGERS,
    ),
    *cases(
        "jax.lax: shift_right_logical shift_right_arithmetic",
        integers(-90, 0, 3, 4, dtype=None),
        integers(0, 40, 3, 4, dtype=None),
        dtypes=("int32",),
        label="negative",
    ),
    *cases(
        "jax.lax.mulhi",
        integers(-(2**31), 2**31, 3, 4, dtype=None),
        integers(-(2**31), 2**31, 3, 4, dtype=None),
        dtypes=("int32",),
    ),
    *cases(
        "jax.lax.mulhi",
        integers(0, 2**32, 3, 4, dtype=None),
        integers(0, 2**32, 3, 4, dtype=None),
        dtypes=("uint32",),
    ),
    # Types.
    *cases(
        "jax.lax.convert_element_type",
        uniform(-90, 90, 3, 4),
        dtypes=FLOATS,
        call=lambda f, x: [
            f(x, t) for t in (jnp.float16, jnp.bfloat16, jnp.int32, bool, jnp.complex64)
        ],
    ),
    *cases(
        "jax.lax.convert_element_type",
        uniform(-2, 2, 3, 4),
        label="8 bits",
        call=lambda f, x: [f(f(x, t), jnp.float32) for t in (jnp.float8_e4m3fn, jnp.float8_e5m2)],
    ),
    *cases(
        "jax.lax.convert_element_type",
        integers(-7, 8, 3, 4),
        label="4 bits",
        call=lambda f, x: f(f(x, jnp.int4), jnp.int32),
    ),
    *cases(
        "jax.lax.convert_element_type",
        integers(0, 90, 3, 4, dtype=None),
        dtypes=INTEGERS,
        call=lambda f, x: [f(x, t) for t in (jnp.float32, jnp.int8, bool)],
    ),
    *cases("jax.lax.bitcast_convert_type", normal(3, 4), call=lambda f, x: f(x, jnp.int32)),
    *cases(
        "jax.lax.bitcast_convert_type",
        normal(3, 4),
        label="narrower",
        call=lambda f, x: (f(x, jnp.uint8), f(x, jnp.bfloat16), f(f(x, jnp.uint16), jnp.int32)),
    ),
    # Functions that are themselves.
    *cases("jax.lax.stop_gradient", normal(3, 4), call=lambda f, x: f(x) * x),
    *cases(
        "jax.lax.optimization_barrier", normal(3, 4), normal(2), call=lambda f, x, y: f((x * 2, y))
    ),
    *cases("jax.lax.stage", normal(3, 4)),
    *cases("jax.numpy.copy", normal(3, 4)),
    *cases("jax.device_put", normal(3, 4)),
    *cases(
        "jax.ad_checkpoint.checkpoint_name",
        normal(3, 4),
        call=lambda f, x: jnp.sin(f(jnp.sin(x), "a")),
    ),
    # Special functions that are primitives.
    *cases("jax.lax: erf erfc lgamma bessel_i0e bessel_i1e", uniform(0.3, 3, 3, 4), dtypes=FLOATS),
    *cases("jax.lax.digamma", uniform(0.5, 5, 3, 4), dtypes=FLOATS),
    *cases("jax.lax.erf_inv", uniform(-0.9, 0.9, 3, 4), dtypes=FLOATS),
    *cases(
        "jax.lax: igamma igammac",
        uniform(0.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        dtypes=("float32", "float64", "bfloat16"),
    ),
    *cases(
        "jax.lax: igamma_grad_a random_gamma_grad",
        uniform(0.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        no_gradient="JAX differentiates igamma only once",
    ),
    *cases(
        "jax.lax.betainc",
        uniform(0.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        uniform(0.1, 0.9, 3, 4),
        dtypes=("float32", "float64"),
        call=lambda f, a, b, x: f(lax.stop_gradient(a), lax.stop_gradient(b), x),
    ),
    *cases(
        "jax.lax.polygamma",
        fixed([[0.0], [1.0], [3.0]]),
        uniform(0.5, 4, 3, 4),
        call=lambda f, m, x: f(jnp.broadcast_to(lax.stop_gradient(m), x.shape), x),
    ),
    *cases(
        "jax.lax.zeta",
        uniform(1.5, 4, 3, 4),
        uniform(0.5, 4, 3, 4),
        no_gradient="JAX has no derivative of it",
    ),
    # Choices.
    *cases(
        "jax.lax.select",
        booleans(3, 4),
        normal(3, 4),
        normal(3, 4),
        dtypes=("float32", "complex64", "int32"),
    ),
    *cases("jax.lax.select_n", integers(0, 3, 3, 4), normal(3, 4), normal(3, 4), normal(3, 4)),
    *cases("jax.lax.select_n", booleans(), normal(3, 4), normal(3, 4), label="scalar"),
    *cases(
        "jax.lax: cos tanh",
        normal(3, 4),
        label="accuracy",
        call=lambda f, x: f(x, accuracy=lax.AccuracyMode.HIGHEST),
    ),
)
