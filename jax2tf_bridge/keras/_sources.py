"""Makes layer models from SavedModels, .jaxfn files, portable functions and JAX functions."""

from __future__ import annotations

import errno
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import is_differentiable
from jax2tf_bridge._utils import array_type_text, did_you_mean
from jax2tf_bridge.converting import keys_as_words
from jax2tf_bridge.errors import FileFormatError, FunctionError, LayerError, make_path_error
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.keras._model import LayerModel, Value, make_array_reader
from jax2tf_bridge.portable import (
    AUTO,
    Aval,
    LiftedConstant,
    PolyConstraints,
    PortableFunction,
    apply_target,
    unwrap_portable,
)
from jax2tf_bridge.saved_model import (
    SERVING_DEFAULT,
    Sidecar,
    SignatureEntry,
    TensorBundle,
    read_serving_graph,
    read_sidecar,
)
from jax2tf_bridge.saving import PathWeights, open_params
from jax2tf_bridge.saving.weights import (
    PARAMS,
    WeightLeaf,
    check_prefixes,
    is_trainable,
    leaf_names,
    weight_leaves,
)
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import AnyPath, as_path
from jax2tf_bridge.targets import Target

TRAINING = "training"
"""Name of the argument of a JAX function that is True in training."""

KEY = "rng"
"""Name of the argument of a JAX function that takes a PRNG key."""

# Common names for these two arguments; error messages suggest to rename them.
_LIKE_TRAINING = frozenset({"train", "is_train", "is_training", "train_mode"})
_LIKE_KEY = frozenset({"key", "prng", "prng_key", "rng_key", "rngs"})


@dataclass(frozen=True)
class LayerOptions:
    """Options of a layer.

    Attributes:
      trainable: the user's argument; None for the default of the source.
      mutable: prefixes of the names of the weights that training returns new values for.
      polymorphic_shapes, polymorphic_constraints: as in `export`.
      target: the user's target; without XLA it builds TensorFlow's own operations.
    """

    trainable: bool | tuple[str, ...] | None = None
    mutable: tuple[str, ...] = ()
    polymorphic_shapes: Any = None
    polymorphic_constraints: PolyConstraints = AUTO
    target: Target | None = None

    def function(self, portable: PortableFunction, takes_params: bool) -> LayerFunction:
        """Makes a function of the layer, without XLA if the option says so."""
        return LayerFunction(apply_target(portable, self.target), takes_params)

    def decides(self, leaf: WeightLeaf) -> bool:
        """Returns whether a weight is trained."""
        # A frozen layer (trainable=False) remembers which weights are trained once it is unfrozen.
        chosen = True if self.trainable in (None, False) else self.trainable
        assert chosen is not None
        return is_trainable(leaf.name, leaf.aval, chosen)

    def check_names(self, leaves: Sequence[WeightLeaf]) -> None:
        """Raises SavingError if a prefix matches no weight."""
        names = [leaf.name for leaf in leaves]
        check_prefixes(names, True if self.trainable is None else self.trainable)
        check_prefixes(names, self.mutable, "mutable")

    def check_shapes_left_out(self, source: str) -> None:
        """Rejects shape options for functions that are already exported.

        Raises:
          LayerError: the user passed a shape option.
        """
        is_passed = {
            "polymorphic_shapes": self.polymorphic_shapes is not None,
            "polymorphic_constraints": self.polymorphic_constraints is not AUTO,
        }
        for argument in (name for name, passed in is_passed.items() if passed):
            raise LayerError(
                f"{argument} is for a JAX function, and {source} has the sizes that it was "
                "exported with. Leave it out, or give it to export."
            )

    def check(self, model: LayerModel, source: str, advice: str) -> LayerModel:
        """Rejects a layer that `fit` would not change, unless the user passed `trainable`.

        Raises:
          LayerError: there is nothing to train.
        """
        constants = [weight for _, weight in model.constants if is_differentiable(weight.dtype)]
        has_numbers = model.weights or constants
        if self.trainable is None and has_numbers and not any(w.trainable for w in model.weights):
            raise LayerError(
                f"{source} has no weights to train, so that fit would change nothing{advice} "
                "To use it as it is, pass trainable=False."
            )
        return model


def model_from_portables(
    inference: PortableFunction,
    training: PortableFunction | None,
    params: Any,
    options: LayerOptions,
) -> LayerModel:
    """Makes a layer model from portable functions.

    Raises:
      StructureError, ShapeError, DTypeError: the weights do not fit the functions.
      LayerError: the functions do not fit each other, or there is nothing to train.
    """
    functions = [
        options.function(portable, params is not None)
        for portable in (inference, training)
        if portable is not None
    ]
    leaves: list[WeightLeaf] = []
    with open_params(keys_as_words(params)) as weights:
        for function in functions if weights is not None else ():
            if function.weight_names or function.takes_params:
                matches = weight_leaves(function.portable, weights)
                leaves += map(_copy_leaf, matches) if isinstance(weights, PathWeights) else matches
    options.check_names(leaves)
    model = LayerModel.of(
        functions[0],
        functions[1] if training is not None else None,
        options.mutable,
        leaves,
        options.decides,
        make_array_reader,
    )
    advice = (
        ": its function captured them as constants. Make them its first argument, and pass them "
        "as params."
    )
    return options.check(model, f"The function {inference.name}", advice)


