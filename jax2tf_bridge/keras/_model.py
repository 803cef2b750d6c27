"""The model of a layer: its functions, weights, captured arrays and options; and its config."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import is_differentiable
from jax2tf_bridge._utils import JsonProblem, JsonValue
from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import (
    BridgeError,
    FileFormatError,
    LayerError,
    StructureError,
    format_bullets,
)
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.portable import (
    AUTO,
    LiftedConstant,
    PolyConstraints,
    PortableFunction,
    TreeSpec,
    apply_target,
)
from jax2tf_bridge.saving import check_prefixes, has_prefix, is_trainable
from jax2tf_bridge.saving.signatures import choose_order
from jax2tf_bridge.serialization import deserialize, serialize
from jax2tf_bridge.signatures import (
    PathWeights,
    WeightLeaf,
    format_mismatches,
    keys_as_words,
    match_weights,
    name_leaves,
    open_params,
)
from jax2tf_bridge.targets import Target
from jax2tf_bridge.to_tensorflow import (
    Key,
    check_function,
    constant_array,
    constant_key,
    has_tensorflow_gradient,
    op_dtype,
)

ReadValue = Callable[[], np.ndarray]
"""Reads the initial value of a weight."""


@dataclass(frozen=True)
class LayerWeight:
    """A weight of a layer.

    Attributes:
      name: the path, such as "dense/kernel"; for a captured array, "constants/...".
      shape: the shape that TensorFlow stores.
      dtype: the dtype that TensorFlow stores.
      trainable: whether optimizers change it.
      value: reads the initial value; None for zeros until a value is loaded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    value: ReadValue | None


@dataclass(frozen=True, eq=False)
class LayerModel:
    """The functions, weights and captured arrays of a layer.

    Attributes:
      functions: the function for inference, and the one for training if that differs.
      mutable: name prefixes of the weights that training returns new values for.
      weights: the weights of both functions.
      constants: the arrays that the functions and their gradients captured, each with its key.
      updated: the names of the weights that training returns, in the order of its leaves.
    """

    functions: tuple[LayerFunction, ...]
    mutable: tuple[str, ...]
    weights: tuple[LayerWeight, ...]
    constants: tuple[tuple[Key, LayerWeight], ...]
    updated: tuple[str, ...]

    @staticmethod
    def of(
        functions: Sequence[LayerFunction],
        mutable: Sequence[str],
        leaves: Sequence[WeightLeaf],
        trainable: Callable[[WeightLeaf], bool],
        constant_value: Callable[[PortableFunction, LiftedConstant], ReadValue | None],
    ) -> LayerModel:
        """Joins functions and weights.

        Args:
          functions: the function for inference, and the one for training if that differs.
          mutable: prefixes of the names of the weights that the training function returns.
          leaves: the weights of both functions; a value of None stands for zeros.
          trainable: returns whether a weight is trained; mutable weights never are.
          constant_value: reads a captured array.

        Raises:
          LayerError, StructureError: the functions and the weights do not fit together.
        """
        by_name = _group_by_name(leaves)
        weights = tuple(
            _make_weight(leaf, trainable(leaf) and not any(has_prefix(name, m) for m in mutable))
            for name, leaf in by_name.items()
        )
        updated = _find_updated(functions, mutable, by_name)
        constants: dict[Key, LayerWeight] = {}
        used_names = set(by_name)
        portables = [p for function in functions for p in _collect_gradients(function.portable)]
        for portable in portables:
            for constant in portable.lifted_constants:
                if (key := constant_key(constant)) not in constants:
                    name = _make_unique(f"constants/{constant.name or 'constant'}", used_names)
                    value = constant_value(portable, constant)
                    constants[key] = _make_constant(portable, constant, name, value)
        return LayerModel(
            tuple(functions), tuple(mutable), weights, tuple(constants.items()), updated
        )

    def function(self, training: bool) -> LayerFunction:
        """Returns the function for training or inference."""
        return self.functions[-1 if training else 0]

    @property
    def draws_keys(self) -> bool:
        """Returns whether a function of the layer takes PRNG keys."""
        return any(function.draws_keys for function in self.functions)

    def nest_output(self, training: bool, leaves: Sequence[Any]) -> Any:
        """Nests the function's flat results, without the weights that it returns."""
        tree = self.function(training).out_tree
        if self.returns_weights(training):
            tree = tree.children[0]
        return tree.unflatten(iter(leaves))

    def returns_weights(self, training: bool) -> bool:
        """Returns whether the last results are new values of weights."""
        return training and bool(self.mutable)

    def drop_values(self) -> LayerModel:
        """Removes the initial values, once variables hold them."""
        return replace(
            self,
            weights=tuple(replace(w, value=None) for w in self.weights),
            constants=tuple((key, replace(w, value=None)) for key, w in self.constants),
        )


def _count_gradient_orders(portable: PortableFunction) -> int:
    """Returns how many orders of gradients are stored with a function.

    It is 0 for functions that TensorFlow differentiates itself, and for functions without
    gradients; training the latter raises an error with the reason.
    """
    if has_tensorflow_gradient(portable):
        return 0
    try:
        return choose_order(portable, None) or 0
    except BridgeError:
        return 0


