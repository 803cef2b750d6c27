"""Passes keep what a program computes, and print it before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import export
from jax2tf_bridge.bytecode import Program
from jax2tf_bridge.emitters import make_operations, read
from jax2tf_bridge.portable import PortableFunction, apply_target
from jax2tf_bridge.rewriting import Pass, passes_for_tensorflow, run_passes
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import to_tf
from tests.programs import PROGRAMS
from tests.programs import Program as Case

NO_XLA = Target.widest(xla=False)
X = np.array([[1, -2.5, 0.25], [-np.inf, 3, 1], [2, 2, 2]], np.float32)


def passes_of(portable: PortableFunction) -> tuple[Pass, ...]:
    return passes_for_tensorflow(
        platform=portable.platforms.index("cpu") if len(portable.platforms) > 1 else None,
        checks_sizes=not portable.constraints_known,
        for_converters=portable.target.for_converters,
    )


def results(portable: PortableFunction, program: Program, args: Sequence[Any]) -> list[Any]:
    """Runs a program as TensorFlow's own operations."""
    # JAX and XlaCallModule take some values as those of narrower or wider dtypes.
    kept = [
        np.asarray(args[i]).astype(portable.in_avals[i].op_dtype)
        for i in portable.module.kept_arguments
    ]
    lifted = [
        np.frombuffer(c.data or b"", c.aval.op_dtype).reshape(
            [int(str(size)) for size in c.aval.op_shape]
        )
        for c in portable.lifted_constants
    ]
    tensors = [tf.constant(a) for a in (*kept, *lifted)]

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return make_operations(portable, program, tensors, {})

    return [r.numpy() for r in tf.function(call, autograph=False)(*tensors)]


def check_passes(portable: PortableFunction, args: Sequence[Any], tolerance: float) -> list[str]:
    """Compares the results after each pass with those before; returns the passes with effects."""
    program = read(portable)
    expected = results(portable, program, args)
    changing = []
    for each in passes_of(portable):
        before, program = program, each.run(program)
        assert each.run(program) is program, f"{each.name} finds more the second time"
        if program is not before:
            changing.append(each.name)
            for actual, wanted in zip(results(portable, program, args), expected, strict=True):
                assert (actual.dtype, actual.shape) == (wanted.dtype, wanted.shape)
                both = actual.astype(np.complex128), wanted.astype(np.complex128)
                np.testing.assert_allclose(*both, rtol=tolerance, atol=tolerance)
    return changing


def own_softmax(x: Any) -> Any:
    e = jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))
    return e / jnp.sum(e, axis=-1, keepdims=True)


FUSED = {
    "softmax": jax.nn.softmax,
    "softmax written out": own_softmax,
    "log_softmax": jax.nn.log_softmax,
    "maximum": lambda x: jnp.maximum(x, x.T),
    "minimum in a loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: jnp.minimum(y, x), x),
    "rounding down": lambda x: (
        (i := jnp.floor(x[1:]).astype(np.int32)) // 2,
        i % 3,
        i // i,
        i % (i - 3),
        i // -2,
        i % -3,
    ),
    "relu6": jax.nn.relu6,
    "bias": lambda x: x @ x.T + jnp.asarray([1, 2, 3], jnp.float32),
    "square": lambda x: x * x,
    "identities": lambda x: jnp.maximum(x * 1 / 1 - 0, -jnp.inf),
    "reversed kernel": lambda x: jax.lax.conv(
        x[None, None], jax.lax.rev(x[None, None], (2, 3)), (1, 1), "SAME"
    ),
    "both in branches": lambda x: jax.lax.cond(x[0, 0] > 0, jax.nn.softmax, jax.nn.relu, x),
}


@pytest.mark.parametrize("name", FUSED)
def test_fusions_compute_the_same(name: str) -> None:
    portable = apply_target(export(FUSED[name])(X), NO_XLA)  # written as for XLA
    assert "fuse" in check_passes(portable, [X], 1e-6)


def own_argmax(x: Any) -> Any:
    return jnp.argmax(x, axis=1), jnp.argmin(x.astype(np.int32), axis=0)


