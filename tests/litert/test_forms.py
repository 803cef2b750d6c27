"""Operations that LiteRT has no built-in one for give what TensorFlow's kernels give."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import save_litert
from tests.litert.running import interpreter

# All cases are converted at once, by the first.
pytestmark = pytest.mark.slow

R = tf.raw_ops
INT32 = np.array([0, 1, -1, 2, 7, -8, 31, 1 << 30, -(1 << 31), (1 << 31) - 1, 12345678], np.int32)
UINT32 = INT32.view(np.uint32)
INT64 = np.array([0, 1, -1, 5, -(1 << 40), 1 << 62, -(1 << 63), 0x0123456789ABCDEF], np.int64)
UINT64 = INT64.view(np.uint64)
WIDE_INT32 = np.random.default_rng(0).integers(-(2**31), 2**31, (3, 300)).astype(np.int32)
INT16 = np.array([0, 1, -1, 255, 256, 12345, -12345, 32767, -32768], np.int16)
INT8 = np.array([0, 1, -1, 100, -128, 127, 5, -6], np.int8)
FLOATS = np.array([0, -0.0, 1e-6, -1e-3, 0.1, -0.5, 0.7, 0.99, -0.999, 1, -1], np.float32)
WIDE = np.array([*FLOATS, 2, -3.5, 10, -20, 60], np.float32)
ABOVE_ONE = np.array([1, 1.001, 1.5, 3, 100, 1e6, 1e20], np.float32)


def pairs(values: Any) -> tuple[Any, Any]:
    return values[:, None], values[None]


def places(values: Any) -> tuple[Any, Any]:
    return values[:, None], np.arange(values.dtype.itemsize * 8, dtype=values.dtype)[None]


def divisors(values: Any) -> tuple[Any, Any]:
    return values[:, None], values[(values != 0) & (values != -1)][None]


_BITWISE = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
_ORDER = ("Greater", "GreaterEqual", "Less", "LessEqual", "Maximum", "Minimum")
_ARITHMETIC = ("AddV2", "Sub", "Mul", "Equal", "NotEqual")

IMAGE = np.random.default_rng(0).normal(size=(2, 5, 6, 2)).astype(np.float32)
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{
        f"{name} {values.dtype}": (getattr(R, name), pairs(values))
        for values, names in (
            (INT32, _BITWISE),
            (UINT32, (*_BITWISE, *_ORDER, *_ARITHMETIC)),
            (INT64, _BITWISE),
            (UINT64, (*_BITWISE, *_ARITHMETIC)),
            (INT8, (*_BITWISE[:2], *_ORDER, *_ARITHMETIC)),
            (INT8.view(np.uint8), (*_ORDER, "Equal", "NotEqual")),
        )
        for name in names
    },
    **{
        f"{name} {values.dtype}": (getattr(R, name), places(values))
        for values, names in (
            (INT32, ("LeftShift",)),
            (UINT32, ("LeftShift", "RightShift")),
            (INT64, ("LeftShift", "RightShift")),
            (UINT64, ("LeftShift", "RightShift")),
        )
        for name in names
    },
    **{
        f"{name} {values.dtype}": (getattr(R, name), divisors(values))
        for values, names in (
            (INT32, ("TruncateMod",)),
            (UINT32, ("FloorMod", "FloorDiv")),
            (INT64, ("TruncateMod",)),
        )
        for name in names
    },
    **{f"Invert {values.dtype}": (R.Invert, (values,)) for values in (INT32, UINT32, INT64)},
    **{
        f"PopulationCount {values.dtype}": (R.PopulationCount, (values,))
        for signed in (INT8, INT16, INT32, INT64)
        for values in (signed, signed.view(f"u{signed.itemsize}"))
    },
    "Abs int64": (R.Abs, (INT64,)),
    "Sign int64": (R.Sign, (INT64,)),
    **{name: (getattr(R, name), (FLOATS,)) for name in ("Acos", "Asin", "Atanh", "Erfinv")},
    **{
        name: (getattr(R, name), (WIDE,))
        for name in ("Asinh", "Atan", "Cosh", "Erf", "Expm1", "IsFinite", "Sinh", "Tan")
    },
    "Erfc": (R.Erfc, (np.array([*WIDE[WIDE < 8], 0.49, 0.51, 4, 7], np.float32),)),
    "Bits NextAfter": (
        functools.partial(lambda x, y: tf.bitcast(R.NextAfter(x1=x, x2=y), tf.int32)),
        pairs(np.array([0, -0.0, 1, -1, 2, 0.1, 1e30, np.inf, -np.inf], np.float32)),
    ),
    **{
        f"Atan2 {case}": (functools.partial(tf.atan2), (y, x))
        for case, y, x in (
            ("of rows", *pairs(FLOATS)),
            ("of a number", np.float32(2), FLOATS),
            ("by a number", FLOATS, np.float32(-2)),
        )
    },
    "Log1p": (R.Log1p, (WIDE[WIDE > -1],)),
    "Acosh": (R.Acosh, (ABOVE_ONE,)),
    "Acosh_below": (R.Acosh, (np.array([0.5, -3, -1e4, -1e10], np.float32),)),
    "Product": (functools.partial(tf.matmul, transpose_b=True), (WIDE_INT32, WIDE_INT32)),
    "Products": (
        functools.partial(tf.matmul),
        (WIDE_INT32.reshape(2, 1, 3, 150), WIDE_INT32.reshape(3, 150, 2)),
    ),
    "Convolution": (
        functools.partial(tf.nn.conv2d, strides=[1, 1, 1, 1], padding="SAME"),
        (np.arange(32, dtype=np.float16).reshape(1, 4, 4, 2), np.ones((2, 2, 2, 3), np.float16)),
    ),
    **{
        f"FilterGradient {padding} {stride} {height}": (
            functools.partial(
                lambda image, cotangent, height, stride, padding: tf.raw_ops.Conv2DBackpropFilter(
                    input=image,
                    filter_sizes=[height, 5 - height, 2, 3],
                    out_backprop=cotangent,
                    strides=[1, stride, stride + 1, 1],
                    padding=padding,
                ),
                height=height,
                stride=stride,
                padding=padding,
            ),
            (IMAGE, np.ones((2, *window, 3), np.float32) * np.arange(1, 4, dtype=np.float32)),
        )
        # The sizes of a kernel are constants beside equal attributes.
        for padding, stride, height, window in (
            ("SAME", 1, 2, (5, 3)),
            ("SAME", 1, 3, (5, 3)),
            ("SAME", 2, 2, (3, 2)),
            ("VALID", 1, 2, (4, 2)),
            ("VALID", 2, 2, (2, 2)),
        )
    },
    **{
        f"Cast {a.dtype}->{b.name}": (functools.partial(tf.cast, dtype=b), (a,))
        for a, b in (
            (UINT64, tf.uint32),
            (UINT64, tf.int64),
            (UINT32, tf.uint64),
            (INT32, tf.uint64),
        )
    },
}

GRIDS = {
    dtype: np.arange(12).reshape(3, 4).astype(dtype) * 3 % 11
    for dtype in (np.uint32, np.uint64, np.int8, np.uint8, np.int16, np.float16)
}
MOVES: dict[str, Callable[..., Any]] = {
    "Gather": lambda x: tf.gather(x, [2, 0], axis=1),
    "GatherNd": lambda x: tf.gather_nd(x, [[0, 1], [2, 3]]),
    "Pad": lambda x: tf.pad(x, [[1, 0], [0, 2]]),
    "Reverse": lambda x: tf.reverse(x, [1]),
    "ScatterNd": lambda x: tf.scatter_nd([[1], [0], [3]], x, [4, 4]),
    "Sum": lambda x: tf.reduce_sum(x, 1),
    "Transpose": lambda x: tf.transpose(x),
    "Update": lambda x: tf.tensor_scatter_nd_update(x, [[1]], x[:1]),
}
SEGMENTS: dict[str, Callable[..., Any]] = {
    "Prod": tf.math.unsorted_segment_prod,
    "Sum": tf.math.unsorted_segment_sum,
}
CASES |= {
    f"{name} {grid.dtype}": (functools.partial(move), (grid,))
    for grid in GRIDS.values()
    for name, move in MOVES.items()
}
CASES |= {
    f"Segments {name} {grid.dtype}": (
        functools.partial(reduce, segment_ids=[2, 0, 2], num_segments=4),
        (grid,),
    )
    for grid in GRIDS.values()
    if grid.dtype != np.uint64
    for name, reduce in SEGMENTS.items()
}


def _rotate(x: tf.Tensor) -> tf.Tensor:
    """Moves variables in a loop; LiteRT writes the results of a body into them one by one."""
    state = [tf.constant(0), x, x + x, x + x + x]
    return tf.while_loop(lambda i, *_: i < 4, lambda i, a, b, c: (i + 1, b, c, a), state)[2]


CASES |= {
    f"Loop {t.__name__}": (functools.partial(_rotate), (GRIDS[t],)) for t in (np.uint32, np.float16)
}
OF_FLOATS: dict[str, Callable[..., Any]] = {
    "Broadcast": lambda x: tf.broadcast_to(x, [2, 3, 4]),
    "Concat": lambda x: tf.concat([x, x], 1),
    "Max": lambda x: tf.reduce_max(x, 1),
    "Mean": lambda x: tf.reduce_mean(x, 1),
    "Relu": lambda x: tf.nn.relu(x - x[0]),
    "Resize": lambda x: R.ResizeBilinear(images=x[None, :, :, None], size=[6, 8]),
    "Select": lambda x: tf.where(x > x[:1], x, -x),
    "Slice": lambda x: x[1:, ::2],
    "Softmax": lambda x: tf.nn.softmax(x),
}


def _in_dtype(function: Callable[..., Any], dtype: tf.DType, x: tf.Tensor) -> tf.Tensor:
    return tf.cast(function(tf.cast(x, dtype)), tf.float32)


CASES |= {
    f"{name} {dtype.name}": (
        functools.partial(_in_dtype, move, dtype),
        (GRIDS[np.float16].astype(np.float32),),
    )
    for name, move in OF_FLOATS.items()
    for dtype in (tf.float16, tf.bfloat16)
}

# The former contents do not matter, and an index may occur twice.
UPDATED: dict[str, tuple[Any, Any]] = {
    "NaN": (np.array([np.nan, np.inf, 1, -np.inf], np.float32), [[0], [3]]),
    "twice": (np.array([5, 6, 7, 8], np.float32), [[1], [1]]),
    "twice an integer": (np.array([5, 6, 7, 8], np.int32), [[1], [1]]),
    "twice a byte": (np.array([5, 6, 7, 8], np.int8), [[1], [1]]),
    "NaN of float16": (np.array([np.nan, np.inf, 1, -np.inf], np.float16), [[0], [3]]),
}
CASES |= {
    f"Updated {name.replace(' ', '_')}": (
        functools.partial(lambda at, x: tf.tensor_scatter_nd_update(x, at, [x[2]] * 2), at),
        (values,),
    )
    for name, (values, at) in UPDATED.items()
}

# The converter moves transpositions behind operations, and exchanged the operands of these.
TRANSPOSED: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "from a number": lambda x: 2 - tf.transpose(x),
    "from a column": lambda x: tf.constant([[1.0], [2], [3], [4]]) - tf.transpose(x),
    "of a number": lambda x: 2 / tf.transpose(x + 1),
    "of a number and rounded": lambda x: 7 // tf.transpose(x + 1),
    "of one": lambda x: tf.math.reciprocal(tf.transpose(x + 1)),
    "behind others": lambda x: 2 - tf.nn.relu(3 * tf.transpose(x) - 4),
    "of uint32": lambda x: tf.cast(7 - tf.transpose(tf.cast(x, tf.uint32)), tf.int32),
    "of float16": lambda x: tf.cast(7 - tf.transpose(tf.cast(x, tf.float16)), tf.float32),
    "in a form": lambda x: tf.bitwise.invert(tf.transpose(tf.cast(x, tf.int32))),
    "of bytes": lambda x: tf.cast(2 - tf.transpose(tf.cast(x, tf.int8)), tf.int32),
}
CASES |= {
    f"Transposed {name.replace(' ', '_')}": (
        functools.partial(function),
        (GRIDS[np.float16].astype(np.float32),),
    )
    for name, function in TRANSPOSED.items()
}


def _call(function: Callable[..., Any], args: Any) -> Any:
    if isinstance(function, functools.partial):
        return function(*args)
    return function(**dict(zip(("x", "y"), args, strict=False)))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Runs all cases as one model, whose inputs are arrays of each dtype."""
    folder: Path = tmp_path_factory.mktemp("forms")
    inputs = {
        f"{case.replace(' ', '_').replace('->', '_')}__{i}": arg
        for case, (_, args) in CASES.items()
        for i, arg in enumerate(args)
    }

    def served(**given: Any) -> dict[str, Any]:
        found = {}
        for case, (function, args) in CASES.items():
            key = case.replace(" ", "_").replace("->", "_")
            result = _call(function, [_read(given[f"{key}__{i}"], a) for i, a in enumerate(args)])
            found[key] = _written(result)
        return found

    module = tf.Module()
    specs = {n: tf.TensorSpec(_stored(a).shape, _stored(a).dtype, n) for n, a in inputs.items()}
    module.served = tf.function(served, autograph=False)
    concrete = module.served.get_concrete_function(**specs)
    tf.saved_model.save(module, str(folder / "model"), signatures={"serving_default": concrete})
    saved = save_litert(folder / "model.tflite", folder / "model", verify=False)
    run = interpreter(saved.path).get_signature_runner()
    return dict(run(**{n: _stored(a) for n, a in inputs.items()}))


# Unsigned numbers come and go as signed ones: not every interpreter takes them.
def _stored(array: Any) -> Any:
    return array.view(f"i{array.itemsize}") if array.dtype.kind == "u" else array


def _read(tensor: tf.Tensor, array: Any) -> tf.Tensor:
    return tf.bitcast(tensor, array.dtype) if array.dtype.kind == "u" else tensor


def _written(tensor: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tensor, f"int{tensor.dtype.size * 8}") if tensor.dtype.is_unsigned else tensor


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_tensorflow(answers: dict[str, Any], case: str) -> None:
    function, args = CASES[case]
    # Some of TensorFlow's kernels are less exact in float32 than the forms are.
    if not case.startswith(("Transposed", "Bits")):
        args = tuple(a.astype(np.float64) if a.dtype == np.float32 else a for a in args)
    expected = _written(_call(function, [tf.constant(a) for a in args])).numpy()
    if expected.dtype == np.float64:
        expected = expected.astype(np.float32)
    found = answers[case.replace(" ", "_").replace("->", "_")]
    assert found.dtype == expected.dtype
    if expected.dtype.kind == "f":
        # TensorFlow's kernel computes in 16 bits here.
        rtol = 1e-2 if case.startswith("Softmax") else 3e-6
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)
