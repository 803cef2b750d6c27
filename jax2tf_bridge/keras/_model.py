"""Joins what a layer runs: a function or two, their weights, and the arrays that they captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import (
    BridgeError,
    LayerError,
    StructureError,
    bullet_list,
)
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.portable._aval import LiftedConstant
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._tree_spec import TreeSpec
from jax2tf_bridge.saving import leaf_names
from jax2tf_bridge.saving.signatures._endpoint import saved_orders
from jax2tf_bridge.saving.weights._matching import differences
from jax2tf_bridge.saving.weights._variables import WeightLeaf, begins
from jax2tf_bridge.to_tf._constants import Key, constant_array, constant_key
from jax2tf_bridge.to_tf._dtypes import op_dtype
from jax2tf_bridge.to_tf._gradient import differentiates_itself
from jax2tf_bridge.to_tf._op import check_function

Value = Callable[[], np.ndarray]
"""Reads the first value of a weight."""


@dataclass(frozen=True)
class LayerWeight:
    """Weight of a layer.

    Attributes:
      name: by the path to it, "dense/kernel"; of a captured array "constants/...".
      shape: in elements, as it crosses to TensorFlow.
      dtype: the same.
      trainable: whether optimizers change it.
      value: its first value; None for zeros, until another one is loaded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    value: Value | None


@dataclass(frozen=True, eq=False)
class LayerModel:
    """What a layer runs.

    Attributes:
      inference: the function of training=False.
      training: that of training=True; None if it is the same.
      mutable: beginnings of the names of the weights that `training` returns new values of.
      weights: of both functions.
      constants: arrays that they and their gradients captured, each with what it is.
      updated: names of the weights that `training` returns, in the order of its leaves.
    """

    inference: LayerFunction
    training: LayerFunction | None
    mutable: tuple[str, ...]
    weights: tuple[LayerWeight, ...]
    constants: tuple[tuple[Key, LayerWeight], ...]
    updated: tuple[str, ...]

    @staticmethod
    def of(
        inference: LayerFunction,
        training: LayerFunction | None,
        mutable: Sequence[str],
        leaves: Sequence[WeightLeaf],
        trainable: Callable[[WeightLeaf], bool],
        constant_value: Callable[[PortableFunction, LiftedConstant], Value | None],
    ) -> LayerModel:
        """Joins functions and weights.

        Args:
          inference: the function.
          training: the one for training.
          mutable: which weights the latter returns.
          leaves: the weights of both; a value of None stands for zeros.
          trainable: decides which are trained, of those that are not mutable.
          constant_value: reads a captured array.

        Raises:
          LayerError, StructureError: these do not belong together.
        """
        by_name = _by_name(leaves)
        weights = tuple(
            _weight(leaf, trainable(leaf) and not any(begins(name, m) for m in mutable))
            for name, leaf in by_name.items()
        )
        updated = _updated(training, mutable, by_name)
        functions = [inference] if training is None else [inference, training]
        constants: dict[Key, LayerWeight] = {}
        taken = set(by_name)
        for portable in (each for f in functions for each in _with_gradients(f.portable)):
            for constant in portable.lifted_constants:
                if (key := constant_key(constant)) not in constants:
                    name = _free(f"constants/{constant.name or 'constant'}", taken)
                    value = constant_value(portable, constant)
                    constants[key] = _constant(portable, constant, name, value)
        return LayerModel(
            inference, training, tuple(mutable), weights, tuple(constants.items()), updated
        )

    def function(self, training: bool) -> LayerFunction:
        """Returns the function that runs."""
        return self.training if training and self.training is not None else self.inference

    @property
    def functions(self) -> tuple[LayerFunction, ...]:
        """Lists its functions."""
        return (self.inference,) if self.training is None else (self.inference, self.training)

    @property
    def draws_keys(self) -> bool:
        """Tells whether one of its functions takes PRNG keys."""
        return any(function.draws_keys for function in self.functions)

    def output(self, training: bool, leaves: Sequence[Any]) -> Any:
        """Nests results as the function does, without the weights that it returns."""
        tree = self.function(training).out_tree
        if self.returns_weights(training):
            tree = tree.children[0]
        return tree.unflatten(iter(leaves))

    def returns_weights(self, training: bool) -> bool:
        """Tells whether the results end in new values of weights."""
        return training and bool(self.mutable)

    def without_values(self) -> LayerModel:
        """Forgets the first values, when they are in variables."""
        return replace(
            self,
            weights=tuple(replace(w, value=None) for w in self.weights),
            constants=tuple((key, replace(w, value=None)) for key, w in self.constants),
        )


