"""Makes layer models from SavedModels, .jaxfn files, portable functions and JAX functions."""

from __future__ import annotations

import errno
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils import unknown_name_text
from jax2tf_bridge.errors import FileFormatError, FunctionError, LayerError, make_path_error
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.keras._model import LayerModel, LayerOptions, ReadValue, model_from_portables
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    unwrap_portable,
)
from jax2tf_bridge.saved_model import (
    SERVING_DEFAULT,
    SavedVariables,
    Sidecar,
    read_serving_graph,
    read_sidecar,
)
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.signatures import PathWeights, WeightLeaf, open_params
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
        options.refuse_shape_options("a SavedModel")
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
        options.refuse_shape_options("a portable function")
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
        self._variables = SavedVariables(folder)

    def read_leaves(self, function: LayerFunction) -> list[WeightLeaf]:
        weights = []
        for path, name, aval in function.weights:
            entry = self._weights.get(name)
            if entry is None:
                raise FileFormatError(
                    f"{self._folder} is damaged: it has no variable for {path}, which a function "
                    "needs. Copy or save it again.",
                    file=str(self._folder),
                )
            value = self._read_array(entry.key, aval, entry.shape)
            weights.append(WeightLeaf(path, name, aval, value))
        return weights

    def make_reader(self, portable: PortableFunction, constant: LiftedConstant) -> ReadValue | None:
        aval = constant.aval
        key = self._constants[constant.digest, aval.dtype, aval.known_op_shape]
        return lambda: self._read_array(key, aval, aval.known_op_shape)

    def _read_array(self, key: str, aval: Aval, shape: tuple[int, ...]) -> np.ndarray:
        data = self._variables.read(key, aval.op_dtype, shape)
        return np.frombuffer(data, tf.as_dtype(aval.op_dtype).as_numpy_dtype).reshape(shape)


# JAX functions, which are exported when Keras first passes their inputs.

TRAINING = "training"
"""Name of the argument of a JAX function that is True in training."""

KEY = "rng"
"""Name of the argument of a JAX function that takes a PRNG key."""

# Common names for these two arguments; messages suggest renaming them.
_LIKE_TRAINING = frozenset({"train", "is_train", "is_training", "train_mode"})
_LIKE_KEY = frozenset({"key", "prng", "prng_key", "rng_key", "rngs"})


