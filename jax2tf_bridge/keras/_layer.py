"""A Keras layer for a SavedModel, a portable function or a JAX function."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import DTypeError, LayerError, ShapeError, StructureError, format_bullets
from jax2tf_bridge.keras._model import (
    LayerConstants,
    LayerModel,
    LayerOptions,
    LayerWeight,
    make_model_config,
    read_model_config,
)
from jax2tf_bridge.keras._sources import JaxFunction, resolve_source
from jax2tf_bridge.portable import AUTO, HoldsPortable, PolyConstraints, PortableFunction
from jax2tf_bridge.saving import read_prefixes
from jax2tf_bridge.signatures import format_mismatches
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import EagerConstants, opaque_to_autograph


@keras.saving.register_keras_serializable(package="jax2tf_bridge")
class KerasLayer(keras.layers.Layer):  # type: ignore[misc]
    """A Keras layer that runs a JAX function and trains its weights.

    It works in functional, Sequential and subclassed models, with any optimizer, in `fit`,
    `model.save` and `model.export`. A reloaded model needs neither the JAX function nor JAX.

    Args:
      function: the folder of a SavedModel that `save` wrote, a .jaxfn file, a PortableFunction, or
        a JAX function. Only a JAX function needs JAX. The layer exports it at the first call; the
        batch size and all sizes that Keras does not know are symbolic.
      params: the weights, which are the first argument of the function: a pytree of arrays, a state
        dict, or the path of a msgpack or safetensors file. None for a function without weights, and
        for a SavedModel, which has its own.
      signature: the signature of a SavedModel to run; "serving_default" by default.
      training_function: the function for training=True: the name of a signature for a SavedModel,
        otherwise a portable function or .jaxfn file with the same weights. A JAX function has an
        argument `training` instead.
      trainable: the weights to train: all floating-point weights (True), none (False;
        `layer.trainable = True` unfreezes them), or those whose names begin with one of the given
        prefixes, such as ["params"]. By default all, or those that are trainable in the SavedModel.
      mutable: prefixes of the names of weights that the function updates in training, such as
        ["batch_stats"]. With training=True the function returns (outputs, new values), as Flax's
        apply(..., mutable=["batch_stats"]) does. Optimizers do not change these weights.
      polymorphic_shapes: as in `export`, for the inputs of a JAX function.
      polymorphic_constraints: as in `export`, for the inputs of a JAX function.
      target: a target without XLA, such as `Target.widest(xla=False)`, builds the function from
        TensorFlow's own operations. By default a JAX function is exported for XLA, and other
        functions keep their target.
      seed: an integer seed of the PRNG keys that the layer draws: for the argument `rng` of a JAX
        function, and for every typed key that a portable function takes.
      name: the name of the layer, which is the prefix of the names of its weights.

    Attributes:
      params: the variables of the weights by path, such as "dense/kernel".

    Raises:
      LayerError: the arguments contradict each other, or there is nothing to train.
      FileFormatError: a file or folder is of another format, or damaged.
      StructureError, ShapeError, DTypeError: the weights do not fit the function; or, in a call,
        the inputs do not fit. The text names each misfit.
      SavingError: no weight matches a prefix in `trainable` or `mutable`.

    >>> import keras, numpy as np
    >>> layer = KerasLayer(lambda params, x: x @ params["w"], {"w": np.ones((3, 2), np.float32)})
    >>> model = keras.Sequential([keras.Input((3,)), layer])
    >>> model.output_shape, list(layer.params)
    ((None, 2), ['w'])
    >>> layer(np.ones((5, 3))).shape
    TensorShape([5, 2])
    """

    def __init__(
        self,
        function: str | os.PathLike[str] | PortableFunction | HoldsPortable | Any,
        params: Any = None,
        *,
        signature: str | None = None,
        training_function: Any = None,
        trainable: bool | str | Sequence[str] | None = None,
        mutable: str | Sequence[str] = (),
        polymorphic_shapes: Any = None,
        polymorphic_constraints: PolyConstraints = AUTO,
        target: Target | None = None,
        seed: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, trainable=trainable is not False, autocast=False)
        # Keras takes no integers of NumPy.
        number = as_integer(seed)
        self._seed = seed if number is None else number
        self._keys: Any = None
        self._state: _State | None = None
        self._pending: JaxFunction | None = None
        if isinstance(function, LayerModel):  # from_config passes it
            self._set_up(function)
            return
        options = LayerOptions(
            trainable
            if trainable is None or isinstance(trainable, bool)
            else read_prefixes(trainable, "trainable", "True, False or ", LayerError),
            read_prefixes(mutable, "mutable", error=LayerError),
            polymorphic_shapes,
            polymorphic_constraints,
            target,
        )
        source = resolve_source(function, params, signature, training_function, options)
        if isinstance(source, JaxFunction):
            self._pending = source
        else:
            self._set_up(source)

    @property
    def params(self) -> Mapping[str, Any]:
        """Variables of the weights by path, such as "dense/kernel"."""
        return {} if self._state is None else dict(self._state.weights)

    def build(self, input_shape: Any) -> None:
        """Exports a JAX function for inputs of these shapes and of Keras' default dtype.

        A call of the layer exports it for the dtypes of the inputs instead.
        """
        dtype = keras.config.floatx()

        def tensor(shape: Any) -> Any:
            return keras.KerasTensor(tuple(shape), dtype)

        self._export(_map_shapes(tensor, input_shape))

    @opaque_to_autograph  # the first call exports a JAX function
    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Export and check before Keras builds and calls the layer: Keras passes no dtypes to
        # `build`, and wraps error messages of `call` in its own.
        specs = keras.tree.map_structure(_make_input_spec, inputs)
        self._export(specs)
        self._require_state("call it").model.function(False).check_inputs(self._subject, specs)
        return super().__call__(inputs, *args, **kwargs)

    @opaque_to_autograph
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Runs the function.

        Args:
          inputs: the argument of the function, or a list or dict of its arguments.
          training: whether to run the training function.
        """
        state, is_training = self._require_state("call it"), bool(training)
        model = state.model
        weights = {n: tf.convert_to_tensor(v.value) for n, v in state.weights.items()}
        results = model.function(is_training).call(
            self._subject, weights, inputs, self._draw_key_words, state.constants
        )
        if model.returns_weights(is_training):
            count = len(results) - len(model.updated)
            for name, value in zip(model.updated, results[count:], strict=True):
                state.weights[name].assign(value)
        return model.nest_output(is_training, results)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Computes the shapes and dtypes of the outputs, with None for unknown sizes."""
        state = self._require_state("call it")
        results = state.model.function(bool(training)).compute_results(self._subject, inputs)
        tensors = [keras.KerasTensor(shape, dtype) for shape, dtype in results]
        return state.model.nest_output(bool(training), tensors)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Computes the shapes of the outputs for inputs of these shapes."""
        model = self._require_state("build it, or call it").model
        shapes = _map_shapes(lambda shape: _InputSpec(tuple(shape), None), input_shape)
        return model.nest_output(
            False, [s for s, _ in model.function(False).compute_results(self._subject, shapes)]
        )

    def get_config(self) -> dict[str, Any]:
        """Makes the config: the functions, without the values of the weights.

        Raises:
          LayerError: the layer has a JAX function and has not been called yet.
          SerializationError: the file format cannot hold its function.
        """
        state = self._require_state("call it, or build it,")
        return {
            "name": self.name,
            "trainable": bool(self.trainable),
            "seed": self._seed,
            "model": make_model_config(state.model),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> KerasLayer:
        """Makes a layer from a config; its weights are zeros until values are loaded.

        Raises:
          FileFormatError: the config is damaged, or of a newer release of jax2tf-bridge.
        """
        name = config.get("name")
        model = read_model_config(config.get("model"), name)
        layer = cls(model, seed=config.get("seed"), name=name)
        layer.trainable = config.get("trainable", True)
        return layer

    def save_own_variables(self, store: Any) -> None:
        """Writes the values of the weights by their names."""
        for key, variable in self._map_stored_variables().items():
            value = variable.numpy()
            # HDF5 has no float8.
            store[key] = value.view(np.uint8) if _is_float8(value.dtype) else value

    def load_own_variables(self, store: Any) -> None:
        """Reads the values of the weights by their names.

        Raises:
          StructureError: the file has other weights than the layer.
        """
        stored = self._map_stored_variables()
        missing = [key for key in stored if key not in store]
        unexpected = [key for key in store.keys() if key not in stored]  # noqa: SIM118
        if missing or unexpected:
            lines = format_mismatches(dict.fromkeys(missing, ""), unexpected, stored)
            raise StructureError(
                f"The weights of the file are not those of {self._subject}:"
                f"{format_bullets(lines)}\n"
                "Load the weights of a layer of the same function."
            )
        for key, variable in stored.items():
            value, dtype = store[key], tf.as_dtype(variable.dtype).as_numpy_dtype
            variable.assign(np.asarray(value).view(dtype) if _is_float8(np.dtype(dtype)) else value)

    @property
    def _subject(self) -> str:
        return f"the layer {self.name!r}"

    def _require_state(self, how: str) -> _State:
        if self._state is None:
            raise LayerError(
                f"The JAX function of {self._subject} is exported when the shapes and dtypes of "
                f"its inputs are known: {how} first."
            )
        return self._state

    def _export(self, inputs: Any) -> None:
        if self._pending is not None:
            self._set_up(self._pending.export_model(f"The layer {self.name!r}", inputs))
            self._pending = None

    def _set_up(self, model: LayerModel) -> None:
        weights = {weight.name: self._make_variable(weight) for weight in model.weights}
        constants = {key: self._make_variable(weight) for key, weight in model.constants}
        # Keras tracks variables that are attributes of the layer.
        self._own = [*weights.values(), *constants.values()]
        if model.draws_keys:
            self._keys = keras.random.SeedGenerator(self._seed)
        self._state = _State(model.drop_values(), weights, constants)
        self.built = True

    def _make_variable(self, weight: LayerWeight) -> Any:
        *scopes, last = weight.name.split("/")

        def initializer(shape: Any, dtype: Any = None) -> tf.Tensor:
            if weight.value is None:
                # tf.zeros has no float8.
                return tf.convert_to_tensor(np.zeros(shape, tf.as_dtype(dtype).as_numpy_dtype))
            return tf.convert_to_tensor(weight.value(), dtype)

        with contextlib.ExitStack() as stack:
            for scope in (keras.name_scope(self.name, caller=self), *map(keras.name_scope, scopes)):
                stack.enter_context(scope)
            return keras.Variable(
                initializer,
                shape=weight.shape,
                dtype=weight.dtype,
                trainable=weight.trainable,
                autocast=False,
                name=last,
            )

    def _draw_key_words(self, count: int) -> tf.Tensor:
        """Draws `count` words; the seed generator returns two at a time."""
        words = [tf.cast(self._keys.next(), tf.uint32) for _ in range(-(-count // 2))]
        return tf.concat(words, axis=0)[:count]

    def _map_stored_variables(self) -> dict[str, Any]:
        """Maps keys in a weights file to the variables; the keys have dots instead of slashes."""
        if self._state is None:
            return {}
        constants = zip(self._state.model.constants, self._state.captured.values(), strict=True)
        variables = [
            *self._state.weights.items(),
            *((weight.name, variable) for (_, weight), variable in constants),
        ]
        stored: dict[str, Any] = {}
        for name, variable in variables:
            key = name.replace("/", ".")
            while key in stored:  # "a.b" and "a/b" have the same key
                key += "_"
            stored[key] = variable
        return stored


class _State:
    """The model and the variables of a layer, hidden from Keras' attribute tracking.

    Attributes:
      model: the functions.
      weights: the variables of the weights by name.
      captured: the variables of captured arrays.
      constants: the captured arrays as tensors, for calls.
    """

    def __init__(
        self, model: LayerModel, weights: Mapping[str, Any], captured: Mapping[Any, Any]
    ) -> None:
        self.model, self.weights, self.captured = model, weights, captured
        self.constants = LayerConstants(captured, EagerConstants())


@dataclass(frozen=True)
class _InputSpec:
    """Shape and dtype of an input; a dtype of None fits every function."""

    shape: tuple[int | None, ...]
    dtype: str | None


def _is_float8(dtype: np.dtype[Any]) -> bool:
    return dtype.name.startswith("float8_")


def _make_input_spec(value: Any) -> Any:
    if value is None:
        return value
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        value = np.asarray(value)
    _check_kind(value)
    if isinstance(value, keras.KerasTensor):
        return value
    dtype = getattr(value.dtype, "name", value.dtype)
    shape = tf.TensorShape(value.shape)
    if shape.rank is None:
        raise ShapeError(
            "An input of a layer has no known rank. Set it, with tf.ensure_shape or a keras.Input."
        )
    return _InputSpec(tuple(shape.as_list()), dtype)


def _check_kind(value: Any) -> None:
    """Raises DTypeError for inputs that JAX has no arrays for, such as ragged tensors."""
    if isinstance(value, tf.RaggedTensor) or getattr(value, "ragged", False):
        kind, advice = "ragged", "Pass inputs.to_tensor(), with a mask as another input."
    elif isinstance(value, tf.SparseTensor) or getattr(value, "sparse", False):
        kind, advice = "sparse", "Pass tf.sparse.to_dense(inputs)."
    elif value.dtype == "string" or getattr(value.dtype, "kind", "") in ("U", "S", "O"):
        kind = "of strings"
        advice = "Convert them to numbers before, as with keras.layers.StringLookup."
    else:
        return
    raise DTypeError(f"An input of a layer is {kind}, which JAX has no arrays for. {advice}")


def _map_shapes(function: Any, shapes: Any) -> Any:
    if isinstance(shapes, Mapping):
        return {key: _map_shapes(function, shape) for key, shape in shapes.items()}
    if isinstance(shapes, (list, tuple)) and not all(
        size is None or as_integer(size) is not None for size in shapes
    ):
        return [_map_shapes(function, shape) for shape in shapes]
    return function(shapes)
