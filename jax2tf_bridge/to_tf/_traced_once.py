"""TF functions of one signature that are traced once, for whatever they become part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf


class TracedOnce:
    """TF function of one signature, traced at its first call.

    A tf.function is traced a second time for tf.saved_model.save, and so is all that it calls:
    a model is saved under a policy for variables, which is part of what traces are looked up by.
    The policy concerns variables on several devices alone, and saved models have none.
    """

    def __init__(self, function: Callable[..., Any], signature: Sequence[tf.TensorSpec]) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)

    @cached_property
    def concrete(self) -> Any:
        """Concrete function, which a SavedModel can hold."""
        return self._function.get_concrete_function()

    def __call__(self, *args: tf.Tensor) -> Any:
        """Calls it, eagerly or in a graph."""
        return self.concrete(*args)
