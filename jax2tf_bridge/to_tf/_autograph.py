"""Keeps AutoGraph out of functions in which there is nothing for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def opaque_to_autograph(function: _Function) -> _Function:
    """`function`, which AutoGraph calls as it is.

    Otherwise it rewrites all that is called within a tf.function: the bridge, JAX and the user's
    JAX function, which takes seconds and hides whose error an error is.
    """
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))
