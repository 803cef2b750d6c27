"""export() and deserialize(), with the same arguments as the functions of jax.export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge import serialization
from jax2tf_bridge.errors import TargetError
from jax2tf_bridge.from_jax import export_options, export_specs
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.from_jax.shapes import SYMBOLIC, Specs, symbolic_specs
from jax2tf_bridge.from_jax.trees import rebuilt
from jax2tf_bridge.jax_export._exported import Exported
from jax2tf_bridge.portable import NOT_STRICT
from jax2tf_bridge.targets import TENSORFLOW_RELEASES
from shape_poly import is_symbolic_dim

minimum_supported_calling_convention_version: int = min(c for _, c in TENSORFLOW_RELEASES.values())
"""Oldest calling convention that the bridge writes and calls."""

maximum_supported_calling_convention_version: int = (
    jax_export.maximum_supported_calling_convention_version
)
"""Newest calling convention: that of the installed JAX."""


def export(
    fun_jit: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
    lowering_platforms: Sequence[str] | None = None,
    lowering_platform: str | None = None,
    strict_checks: bool = True,
) -> Callable[..., Exported]:
    """Exports a JAX function to StableHLO, with the arguments and defaults of jax.export.export.

    `jax2tf_bridge.export` has more options, and exports for four platforms by default.

    Args:
      fun_jit: the function. Unlike in JAX, it need not be the result of jax.jit.
      platforms: a sequence of "cpu", "cuda", "rocm" and "tpu". The default is the platform of this
        process, default_export_platform().
      disabled_checks: the safety checks to disable, as DisabledSafetyCheck of the bridge or of JAX.
      lowering_platforms: an older name of `platforms`.
      lowering_platform: an older argument for a single platform.
      strict_checks: an older argument; False disables the checks of the platform and of custom
        calls.

    Returns:
      A function that takes the arguments of `fun_jit` and returns an Exported. The arguments may be
      arrays, numbers, jax.ShapeDtypeStruct (with sizes from symbolic_shape), or the tracers of a
      transformation. If arrays or shardings use several devices, the function is exported for the
      same number of devices.

    Raises:
      FunctionError: `fun_jit` is not a function.
      TargetError: a platform does not exist, or platforms are given by several of the arguments.
      ShapeError: the scopes of the sizes contradict each other.
      InconclusiveShapeError: the function works for some sizes only; the message says which.
      NotExportableError: the function calls back to the host.
      PlatformError, UnsupportedByTargetError: the function cannot be lowered, or contains a custom
        call that TensorFlow has no handler for and whose check is not disabled.

    >>> import jax, numpy as np
    >>> exported = export(jax.jit(jax.numpy.sin), platforms=["cpu"])(np.float32(0))
    >>> exported.fun_name, exported.platforms, float(exported.call(np.float32(0)))
    ('sin', ('cpu',), 0.0)
    """
    platform_arguments = {
        "platforms": platforms,
        "lowering_platforms": lowering_platforms,
        "lowering_platform": None if lowering_platform is None else (lowering_platform,),
    }
    passed = {name: value for name, value in platform_arguments.items() if value is not None}
    if len(passed) > 1:
        raise TargetError(
            f"export got {' and '.join(passed)}, which are names of one argument. Give platforms "
            "alone."
        )
    chosen: Sequence[str] = next(iter(passed.values()), (jax_export.default_export_platform(),))
    checks = disabled_checks if strict_checks else (*disabled_checks, *NOT_STRICT)
    function = JaxCallable.of(fun_jit, caller="export")
    options = replace(
        export_options(chosen, (), checks, None, argument="platforms", call=""),
        words=SYMBOLIC,
    )

    def export_for(*args_specs: Any, **kwargs_specs: Any) -> Exported:
        args = [
            spec if function.is_static(i) else _with_jit_types(spec)
            for i, spec in enumerate(args_specs)
        ]
        kwargs = {
            name: spec if name in function.static_argnames else _with_jit_types(spec)
            for name, spec in kwargs_specs.items()
        }
        specs = symbolic_specs(function, args, kwargs, None)
        call = f'symbolic_shape("{_format_open_shape(specs)}"'
        return Exported(export_specs(function, specs, replace(options, call=call)))

    return export_for


def deserialize(blob: bytes | bytearray | memoryview) -> Exported:
    """Reads a function that Exported.serialize of the bridge or of jax.export wrote.

    Raises:
      FileFormatError: the bytes have another format, are damaged, or have a newer version.
    """
    return Exported(serialization.deserialize(blob))


def _format_open_shape(specs: Specs) -> str:
    """Returns the first shape with an open dimension, in the syntax of symbolic_shape."""
    shapes = (shape for shape in specs.shapes() if any(map(is_symbolic_dim, shape)))
    return ", ".join(map(str, next(shapes, ())))


def _with_jit_types(argument: Any) -> Any:
    """Adds weak types and shardings to the leaves of an argument, like jax.jit.

    Python numbers, and results that are computed from them only, have a weak type. Arrays over
    several devices have a sharding.
    """
    leaves, structure = jax.tree_util.tree_flatten(argument)
    return rebuilt(structure, map(_leaf_with_jit_type, leaves))


def _leaf_with_jit_type(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_tracer = isinstance(leaf, jax.core.Tracer)
    is_array = isinstance(leaf, jax.Array) and not is_tracer
    is_sharded = is_array and len(leaf.sharding.device_set) > 1
    is_number = isinstance(leaf, (bool, int, float, complex))
    if not (is_tracer or is_sharded or is_number or getattr(leaf, "weak_type", False)):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=leaf.sharding if is_sharded else None,
        weak_type=aval.weak_type,
    )
