"""Excludes functions from AutoGraph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def opaque_to_autograph(function: _Function) -> _Function:
    """Returns `function`, marked so that AutoGraph does not convert it.

    AutoGraph would rewrite everything that a tf.function calls: the bridge, JAX and the user's JAX
    function. This takes seconds, and hides where an error comes from.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
