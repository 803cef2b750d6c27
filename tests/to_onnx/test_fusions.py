"""Formulas that become one operation of ONNX, and similar ones that must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import Signature, save_onnx
from tests.to_onnx.running import run

import onnx  # isort: skip  # where it is missing, the import of tests.to_onnx.running skips

_RNG = np.random.default_rng(0)
X = (3 + 2 * _RNG.normal(size=(4, 5, 8))).astype(np.float32)
IMAGE = _RNG.normal(size=(2, 6, 6, 3)).astype(np.float32)


def _draw(*shape: int) -> Any:
    return _RNG.normal(size=shape).astype(np.float32)


ROW, OTHER, EACH, KERNEL = _draw(8), _draw(8), _draw(5, 8), _draw(3, 3, 3, 4)
MEAN, SCALE, BIAS, VARIANCE = _draw(4), _draw(4), _draw(4), np.abs(_draw(4))


def _normalize(x: Any, axis: int = -1) -> Any:
    mean = jnp.mean(x, axis, keepdims=True)
    variance = jnp.mean(jnp.square(x - mean), axis, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5)


def _normalize_fast(x: Any) -> Any:
    """Normalizes as Flax does."""
    mean, square = jnp.mean(x, -1), jnp.mean(x * x, -1)
    variance = jnp.maximum(0.0, square - mean * mean)
    inverse = lax.rsqrt(variance[..., None] + 1e-6) * ROW
    return (x - mean[..., None]) * inverse + OTHER


def _convolve(x: Any, kernel: Any = KERNEL) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)


def _convolve_channels_first(x: Any) -> Any:
    kernel, layout = KERNEL.transpose(3, 2, 0, 1), ("NCHW", "OIHW", "NCHW")
    x = x.transpose(0, 3, 1, 2)
    y = lax.conv_general_dilated(x, kernel, (2, 1), "SAME", dimension_numbers=layout)
    return (y - MEAN[:, None, None]) * SCALE[:, None, None]


def _batch_norm(y: Any) -> Any:
    return (y - MEAN) * (lax.rsqrt(VARIANCE + 1e-5) * SCALE) + BIAS


def _use_twice(x: Any) -> Any:
    y = _convolve(x)
    return y * SCALE + jnp.tanh(y)


@dataclass(frozen=True)
class _Case:
    """A function, and how often its model has some operations."""

    function: Callable[[Any], Any]
    counts: Mapping[str, int]
    x: Any = None
    opset: int = 18

    @property
    def argument(self) -> Any:
        return X if self.x is None else self.x


_IN_WEIGHTS = {"Conv": 1, "Sub": 0, "Div": 0}
CASES: Mapping[str, _Case] = {
    "mean": _Case(lambda x: jnp.mean(x, (1, 2)), {"ReduceMean": 1, "Div": 0}),
    "mean along an open axis": _Case(lambda x: jnp.mean(x, 0), {"ReduceMean": 0, "Div": 1}),
    "sum that is divided by another number": _Case(
        lambda x: jnp.sum(x, -1) / 5, {"ReduceMean": 0, "Div": 1}
    ),
    "silu": _Case(lambda x: jax.nn.silu(x - 3), {"Sigmoid": 1, "Exp": 0}),
    "sigmoid": _Case(lambda x: jnp.log(jax.nn.sigmoid(-20 * x)), {"Sigmoid": 0, "Exp": 1}),
    "gelu": _Case(lambda x: jax.nn.gelu(x - 3), {"Tanh": 0, "Sigmoid": 1}),
    "gelu of opset 20": _Case(lambda x: jax.nn.gelu(x - 3), {"Gelu": 1, "Mul": 0}, opset=20),
    "normalization": _Case(
        lambda x: _normalize(x) * ROW + OTHER,
        {"LayerNormalization": 1, "Mul": 0, "Add": 0, "ReduceMean": 0},
    ),
    "normalization with jnp.var": _Case(
        lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5),
        {"LayerNormalization": 1, "Sub": 0, "Div": 0},
    ),
    "normalization of Flax": _Case(_normalize_fast, {"LayerNormalization": 1, "Mul": 0, "Add": 0}),
    "normalization of another axis": _Case(lambda x: _normalize(x, 1), {"LayerNormalization": 0}),
    "normalization with many scales": _Case(
        lambda x: _normalize(x) * EACH + EACH, {"LayerNormalization": 1, "Mul": 1, "Add": 1}
    ),
    "normalization by another mean": _Case(
        lambda x: (x - x.max(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5),
        {"LayerNormalization": 0},
    ),
    "batch normalization": _Case(lambda x: _batch_norm(_convolve(x)), _IN_WEIGHTS, IMAGE),
    "batch normalization of channels first": _Case(_convolve_channels_first, _IN_WEIGHTS, IMAGE),
    "convolution that is used twice": _Case(_use_twice, {"Conv": 1, "Tanh": 1, "Mul": 1}, IMAGE),
    "convolution plus an input": _Case(lambda x: _convolve(x) + x[..., :1], {"Add": 1}, IMAGE),
    "convolution with computed weights": _Case(
        lambda x: _batch_norm(_convolve(x, KERNEL * x.sum())), {"Sub": 1, "Mul": 3}, IMAGE
    ),
    "clip": _Case(lambda x: jax.nn.relu6(4 * x - 9), {"Clip": 1, "Min": 0, "Max": 0}),
}


def test_gelu_in_double_precision(tmp_path: Path) -> None:
    """ONNX Runtime's Gelu has constants of 32 bits."""
    with jax.enable_x64(True):
        x = X.astype(np.float64) - 3
        saved = save_onnx(tmp_path / "m.onnx", Signature(jax.nn.gelu, args=[x]), opset=20)
        (got,) = run(saved.path, {"x": x}).values()
        np.testing.assert_allclose(got, jax.nn.gelu(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_formula(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    sizes = ", ".join(["b", *map(str, case.argument.shape[1:])])
    signature = Signature(case.function, args=[case.argument], polymorphic_shapes=f"({sizes})")
    saved = save_onnx(tmp_path / "m.onnx", signature, opset=case.opset)
    onnx.checker.check_model(str(saved.path), full_check=True)
    found = Counter(node.op_type for node in onnx.load(str(saved.path)).graph.node)
    assert {operation: found[operation] for operation in case.counts} == case.counts
    x = case.argument[:2] + np.float32(0.5)
    x.flat[7] = np.nan
    (got,) = run(saved.path, {"x": x}).values()
    np.testing.assert_allclose(got, case.function(x), rtol=2e-5, atol=2e-5)
