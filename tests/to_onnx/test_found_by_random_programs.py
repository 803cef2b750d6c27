"""Functions for which ONNX models were wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import Signature, save_onnx
from tests.to_onnx.running import parts, run


def _pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2, 1), (1, 2, 2, 1), "SAME")


_SORTED = np.array([-9.19, np.nan, -9.19, np.inf, -5.96, -np.inf, 0.0], np.float32)
_CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    "an index of -1 is dropped": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=1),
        (np.arange(9.0, dtype=np.float32).reshape(3, 3), np.array([-3, 9, -4], np.int32)),
        None,
    ),
    "complex arrays of open sizes are sliced": (
        lambda x: lax.dynamic_slice_in_dim(x, 1, 1, axis=0),
        (np.array([1 + 2j, 3j, -1], np.complex64),),
        "(b,)",
    ),
    "sums of float16 at equal indices": (
        lambda x, i: jax.ops.segment_sum(x, i, num_segments=3),
        (np.arange(3, dtype=np.float16), np.array([2, 2, 0], np.int32)),
        None,
    ),
    "minima of unsigned integers at equal indices": (
        lambda x, i: jnp.asarray(x).at[i].min(jnp.uint8(7)),
        (np.array([[7, 1, 2], [9, 0, 200]], np.uint8), np.array([0, 1, 1], np.int32)),
        None,
    ),
    "windows of integers": (
        lambda x: [
            lax.reduce_window(x.astype(t), t(0), op, (1, 2, 2), (1, 1, 1), "VALID")
            for t in (np.uint32, np.int32, np.uint8, np.float16)
            for op in (lax.max, lax.add)
        ],
        (np.arange(24, dtype=np.float32).reshape(2, 3, 4),),
        None,
    ),
    "any and all of no elements": (
        lambda x: (jnp.any(x > 0), jnp.all(x > 0)),
        (np.zeros((0, 1), np.float32),),
        None,
    ),
    "maxima keep NaN": (
        lambda x: (jnp.max(x, 0), jnp.min(x, (0, 1)), jnp.ptp(x, axis=1), jnp.argmax(x, 0)),
        (np.where(np.arange(60) == 33, np.nan, np.arange(60)).reshape(3, 4, 5).astype("f"),),
        "(b, 4, 5)",
    ),
    "NaN comes last": (lambda x: (jnp.sort(x), jnp.argsort(x)), (_SORTED,), "(b,)"),
    "NaN comes last in half precision": (jnp.sort, (_SORTED.astype(np.float16),), None),
    "the gradient of a max pool": (
        jax.grad(lambda x: jnp.sum(jnp.square(_pool(x)))),
        (np.random.default_rng(3).normal(size=(2, 5, 6, 2)).astype(np.float32),),
        "(b, 5, 6, 2)",
    ),
    "bounds may be NaN": (
        lambda x, high: (jnp.clip(x, 1.0, jnp.nan), jnp.clip(x, 1.0, high)),
        (_SORTED, np.float32(np.nan)),
        None,
    ),
    "parts of complex numbers may have fewer axes": (
        lambda x, y: lax.complex(jnp.broadcast_to(x, y.shape), y),
        (np.arange(2, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(3, 2)),
        ["n", "(b, n)"],
    ),
    "complex products at equal indices overflow one after the other": (
        lambda x, i: jnp.asarray(x).at[i].multiply(-1.5 + 0j),
        (np.array([complex(-3.4e38, -0.8), 1], np.complex64), np.array([0, 0, 0, 1, 7], np.int32)),
        ["(n,)", None],
    ),
    "the gradient of a maximum": (jax.grad(lambda x: jnp.max(x[::2])), (_SORTED[4:],), None),
}


@pytest.mark.parametrize("case", _CASES)
def test_results_are_those_of_jax(case: str, tmp_path: Path) -> None:
    function, args, shapes = _CASES[case]
    signature = Signature(function, args=args, polymorphic_shapes=shapes)
    model = save_onnx(tmp_path / "model.onnx", signature, verify=False)
    names = model.signatures["serving_default"].inputs
    feed = {name: parts(array) for name, array in zip(names, args, strict=True)}
    results = run(tmp_path / "model.onnx", feed).values()
    for got, want in zip(results, jax.tree_util.tree_leaves(function(*args)), strict=True):
        np.testing.assert_allclose(got, parts(np.asarray(want)), rtol=1e-6)
