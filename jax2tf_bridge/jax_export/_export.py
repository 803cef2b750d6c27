"""export() and deserialize() with the arguments that jax.export's functions of these names have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge import serialization
from jax2tf_bridge._portable import PortableFunction
from jax2tf_bridge._target import TENSORFLOW_RELEASES
from jax2tf_bridge.from_jax import export as export_record

minimum_supported_calling_convention_version: int = min(c for _, c in TENSORFLOW_RELEASES.values())
"""The oldest calling convention of the records that are written and called."""

maximum_supported_calling_convention_version: int = (
    jax_export.maximum_supported_calling_convention_version
)
"""The newest: that of the installed JAX."""


def export(
    fun_jit: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
) -> Callable[..., PortableFunction]:
    """Freezes a JAX function as StableHLO, with the arguments and defaults of jax.export.export.

    `jax2tf_bridge.export` has more to choose from, and exports for four platforms by default.

    Args:
      fun_jit: the function; unlike JAX's, need not be the result of jax.jit.
      platforms: of "cpu", "cuda", "rocm", "tpu"; by default the one of this process, which
        default_export_platform() names.
      disabled_checks: of DisabledSafetyCheck, the bridge's or JAX's own.

    Returns:
      A function that takes the arguments of `fun_jit` and gives the PortableFunction: arrays or
      jax.ShapeDtypeStruct, whose sizes may be those of symbolic_shape. Where arrays are spread over
      several devices, or shardings are given, it is exported for as many.

    Raises:
      FunctionError: it is no function.
      TargetError: no such platform.
      InconclusiveShapeError: it only works for some of the sizes; it says for which.
      NotExportableError: it calls back to the host.
      PlatformError, UnsupportedByTargetError: it cannot be lowered, or holds a custom call that
        TensorFlow has no handler for and no check is disabled for.

    >>> import jax, numpy as np
    >>> exported = export(jax.jit(jax.numpy.sin), platforms=["cpu"])(np.float32(0))
    >>> exported.fun_name, exported.platforms, float(exported.call(np.float32(0)))
    ('sin', ('cpu',), 0.0)
    """
    chosen = (jax_export.default_export_platform(),) if platforms is None else tuple(platforms)
    exporting = export_record(fun_jit, platforms=chosen, disabled_checks=disabled_checks)

    def export_for(*args_specs: Any, **kwargs_specs: Any) -> PortableFunction:
        args, kwargs = jax.tree_util.tree_map(_placed, (args_specs, kwargs_specs))
        return exporting(*args, **kwargs)

    return export_for


def deserialize(blob: bytes | bytearray | memoryview) -> PortableFunction:
    """The record that Exported.serialize wrote, the bridge's or that of jax.export.

    Raises:
      FileFormatError: it is neither, or damaged, or of a newer version of the format.
    """
    return serialization.deserialize(blob)


def _placed(leaf: Any) -> Any:
    """The argument; where it is an array over several devices, its shape, dtype and sharding."""
    if isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return leaf
