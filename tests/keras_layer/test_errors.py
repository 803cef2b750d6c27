"""Errors of the layer, by their texts."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import BridgeError, KerasLayer, PortableFunction, Signature, export, save
from jax2tf_bridge.errors import (
    ArgumentsError,
    DTypeError,
    FileFormatError,
    FunctionError,
    LayerError,
    SavingError,
    ShapeError,
    StructureError,
)

# Private: importing the package checks only the installed Keras.
from jax2tf_bridge.keras import _check_keras
from tests.keras_layer.functions import TABLE, X, dense, dense_params, pooled, pooled_params

IDS, MASK = np.ones((2, 3), np.int32), np.ones((2, 3), np.bool_)


@pytest.fixture(scope="module")
def embedding() -> KerasLayer:
    layer = KerasLayer(pooled, pooled_params(), name="net", polymorphic_shapes="(b, n)")
    layer([keras.KerasTensor((None, None), "int32"), keras.KerasTensor((None, None), "bool")])
    return layer


@pytest.fixture(scope="module")
def portable() -> PortableFunction:
    return export(dense, polymorphic_shapes=[None, "(b, 4)"], platforms=["cpu"])(dense_params(), X)


TAKES = "The inputs do not fit the layer 'net', which takes ids: int32[b,n] and mask: bool[b,n]"
AS_LIST = "Pass ids, mask as a list in this order, or as a dict."
CHANGE = "Change the shape or dtype of the keras.Input or of the data"


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        (IDS, StructureError, f"{TAKES}:\n  - expected 2 inputs, got one array\n{AS_LIST}"),
        ([IDS], StructureError, f"{TAKES}:\n  - expected 2 inputs, got 1\n{AS_LIST}"),
        (
            {"id": IDS, "mask": MASK},
            StructureError,
            f"{TAKES}:\n  - the input ids is missing\n  - the input id is not expected\n{AS_LIST}",
        ),
        (
            [IDS, {"mask": MASK}],
            StructureError,
            f"{TAKES}:\n  - mask: expected an array, got a dict with the keys ['mask']\n{AS_LIST}",
        ),
        (
            [IDS, MASK[0]],
            ShapeError,
            f"{TAKES}:\n  - mask: expected shape (b, n), got (3,)\n"
            f"{CHANGE}, or export the function for these.",
        ),
        (
            [IDS.astype(np.float32), MASK],
            DTypeError,
            f"{TAKES}:\n  - ids: expected int32, got float32\n{CHANGE}.",
        ),
        (
            [keras.KerasTensor((None, None, 2)), keras.KerasTensor((None, 3), "bool")],
            ArgumentsError,
            f"{TAKES}:\n  - ids: expected shape (b, n), got (?, ?, 2)\n"
            f"  - ids: expected int32, got float32\n{CHANGE}, or export the function for these.",
        ),
    ],
    ids=lambda value: "" if not isinstance(value, type) else value.__name__,
)
def test_inputs_are_named(
    inputs: Any, kind: type[BridgeError], text: str, embedding: KerasLayer
) -> None:
    with pytest.raises(kind) as caught:
        embedding(inputs)
    assert str(caught.value) == text


STRINGS = (
    "An input of a layer is of strings, which JAX has no arrays for. Convert them to numbers "
    "before, as with keras.layers.StringLookup."
)
RAGGED = (
    "An input of a layer is ragged, which JAX has no arrays for. Pass inputs.to_tensor(), with a "
    "mask as another input."
)
SPARSE = (
    "An input of a layer is sparse, which JAX has no arrays for. Pass tf.sparse.to_dense(inputs)."
)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ("text", STRINGS),
        (tf.constant(["text"]), STRINGS),
        (keras.KerasTensor((None,), "string"), STRINGS),
        (tf.ragged.constant([[1], [2, 3]]), RAGGED),
        (tf.sparse.from_dense(IDS), SPARSE),
        (keras.KerasTensor((None, 3), "int32", sparse=True), SPARSE),
    ],
    ids=["text", "texts", "Input of texts", "ragged", "sparse", "sparse Input"],
)
def test_inputs_that_jax_has_no_arrays_for(inputs: Any, text: str, embedding: KerasLayer) -> None:
    for layer in (embedding, KerasLayer(pooled, pooled_params())):
        with pytest.raises(DTypeError) as caught:
            layer([inputs, MASK])
        assert str(caught.value) == text


def test_sizes_that_contradict_are_named(embedding: KerasLayer) -> None:
    ids, mask = keras.KerasTensor((None, 4), "int32"), keras.KerasTensor((None, 3), "bool")
    with pytest.raises(ShapeError, match=r"The inputs do not fit the layer 'net'\. Input shapes"):
        embedding([ids, mask])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mask: expected shape \(b, n\), got"):
        embedding([IDS, MASK[:, :2]])


def kernel_of_x(x: Any) -> Any:
    return x @ jnp.asarray(TABLE)


def no_training(params: Any, x: Any, training: bool) -> Any:
    return x @ params["w"]


def other_values(params: Any, x: Any, training: bool) -> Any:
    return (x @ params["w"], {"v": params["v"]}) if training else x @ params["w"]


def dense_layer(**options: Any) -> KerasLayer:
    return KerasLayer(dense, dense_params(), **options)


W = {"w": np.ones((4, 2), np.float32), "v": np.ones(3, np.float32)}


def thin(w: Any) -> Any:
    return {"w": w["w"][0], "v": w["v"]}


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (
            lambda: KerasLayer(5),
            FunctionError,
            "A layer needs the folder of a SavedModel, a .jaxfn file, a PortableFunction or "
            "a JAX function. Got: an object of type int.",
        ),
        (
            lambda: KerasLayer(pooled, name="net")([IDS, MASK]),
            LayerError,
            "The layer 'net' takes params, ids, mask, the arguments of pooled, as a list in this "
            "order or as a dict. Got: a list of 2. If params are its weights, pass them as params "
            "of the layer.",
        ),
        (
            lambda: KerasLayer(pooled, pooled_params(), name="net")(IDS),
            LayerError,
            "The layer 'net' takes ids, mask, the arguments of pooled, as a list in this order or "
            "as a dict. Got: one array.",
        ),
        (
            lambda: KerasLayer(lambda w, x, train: x, W, name="net")(X),
            LayerError,
            "The layer 'net' takes x, train, the arguments of <lambda>, as a list in this order or "
            "as a dict. Got: one array. The layer itself passes an argument named training: rename "
            "train to it.",
        ),
        (
            lambda: KerasLayer(lambda x, key: x, name="net")(X),
            LayerError,
            "The layer 'net' takes x, key, the arguments of <lambda>, as a list in this order or "
            "as a dict. Got: one array. If x are its weights, pass them as params of the layer. "
            "The layer itself passes an argument named rng: rename key to it.",
        ),
        (
            lambda: KerasLayer(kernel_of_x)(np.ones((1, 64), np.float32)),
            LayerError,
            "The function kernel_of_x has no weights to train, so fit would change nothing: "
            "its function captured them as constants. Make them its first argument, and pass them "
            "as params. To use it as it is, pass trainable=False.",
        ),
        (
            lambda: KerasLayer(dense, dense_params(), name="net").get_config(),
            LayerError,
            "The JAX function of the layer 'net' is exported when the shapes and dtypes of its "
            "inputs are known: call it, or build it, first.",
        ),
        (
            lambda: KerasLayer(dense, dense_params(), signature="f"),
            LayerError,
            "signature='f' is for the folder of a SavedModel. Leave it out for an object of type "
            "function.",
        ),
        (
            lambda: KerasLayer("memory://root/none", signature="f"),
            FileNotFoundError,
            "memory://root/none does not exist",
        ),
        (
            lambda: dense_layer(trainable=1),
            LayerError,
            "trainable must be True, False or a list of prefixes of names, as ['params']. Got: 1.",
        ),
        (
            lambda: dense_layer(mutable=None),
            LayerError,
            "mutable must be a list of prefixes of names, as ['params']. Got: None.",
        ),
        (
            lambda: dense_layer(trainable=[b"out"]),
            LayerError,
            "trainable must be True, False or a list of prefixes of names, as ['params']. "
            "Got: [b'out'].",
        ),
        (
            lambda: KerasLayer(dense, dense_params(), training_function=dense),
            LayerError,
            "training_function is for portable functions and SavedModels. Give the JAX function "
            "an argument `training`, which is True or False.",
        ),
        (
            lambda: KerasLayer(dense, dense_params(), mutable="out")(X),
            LayerError,
            "mutable=['out'] needs a function for training that returns new values: one with an "
            "argument `training`, or training_function.",
        ),
        (
            lambda: KerasLayer(no_training, W, mutable="v")(X),
            StructureError,
            "With mutable=['v'], no_training must return (outputs, new values) when it is "
            "trained, as Flax's apply(..., mutable=['v']) does. It returns *",
        ),
        (
            lambda: KerasLayer(other_values, W, mutable=["v", "w"])(X),
            StructureError,
            "other_values must return new values of the weights that mutable=['v', 'w'] names:\n"
            "  - w is missing\nReturn a value for each, nested as params is.",
        ),
        (
            lambda: KerasLayer(dense, dense_params(), trainable=["dens"])(X),
            SavingError,
            "trainable has 'dens', which is not a prefix of any weight's name: did you mean dense? "
            "The names begin with: dense, out.",
        ),
    ],
)
def test_what_a_layer_cannot_be_made_of(
    make: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        make()
    assert str(caught.value) == text


def test_portable_functions_and_their_weights(portable: PortableFunction) -> None:
    with pytest.raises(StructureError, match=r"do not fit .* of dense:\n  - dense/bias is missing"):
        KerasLayer(portable, {**dense_params(), "dense": {"kernel": X}})
    without = KerasLayer(portable, name="net")
    with pytest.raises(StructureError, match=r"If params are its weights, pass them as params of"):
        without(X)
    text = "^polymorphic_shapes is for a JAX function, and a portable function has the sizes that "
    with pytest.raises(LayerError, match=text):
        KerasLayer(portable, dense_params(), polymorphic_shapes="(b, 4)")
    with pytest.raises(FunctionError, match="training_function must be a PortableFunction or a "):
        KerasLayer(portable, dense_params(), training_function=dense)
    other = export(no_training_of, platforms=["cpu"])({"dense": {"bias": X}}, X)
    text = r"The weight dense/bias is float32\[3\] for one of the two functions, and float32\[6,4\]"
    with pytest.raises(LayerError, match=text):
        KerasLayer.from_config(_config_of_two(portable, other))


def no_training_of(params: Any, x: Any) -> Any:
    return x + params["dense"]["bias"]


def _config_of_two(portable: PortableFunction, other: PortableFunction) -> dict[str, Any]:
    first = KerasLayer(portable, dense_params()).get_config()
    second = KerasLayer(other, {"dense": {"bias": X}}).get_config()
    first["model"]["training"] = second["model"]["inference"]
    return first


def test_saved_models(tmp_path: Path) -> None:
    module = tf.Module()
    module.f = tf.function(lambda x: x, input_signature=[tf.TensorSpec([None])])
    tf.saved_model.save(module, tmp_path / "other")
    with pytest.raises(FileFormatError, match=r"other was not written by jax2tf_bridge\.save: it"):
        KerasLayer(tmp_path / "other")
    with pytest.raises(FileFormatError, match=r"is not a SavedModel: it has no saved_model\.pb"):
        KerasLayer(tmp_path)
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "none"))):
        KerasLayer(tmp_path / "none")
    captured = Signature(kernel_of_x, args=[np.ones((1, 64), np.float32)])
    save(tmp_path / "captured", captured)
    text = r"captured has no weights to train.*: its functions captured them as constants\. Save it"
    with pytest.raises(LayerError, match=text):
        KerasLayer(tmp_path / "captured")
    assert len(KerasLayer(tmp_path / "captured", trainable=False).weights) == 1
    named = Signature(dense, args=[X])
    save(tmp_path / "frozen", {"predict": named}, params=dense_params(), trainable=False)
    with pytest.raises(LayerError, match=r"\(they were saved with trainable=\.\.\.\)\. Pass trai"):
        KerasLayer(tmp_path / "frozen", signature="predict")
    text = (
        r"signature='serving_default': .*frozen has no signature 'serving_default'\. There are: p"
    )
    with pytest.raises(LayerError, match=text):
        KerasLayer(tmp_path / "frozen")
    with pytest.raises(
        LayerError, match=r"training_function='prdict': .* did you mean 'predict'\? T"
    ):
        KerasLayer(tmp_path / "frozen", signature="predict", training_function="prdict")
    text = "^polymorphic_constraints is for a JAX function, and a SavedModel has the sizes that it "
    with pytest.raises(LayerError, match=text + "was exported with. Leave it out, or pass it to e"):
        KerasLayer(tmp_path / "captured", trainable=False, polymorphic_constraints=["b >= 2"])
    with pytest.raises(LayerError, match="A SavedModel has its own weights, so it takes no params"):
        KerasLayer(tmp_path / "frozen", dense_params())
    with pytest.raises(LayerError, match="training_function must be the name of another signature"):
        KerasLayer(tmp_path / "frozen", training_function=dense)


def test_variables_that_are_not_the_saved_models(tmp_path: Path) -> None:
    for name, params in (("a", dense_params()), ("b", {**dense_params(), "out": [X[:3, :2] > 0]})):
        save(tmp_path / name, Signature(dense, args=[X]), params=params, warm_up=False)
    shutil.rmtree(tmp_path / "a" / "variables")
    text = r"has the variable 'params/dense\.Sbias/\S+', and .*variables\.index lacks it: they do "
    with pytest.raises(FileFormatError, match=text):
        KerasLayer(tmp_path / "a")
    shutil.copytree(tmp_path / "b" / "variables", tmp_path / "a" / "variables")
    text = r"variable 'params/out\.S0/\S+' is float32\[3,2\] in the SavedModel, and bool\[3,2\] in "
    with pytest.raises(FileFormatError, match=text):
        KerasLayer(tmp_path / "a")


@pytest.mark.parametrize(
    ("version", "backend", "text"),
    [
        ("2.15.0", "tensorflow", "needs Keras 3, but Keras 2.15.0 is installed. Upgrade TensorF"),
        ("3.15.1", "jax", "the backend is jax. Set KERAS_BACKEND=tensorflow before Keras is"),
        ("3.15.1", "torch", "the backend is torch. Set KERAS_BACKEND=tensorflow before Ker"),
    ],
)
def test_keras_itself(version: str, backend: str, text: str) -> None:
    with pytest.raises(LayerError, match=re.escape(text)) as caught:
        _check_keras(version, backend)
    assert ("JaxLayer" in str(caught.value)) == (backend == "jax")
