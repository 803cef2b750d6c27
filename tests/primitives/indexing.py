"""Reading and writing at positions that are computed: of jax.lax."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from tests.primitives.arguments import distinct, fixed, integers, normal, uniform
from tests.primitives.case import Case, cases

_KINDS = ("float32", "bfloat16", "complex64", "int32")

_ROWS = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
)
_WINDOWS = lax.GatherDimensionNumbers(
    offset_dims=(1, 2), collapsed_slice_dims=(), start_index_map=(0, 1)
)
_BATCHED = lax.GatherDimensionNumbers(
    offset_dims=(),
    collapsed_slice_dims=(1,),
    start_index_map=(1,),
    operand_batching_dims=(0,),
    start_indices_batching_dims=(0,),
)
_INTO_ROWS = lax.ScatterDimensionNumbers(
    update_window_dims=(1,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
)
_INTO_BATCHED = lax.ScatterDimensionNumbers(
    update_window_dims=(),
    inserted_window_dims=(1,),
    scatter_dims_to_operand_dims=(1,),
    operand_batching_dims=(0,),
    scatter_indices_batching_dims=(0,),
)


def _mode(mode: lax.GatherScatterMode) -> Any:
    return lambda f, x, i: f(x, i, _ROWS, (1, 4), mode=mode)


CASES: tuple[Case, ...] = (
    *cases(
        "jax.lax.dynamic_slice",
        normal(5, 7),
        integers(0, 5),
        integers(-3, 9),
        call=lambda f, x, i, j: f(x, (i, j), (2, 3)),
        dtypes=_KINDS,
    ),
    *cases(
        "jax.lax.dynamic_slice_in_dim",
        normal(5, 7),
        integers(0, 5),
        call=lambda f, x, i: f(x, i, 3, axis=1),
    ),
    *cases(
        "jax.lax.dynamic_index_in_dim",
        normal(5, 7),
        integers(-5, 5),
        call=lambda f, x, i: f(x, i, keepdims=False),
    ),
    *cases(
        "jax.lax.dynamic_update_slice",
        normal(5, 7),
        normal(2, 3),
        integers(0, 5),
        integers(0, 9),
        call=lambda f, x, u, i, j: f(x, u, (i, j)),
        dtypes=_KINDS,
    ),
    *cases(
        "jax.lax.dynamic_update_slice_in_dim",
        normal(5, 7),
        normal(2, 7),
        integers(0, 4),
        call=lambda f, x, u, i: f(x, u, i, axis=0),
    ),
    *cases(
        "jax.lax.dynamic_update_index_in_dim",
        normal(5, 7),
        normal(7),
        integers(0, 5),
        call=lambda f, x, u, i: f(x, u, i, axis=0),
    ),
    *cases(
        "jax.lax.index_take",
        normal(5, 7),
        integers(0, 5, 6),
        integers(0, 7, 6),
        call=lambda f, x, i, j: f(x, (i, j), (0, 1)),
    ),
    *cases(
        "jax.lax.gather",
        normal(5, 4),
        integers(0, 5, 6, 1),
        dtypes=_KINDS,
        call=_mode(lax.GatherScatterMode.CLIP),
    ),
    *cases(
        "jax.lax.gather",
        normal(5, 4),
        integers(-3, 9, 6, 1),
        label="fill",
        call=_mode(lax.GatherScatterMode.FILL_OR_DROP),
        dtypes=("float32", "int32"),
    ),
    *cases(
        "jax.lax.gather",
        normal(5, 4),
        integers(-3, 9, 6, 1),
        label="clip",
        call=_mode(lax.GatherScatterMode.CLIP),
    ),
    *cases(
        "jax.lax.gather",
        normal(5, 4),
        integers(0, 5, 6, 1),
        label="promise",
        call=_mode(lax.GatherScatterMode.PROMISE_IN_BOUNDS),
    ),
    *cases(
        "jax.lax.gather",
        normal(5, 7),
        integers(0, 5, 4, 2),
        label="windows",
        call=lambda f, x, i: f(x, i, _WINDOWS, (2, 3), mode="clip"),
    ),
    *cases(
        "jax.lax.gather",
        normal(3, 7),
        integers(0, 7, 3, 4, 1),
        label="batching dimensions",
        call=lambda f, x, i: f(x, i, _BATCHED, (1, 1)),
    ),
    *cases(
        "jax.lax: scatter_add scatter_sub",
        normal(5, 4),
        integers(-1, 7, 6, 1),
        normal(6, 4),
        call=lambda f, x, i, u: f(x, i, u, _INTO_ROWS),
        dtypes=_KINDS,
    ),
    *cases(
        "jax.lax.scatter_add",
        normal(5, 4),
        integers(-3, 9, 6, 1),
        normal(6, 4),
        label="clip",
        call=lambda f, x, i, u: f(x, i, u, _INTO_ROWS, mode="clip"),
    ),
    *cases(
        "jax.lax: scatter_add scatter_sub",
        normal(3, 7),
        integers(0, 7, 3, 4, 1),
        normal(3, 4),
        call=lambda f, x, i, u: f(x, i, u, _INTO_BATCHED),
        label="batching dimensions",
    ),
    # No index twice: which of the updates stays is open.
    *cases(
        "jax.lax: scatter scatter_mul",
        uniform(0.5, 2, 5, 4),
        fixed([[4], [0], [3], [7]], "int32"),
        uniform(0.5, 2, 4, 4),
        dtypes=("float32", "bfloat16", "complex64"),
        call=lambda f, x, i, u: f(x, i, u, _INTO_ROWS, unique_indices=True),
    ),
    *cases(
        "jax.lax: scatter scatter_mul",
        integers(-9, 9, 5, 4),
        fixed([[4], [0], [3], [7]], "int32"),
        integers(-9, 9, 4, 4),
        label="int32",
        call=lambda f, x, i, u: f(x, i, u, _INTO_ROWS, unique_indices=True),
    ),
    *cases(
        "jax.lax: scatter scatter_mul scatter_min scatter_max",
        integers(-9, 9, 3, 4),
        fixed([[[2], [0]], [[3], [2]], [[1], [0]]], "int32"),
        integers(-9, 9, 3, 2),
        label="batching dimensions",
        call=lambda f, x, i, u: f(x, i, u, _INTO_BATCHED),
    ),
    *cases(
        "jax.lax: scatter_min scatter_max",
        distinct(5, 4),
        integers(0, 5, 6, 1),
        distinct(6, 4),
        call=lambda f, x, i, u: f(x, i, u, _INTO_ROWS),
        dtypes=("float32", "bfloat16", "int32"),
    ),
    *cases(
        "jax.lax.scatter_apply",
        normal(5, 4),
        fixed([[4], [0], [3]], "int32"),
        call=lambda f, x, i: f(x, i, jnp.sin, _INTO_ROWS, update_shape=(3, 4), unique_indices=True),
        no_gradient="JAX has no derivative of it",
    ),
)
