"""Signatures that read, replace and reset the weights that other signatures change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import tensorflow as tf

from jax2tf_bridge._utils import did_you_mean, format_bytes
from jax2tf_bridge.errors import Argument, Message, SavingError
from jax2tf_bridge.saving._variables import SavedVariable, make_variable
from jax2tf_bridge.saving.signatures import Endpoint, WeightLock, assign_all
from jax2tf_bridge.signatures import ServedArray, Sides, format_arrays, make_valid_names

WeightSignature: TypeAlias = Literal["get_weights", "set_weights", "reset_weights"]
WEIGHT_SIGNATURES: Sequence[WeightSignature] = ("get_weights", "set_weights", "reset_weights")
_OPTION = Argument("weight_signatures")

_UNUSED_INPUT = "unused"
"""Name of an input that is never read, for converters that need one."""

INITIAL = "initial"
"""Collection of the values that `reset_weights` restores."""


def has_unused_input(name: str, inputs: Collection[str]) -> bool:
    """Returns whether a signature for weights has an input that is never read.

    A weight of set_weights may have the same name as that input.
    """
    return name in ("get_weights", "reset_weights") and _UNUSED_INPUT in inputs


def make_initial_key(key: str) -> str:
    """Returns the checkpoint's key of the value that `reset_weights` restores.

    Args:
      key: the key of the weight.
    """
    return f"{INITIAL}/{key.partition('/')[2]}"


@dataclass(frozen=True)
class WeightSignatures:
    """Signatures for the weights that a model changes.

    Attributes:
      names: the names of these signatures.
      variables: the variables of the weights, by the name of an input or output.
      initial: the values that `reset_weights` restores, by the same names.
      lock: the lock of the weights.
      needs_inputs: whether a signature without inputs gets one that is never read.
    """

    names: Sequence[WeightSignature]
    variables: Mapping[str, tf.Variable]
    initial: Mapping[str, SavedVariable]
    lock: WeightLock
    needs_inputs: bool

    @staticmethod
    def of(
        names: Sequence[WeightSignature],
        endpoints: Sequence[Endpoint],
        weights: Sequence[SavedVariable],
        lock: WeightLock,
        *,
        needs_inputs: bool,
    ) -> WeightSignatures:
        """Makes the signatures of a model.

        Args:
          names: the names of the signatures.
          endpoints: the other signatures.
          weights: the weights of the model.
          lock: their lock.
          needs_inputs: whether a signature without inputs gets one that is never read.

        Raises:
          SavingError: no signature changes weights.
        """
        updates = {v.ref() for e in endpoints for v in e.function.updates.values()}
        changing = [weight for weight in weights if weight.variable.ref() in updates]
        if names and not changing:
            problem = f"={list(names)!r}, and no signature changes weights. Leave it out."
            raise SavingError(Message(_OPTION, problem))
        input_names = choose_names([weight.name for weight in changing])
        by_name = dict(zip(input_names, changing, strict=True))
        initial = {}
        if "reset_weights" in names:
            initial = {name: _copy_weight(weight) for name, weight in by_name.items()}
        variables = {name: weight.variable for name, weight in by_name.items()}
        return WeightSignatures(names, variables, initial, lock, needs_inputs)

    def concrete_functions(self) -> dict[str, Any]:
        """Traces the signatures, and returns them by name."""
        functions = {}
        for name, (inputs, _) in self.sides().items():
            function = tf.function(getattr(self, f"_{name}"), autograph=False)
            specs = {key: tf.TensorSpec(x.shape, x.dtype, key) for key, x in inputs.items()}
            functions[name] = function.get_concrete_function(**specs)
        return functions

    def sides(self) -> dict[str, Sides]:
        """Returns the inputs and outputs of the signatures, by name."""
        arrays = {name: ServedArray.of_tensor(v) for name, v in self.variables.items()}
        count = {"count": ServedArray("int32", ())}
        none = {_UNUSED_INPUT: ServedArray("bool", ())} if self.needs_inputs else {}
        sides = {
            "get_weights": (none, arrays),
            "set_weights": (arrays, count),
            "reset_weights": (none, count),
        }
        return {name: sides[name] for name in self.names}

    def _get_weights(self, **_: tf.Tensor) -> dict[str, tf.Tensor]:
        def read() -> dict[str, tf.Tensor]:
            return {name: variable.read_value() for name, variable in self.variables.items()}

        return dict(self.lock.access(read))

    def _set_weights(self, **values: tf.Tensor) -> dict[str, tf.Tensor]:
        def assign() -> dict[str, tf.Tensor]:
            pairs = [(variable, values[name]) for name, variable in self.variables.items()]
            return assign_all(pairs, lambda: {"count": tf.constant(len(pairs)) + 0})

        return dict(self.lock.run_alone(lambda: self.lock.access(assign)))

    def _reset_weights(self, **_: tf.Tensor) -> dict[str, tf.Tensor]:
        return self._set_weights(
            **{name: weight.variable.read_value() for name, weight in self.initial.items()}
        )


def _copy_weight(weight: SavedVariable) -> SavedVariable:
    variable = make_variable(weight.leaf, trainable=False, name=f"{INITIAL}/{weight.name}")
    return replace(weight, collection=INITIAL, variable=variable)


_MAX_SHOWN = 4
"""Maximum number of weights that are listed by name."""


def format_served_signature(
    name: str, inputs: Mapping[str, ServedArray], outputs: Mapping[str, ServedArray]
) -> str:
    """Formats the inputs and outputs of a signature; many weights are counted instead.

    >>> weights = {f"w{i}": ServedArray("float32", (25, 100)) for i in range(12)}
    >>> format_served_signature("get_weights", {}, weights)
    'get_weights() -> (12 weights, 120.0 kB)'
    """
    sides = [
        _count_weights(arrays)
        if name in WEIGHT_SIGNATURES and len(arrays) > _MAX_SHOWN
        else format_arrays(arrays)
        for arrays in (inputs, outputs)
    ]
    return f"{name}({sides[0]}) -> ({sides[1]})"


def _count_weights(arrays: Mapping[str, ServedArray]) -> str:
    size = sum(
        tf.TensorShape(array.shape).num_elements() * tf.as_dtype(array.dtype).size
        for array in arrays.values()
    )
    return f"{len(arrays)} weights, {format_bytes(size)}"


def choose_names(weights: Sequence[str]) -> list[str]:
    """Chooses a name that an input can have for each weight; a valid name stays.

    In other names, "_" replaces "/" and other characters that are not valid.

    >>> choose_names(["a/b", "a_b"])
    ['a_b_1', 'a_b']
    """
    # Valid names come first, so that no other weight gets them.
    order = sorted(range(len(weights)), key=lambda i: not weights[i].isidentifier())
    names = make_valid_names([weights[i] for i in order], "weight")
    return [name for _, name in sorted(zip(order, names, strict=True))]


def check_weight_signatures(names: Any, others: Sequence[str]) -> None:
    """Checks that `weight_signatures` lists known names that no other signature has.

    Raises:
      SavingError: it is not such a list.
    """
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise SavingError(
            Message(_OPTION, f" must be a list of {', '.join(WEIGHT_SIGNATURES)}. Got: {names!r}")
        )
    for name in names:
        if name not in WEIGHT_SIGNATURES:
            near = did_you_mean(str(name), WEIGHT_SIGNATURES, quoted=True) or "."
            raise SavingError(
                Message(
                    _OPTION, f" has {name!r}{near} The names are {', '.join(WEIGHT_SIGNATURES)}."
                )
            )
        if name == "reset_weights" and INITIAL in others:
            raise SavingError(
                f"A signature cannot be named {INITIAL!r} beside reset_weights: the loaded model "
                "has another attribute of that name. Rename it."
            )
        if name in others:
            problem = f" has {name!r}, and another signature has that name. Rename that one."
            raise SavingError(Message(_OPTION, problem))
