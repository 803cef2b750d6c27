"""`jax2tf-bridge retarget DIR --no-xla`: SavedModels of modules as TensorFlow's own operations."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge
from jax2tf_bridge import DisabledSafetyCheck, Target, convert, export
from jax2tf_bridge.serialization import read_function, write_function
from tests.cli.conftest import Ok, Run
from tests.cli.test_retarget_directory import Net, assert_right, predict, save

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def _operations(path: Path) -> set[str]:
    loaded = tf.saved_model.load(str(path))
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    return {node.op for function in graph.library.function for node in function.node_def}


@pytest.mark.parametrize("batch", [None, 4])
def test_results_and_gradients_stay(ok: Ok, tmp_path: Path, batch: int | None) -> None:
    shapes = None if batch else [None, "(b, 3)"]
    save(Net(convert(predict, polymorphic_shapes=shapes), batch), tmp_path / "model")
    assert "XlaCallModule" in _operations(tmp_path / "model")
    printed = ok("retarget", tmp_path / "model", "--no-xla", "-o", tmp_path / "new")
    assert "modules rewritten as TensorFlow's own operations" in printed
    assert {"MatMul", "Tanh"} <= _operations(tmp_path / "new")
    assert not {name for name in _operations(tmp_path / "new") if "Xla" in name}
    assert_right(tmp_path / "new")


def test_what_the_module_asserts_of_sizes_is_checked(ok: Ok, tmp_path: Path) -> None:
    portable = export(
        lambda x: x.reshape(2, -1),
        polymorphic_shapes="(b,)",
        polymorphic_constraints=["mod(b, 2) == 0"],
    )(np.zeros(4, np.float32))
    jax2tf_bridge.save(tmp_path / "model", portable, vjp_order=0)
    ok("retarget", tmp_path / "model", "--no-xla", "-o", tmp_path / "new")
    served = tf.saved_model.load(str(tmp_path / "new")).signatures["serving_default"]
    (found,) = served(x=tf.range(4.0)).values()
    np.testing.assert_array_equal(found, [[0, 1], [2, 3]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="mod"):
        served(x=tf.range(3.0))


def test_the_sidecar_says_it(ok: Ok, tmp_path: Path) -> None:
    portable = export(lambda x: jnp.sin(x), polymorphic_shapes="(b, 3)")(X)
    jax2tf_bridge.save(tmp_path / "model", portable)
    ok("retarget", tmp_path / "model", "--no-xla", "-o", tmp_path / "new")
    printed = ok("inspect", tmp_path / "new")
    assert "TensorFlow's own operations; gradients to order 1" in printed
    served = tf.saved_model.load(str(tmp_path / "new")).signatures["serving_default"]
    (found,) = served(x=X).values()
    np.testing.assert_allclose(found, np.sin(X), rtol=1e-6)
    (stored,) = (tmp_path / "new").rglob("*.jaxfn")
    assert read_function(stored).target == Target.widest(xla=False)


def test_the_sidecar_says_the_release_that_is_asked_for(ok: Ok, tmp_path: Path) -> None:
    portable = export(lambda x: jnp.sin(x))(X)
    jax2tf_bridge.save(tmp_path / "model", portable.with_vjp(1))
    ok("retarget", tmp_path / "model", "--no-xla", "--tensorflow", "2.19", "-o", tmp_path / "new")
    (stored,) = (tmp_path / "new").rglob("*.jaxfn")
    function = read_function(stored)
    for found in (function, function.vjp()):
        assert found.target == Target.tensorflow("2.19", xla=False)


def test_nothing_is_left_behind_where_it_fails(run: Run, tmp_path: Path) -> None:
    mine = jax.ffi.ffi_call("mine", jax.ShapeDtypeStruct(X.shape, X.dtype))
    allowed = [DisabledSafetyCheck.custom_call("mine")]
    portable = export(mine, platforms=["cpu"], disabled_checks=allowed)(X)
    jax2tf_bridge.save(tmp_path / "model", portable)
    result = run("retarget", tmp_path / "model", "--no-xla", "-o", tmp_path / "new")
    assert result.code == 1
    assert "the custom call 'mine'" in result.error
    assert not (tmp_path / "new").exists()


def test_for_converters(ok: Ok, run: Run, tmp_path: Path) -> None:
    portable = export(lambda x: jnp.expm1(x), polymorphic_shapes="(b, 3)")(X)
    write_function("f.jaxfn", portable, vjp_order=1)
    ok("save", "f.jaxfn", "--no-xla", "-o", tmp_path / "plain")
    assert "Expm1" in _operations(tmp_path / "plain")
    ok("save", "f.jaxfn", "--for-converters", "-o", tmp_path / "saved")
    ok("save", "f.jaxfn", "-o", tmp_path / "model")
    ok("retarget", tmp_path / "model", "--for-converters")
    for folder in (tmp_path / "saved", tmp_path / "model-for-converters"):
        assert "Tanh" in _operations(folder)
        assert not {"Assert", "EnsureShape", "Expm1", "PreventGradient"} & _operations(folder)
        served = tf.saved_model.load(str(folder)).signatures["serving_default"]
        (found,) = served(x=X).values()
        np.testing.assert_allclose(found, np.expm1(X), rtol=1e-5)
    ended = run("retarget", tmp_path / "model", "--for-converters", "--tensorflow", "2.19")
    assert ended.code == 2
    assert ended.error.startswith(
        "--for-converters writes for no particular release. Remove --tensorflow"
    )