def _collect_gradients(portable: PortableFunction) -> list[PortableFunction]:
    portables = [portable]
    for _ in range(_count_gradient_orders(portable)):
        portables.append(portables[-1].vjp())
    for function in portables:
        check_function(function, has_arrays=False)  # the arrays are read when variables are made
    return portables


def _group_by_name(leaves: Sequence[WeightLeaf]) -> dict[str, WeightLeaf]:
    by_name: dict[str, WeightLeaf] = {}
    for leaf in leaves:
        first = by_name.setdefault(leaf.name, leaf)
        if (first.aval.op_shape, first.aval.op_dtype) != (leaf.aval.op_shape, leaf.aval.op_dtype):
            raise LayerError(
                f"The weight {leaf.name} is {first.aval} for one of the two functions, and "
                f"{leaf.aval} for the other. Export both for the same params."
            )
    return by_name


def _make_weight(leaf: WeightLeaf, trainable: bool) -> LayerWeight:
    dtype = op_dtype(leaf.aval, leaf.path)
    shape = leaf.aval.known_op_shape
    if len(shape) < len(leaf.aval.op_shape):
        raise LayerError(
            f"{leaf.path} has open sizes, {leaf.aval}, which the weights of a layer cannot have. "
            "Export the function with None for the shapes of its params."
        )
    value = None if leaf.value is None else leaf.array
    return LayerWeight(leaf.name, shape, dtype.name, trainable, value)


def _make_constant(
    portable: PortableFunction, constant: LiftedConstant, name: str, value: ReadValue | None
) -> LayerWeight:
    dtype = op_dtype(constant.aval, f"The array {name} that {portable.name} captured")
    return LayerWeight(name, constant.aval.known_op_shape, dtype.name, False, value)


def _make_unique(name: str, used_names: set[str]) -> str:
    unique, number = name, 0
    while unique in used_names:
        number += 1
        unique = f"{name}_{number}"
    used_names.add(unique)
    return unique


def _find_updated(
    functions: Sequence[LayerFunction], mutable: Sequence[str], weights: Mapping[str, WeightLeaf]
) -> tuple[str, ...]:
    """Finds the weights that the training function returns, in the order of its leaves."""
    if not mutable:
        return ()
    if len(functions) == 1:
        raise LayerError(
            f"mutable={list(mutable)} needs a function for training that returns new values: one "
            "with an argument `training`, or training_function."
        )
    training = functions[1]
    tree, name = training.out_tree, training.portable.name
    if tree.kind not in ("tuple", "list") or len(tree.children) != 2:
        raise StructureError(
            f"With mutable={list(mutable)}, {name} must return (outputs, new values) when it is "
            f"trained, as Flax's apply(..., mutable={list(mutable)}) does. It returns {tree}"
        )
    returned = name_leaves(tree.children[1])
    expected = [n for n in weights if any(has_prefix(n, m) for m in mutable)]
    missing = [n for n in expected if n not in returned]
    unexpected = [n for n in returned if n not in expected]
    if missing or unexpected:
        lines = format_mismatches(dict.fromkeys(missing, ""), unexpected, expected)
        raise StructureError(
            f"{name} must return new values of the weights that mutable={list(mutable)} names:"
            f"{format_bullets(lines)}\nReturn a value for each, nested as params is."
        )
    _check_updated_types(training, tree, returned, weights)
    return returned


def _check_updated_types(
    training: LayerFunction,
    tree: TreeSpec,
    returned: Sequence[str],
    weights: Mapping[str, WeightLeaf],
) -> None:
    portable = training.portable
    avals = portable.out_avals[tree.children[0].leaf_count :]
    for name, aval in zip(returned, avals, strict=True):
        expected = weights[name].aval
        if (aval.op_shape, aval.op_dtype) != (expected.op_shape, expected.op_dtype):
            raise StructureError(
                f"{portable.name} returns {aval} for the weight {name}, which is {expected}. "
                "Return the shape and dtype of the weight."
            )


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

    def is_trained(self, leaf: WeightLeaf) -> bool:
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

    def refuse_shape_options(self, source: str) -> None:
        """Rejects shape options for functions that are already exported.

        Raises:
          LayerError: the user passed a shape option.
        """
        if self.polymorphic_shapes is not None:
            argument = "polymorphic_shapes"
        elif self.polymorphic_constraints is not AUTO:
            argument = "polymorphic_constraints"
        else:
            return
        raise LayerError(
            f"{argument} is for a JAX function, and {source} has the sizes that it was exported "
            "with. Leave it out, or pass it to export."
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
                f"{source} has no weights to train, so fit would change nothing{advice} "
                "To use it as it is, pass trainable=False."
            )
        return model


