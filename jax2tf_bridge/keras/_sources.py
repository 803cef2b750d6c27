"""Makes layer models from SavedModels, .jaxfn files, portable functions and JAX functions."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import array_type_text, unknown_name_text
from jax2tf_bridge.errors import FileFormatError, FunctionError, LayerError, make_path_error
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.keras._jax_function import JaxFunction
from jax2tf_bridge.keras._model import LayerModel, LayerOptions, Value, model_from_portables
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    unwrap_portable,
)
from jax2tf_bridge.saved_model import (
    SERVING_DEFAULT,
    Sidecar,
    open_variables,
    read_serving_graph,
    read_sidecar,
)
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.signatures import WeightLeaf
from jax2tf_bridge.storage import AnyPath, as_path


def resolve_source(
    function: Any, params: Any, signature: str | None, training: Any, options: LayerOptions
) -> LayerModel | JaxFunction:
    """Makes a layer model from a user's arguments, or a JaxFunction that the layer exports later.

    Raises:
      FunctionError: a layer cannot run `function`.
      LayerError: the arguments do not fit together.
      FileFormatError, OSError: a file or folder is of another format, damaged or missing.
    """
    if isinstance(function, (str, os.PathLike)) and (folder := as_path(function)).is_dir():
        _check_saved_model_arguments(params, training)
        options.check_shapes_left_out("a SavedModel")
        return _model_from_saved_model(folder, signature, training, options)
    if signature is not None:
        if isinstance(function, (str, os.PathLike)) and not as_path(function).exists():
            raise make_path_error(errno.ENOENT, "does not exist", function)
        raise LayerError(
            f"signature={signature!r} is for the folder of a SavedModel. Leave it out for "
            f"{_describe_value(function)}."
        )
    portable = _find_portable(function)
    if portable is not None:
        training_portable = None if training is None else _find_portable(training)
        if training is not None and training_portable is None:
            raise FunctionError(
                "training_function must be a PortableFunction or a .jaxfn file, as `function` is. "
                f"Got: {_describe_value(training)}."
            )
        options.check_shapes_left_out("a portable function")
        portables = [portable] if training_portable is None else [portable, training_portable]
        return model_from_portables(portables, params, options)
    if not callable(function):
        raise FunctionError(
            "A layer needs the folder of a SavedModel, a .jaxfn file, a PortableFunction or a "
            f"JAX function. Got: {_describe_value(function)}."
        )
    if training is not None:
        raise LayerError(
            "training_function is for portable functions and SavedModels. Give the JAX function "
            "an argument `training`, which is True or False."
        )
    return JaxFunction(function, params, options)


def _check_saved_model_arguments(params: Any, training: Any) -> None:
    if params is not None:
        raise LayerError(
            "A SavedModel has its own weights, so it takes no params. Leave them out, and use "
            "jax2tf_bridge.assign_weights to load other weights."
        )
    if training is not None and not isinstance(training, str):
        raise LayerError(
            "training_function must be the name of another signature of the SavedModel. Got: "
            f"{_describe_value(training)}."
        )


def _find_portable(function: Any) -> PortableFunction | None:
    if isinstance(function, (str, os.PathLike)):
        return read_function(function)
    portable = unwrap_portable(function)
    return portable if isinstance(portable, PortableFunction) else None


def _describe_value(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"an object of type {type(value).__name__}"


def _model_from_saved_model(
    folder: AnyPath, signature: str | None, training: str | None, options: LayerOptions
) -> LayerModel:
    read_serving_graph(folder)  # raises a precise error if the folder is not a SavedModel
    bridge_model = read_sidecar(folder)
    if bridge_model is None:
        raise FileFormatError(
            f"{folder} was not written by jax2tf_bridge.save: it has no "
            "assets.extra/jax2tf_bridge.json, which describes its weights and functions. Save "
            "the model with jax2tf_bridge.save, or use keras.layers.TFSMLayer to run it without "
            "training.",
            file=str(folder),
        )
    sidecar, portables = bridge_model
    names = [signature or SERVING_DEFAULT, *([training] if training else [])]
    for name, argument in zip(names, ("signature", "training_function"), strict=False):
        if name not in portables:
            raise LayerError(
                f"{argument}={name!r}: {folder} has "
                f"{unknown_name_text('signature', name, portables)}"
            )
    functions = []
    for name in names:
        entry = sidecar.signatures[name]
        if entry.updates:
            raise LayerError(
                f"The signature {name!r} of {folder} changes weights itself, and a Keras layer's "
                "are changed by Keras's optimizer. Choose a signature that returns outputs only."
            )
        input_names = {array.path: input_name for input_name, array in entry.inputs.items()}
        function = options.function(portables[name], entry.takes_params)
        functions.append(replace(function, input_names=input_names))
    values = _SavedValues(folder, sidecar)
    is_saved_trainable = {entry.name: entry.trainable for entry in sidecar.variables}

    def is_trained(leaf: WeightLeaf) -> bool:
        as_saved = options.trainable is None or options.trainable is False
        return is_saved_trainable[leaf.name] if as_saved else options.is_trained(leaf)

    leaves = [leaf for function in functions for leaf in values.read_leaves(function)]
    options.check_names(leaves)
    model = LayerModel.of(functions, options.mutable, leaves, is_trained, values.make_reader)
    advice = (
        " (they were saved with trainable=...). Pass trainable=True, or prefixes of their names."
        if model.weights
        else ": its functions captured them as constants. Save it with params=..."
    )
    return options.check(model, f"{folder}", advice)


class _SavedValues:
    def __init__(self, folder: AnyPath, sidecar: Sidecar) -> None:
        self._folder = folder
        self._weights = {entry.name: entry for entry in sidecar.variables}
        self._constants = {(c.digest, c.dtype, c.shape): c.key for c in sidecar.constants}
        # TensorFlow's reader treats brackets in paths as glob patterns and supports fewer schemes.
        self._bundle = open_variables(folder)

    def read_leaves(self, function: LayerFunction) -> list[WeightLeaf]:
        weights = []
        for path, name, aval in function.weights:
            entry = self._weights.get(name)
            if entry is None:
                raise self._make_damaged_error(
                    f"it has no variable for {path}, which a function needs"
                )
            value = self._read_array(entry.key, aval, entry.shape)
            weights.append(WeightLeaf(path, name, aval, value))
        return weights

    def make_reader(self, portable: PortableFunction, constant: LiftedConstant) -> Value | None:
        aval = constant.aval
        key = self._constants[constant.digest, aval.dtype, aval.known_op_shape]
        return lambda: self._read_array(key, aval, aval.known_op_shape)

    def _read_array(self, key: str, aval: Aval, shape: tuple[int, ...]) -> np.ndarray:
        entry = None if self._bundle is None else self._bundle.entries.get(key)
        if self._bundle is None or entry is None:
            raise self._make_damaged_error(f"it has no variable with the key {key!r}")
        # A model for converters holds captured bools as uint8; the bytes are the same.
        is_bool = (entry.dtype, aval.op_dtype) == ("uint8", "bool")
        if entry.shape != shape or not (is_bool or entry.dtype == aval.op_dtype):
            actual = array_type_text(entry.dtype, entry.shape)
            expected = array_type_text(aval.op_dtype, shape)
            raise self._make_damaged_error(f"the variable {key!r} is {actual}, not {expected}")
        dtype = tf.as_dtype(aval.op_dtype).as_numpy_dtype
        return np.frombuffer(self._bundle.read(key), dtype).reshape(shape)

    def _make_damaged_error(self, problem: str) -> FileFormatError:
        return FileFormatError(
            f"{self._folder} is damaged: {problem}. Copy or save it again.",
            file=str(self._folder),
        )
