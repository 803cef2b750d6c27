"""Everything for TensorFlow does without each private name that it uses, or says so."""

import tempfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import (
    PortableFunction,
    Signature,
    Target,
    export,
    save,
    save_litert,
    save_tfjs,
    to_tf,
)

# Private: a seam is what is tested, and coremltools is not in the environment.
from jax2tf_bridge.coreml._graph import make_graph
from jax2tf_bridge.errors import ModuleError, SavingError, UnsupportedByTargetError
from jax2tf_bridge.frozen_graphs import ModelRuntime, freeze_signatures
from jax2tf_bridge.saving._variables import Weights
from jax2tf_bridge.targets._tf_compat import SEAM as PORTABLE_SEAM
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._tf_compat import SEAM as OP_SEAM
from tests.house.seams import take_away
from tests.sharding.meshes import X, spread_product
from tests.to_tensorflow.operations.running import op_names

SEAM = (*PORTABLE_SEAM, *OP_SEAM)


@pytest.fixture(scope="module")
def portable() -> PortableFunction:
    return export(lambda x: jnp.sin(x), platforms=["cpu"])(np.float32(1))


def _call_module(without: Callable[[], None], portable: PortableFunction) -> None:
    np.testing.assert_allclose(to_tf(portable)(np.float32(1)), np.sin(1), rtol=1e-6)
    without()
    with pytest.raises(ModuleError, match="has no XlaCallModule op"):
        to_tf(portable)(np.float32(1))


def _max_convention(without: Callable[[], None], portable: PortableFunction) -> None:
    assert _of_a_release_to_come().calling_convention >= 8
    without()
    assert _of_a_release_to_come().calling_convention == 8


def _current_version(without: Callable[[], None], portable: PortableFunction) -> None:
    (version,) = _of_a_release_to_come().stablehlo_versions
    assert version >= (0, 14, 24)
    without()
    assert _of_a_release_to_come().stablehlo_versions == ((0, 14, 24),)


