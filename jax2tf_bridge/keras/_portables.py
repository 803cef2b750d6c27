"""Makes layer models from portable functions, with the options of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax2tf_bridge._dtypes import is_differentiable
from jax2tf_bridge.converting import keys_as_words
from jax2tf_bridge.errors import LayerError
from jax2tf_bridge.keras._functions import LayerFunction
from jax2tf_bridge.keras._model import LayerModel, make_array_reader
from jax2tf_bridge.portable import (
    AUTO,
    PolyConstraints,
    PortableFunction,
    apply_target,
)
from jax2tf_bridge.saving import PathWeights, open_params
from jax2tf_bridge.saving.weights import (
    WeightLeaf,
    check_prefixes,
    is_trainable,
    weight_leaves,
)
from jax2tf_bridge.targets import Target


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
