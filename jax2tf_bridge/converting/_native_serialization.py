"""Reads jax2tf's switches between XLA's operations and TensorFlow's own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.errors import TargetError
from jax2tf_bridge.targets import Target, as_target


class _NotGiven:
    """Default of an argument that jax2tf has, and that the bridge replaces by `target`."""

    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN: Any = _NotGiven()
_JAX2TF_DEFAULT = "_DefaultNativeSerialization"
"""Name of the class of jax2tf's placeholder for an omitted argument."""


def choose_target(
    target: Target | None,
    *,
    enable_xla: Any,
    native_serialization: Any,
    platforms: Sequence[str] | None,
    stacklevel: int,
) -> Target:
    """Returns the target of a conversion: without XLA, if one of jax2tf's switches says so.

    Args:
      target: as `convert` takes it.
      enable_xla: False for TensorFlow's own operations.
      native_serialization: likewise.
      platforms: native_serialization_platforms, which excludes both switches.
      stacklevel: the stack level of the warning about a switch that is on.

    Raises:
      TargetError: they contradict each other, or it is no target.
    """
    switches = {"enable_xla": enable_xla, "native_serialization": native_serialization}
    given = {
        name: bool(value)
        for name, value in switches.items()
        if value is not NOT_GIVEN and type(value).__name__ != _JAX2TF_DEFAULT
    }
    on = [name for name, value in given.items() if value]
    off = [name for name, value in given.items() if not value]
    chosen = as_target(target)
    if on and not chosen.xla:
        raise TargetError(
            f"{on[0]}=True and target={chosen.name!r} contradict each other. Leave {on[0]} out."
        )
    if not off:
        for name in on:
            warnings.warn(
                f"The argument {name}=True of convert is its default, and will be removed. Leave "
                "it out.",
                DeprecationWarning,
                stacklevel=stacklevel + 1,
            )
        return chosen
    if "native_serialization" in on:
        raise TargetError(
            "enable_xla=False asks for TensorFlow's own operations, and native_serialization=True "
            "for a module that XLA runs. Leave one of them out."
        )
    if platforms is not None:
        raise TargetError(
            f"native_serialization_platforms are the platforms of a module, and {off[0]}=False "
            "asks for TensorFlow's own operations, which run on all. Leave one of them out."
        )
    return chosen.without_xla()
