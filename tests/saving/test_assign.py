"""assign_weights(): by path into modules, trees and loaded models; all or nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from jax2tf_bridge.errors import (
    ArgumentsError,
    DTypeError,
    FileFormatError,
    ShapeError,
    StructureError,
)
from jax2tf_bridge.saving import WeightsReport, assign_weights

# Private: the names of all variables, which assign_weights shows only in errors.
from jax2tf_bridge.saving._assign_weights import find_variables
from tests.tensorflow_process import run_in_tensorflow

KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)
BIAS = np.array([1, 2]).astype(ml_dtypes.bfloat16)


class Layer(tf.Module):  # type: ignore[misc]
    """Two variables."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.zeros((3, 2)))
        self.bias = tf.Variable(tf.zeros(2, tf.bfloat16))


class Net(tf.Module):  # type: ignore[misc]
    """Layers in a list, and a variable behind a private attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Layer(), Layer()]
        self._steps = tf.Variable(0, trainable=False, name="steps")


def state(scale: float = 1.0) -> Any:
    layers = [{"kernel": KERNEL * (i + 1) * scale, "bias": BIAS} for i in range(2)]
    return {"layers": layers, "_steps": np.int32(7)}


def values(model: Any) -> dict[str, Any]:
    return {name: v.variable.numpy() for name, v in find_variables(model).items()}


def assert_untouched(model: Any) -> None:
    assert not any(np.any(value) for value in values(model).values())


@pytest.fixture
def net() -> Net:
    return Net()


def test_a_state_dict(net: Net) -> None:
    report = assign_weights(net, state())
    names = ("layers/0/kernel", "layers/0/bias", "layers/1/kernel", "layers/1/bias", "_steps")
    assert report == WeightsReport({name: name for name in names})
    assert str(report) == "5 variables assigned"
    np.testing.assert_array_equal(net.layers[1].kernel, KERNEL * 2)
    np.testing.assert_array_equal(net.layers[0].bias, BIAS)
    assert int(net._steps) == 7
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.missing = ()  # type: ignore[misc]


def test_lists_as_state_dicts_have_them(net: Net) -> None:
    layers = {str(i): layer for i, layer in enumerate(state()["layers"])}
    assign_weights(net, {"layers": layers, "_steps": 7})
    np.testing.assert_array_equal(net.layers[1].kernel, KERNEL * 2)


@pytest.mark.parametrize("separator", ["/", "."])
def test_a_mapping_of_paths(separator: str, net: Net) -> None:
    paths = {
        f"layers{separator}{i}{separator}{name}": value
        for i in range(2)
        for name, value in (("kernel", KERNEL), ("bias", BIAS))
    }
    report = assign_weights(net, paths, partial=True)
    assert report.missing == ("_steps",)
    assert report.assigned["layers/1/bias"] == f"layers{separator}1{separator}bias"
    np.testing.assert_array_equal(net.layers[1].kernel, KERNEL)


def test_a_safetensors_file(net: Net, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    weights = {"layers.0.kernel": KERNEL, "layers.0.bias": BIAS, "layers.1.bias": BIAS}
    save_file(weights | {"_steps": np.array([3], np.int32)}, file)
    with pytest.raises(ShapeError, match=rf"The weights in {file} .*\n  - _steps: expected shape "):
        assign_weights(net, file, partial=True)
    assert_untouched(net)
    save_file(weights | {"steps": np.array(3, np.int32)}, file)
    report = assign_weights(net, str(file), partial=True)
    assert report.missing == ("layers/1/kernel",)
    assert int(net._steps) == 3
    np.testing.assert_array_equal(net.layers[1].bias, BIAS)


def test_what_is_missing_and_what_is_not_expected(net: Net) -> None:
    weights = {"layers/0/kernel": KERNEL, "layers/0/bais": BIAS, "optimizer/count": np.int32(1)}
    with pytest.raises(StructureError) as caught:
        assign_weights(net, weights)
    assert str(caught.value) == (
        "The weights do not fit the variables of the model:\n"
        "  - layers/0/bias (bfloat16[2]) is missing: did you mean layers/0/bais?\n"
        "  - layers/1/kernel (float32[3,2]) is missing\n"
        "  - layers/1/bias (bfloat16[2]) is missing\n"
        "  - _steps (int32[]) is missing\n"
        "  - layers/0/bais is not expected\n"
        "  - optimizer/count is not expected\n"
        "partial=True assigns what fits."
    )
    assert_untouched(net)
    report = assign_weights(net, weights, partial=True)
    assert report == WeightsReport(
        {"layers/0/kernel": "layers/0/kernel"},
        ("layers/0/bias", "layers/1/kernel", "layers/1/bias", "_steps"),
        ("layers/0/bais", "optimizer/count"),
    )
    assert str(report) == (
        "1 variable assigned\n"
        "layers/0/bias keeps its value: no weight matches it\n"
        "layers/1/kernel keeps its value: no weight matches it\n"
        "layers/1/bias keeps its value: no weight matches it\n"
        "_steps keeps its value: no weight matches it\n"
        "layers/0/bais matches no variable\n"
        "optimizer/count matches no variable"
    )


def test_partial_weights_have_something_in_common_with_the_model(net: Net) -> None:
    with pytest.raises(StructureError, match=r"dense/w is not expected$"):
        assign_weights(net, {"dense": {"w": KERNEL}}, partial=True)


def test_many_differences_are_counted() -> None:
    model = {f"w{i}": tf.Variable(0.0) for i in range(50)}
    with pytest.raises(StructureError, match=r"(?s)30 more are missing.*5 more are not expected"):
        assign_weights(model, {f"v{i}/x": 1.0 for i in range(25)})


@pytest.mark.parametrize(
    ("shift", "rename", "hint"),
    [
        (
            lambda tree: {"params": tree},
            lambda path: path.removeprefix("params/"),
            "params/_steps may belong to _steps. If so, pass rename=lambda path: "
            "path.removeprefix('params/').",
        ),
        (
            lambda tree: tree["layers"],
            lambda path: "layers/" + path,
            "0/bias may belong to layers/0/bias. If so, pass rename=lambda path: 'layers/' + path.",
        ),
    ],
)
def test_paths_that_begin_otherwise(shift: Any, rename: Any, hint: str) -> None:
    net = Net()
    weights = shift(state())
    model: Any = net if "params" in weights else {"layers": net.layers}
    with pytest.raises(StructureError) as caught:
        assign_weights(model, weights)
    function = hint.partition("rename=")[2]
    assert str(caught.value).rpartition("\n")[2].endswith(f"rename={function}")
    assert_untouched(net)
    assign_weights(model, weights, rename=rename)
    np.testing.assert_array_equal(net.layers[1].kernel, KERNEL * 2)


def test_other_names(net: Net) -> None:
    weights = {"encoder.weight": KERNEL, "encoder.beta": BIAS, "optimizer.count": 1}
    mapping = {
        "encoder.weight": "layers/1/kernel",
        "encoder.beta": "layers/1/bias",
        "optimizer.count": None,
    }
    report = assign_weights(net, weights, rename=mapping, partial=True)
    assert report.assigned == {
        "layers/1/kernel": "encoder.weight",
        "layers/1/bias": "encoder.beta",
    }
    assert report.unexpected == ()
    other = Net()
    assert report == assign_weights(other, weights, rename=mapping.get, partial=True)
    with pytest.raises(StructureError, match=r"rename has 'encoder\.weigth', which is not a path"):
        assign_weights(net, weights, rename={"encoder.weigth": "layers/1/kernel"})
    with pytest.raises(StructureError, match=r"rename gives encoder\.weight and encoder\.beta the"):
        assign_weights(net, weights, rename=lambda path: "layers/1/kernel")


def test_shapes_and_dtypes_are_checked_before_anything_is_assigned(net: Net) -> None:
    weights = {
        "layers/0/kernel": KERNEL,
        "layers/0/bias": BIAS,
        "layers/1/kernel": KERNEL.T,
        "layers/1/bias": np.array([1, 2], np.float32),
        "_steps": 2.5,
    }
    with pytest.raises(ArgumentsError) as caught:
        assign_weights(net, weights)
    assert str(caught.value) == (
        "The weights do not fit the variables of the model:\n"
        "  - layers/1/kernel: expected shape (3, 2), got (2, 3) (transposed?)\n"
        "  - layers/1/bias: expected bfloat16, got float32\n"
        "  - _steps: expected int32, got 2.5\n"
        "Nothing was assigned. Convert them, or leave them out with rename and partial=True."
    )
    assert_untouched(net)
    with pytest.raises(ShapeError):
        assign_weights(net, {"layers/0/kernel": KERNEL[:1]}, partial=True)
    with pytest.raises(DTypeError, match="_steps: expected int32, got str96"):
        assign_weights(net, {"_steps": "all"}, partial=True)
    assert_untouched(net)


def test_64_bits_are_taken_for_32(net: Net) -> None:
    assign_weights(net, {"layers/0/kernel": KERNEL.astype(np.float64), "_steps": 7}, partial=True)
    np.testing.assert_array_equal(net.layers[0].kernel, KERNEL)


def test_nothing_is_no_leaf(net: Net) -> None:
    report = assign_weights(net, state() | {"batch_stats": {}, "rng": None, "rest": []})
    assert report.unexpected == ()


def test_weights_of_every_library(net: Net) -> None:
    import jax.numpy as jnp

    weights = {
        "layers/0/kernel": tf.Variable(KERNEL),
        "layers/0/bias": jnp.asarray(BIAS),
        "layers/1/kernel": np.asfortranarray(KERNEL),
        "layers/1/bias": tf.constant(BIAS),
        "_steps": np.int32(1),
    }
    assign_weights(net, weights)
    for layer in net.layers:
        np.testing.assert_array_equal(layer.kernel, KERNEL)
        np.testing.assert_array_equal(layer.bias, BIAS)


def test_trees_of_variables() -> None:
    shared = tf.Variable(0.0)
    model = {"a": [shared, (tf.Variable(0.0),)], "b": {"shared": shared}}
    assert list(find_variables(model)) == ["a/0", "a/1/0"]
    assign_weights(model, {"a": [1.0, [2.0]]})
    assert [float(shared), float(model["a"][1][0])] == [1, 2]  # type: ignore[index]
    assign_weights(model, {"b": {"shared": 3.0}}, partial=True)
    assert float(shared) == 3


def test_a_variable_of_any_rank() -> None:
    variable = tf.Variable(0.0, shape=tf.TensorShape(None))
    assign_weights({"w": variable}, {"w": np.ones((2, 3), np.float32)})
    assert variable.numpy().shape == (2, 3)
    with pytest.raises(StructureError, match=r"w \(float32\[\.\.\.\]\) is missing"):
        assign_weights({"w": variable}, {})


def test_what_two_variables_are_called_is_nobodys() -> None:
    one, other = tf.Variable(0.0, name="w"), tf.Variable(0.0, name="w")
    with pytest.raises(StructureError, match="w is not expected"):
        assign_weights([one, other], {"w": 1.0}, partial=True)
    alike = {"x y": tf.Variable(0.0), "x_y": tf.Variable(0.0)}
    with pytest.raises(StructureError, match=r"x\+y is not expected"):
        assign_weights(alike, {"x+y": 1.0}, partial=True)
    assign_weights(alike, {"x y": 1.0, "x_y": 2.0})
    assert [float(variable) for variable in alike.values()] == [1, 2]


@pytest.mark.parametrize("model", [tf.Module(), {}, 3, None])
def test_what_has_no_variables(model: Any) -> None:
    with pytest.raises(StructureError, match=f"^The {type(model).__name__} has no variables"):
        assign_weights(model, {"w": 1.0})


def test_a_model_with_cycles() -> None:
    model = tf.Module()
    model.me, model.w = model, tf.Variable(0.0)
    assign_weights(model, {"w": 1.0})
    assert float(model.w) == 1


def test_within_a_function_of_tensorflow(net: Net) -> None:
    @tf.function(autograph=False)
    def f() -> Any:
        assign_weights(net, {"layers/0/kernel": KERNEL}, partial=True)
        return net.layers[0].kernel.read_value()

    np.testing.assert_array_equal(f(), KERNEL)


def test_several_devices() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = {"w": tf.Variable(tf.zeros(3))}
    assign_weights(model, {"w": np.ones(3, np.float32)})
    np.testing.assert_array_equal(model["w"].numpy(), 1)


def test_a_damaged_file(net: Net, tmp_path: Path) -> None:
    file = tmp_path / "w.msgpack"
    file.write_bytes(b"\x81\xa1a")
    with pytest.raises(FileFormatError):
        assign_weights(net, file)
    with pytest.raises(FileNotFoundError):
        assign_weights(net, tmp_path / "none")


def test_rename_is_a_mapping_or_a_function() -> None:
    model = {"w": tf.Variable(1.0)}
    with pytest.raises(StructureError) as caught:
        assign_weights(model, {"v": np.float32(2)}, rename="w")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "rename must be a mapping from paths to names, or a function of a path. Got: 'w'."
    )
    with pytest.raises(StructureError, match=r"^rename gives v the name 1, which is no text\.$"):
        assign_weights(model, {"v": np.float32(2)}, rename={"v": 1})  # type: ignore[dict-item]


def test_one_array_after_the_other_is_converted(tmp_path: Path) -> None:
    size = 1 << 19
    file = tmp_path / "w.safetensors"
    save_file({f"w{i}": np.full(size, float(i)) for i in range(8)}, file)
    # Where Orbax read a checkpoint before, TensorFlow holds on to all copies.
    printed = run_in_tensorflow(
        """
        import sys, tracemalloc
        import tensorflow as tf
        from jax2tf_bridge import assign_weights

        model = {f"w{i}": tf.Variable(tf.zeros(int(sys.argv[2]))) for i in range(8)}
        tracemalloc.start()
        assign_weights(model, sys.argv[1])
        kept, peak = tracemalloc.get_traced_memory()
        print(peak - kept, *(int(variable[0]) for variable in model.values()))
        """,
        str(file),
        str(size),
    )
    temporary, *values = map(int, printed.split())
    # Variables keep the arrays whose memory happens to be aligned for TensorFlow; those are not
    # temporary.
    assert temporary < 3.5 * 4 * size
    assert values == list(range(8))
