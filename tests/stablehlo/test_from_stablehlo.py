"""from_stablehlo(): modules of other tools, in both ways into TensorFlow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge
from jax2tf_bridge import Target, deserialize, from_stablehlo, serialize, to_tf
from jax2tf_bridge.errors import ModuleError, ShapeError, StructureError

_SCALED = """
func.func public @forward(%x: tensor<?x2xf32>, %w: tensor<2xf32>)
    -> (tensor<?x2xf32>, tensor<f32>) {
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
  %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
  %2 = stablehlo.constant dense<2> : tensor<1xi32>
  %3 = stablehlo.concatenate %1, %2, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %4 = stablehlo.dynamic_broadcast_in_dim %w, %3, dims = [1]
      : (tensor<2xf32>, tensor<2xi32>) -> tensor<?x2xf32>
  %5 = stablehlo.multiply %x, %4 : tensor<?x2xf32>
  %6 = stablehlo.constant dense<1.5> : tensor<f32>
  return %5, %6 : tensor<?x2xf32>, tensor<f32>
}
"""
_ONE = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.tanh %x : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
_X = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
_W = np.array([10, 100], np.float32)
_WITHOUT_XLA = Target("TensorFlow's operations", ((1, 13, 7),), 10, xla=False)


@pytest.mark.parametrize("target", [None, Target.tensorflow("2.17"), _WITHOUT_XLA])
def test_runs_with_names_and_trees(target: Target | None) -> None:
    portable = from_stablehlo(
        _SCALED,
        arguments={"x": 0, "params": {"w": 0}},
        results={"scaled": 0, "bias": 0},
        polymorphic_shapes=["(b, 2)", None],
        result_shapes=["(b, 2)", None],
        name="scale",
        target=target,
    )
    assert [port.path for port in portable.inputs] == ["x", "params['w']"]
    stored = deserialize(serialize(portable))
    for function in (portable, stored):
        results = to_tf(function)(_X, {"w": _W})
        np.testing.assert_array_equal(results["scaled"], _X * _W)
        assert results["bias"] == 1.5


def test_the_default_names_are_those_of_positions() -> None:
    portable = from_stablehlo(_SCALED, result_shapes=["(x0_0, 2)", None])
    assert [str(aval) for aval in portable.in_avals] == ["float32[x0_0,2]", "float32[2]"]
    scaled, _ = to_tf(portable)(_X, _W)
    np.testing.assert_array_equal(scaled, _X * _W)


def test_takes_portable_artifacts_and_bytecode() -> None:
    exported = jax.export.export(jax.jit(lambda x: x * 2))(np.ones(2, np.float32))
    portable = from_stablehlo(exported.mlir_module_serialized)
    np.testing.assert_array_equal(to_tf(portable)(np.ones(2, np.float32)), [2, 2])
    portable = from_stablehlo(exported.mlir_module().encode())
    np.testing.assert_array_equal(to_tf(portable)(np.ones(2, np.float32)), [2, 2])


def test_saves_as_any_other(tmp_path: Any) -> None:
    portable = from_stablehlo(_ONE)
    jax2tf_bridge.save(tmp_path / "model", portable)
    loaded = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    (found,) = loaded(tf.zeros([2])).values()
    np.testing.assert_array_equal(found, [0, 0])


@pytest.mark.parametrize(
    ("error", "text", "options", "message"),
    [
        (ModuleError, "func.func @main(", {}, "The StableHLO of main cannot be read by the insta"),
        (ModuleError, b"\x00\xff", {}, "neither MLIR bytecode, which begins with b'ML\\xefR', nor"),
        (
            ModuleError,
            Path("f.mlir"),
            {},
            "Got: PosixPath. Pass the contents of a file, as path.read_",
        ),
        (
            ModuleError,
            _ONE.replace("main", "f") + _ONE.replace("main", "g"),
            {},
            "must have a function @main, or exactly one public function. Its public functions: "
            "@f, @g. Name the one to call @main, or make the others private",
        ),
        (
            StructureError,
            _SCALED,
            {"arguments": ["x"]},
            "arguments has 1 arrays, and main takes 2. Name each of them once.",
        ),
        (
            StructureError,
            _SCALED,
            {"arguments": [1, 2]},
            "arguments=[1, 2] must be a list of names, as ['x'], or a dict of structures by name.",
        ),
        (StructureError, _SCALED, {"arguments": 2}, "arguments=2 must be a list of names"),
        (StructureError, _SCALED, {"arguments": "xw"}, "arguments='xw' must be a list of names"),
        (
            StructureError,
            _SCALED,
            {"results": [0, 0, 0]},
            "results has 3 arrays, and main returns 2.",
        ),
        (
            ShapeError,
            _SCALED,
            {"polymorphic_shapes": ["(b, 2)"]},
            "must be a list with one entry for each of the 2 arrays of main: a text as '(b, 2)'",
        ),
        (
            ShapeError,
            _SCALED,
            {"polymorphic_shapes": ["(b, 2)", None]},
            "Result 0 of main has open sizes: its shape in the module is (?, 2). Name the open "
            "sizes of the arguments in polymorphic_shapes, such as ['(b, 2)'], and use only these "
            "names in result_shapes. Names in the arguments: b.",
        ),
        (
            ShapeError,
            _SCALED,
            {"polymorphic_shapes": ["(b, 2)", 2]},
            "entry 1: A shape specification must be a string. Got: 2 of type int. A shape is a",
        ),
        (
            ShapeError,
            _SCALED,
            {"polymorphic_shapes": ["(b, c)", None]},
            "entry 0: the module takes (?, 2). Write a variable for each ?, and the other sizes as "
            "they are. Got: '(b, c)'",
        ),
        (
            ShapeError,
            _SCALED,
            {"polymorphic_shapes": ["(4, 2)", None]},
            "entry 0: the module takes (?, 2). Write a variable for each ?, and the other sizes as "
            "they are. Got: '(4, 2)'",
        ),
    ],
)
def test_says_what_does_not_fit(
    error: type[Exception], text: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        from_stablehlo(text, **options)