def _of_a_release_to_come() -> Target:
    """Returns what the installed TensorFlow says, and not the table of releases."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tf, "__version__", "2.99.0")
        return Target.installed()


def _list_wrapper(without: Callable[[], None], portable: PortableFunction) -> None:
    module = tf.Module()
    module.value = [1.0, [2.0]]
    _wrapper_is_a_leaf(without, module.value, list)


def _tuple_wrapper(without: Callable[[], None], portable: PortableFunction) -> None:
    module = tf.Module()
    module.value = (1.0, [2.0])
    _wrapper_is_a_leaf(without, module.value, tuple)


def _dict_wrapper(without: Callable[[], None], portable: PortableFunction) -> None:
    module = tf.Module()
    module.value = {"a": 1.0}
    _wrapper_is_a_leaf(without, module.value, dict)


def _wrapper_is_a_leaf(without: Callable[[], None], wrapper: object, plain: type) -> None:
    assert type(wrapper) is not plain
    assert type(_tf_compat.unwrap_containers(wrapper)) is plain
    without()
    assert _tf_compat.unwrap_containers(wrapper) is wrapper


def _saved_model(without: Callable[[], None], portable: PortableFunction) -> None:
    signature = Signature(portable, defaults={"x": 1.0})
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/1", signature)
        without()
        with pytest.raises(SavingError, match="has no defaults for inputs: leave out `defaults`"):
            save(f"{folder}/2", signature)


def _sharding(without: Callable[[], None], portable: PortableFunction) -> None:
    spread = export(spread_product(), platforms=["tpu"])(X, X)

    def build() -> None:
        tf.function(to_tf(spread)).get_concrete_function(tf.constant(X), tf.constant(X))

    build()
    without()
    with pytest.raises(ModuleError, match="has no XlaSharding op, which sharded functions need"):
        build()


def _dynamic_update_slice(without: Callable[[], None], portable: PortableFunction) -> None:
    def update(x: Any, i: Any) -> Any:
        return jax.lax.dynamic_update_slice(x, jnp.zeros([1, 2]), (i, 0))

    function = export(update, polymorphic_shapes=["(b, 2)", None])(np.ones([3, 2]), np.int32(1))

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            save_litert(f"{folder}/updated.tflite", function)

    build()
    without()
    with pytest.raises(UnsupportedByTargetError, match="TensorStridedSliceUpdate of float32"):
        build()


def _operation_definitions(without: Callable[[], None], portable: PortableFunction) -> None:
    function = export(lambda x: x[::-1])(np.arange(3, dtype=np.uint32))

    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            save_litert(f"{folder}/reversed.tflite", function)

    build()
    without()
    with pytest.raises(UnsupportedByTargetError, match="ReverseV2 of uint32"):
        build()


def _stop_recording(without: Callable[[], None], portable: PortableFunction) -> None:
    def loop(x: Any) -> Any:
        return jax.lax.fori_loop(0, 2, lambda _, y: y * jnp.sin(y), x)

    looping = to_tf(export(loop, target=Target.widest(xla=False))(np.float32(1)))

    def kinds() -> set[str]:
        def values(x: tf.Tensor) -> tf.Tensor:
            # TensorFlow would ignore a single tape until it is asked for a gradient.
            with tf.GradientTape() as outer, tf.GradientTape() as inner:
                outer.watch(x)
                inner.watch(x)
                return looping(x)

        graph = tf.function(values).get_concrete_function(tf.constant(1.0)).graph
        return set(op_names(graph))

    assert "EmptyTensorList" not in kinds()
    without()
    assert "EmptyTensorList" in kinds()


def _freeze(without: Callable[[], None], portable: PortableFunction) -> None:
    def build() -> None:
        with tempfile.TemporaryDirectory() as folder:
            save_tfjs(f"{folder}/model", portable)

    build()
    without()
    with pytest.raises(ModuleError, match="cannot replace variables by constants"):
        build()


def _without_value(without: Callable[[], None], portable: PortableFunction) -> None:
    function = export(lambda params, x: params["w"] * x)({"w": np.ones(3, np.float32)}, X[:, :3])

    def held() -> bool:
        """Returns whether a variable keeps its value while a model is saved; the model works."""
        params = {"w": np.arange(3, dtype=np.float32)}
        weights = Weights(params)
        weights.for_function(function)
        with tempfile.TemporaryDirectory() as folder:
            save(f"{folder}/1", function, params=params)
            found = tf.saved_model.load(f"{folder}/1").params["w"]
        np.testing.assert_array_equal(found, params["w"])
        return all(w.variable.is_initialized() for w in weights.weights())

    assert not held()
    without()
    assert held()


def _function_to_graph(without: Callable[[], None], portable: PortableFunction) -> None:
    def loop(x: Any) -> Any:
        return jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y * 2, x)

    frozen = freeze_signatures(
        Signature(loop, args=[np.ones(2, np.float32)]), None, None, ModelRuntime("Core ML", "save")
    )
    (signature,) = frozen.values()
    make_graph(signature.graph, {"x": [2]})
    without()
    with pytest.raises(ModuleError, match="cannot read the functions of a graph"):
        make_graph(signature.graph, {"x": [2]})


BEHAVIOURS: dict[str, Callable[[Callable[[], None], PortableFunction], None]] = {
    "call_module": _call_module,
    "call_module_maximum_supported_version": _max_convention,
    "get_current_version": _current_version,
    "ListWrapper": _list_wrapper,
    "_TupleWrapper": _tuple_wrapper,
    "_DictWrapper": _dict_wrapper,
    "SavedModel": _saved_model,
    "sharding": _sharding,
    "dynamic_update_slice": _dynamic_update_slice,
    "get": _operation_definitions,
    "stop_recording": _stop_recording,
    "UninitializedVariable": _without_value,
    "convert_variables_to_constants_v2": _freeze,
    "function_def_to_graph_def": _function_to_graph,
}


# They convert models to LiteRT.
_SLOW = {"dynamic_update_slice", "get"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(entry.name, marks=pytest.mark.slow if entry.name in _SLOW else ())
        for entry in SEAM
    ],
)
def test_without_the_name(
    name: str, portable: PortableFunction, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First with the name, then without it: a test that sees no difference would prove nothing."""
    BEHAVIOURS[name](lambda: take_away(monkeypatch, SEAM, name), portable)