def _copy_leaf(leaf: WeightLeaf) -> WeightLeaf:
    """Copies a weight out of a file that is closed before the variables are made."""
    return WeightLeaf(leaf.path, leaf.name, leaf.aval, np.array(leaf.value))


def model_from_saved_model(
    folder: AnyPath, signature: str | None, training: str | None, options: LayerOptions
) -> LayerModel:
    """Makes a layer model from a SavedModel that `save` wrote.

    Raises:
      FileFormatError: the folder is not a SavedModel, or `save` did not write it.
      LayerError: the SavedModel has no such signature, or nothing to train.
      OSError: the SavedModel cannot be read.
    """
    read_serving_graph(folder)  # raises a precise error if the folder is not a SavedModel
    bridge_model = read_sidecar(folder)
    if bridge_model is None:
        raise FileFormatError(
            f"{folder} was not written by jax2tf_bridge.save: it has no "
            "assets.extra/jax2tf_bridge.json, which says what its weights and functions are. Save "
            "the model with jax2tf_bridge.save, or use keras.layers.TFSMLayer to run it without "
            "training.",
            file=str(folder),
        )
    sidecar, portables = bridge_model
    names = [signature or SERVING_DEFAULT, *([training] if training else [])]
    for name, argument in zip(names, ("signature", "training_function"), strict=False):
        if name not in portables:
            raise LayerError(
                f"{argument}={name!r}: {folder} has no signature of this name"
                f"{did_you_mean(name, portables) or '.'} It has: {', '.join(portables)}."
            )
    functions = [
        _make_signature_function(portables[name], sidecar.signatures[name], options)
        for name in names
    ]
    values = _SavedValues(folder, sidecar)
    is_saved_trainable = {entry.name: entry.trainable for entry in sidecar.variables}

    def trains(leaf: WeightLeaf) -> bool:
        as_saved = options.trainable is None or options.trainable is False
        return is_saved_trainable[leaf.name] if as_saved else options.decides(leaf)

    leaves = [leaf for function in functions for leaf in values.leaves(function)]
    options.check_names(leaves)
    model = LayerModel.of(
        functions[0],
        functions[1] if training else None,
        options.mutable,
        leaves,
        trains,
        values.constant,
    )
    advice = (
        " (they were saved with trainable=...). Pass trainable=True, or the beginnings of their "
        "names."
        if model.weights
        else ": its functions captured them as constants. Save it with params=..."
    )
    return options.check(model, f"{folder}", advice)


def _make_signature_function(
    portable: PortableFunction, entry: SignatureEntry, options: LayerOptions
) -> LayerFunction:
    function = options.function(portable, entry.takes_params)
    names = {array.path: name for name, array in entry.inputs.items()}
    return LayerFunction(function.portable, function.takes_params, names)


