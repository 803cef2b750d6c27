"""Matrix products and convolutions: of jax.lax."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.primitives.arguments import fixed, integers, normal
from tests.primitives.case import COMPLEX, FLOATS, Case, cases

_INEXACT = (*FLOATS, *COMPLEX)


def _convolution(f: Any, x: Any, w: Any, **options: Any) -> Any:
    return f(x, w, **{"window_strides": (1, 1), "padding": "SAME", **options})


def _groups(k: int) -> Any:
    return fixed([1, 3, 2][:k], "int32")


# Images and kernels mapped together are groups, and it asks whether there is more than one.
_TWO = "b >= 2"

CASES: tuple[Case, ...] = (
    *cases("jax.lax.dot", normal(3, 4), normal(4, 5), dtypes=(*_INEXACT, "int32")),
    *cases("jax.lax.dot", normal(4), normal(4), label="vectors"),
    *cases(
        "jax.lax.dot",
        integers(-9, 9, 3, 4, dtype="int8"),
        integers(-9, 9, 4, 5, dtype="int8"),
        label="int8",
        call=lambda f, x, y: f(x, y, preferred_element_type=jnp.int32),
    ),
    *cases("jax.lax.batch_matmul", normal(2, 3, 4), normal(2, 4, 5)),
    *cases(
        "jax.lax.dot_general",
        normal(2, 3, 4, 5),
        normal(4, 2, 5, 6),
        dtypes=_INEXACT,
        call=lambda f, x, y: f(x, y, (((2, 3), (0, 2)), ((0,), (1,)))),
    ),
    *cases(
        "jax.lax.dot_general",
        normal(3, 4),
        normal(4, 5),
        dtypes=("bfloat16", "float16"),
        label="wider result",
        call=lambda f, x, y: f(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32),
    ),
    *cases(
        "jax.lax.dot_general",
        normal(3, 4),
        normal(4, 5),
        label="algorithm",
        call=lambda f, x, y: f(
            x, y, (((1,), (0,)), ((), ())), precision=lax.DotAlgorithmPreset.F32_F32_F32
        ),
    ),
    *cases(
        "jax.lax.dot_general",
        normal(3, 4),
        normal(4, 5),
        dtypes=("float32", "bfloat16"),
        label="two types",
        call=lambda f, x, y: f(
            x, y.astype(jnp.float32), (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        ),
    ),
    *cases("jax.lax.ragged_dot", normal(6, 4), normal(3, 4, 5), _groups(3)),
    *cases(
        "jax.lax.ragged_dot_general",
        normal(6, 4),
        normal(3, 4, 5),
        _groups(3),
        call=lambda f, x, w, g: f(
            x, w, g, lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
        ),
    ),
    *cases(
        "jax.lax.ragged_dot_general",
        normal(4, 6),
        normal(6, 5),
        _groups(3),
        label="contracting",
        call=lambda f, x, w, g: f(
            x, w, g, lax.RaggedDotDimensionNumbers((((1,), (0,)), ((), ())), [1], [])
        ),
        no_gradient="JAX has no derivative of it",
    ),
    *cases(
        "jax.lax.scaled_dot",
        normal(8, 32),
        normal(32, 16),
        call=lambda f, x, w: f(
            x.astype(jnp.bfloat16),
            w.astype(jnp.bfloat16),
            dimension_numbers=(((1,), (0,)), ((), ())),
            preferred_element_type=jnp.float32,
        ),
        no_gradient="JAX has no derivative of it",
    ),
    *cases(
        "jax.lax.conv",
        normal(2, 3, 6, 7),
        normal(4, 3, 3, 3),
        open_gradient_needs=_TWO,
        call=lambda f, x, w: (f(x, w, (1, 1), "SAME"), f(x, w, (2, 1), "VALID")),
        dtypes=FLOATS,
    ),
    *cases(
        "jax.lax.conv_with_general_padding",
        normal(2, 3, 6, 7),
        normal(4, 3, 2, 3),
        open_gradient_needs=_TWO,
        call=lambda f, x, w: f(x, w, (1, 2), ((1, 0), (2, -1)), (2, 1), (1, 2)),
    ),
    *cases(
        "jax.lax.conv_general_dilated",
        normal(2, 6, 7, 3),
        normal(3, 3, 3, 4),
        dtypes=("float32", "bfloat16", "complex64", "float64"),
        open_gradient_needs=_TWO,
        call=lambda f, x, w: _convolution(f, x, w, dimension_numbers=("NHWC", "HWIO", "NHWC")),
    ),
    *cases(
        "jax.lax.conv_general_dilated",
        normal(2, 4, 6, 7),
        normal(6, 2, 3, 3),
        open_gradient_needs=_TWO,
        label="groups",
        call=lambda f, x, w: _convolution(f, x, w, feature_group_count=2, rhs_dilation=(2, 1)),
    ),
    *cases(
        "jax.lax.conv_general_dilated",
        normal(4, 3, 6, 7),
        normal(6, 3, 3, 3),
        open_gradient_needs=_TWO,
        label="batch groups",
        call=lambda f, x, w: _convolution(f, x, w, batch_group_count=2),
    ),
    *cases(
        "jax.lax.conv_general_dilated",
        normal(2, 3, 9),
        normal(4, 3, 3),
        open_gradient_needs=_TWO,
        label="one dimension",
        call=lambda f, x, w: f(x, w, (2,), [(2, 1)], lhs_dilation=(2,)),
    ),
    *cases(
        "jax.lax.conv_general_dilated",
        normal(1, 2, 4, 5, 3),
        normal(3, 2, 2, 2, 2),
        open_gradient_needs=_TWO,
        label="three dimensions",
        call=lambda f, x, w: f(x, w, (1, 1, 1), "VALID"),
    ),
    *cases(
        "jax.lax.conv_general_dilated",
        integers(-9, 9, 2, 3, 6, 7),
        integers(-9, 9, 4, 3, 3, 3),
        open_gradient_needs=_TWO,
        label="int32",
        call=_convolution,
    ),
    *cases(
        "jax.lax.conv_transpose",
        normal(2, 4, 5, 3),
        normal(3, 3, 3, 4),
        open_gradient_needs=_TWO,
        call=lambda f, x, w: (f(x, w, (2, 2), "SAME"), f(x, w, (1, 2), "VALID")),
    ),
    *cases(
        "jax.lax.conv_general_dilated_local",
        normal(2, 3, 4, 5),
        normal(4, 12, 3, 4),
        call=lambda f, x, w: f(x, w, (1, 1), "VALID", (2, 2)),
    ),
    *cases(
        "jax.lax.conv_general_dilated_patches",
        normal(2, 3, 6, 7),
        call=lambda f, x: f(x, (2, 3), (1, 2), "SAME"),
    ),
)
