"""TF functions that AutoGraph leaves alone, or that are traced only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar, cast

import tensorflow as tf


class TracedOnce:
    """TF function of one signature, traced at its first call and never again.

    tf.saved_model.save traces a tf.function and everything that it calls a second time: it saves
    under a variable policy, which is part of the key of the trace cache. The policy only affects
    variables on several devices, which saved models do not have.
    """

    def __init__(self, function: Callable[..., Any], signature: Sequence[tf.TensorSpec]) -> None:
        self._function = tf.function(function, input_signature=signature, autograph=False)

    @cached_property
    def concrete(self) -> Any:
        """The concrete function, which a SavedModel can hold."""
        return self._function.get_concrete_function()

    def __call__(self, *args: tf.Tensor) -> Any:
        """Calls the concrete function, eagerly or in a graph."""
        return self.concrete(*args)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def opaque_to_autograph(function: _Function) -> _Function:
    """Returns `function`, marked so that AutoGraph does not convert it.

    AutoGraph would rewrite everything that a tf.function calls: the bridge, JAX and the user's JAX
    function. This takes seconds, and hides where an error comes from.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