class _SavedValues:
    """Values of the variables of a SavedModel."""

    def __init__(self, folder: AnyPath, sidecar: Sidecar) -> None:
        self._folder = folder
        self._weights = {entry.name: entry for entry in sidecar.variables}
        self._constants = {(c.digest, c.dtype, c.shape): c.key for c in sidecar.constants}
        variables = folder / "variables"
        exists = (variables / "variables.index").exists()
        # TensorFlow's reader treats brackets in paths as glob patterns and supports fewer schemes.
        self._bundle = TensorBundle(variables / "variables") if exists else None

    def leaves(self, function: LayerFunction) -> list[WeightLeaf]:
        """Reads the weights of a function."""
        if not function.takes_params:
            return []
        portable = function.portable
        tree = portable.in_tree.children[0].children[0]
        weights = []
        for path, name, aval in zip(
            tree.leaf_paths(PARAMS), leaf_names(tree), portable.in_avals, strict=False
        ):
            entry = self._weights.get(name)
            if entry is None:
                raise self._make_damaged_error(
                    f"it has no variable for {path}, which a function needs"
                )
            weights.append(
                WeightLeaf(path, name, aval, self._read_array(entry.key, aval, entry.shape))
            )
        return weights

    def constant(self, portable: PortableFunction, constant: LiftedConstant) -> Value | None:
        """Returns a reader of a captured array."""
        aval = constant.aval
        shape = tuple(size for size in aval.op_shape if isinstance(size, int))
        key = self._constants[constant.digest, aval.dtype, shape]
        return lambda: self._read_array(key, aval, shape)

    def _read_array(self, key: str, aval: Aval, shape: tuple[int, ...]) -> np.ndarray:
        entry = None if self._bundle is None else self._bundle.entries.get(key)
        if self._bundle is None or entry is None:
            raise self._make_damaged_error(f"its variables have none of the key {key!r}")
        if (entry.dtype, entry.shape) != (aval.op_dtype, shape):
            actual = array_type_text(entry.dtype, entry.shape)
            expected = array_type_text(aval.op_dtype, shape)
            raise self._make_damaged_error(f"the variable {key!r} is {actual}, not {expected}")
        dtype = tf.as_dtype(entry.dtype).as_numpy_dtype
        return np.frombuffer(self._bundle.read(key), dtype).reshape(shape)

    def _make_damaged_error(self, problem: str) -> FileFormatError:
        return FileFormatError(
            f"{self._folder} is damaged: {problem}. Copy it anew, or save it again.",
            file=str(self._folder),
        )


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

    def model(self, layer: str, inputs: Any) -> LayerModel:
        """Exports the function for the inputs that Keras passes.

        Args:
          layer: the name of the layer in error messages.
          inputs: a nest of objects with shapes (None for unknown sizes) and dtypes.

        Raises:
          LayerError: the function takes another number of inputs.
          ExportError: as `export` raises.
        """
        with open_params(self.params) as opened_params:
            params = (
                opened_params.tree() if isinstance(opened_params, PathWeights) else opened_params
            )
        args, kwargs = self._split_arguments(self._assign_inputs(layer, inputs))
        takes = self.params is not None
        call = (params, *args) if takes else args
        portables = [
            self._export(function, call, kwargs)
            for function in (
                [self.function]
                if TRAINING not in self._get_parameters()
                else [functools.partial(self.function, **{TRAINING: v}) for v in (False, True)]
            )
        ]
        return model_from_portables(
            portables[0], portables[1] if portables[1:] else None, params, self.options
        )

    def _get_parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.function).parameters
        except (TypeError, ValueError):  # some builtins have no signature
            return {}

    def _list_positional(self) -> list[str]:
        """Lists the names of the positional arguments behind the weights."""
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
        """Assigns the inputs to the function's arguments by name."""
        parameters = self._get_parameters()
        named = [name for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY]
        names = [n for n in (*self._list_positional(), *named) if n not in (TRAINING, KEY)]
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
        """Returns whether the function takes *args or has no known signature."""
        parameters = self._get_parameters().values()
        return not parameters or any(p.kind is p.VAR_POSITIONAL for p in parameters)

    def _describe_misfit(self, layer: str, required: Sequence[str], inputs: Any) -> str:
        name = getattr(self.function, "__name__", "the function")
        if not required:
            return f"{layer} needs a function of inputs, and {name} takes none."
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
            hint += f" The layer itself fills an argument named {role}: rename {aliases[0]} to it."
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
        first = 0 if self.params is None else 1
        leaves, tree = jax.tree_util.tree_flatten((tuple(args[first:]), dict(kwargs)))
        if shapes is None:
            leaves = _make_symbolic(leaves)
        else:
            leaves = [_make_spec(leaf, tuple(leaf.shape)) for leaf in leaves]
            if first and not isinstance(shapes, Mapping):
                positional_shapes = (
                    [shapes] * len(args[first:]) if isinstance(shapes, str) else shapes
                )
                shapes = [None, *positional_shapes]
        positional, keywords = jax.tree_util.tree_unflatten(tree, leaves)
        return export(
            function,
            polymorphic_shapes=shapes,
            polymorphic_constraints=options.polymorphic_constraints,
            target=options.target,
        )(*args[:first], *positional, **keywords)


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


def resolve_source(
    function: Any, params: Any, signature: str | None, training: Any, options: LayerOptions
) -> LayerModel | JaxFunction:
    """Makes a layer model from a user's arguments, or a JaxFunction that the layer exports later.

    Raises:
      FunctionError: a layer cannot run `function`.
      LayerError, FileFormatError, OSError: as the functions above.
    """
    if isinstance(function, (str, os.PathLike)) and (folder := as_path(function)).is_dir():
        _check_saved_model_arguments(params, training)
        options.check_shapes_left_out("a SavedModel")
        return model_from_saved_model(folder, signature, training, options)
    if signature is not None:
        if isinstance(function, (str, os.PathLike)) and not as_path(function).exists():
            raise make_path_error(FileNotFoundError, errno.ENOENT, "does not exist", function)
        raise LayerError(
            f"signature={signature!r} is for the folder of a SavedModel. Leave it out: the layer "
            f"is made of {_describe_value(function)}."
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
        return model_from_portables(portable, training_portable, params, options)
    if not callable(function):
        raise FunctionError(
            "A layer is made of the folder of a SavedModel, a .jaxfn file, a PortableFunction or a "
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
            "params is not for a SavedModel, whose weights are in it. Leave it out, and use "
            "jax2tf_bridge.assign_weights for others."
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