def model_from_portables(
    portables: Sequence[PortableFunction], params: Any, options: LayerOptions
) -> LayerModel:
    """Makes a layer model from portable functions: for inference, and for training if it differs.

    Raises:
      StructureError, ShapeError, DTypeError: the weights do not fit the functions.
      LayerError: the functions do not fit each other, or there is nothing to train.
    """
    functions = [options.function(portable, params is not None) for portable in portables]
    leaves: list[WeightLeaf] = []
    with open_params(keys_as_words(params)) as weights:
        for function in functions if weights is not None else ():
            if function.weights or function.takes_params:
                matches = match_weights(function.portable, weights)
                leaves += map(_copy_leaf, matches) if isinstance(weights, PathWeights) else matches
    options.check_names(leaves)
    model = LayerModel.of(
        functions, options.mutable, leaves, options.is_trained, _make_array_reader
    )
    advice = (
        ": its function captured them as constants. Make them its first argument, and pass them "
        "as params."
    )
    return options.check(model, f"The function {portables[0].name}", advice)


def _copy_leaf(leaf: WeightLeaf) -> WeightLeaf:
    # The file is closed before the variables are made.
    return WeightLeaf(leaf.path, leaf.name, leaf.aval, np.array(leaf.value))


def _make_array_reader(portable: PortableFunction, constant: LiftedConstant) -> ReadValue:
    array = constant_array(portable, constant)
    return lambda: array


class LayerConstants:
    """Tensors of captured arrays: variables of the layer, and eager tensors for all others."""

    def __init__(self, variables: Mapping[Key, Any], fallback: Any) -> None:
        """Stores the variables; `fallback` has the arrays that only higher-order gradients need."""
        self._variables, self._fallback = dict(variables), fallback

    def tensors(self, portable: PortableFunction, saving: Any) -> list[tf.Tensor]:
        """Returns a tensor in the current graph for each lifted constant, in order."""
        tensors = []
        for constant in portable.lifted_constants:
            variable = self._variables.get(constant_key(constant))
            if variable is not None:
                tensors.append(tf.convert_to_tensor(variable.value))
            else:
                single = replace(portable, lifted_constants=(constant,))
                tensors += self._fallback.tensors(single, saving)
        return tensors


# Configs. Keras stores them as JSON, and rebuilds models from them before it reads any weights. So
# a config holds the functions without their arrays, which are variables of the layer.

_FORMAT = 1
"""Version of the config format. Every change increases it, even a new field."""


def make_model_config(model: LayerModel) -> dict[str, Any]:
    """Makes the config of a layer: its functions and the names of its trained weights.

    Raises:
      SerializationError: the format cannot hold a function.
    """
    inference, *training = map(_make_function_config, model.functions)
    return {
        "format": _FORMAT,
        "bridge": __version__,
        "inference": inference,
        "training": training[0] if training else None,
        "mutable": list(model.mutable),
        "trained": [weight.name for weight in model.weights if weight.trainable],
    }


def _make_function_config(function: LayerFunction) -> dict[str, Any]:
    portable = function.portable
    data = serialize(portable, vjp_order=_count_gradient_orders(portable), arrays=False)
    return {
        "jaxfn": base64.b64encode(data).decode("ascii"),
        "takes_params": function.takes_params,
        "input_names": dict(function.input_names),
    }


def read_model_config(config: Any, name: Any) -> LayerModel:
    """Reads a config that `make_model_config` made; the weights have no values yet.

    Args:
      config: the parsed JSON.
      name: the name of the layer in error messages.

    Raises:
      FileFormatError: the config is damaged, or of a newer format.
    """
    try:
        root = JsonValue.of(json.dumps(config))
        version = root.get("format").integer(1)
        if version > _FORMAT:
            release = root.get("bridge").text()
            raise FileFormatError(
                f"The layer {name!r:.80} was written by jax2tf-bridge {release:.40}, in format "
                f"{version}. The installed release {__version__} reads up to {_FORMAT}: upgrade "
                "jax2tf-bridge."
            )
        fields = ("format", "bridge", "inference", "training", "mutable", "trained")
        _, _, inference, training, mutable, trained = root.fields(*fields)
        functions = [_read_function(inference)]
        if training.value is not None:
            functions.append(_read_function(training))
        trained_names = {name.text() for name in trained.elements()}
        return LayerModel.of(
            functions,
            [name.text() for name in mutable.elements()],
            [WeightLeaf(*weight, None) for function in functions for weight in function.weights],
            lambda leaf: leaf.name in trained_names,
            lambda portable, constant: None,
        )
    except JsonProblem as e:
        raise FileFormatError(
            f"The config of the layer {name!r:.80} is damaged: {e}. Save the model again."
        ) from e


def _read_function(config: JsonValue) -> LayerFunction:
    data, takes_params, input_names = config.fields("jaxfn", "takes_params", "input_names")
    try:
        decoded = base64.b64decode(data.text(), validate=True)
    except (binascii.Error, ValueError) as e:
        raise JsonProblem(f"{data.path}: {e}") from e
    names = {path: name.text() for path, name in input_names.items()}
    return LayerFunction(deserialize(decoded), takes_params.flag(), names)