ABSORBED = {
    "transposes of a product": lambda x: (
        jnp.einsum("ab,cb->ac", x, x) @ x.T,
        jnp.einsum("abc,dac->adb", jnp.stack([x, x]), jnp.stack([x, x], 1)),
    ),
    "a transpose that is used twice": lambda x: (y := x.T, x @ y),
    "a transpose of free axes": lambda x: jnp.tensordot(
        jnp.stack([x, x + 1]).transpose(1, 0, 2), x, 1
    ),
    "transposes of a convolution": lambda x: jax.lax.conv_general_dilated(
        jnp.stack([x, x], -1)[None].transpose(0, 3, 1, 2),
        jnp.stack([x, x], -1)[None].transpose(1, 2, 3, 0),
        (1, 1),
        "SAME",
        dimension_numbers=("NCHW", "HWIO", "NCHW"),
    ),
    "a mean that is subtracted": lambda x: (x - x.mean(-1, keepdims=True), x.mean(-1)),
    "a sum of a single axis": lambda x: x / jnp.sum(x, axis=0, keepdims=True),
    "a sum from another number": lambda x: jax.lax.reduce(
        x, np.float32(3), jax.lax.add, dimensions=(1,)
    ),
    "two reductions at once": lambda x: jax.lax.reduce(
        (x, x), (np.float32(0), np.float32(3)), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,)
    ),
    "flags": lambda x: (jnp.any(x > 0, axis=1, keepdims=True) & (x > 0), jnp.all(x > -3, axis=0)),
    "indices of extremes": own_argmax,
    "a sort of indices": lambda x: (jnp.argsort(x, axis=1), jnp.argsort(x, axis=0)),
    "index vectors": lambda x: (
        x[jnp.arange(3), jnp.argmax(x, axis=1)],
        x.at[jnp.argmax(x, axis=1), jnp.arange(3)].add(1.0),
    ),
    "index vectors that are used twice": lambda x: (
        jax.lax.gather(
            x,
            indices := jnp.stack([jnp.sign(x[1]).astype(np.int32), jnp.arange(3)], -1),
            jax.lax.GatherDimensionNumbers((), (0, 1), (0, 1)),
            (1, 1),
        ),
        indices,
    ),
}


@pytest.mark.parametrize("name", ABSORBED)
def test_operands_are_absorbed(name: str) -> None:
    portable = apply_target(export(ABSORBED[name])(X), NO_XLA)
    changing = check_passes(portable, [X], 1e-5)
    assert ("absorb" in changing) == (name not in KEPT)


KEPT = {"a transpose of free axes", "index vectors that are used twice"}
"""Programs whose operands stay, because results would be in another order, or computed twice."""


def random_numbers(x: Any) -> Any:
    return jax.random.uniform(jax.random.key(3), x.shape) + x


@pytest.mark.parametrize("function", [jnp.signbit, lambda x: jnp.copysign(x, -x.T), random_numbers])
def test_passes_for_converters_compute_the_same(function: Any) -> None:
    portable = export(function, target=Target.converters())(X)
    assert "fuse" in check_passes(portable, [X], 0)


def test_bfloat16_is_widened() -> None:
    def f(x: Any) -> Any:
        half = x.astype(jnp.bfloat16)
        return (half * 3 + jnp.asarray([1, 2, 3], jnp.bfloat16)).astype(jnp.float32)

    portable = export(f, target=Target.converters())(X)
    assert "widen_bfloat16" in check_passes(portable, [X], 0.02)


def test_the_platform_is_chosen() -> None:
    def f(x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)

    portable = apply_target(export(f, platforms=["tpu", "cpu"])(X), NO_XLA)
    assert check_passes(portable, [X], 0) == ["choose_platform"]
    program = run_passes(read(portable), passes_of(portable), "f")
    assert "case" in str(read(portable))
    assert "case" not in str(program)


# The passes treat all factorizations alike, so one of them is enough.
_SLOW = {"prng", "lu_solve", "eigh", "svd"}


@pytest.mark.parametrize(
    "case",
    [
        c if c.seventeen and c.name not in _SLOW else pytest.param(c, marks=pytest.mark.slow)
        for c in PROGRAMS
    ],
    ids=str,
)
def test_passes_keep_the_programs(case: Case) -> None:
    with case.precision():
        example = case.build()
        call = example.calls[0]
        portable = export(example.function, target=NO_XLA)(*call.args, **dict(call.kwargs))
        leaves = jax.tree_util.tree_leaves((call.args, dict(call.kwargs)))
    check_passes(portable, leaves, case.tolerance)


def test_programs_are_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX2TF_BRIDGE_DUMP_PROGRAMS_TO", str(tmp_path))
    for _ in range(2):
        to_tf(export(jax.nn.softmax, platforms=["cpu"], target=NO_XLA)(X))(X)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.glob("*/*")) == [
        *("softmax.1/0-read.mlir", "softmax.1/1-fuse.mlir"),
        *("softmax/0-read.mlir", "softmax/1-fuse.mlir"),
    ]
    before, after = ((tmp_path / "softmax" / n).read_text() for n in ("0-read.mlir", "1-fuse.mlir"))
    assert "exponential" in before
    lines = [line.split("  //")[0] for line in after.splitlines()]
    assert lines[:5] == [
        "module {",
        "  func @main(%0: tensor<3x3xf32>) -> (tensor<3x3xf32>) {",
        "    %1 = tensorflow.softmax %0 : tensor<3x3xf32>",
        "    return %1",
        "  }",
    ]
