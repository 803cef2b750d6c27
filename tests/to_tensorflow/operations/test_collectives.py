"""Operations between devices: one device gives what it takes, more are refused."""

import re

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.bytecode import Block, Function, Operation, Program, TensorType, Value
from jax2tf_bridge.emitters import make_operations
from jax2tf_bridge.errors import ModuleError
from tests.to_tensorflow.operations.running import portable_of, run

X = np.arange(6, dtype=np.float32).reshape(2, 3)
KIND = "tensor<2x3xf32>"

ONE_DEVICE = """
func.func @main(%x: tensor<2x3xf32>) -> (
    tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>,
    tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<ui32>, tensor<ui32>) {
  %sum = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<0> : tensor<1x1xi64>} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %gathered = "stablehlo.all_gather"(%x) {
    all_gather_dim = 1 : i64, replica_groups = dense<0> : tensor<1x1xi64>
  } : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %all = "stablehlo.all_to_all"(%x) {
    split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 1 : i64,
    replica_groups = dense<0> : tensor<1x1xi64>
  } : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %scattered = "stablehlo.reduce_scatter"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {scatter_dimension = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>}
      : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %permuted = "stablehlo.collective_permute"(%x) {
    source_target_pairs = dense<0> : tensor<1x2xi64>
  } : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %nothing = "stablehlo.collective_permute"(%x) {
    source_target_pairs = dense<> : tensor<0x2xi64>
  } : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %broadcast = "stablehlo.collective_broadcast"(%x) {
    replica_groups = dense<0> : tensor<1x1xi64>
  } : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %cross = "stablehlo.cross-replica-sum"(%x) {
    replica_groups = dense<> : tensor<0x0xi64>
  } : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %partition = stablehlo.partition_id : tensor<ui32>
  %replica = stablehlo.replica_id : tensor<ui32>
  return %sum, %gathered, %all, %scattered, %permuted, %nothing, %broadcast, %cross, %partition,
      %replica : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>,
      tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<ui32>,
      tensor<ui32>
}
"""


def test_one_device_is_alone() -> None:
    *arrays, partition, replica = run(ONE_DEVICE, X)
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, 0 * X if i == 5 else X)
    assert partition == replica == 0


SEVERAL = {
    "all_reduce": """
      %y = "stablehlo.all_reduce"(%x) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
      }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (KIND) -> KIND""",
    "collective_permute": """
      %y = "stablehlo.collective_permute"(%x) {
        source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>
      } : (KIND) -> KIND""",
    "all_to_all": """
      %y = "stablehlo.all_to_all"(%x) {
        split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64,
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>
      } : (KIND) -> KIND""",
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_devices_are_refused(name: str) -> None:
    text = f"func.func @main(%x: KIND) -> KIND {{{SEVERAL[name]}\nreturn %y : KIND\n}}"
    expected = f"stablehlo.{name}: it connects the devices [0, 1]"
    with pytest.raises(ModuleError, match=re.escape(expected)):
        run(text.replace("KIND", KIND), X)


HOST = {
    "send": """
      %t = stablehlo.create_token : !stablehlo.token
      %u = "stablehlo.send"(%x, %t) {
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true
      } : (KIND, !stablehlo.token) -> !stablehlo.token
      %y = stablehlo.add %x, %x : KIND""",
    "infeed": """
      %t = stablehlo.create_token : !stablehlo.token
      %y, %u = "stablehlo.infeed"(%t) {infeed_config = ""}
          : (!stablehlo.token) -> (KIND, !stablehlo.token)""",
    "outfeed": """
      %t = stablehlo.create_token : !stablehlo.token
      %u = "stablehlo.outfeed"(%x, %t) {outfeed_config = ""}
          : (KIND, !stablehlo.token) -> !stablehlo.token
      %y = stablehlo.add %x, %x : KIND""",
}


@pytest.mark.parametrize("name", HOST)
def test_the_host_is_not_spoken_to(name: str) -> None:
    text = f"func.func @main(%x: KIND) -> KIND {{{HOST[name]}\nreturn %y : KIND\n}}"
    with pytest.raises(ModuleError, match=rf"\b{name}\b"):
        run(text.replace("KIND", KIND), X)


def test_notes_on_shardings_say_nothing_to_one_device() -> None:
    calls = [
        "Sharding",
        "annotate_device_placement",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "xla.sdy.GlobalToLocalShape",
        "xla.sdy.LocalToGlobalShape",
        "xla.sdy.FuncResultSharding",
    ]
    lines = [f"%{i + 1} = stablehlo.custom_call @{name}(%{i})" for i, name in enumerate(calls)]
    body = "\n".join(f"{line} : (KIND) -> KIND" for line in lines).replace("%0)", "%x)")
    text = f"func.func @main(%x: KIND) -> KIND {{\n{body}\nreturn %{len(calls)} : KIND\n}}"
    np.testing.assert_array_equal(run(text.replace("KIND", KIND), X)[0], X)


def test_parts_of_devices_are_refused() -> None:
    text = """
    func.func @main(%x: tensor<2x3xf32>) -> tensor<1x3xf32> {
      %y = stablehlo.custom_call @SPMDFullToShardShape(%x) : (tensor<2x3xf32>) -> tensor<1x3xf32>
      return %y : tensor<1x3xf32>
    }
    """
    with pytest.raises(ModuleError, match="several devices"):
        run(text, X)


def test_quantised_types_are_refused() -> None:
    """JAX's MLIR does not know the dialect, so that the module is built here."""
    portable = portable_of(f"func.func @main(%x: {KIND}) -> {KIND} {{\nreturn %x : {KIND}\n}}")
    x = Value(TensorType((2, 3), "f32"))
    quantised = Value(TensorType((2, 3), "!quant.uniform<i8:f32, 0.5:3>"))
    for name, problem in (
        ("uniform_quantize", "no TensorFlow operation"),
        ("add", "!quant.uniform<i8:f32, 0.5:3>"),
    ):
        made = Operation(name, (x, x), (quantised,), {}, source="model.py:12")
        block = Block((x,), (made, Operation("return", (x,), (), {})))
        program = Program({"main": Function("main", block)})
        expected = rf"stablehlo\.{name} \(at model\.py:12\): .*{re.escape(problem)}"
        with tf.Graph().as_default(), pytest.raises(ModuleError, match=expected):
            make_operations(portable, program, [tf.zeros((2, 3))], {})
