"""export() and deserialize() with the arguments that jax.export's functions of these names have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax import export as jax_export

from jax2tf_bridge import serialization
from jax2tf_bridge.errors import TargetError
from jax2tf_bridge.from_jax._export import export_options, export_specs
from jax2tf_bridge.from_jax.arguments._callables import JaxCallable
from jax2tf_bridge.from_jax.shapes._specs import Specs, symbolic_specs
from jax2tf_bridge.from_jax.shapes._traced_function import SYMBOLIC
from jax2tf_bridge.from_jax.trees._tree_specs import rebuilt
from jax2tf_bridge.jax_export._exported import Exported
from jax2tf_bridge.portable._safety_checks import NOT_STRICT
from jax2tf_bridge.portable._tensorflow_releases import TENSORFLOW_RELEASES
from shape_poly import is_symbolic_dim

minimum_supported_calling_convention_version: int = min(c for _, c in TENSORFLOW_RELEASES.values())
"""The oldest calling convention of the functions that are written and called."""

maximum_supported_calling_convention_version: int = (
    jax_export.maximum_supported_calling_convention_version
)
"""The newest: that of the installed JAX."""


def export(
    fun_jit: Callable[..., Any],
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Any] = (),
    lowering_platforms: Sequence[str] | None = None,
    lowering_platform: str | None = None,
    strict_checks: bool = True,
) -> Callable[..., Exported]:
    """Freezes a JAX function as StableHLO, with the arguments and defaults of jax.export.export.

    `jax2tf_bridge.export` has more to choose from, and exports for four platforms by default.

    Args:
      fun_jit: the function; unlike JAX's, need not be the result of jax.jit.
      platforms: of "cpu", "cuda", "rocm", "tpu"; by default the one of this process, which
        default_export_platform() names.
      disabled_checks: of DisabledSafetyCheck, the bridge's or JAX's own.
      lowering_platforms: the older name of `platforms`.
      lowering_platform: the one of them, as older releases had it.
      strict_checks: False, in older releases, disables the checks of the platform and of custom
        calls.

    Returns:
      A function that takes the arguments of `fun_jit` and gives the Exported: arrays, numbers,
      jax.ShapeDtypeStruct, whose sizes may be those of symbolic_shape, or the tracers of a
      transformation. Where arrays are spread over several devices, or shardings are given, it is
      exported for as many.

    Raises:
      FunctionError: it is no function.
      TargetError: no such platform; or platforms are given by several of the names.
      ShapeError: the scopes of the sizes contradict each other.
      InconclusiveShapeError: it only works for some of the sizes; it says for which.
      NotExportableError: it calls back to the host.
      PlatformError, UnsupportedByTargetError: it cannot be lowered, or holds a custom call that
        TensorFlow has no handler for and no check is disabled for.

    >>> import jax, numpy as np
    >>> exported = export(jax.jit(jax.numpy.sin), platforms=["cpu"])(np.float32(0))
    >>> exported.fun_name, exported.platforms, float(exported.call(np.float32(0)))
    ('sin', ('cpu',), 0.0)
    """
    given = {
        "platforms": platforms,
        "lowering_platforms": lowering_platforms,
        "lowering_platform": None if lowering_platform is None else (lowering_platform,),
    }
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) > 1:
        raise TargetError(
            f"export got {' and '.join(named)}, which are names of one argument. Give platforms "
            "alone."
        )
    chosen: Sequence[str] = next(iter(named.values()), (jax_export.default_export_platform(),))
    checks = disabled_checks if strict_checks else (*disabled_checks, *NOT_STRICT)
    function = JaxCallable.of(fun_jit, caller="export")
    options = replace(
        export_options(chosen, (), checks, None, argument="platforms", call=""),
        words=SYMBOLIC,
    )

    def export_for(*args_specs: Any, **kwargs_specs: Any) -> Exported:
        args = [
            spec if function.is_static(i) else _as_jit_takes_it(spec)
            for i, spec in enumerate(args_specs)
        ]
        kwargs = {
            name: spec if name in function.static_argnames else _as_jit_takes_it(spec)
            for name, spec in kwargs_specs.items()
        }
        specs = symbolic_specs(function, args, kwargs, None)
        call = f'symbolic_shape("{_open_shape(specs)}"'
        return Exported(export_specs(function, specs, replace(options, call=call)))

    return export_for


def deserialize(blob: bytes | bytearray | memoryview) -> Exported:
    """Reads what Exported.serialize wrote, the bridge's or that of jax.export.

    Raises:
      FileFormatError: it is neither, or damaged, or of a newer version of the format.
    """
    return Exported(serialization.deserialize(blob))


def _open_shape(specs: Specs) -> str:
    """Writes the first shape that has an open dimension, as symbolic_shape takes it."""
    shapes = (shape for shape in specs.shapes() if any(map(is_symbolic_dim, shape)))
    return ", ".join(map(str, next(shapes, ())))


def _as_jit_takes_it(argument: Any) -> Any:
    """Adds what jax.jit knows of an argument's leaves beside shape and dtype.

    A number of Python's and what was computed of such have a weak type, an array over several
    devices has a sharding.
    """
    leaves, structure = jax.tree_util.tree_flatten(argument)
    return rebuilt(structure, map(_leaf_as_jit_takes_it, leaves))


def _leaf_as_jit_takes_it(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    is_tracer = isinstance(leaf, jax.core.Tracer)
    is_array = isinstance(leaf, jax.Array) and not is_tracer
    is_spread = is_array and len(leaf.sharding.device_set) > 1
    is_number = isinstance(leaf, (bool, int, float, complex))
    if not (is_tracer or is_spread or is_number or getattr(leaf, "weak_type", False)):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        sharding=leaf.sharding if is_spread else None,
        weak_type=aval.weak_type,
    )