@dataclass(frozen=True, eq=False)
class JaxFunction:
    """A JAX function whose inputs are not known yet.

    Attributes:
      function: the user's function.
      params: the weights; None if it takes none.
      options: the options of the layer.
    """

    function: Callable[..., Any]
    params: Any
    options: LayerOptions

    def export_model(self, layer: str, inputs: Any) -> LayerModel:
        """Exports the function for the inputs that Keras passes.

        Args:
          layer: the name of the layer in error messages.
          inputs: a nest of objects with shapes (None for unknown sizes) and dtypes.

        Raises:
          LayerError: the function takes another number of inputs.
          ExportError: as `export` raises.
        """
        with open_params(self.params) as weights:
            params = weights.tree() if isinstance(weights, PathWeights) else weights
        args, kwargs = self._split_arguments(self._assign_inputs(layer, inputs))
        call_args = args if self.params is None else (params, *args)
        functions = [self.function]
        if TRAINING in self._get_parameters():
            functions = [functools.partial(self.function, **{TRAINING: v}) for v in (False, True)]
        portables = [self._export(function, call_args, kwargs) for function in functions]
        return model_from_portables(portables, params, self.options)

    def _get_parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # some builtins have no signature
            return {}

    def _list_positional(self) -> list[str]:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        names = [name for name, p in self._get_parameters().items() if p.kind in kinds]
        return names[0 if self.params is None else 1 :]

    def _split_arguments(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Sorts values by name into args and kwargs; the name "" is the only positional value."""
        kwargs = dict(values)
        if KEY in self._get_parameters():
            import jax

            kwargs[KEY] = jax.random.key(0)
        args = [kwargs.pop("")] if "" in kwargs else []
        for name in self._list_positional():
            if name not in kwargs:
                break
            args.append(kwargs.pop(name))
        return tuple(args), kwargs

    def _assign_inputs(self, layer: str, inputs: Any) -> Mapping[str, Any]:
        parameters = self._get_parameters()
        keyword_only = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
        names = [n for n in (*self._list_positional(), *keyword_only) if n not in (TRAINING, KEY)]
        required = [n for n in names if parameters[n].default is inspect.Parameter.empty]
        if isinstance(inputs, Mapping) and set(required) <= inputs.keys() <= set(names):
            return inputs
        if not required and self._takes_any_inputs():
            return {"": inputs}
        if len(required) == 1 or (not required and names):
            return {(required or names)[0]: inputs}
        if isinstance(inputs, (list, tuple)) and len(inputs) == len(required):
            return dict(zip(required, inputs, strict=True))
        raise LayerError(self._describe_misfit(layer, required, inputs))

    def _takes_any_inputs(self) -> bool:
        # Some builtins have no known signature.
        parameters = self._get_parameters().values()
        return not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)

    def _describe_misfit(self, layer: str, required: Sequence[str], inputs: Any) -> str:
        name = getattr(self.function, "__name__", "the function")
        if not required:
            return f"{layer} needs a function that takes inputs, but {name} takes none."
        if isinstance(inputs, Mapping):
            got = f"a dict of {', '.join(map(str, inputs))}"
        elif isinstance(inputs, (list, tuple)):
            got = f"a {type(inputs).__name__} of {len(inputs)}"
        else:
            got = "one array"
        hint = (
            f" If {required[0]} are its weights, pass them as params of the layer."
            if self.params is None
            else ""
        )
        if aliases := [n for n in required if n in _LIKE_TRAINING or n in _LIKE_KEY]:
            role = TRAINING if aliases[0] in _LIKE_TRAINING else KEY
            hint += f" The layer itself passes an argument named {role}: rename {aliases[0]} to it."
        return (
            f"{layer} takes {', '.join(required)}, the arguments of {name}, as a list in this "
            f"order or as a dict. Got: {got}.{hint}"
        )

    def _export(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PortableFunction:
        import jax

        from jax2tf_bridge.from_jax import export

        options = self.options
        shapes = options.polymorphic_shapes
        params = args[: 0 if self.params is None else 1]
        inputs = tuple(args[len(params) :])
        leaves, tree = jax.tree_util.tree_flatten((inputs, dict(kwargs)))
        if shapes is None:
            leaves = _make_symbolic(leaves)
        else:
            leaves = [_make_spec(leaf, tuple(leaf.shape)) for leaf in leaves]
            if params and not isinstance(shapes, Mapping):
                shapes = [None, *([shapes] * len(inputs) if isinstance(shapes, str) else shapes)]
        positional, keywords = jax.tree_util.tree_unflatten(tree, leaves)
        return export(
            function,
            polymorphic_shapes=shapes,
            polymorphic_constraints=options.polymorphic_constraints,
            target=options.target,
        )(*params, *positional, **keywords)


def _make_symbolic(leaves: Sequence[Any]) -> list[Any]:
    """Replaces the batch size and unknown sizes by symbolic sizes."""
    from jax import export as jax_export

    scope = jax_export.SymbolicScope()
    batches = [leaf.shape[0] for leaf in leaves if leaf.shape]
    count = 0
    specs = []
    for leaf in leaves:
        sizes: list[Any] = []
        for axis, size in enumerate(leaf.shape):
            if axis == 0 and size in (None, batches[0]):
                (size,) = jax_export.symbolic_shape("b", scope=scope)
            elif size is None:
                count += 1
                (size,) = jax_export.symbolic_shape(f"d{count}", scope=scope)
            sizes.append(size)
        specs.append(_make_spec(leaf, tuple(sizes)))
    return specs


def _make_spec(leaf: Any, shape: tuple[Any, ...]) -> Any:
    """Makes the argument spec of an input for export; 64-bit dtypes need jax_enable_x64."""
    import jax

    from jax2tf_bridge.from_jax.shapes import OpenSpec

    if isinstance(leaf, jax.Array):
        return leaf  # a PRNG key
    return OpenSpec(shape, jax.dtypes.canonicalize_dtype(jax.numpy.dtype(leaf.dtype)))