def gradient_order(portable: PortableFunction) -> int:
    """Returns how many orders of gradients are kept with a function: at least one, if it has any.

    Without one training fails, and says why when it asks for the gradient.
    """
    if differentiates_itself(portable):
        return 0
    try:
        return saved_orders(portable, None) or 0
    except BridgeError:
        return 0


def held_array(portable: PortableFunction, constant: LiftedConstant) -> Value:
    """Reads a captured array from the function that holds it.

    Raises:
      ModuleError: it does not hold it.
    """
    array = constant_array(portable, constant)
    return lambda: array


def _with_gradients(portable: PortableFunction) -> list[PortableFunction]:
    found = [portable]
    for _ in range(gradient_order(portable)):
        found.append(found[-1].vjp())
    for each in found:
        check_function(each, has_arrays=False)  # read where the variables are made
    return found


def _by_name(leaves: Sequence[WeightLeaf]) -> dict[str, WeightLeaf]:
    found: dict[str, WeightLeaf] = {}
    for leaf in leaves:
        known = found.setdefault(leaf.name, leaf)
        if (known.aval.op_shape, known.aval.op_dtype) != (leaf.aval.op_shape, leaf.aval.op_dtype):
            raise LayerError(
                f"The weight {leaf.name} is {known.aval} for one of the two functions, and "
                f"{leaf.aval} for the other. Export both for the same params."
            )
    return found


def _weight(leaf: WeightLeaf, trainable: bool) -> LayerWeight:
    dtype = op_dtype(leaf.aval, leaf.path)
    shape = tuple(size for size in leaf.aval.op_shape if isinstance(size, int))
    if len(shape) < len(leaf.aval.op_shape):
        raise LayerError(
            f"{leaf.path} has open sizes, {leaf.aval}, which the weights of a layer cannot have. "
            "Export the function with None for the shapes of its params."
        )
    value = None if leaf.value is None else leaf.array
    return LayerWeight(leaf.name, shape, dtype.name, trainable, value)


def _constant(
    portable: PortableFunction, constant: LiftedConstant, name: str, value: Value | None
) -> LayerWeight:
    dtype = op_dtype(constant.aval, f"The array {name} that {portable.name} captured")
    shape = tuple(size for size in constant.aval.op_shape if isinstance(size, int))
    return LayerWeight(name, shape, dtype.name, False, value)


def _free(name: str, taken: set[str]) -> str:
    found, number = name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _updated(
    training: LayerFunction | None, mutable: Sequence[str], weights: Mapping[str, WeightLeaf]
) -> tuple[str, ...]:
    """Finds the weights that the training function returns, in the order of its leaves."""
    if not mutable:
        return ()
    if training is None:
        raise LayerError(
            f"mutable={list(mutable)} needs a function for training that returns new values: one "
            "with an argument `training`, or training_function."
        )
    tree, name = training.out_tree, training.portable.name
    if tree.kind not in ("tuple", "list") or len(tree.children) != 2:
        raise StructureError(
            f"With mutable={list(mutable)}, {name} must return (outputs, new values) when it is "
            f"trained, as Flax's apply(..., mutable={list(mutable)}) does. It returns {tree}"
        )
    returned = leaf_names(tree.children[1])
    expected = [n for n in weights if any(begins(n, m) for m in mutable)]
    missing = [n for n in expected if n not in returned]
    unexpected = [n for n in returned if n not in expected]
    if missing or unexpected:
        lines = differences(dict.fromkeys(missing, ""), unexpected, expected)
        raise StructureError(
            f"What {name} returns for mutable={list(mutable)} are not the weights of these names:"
            f"{bullet_list(lines)}\nReturn a value for each, nested as params is."
        )
    _check_returned(training, tree, returned, weights)
    return returned


def _check_returned(
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


class LayerConstants:
    """Tensors of captured arrays: variables of the layer, and eager tensors of all others."""

    def __init__(self, variables: Mapping[Key, Any], others: Any) -> None:
        """Takes the variables, and where the arrays of gradients of higher orders come from."""
        self._variables, self._others = dict(variables), others

    def tensors(self, portable: PortableFunction, saving: Any) -> list[tf.Tensor]:
        """One for each lifted constant of the function, in its order, in the current graph."""
        return [self._tensor(portable, constant, saving) for constant in portable.lifted_constants]

    def _tensor(self, portable: PortableFunction, constant: LiftedConstant, saving: Any) -> Any:
        variable = self._variables.get(constant_key(constant))
        if variable is not None:
            return tf.convert_to_tensor(variable.value)
        (tensor,) = self._others.tensors(replace(portable, lifted_constants=(constant,)), saving)
        return tensor
