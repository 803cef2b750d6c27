"""Products and convolutions of int8 stay int8 in LiteRT and ONNX Runtime, with exact sums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import lax

from jax2tf_bridge import Signature, save_litert, save_onnx
from tests.litert.running import interpreter
from tests.to_onnx.running import run

RANDOM = np.random.default_rng(0)


def _extremes(*shape: int) -> np.ndarray:
    """Makes numbers whose products are as large as possible: sums of two exceed 16 bits."""
    return np.where(RANDOM.random(shape) < 0.5, -128, 127).astype(np.int8)


def _product(a: Any, b: Any, contracting: Any, batch: Any = ((), ())) -> Any:
    numbers = (contracting, batch)
    return lax.dot_general(a, b, numbers, preferred_element_type=jnp.int32)


def _convolution(
    x: Any, kernel: Any, strides: Any = (1, 1), padding: Any = "SAME", **options: Any
) -> Any:
    layout = options.pop("layout", ("NHWC", "HWIO", "NHWC"))
    options = {"dimension_numbers": layout, "preferred_element_type": jnp.int32, **options}
    return lax.conv_general_dilated(x, kernel, strides, padding, **options)


ROWS, IMAGES = _extremes(5, 64), _extremes(2, 9, 8, 8)
MATRIX, KERNEL, GROUPS = _extremes(64, 32), _extremes(3, 3, 8, 16), _extremes(3, 2, 4, 6)
STACK = _extremes(3, 64, 7)


def products(rows: Any, images: Any) -> dict[str, Any]:
    return {
        "constant": _product(rows, MATRIX, ((1,), (0,))),
        "flipped": _product(MATRIX, rows, ((0,), (1,))),
        "of inputs": _product(rows, rows, ((1,), (1,))),
        "batches": _product(jnp.stack([rows, rows, rows]), STACK, ((2,), (1,)), ((0,), (0,))),
        "rank 4": _product(images, KERNEL[0, 0], ((3,), (0,))),
        "vectors": _product(rows[0], MATRIX[:, 0], ((0,), (0,))),
        "convolution": _convolution(images, KERNEL),
        "strides": _convolution(images, KERNEL, (2, 1), "VALID", rhs_dilation=(1, 2)),
        "groups": _convolution(images, GROUPS, feature_group_count=2),
        "holes": _convolution(images, KERNEL, padding=[(2, 1), (0, 3)], lhs_dilation=(2, 1)),
        "channels first": _convolution(
            jnp.moveaxis(images, 3, 1), KERNEL, layout=("NCHW", "HWIO", "NCHW")
        ),
        "one axis": _convolution(images[:, 0], KERNEL[0], (1,), layout=("NHC", "HIO", "NHC")),
    }


SIGNATURE = Signature(products, args=[ROWS, IMAGES], polymorphic_shapes=["(n, 64)", "(b, 9, 8, 8)"])


def _assert_equal(found: Mapping[str, np.ndarray]) -> None:
    expected = products(ROWS, IMAGES)
    for name, key in zip(sorted(expected), sorted(found), strict=True):
        np.testing.assert_array_equal(found[key], expected[name], err_msg=name)


@pytest.mark.costly
def test_in_litert(tmp_path: Path) -> None:
    saved = save_litert(tmp_path / "a.tflite", SIGNATURE)
    assert saved.operations.floats == ()
    runner = interpreter(saved.path).get_signature_runner()
    _assert_equal(runner(rows=ROWS, images=IMAGES))


def test_in_onnx_runtime(tmp_path: Path) -> None:
    saved = save_onnx(tmp_path / "a.onnx", SIGNATURE)
    kinds = [node.op_type for node in onnx.load(saved.path).graph.node]
    assert kinds.count("MatMulInteger") == 5
    assert kinds.count("ConvInteger") == 6
    assert not {"Conv", "MatMul"} & {*kinds}
    _assert_equal(run(saved.path, {"rows": ROWS, "images": IMAGES}))


def test_unsigned_bytes(tmp_path: Path) -> None:
    args = ROWS.view(np.uint8), MATRIX.view(np.uint8)
    signature = Signature(lambda x, y: _product(x, y, ((1,), (0,))), args=args)
    saved = save_onnx(tmp_path / "a.onnx", signature)
    assert "MatMulInteger" in {node.op_type for node in onnx.load(saved.path).graph.node}
    (found,) = run(saved.path, dict(zip("xy", args, strict=True))).values()
    np.testing.assert_array_equal(found, args[0].astype(int) @ args[1].astype(int))
