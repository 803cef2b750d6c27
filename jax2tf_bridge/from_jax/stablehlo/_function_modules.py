"""Reads and changes the modules of portable functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax2tf_bridge.errors import (
    ModuleError,
)
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments import is_narrow
from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule
from jax2tf_bridge.portable import (
    ELEMENT_TYPES,
    WIDENED,
    Aval,
    PortableFunction,
    version_text,
)

WIDE_ELEMENT_TYPES = {narrow: ELEMENT_TYPES[wide] for narrow, wide in WIDENED.items()}
"""Maps each narrow dtype to the MLIR element type that TensorFlow passes it as."""


def read_stablehlo_module(portable: PortableFunction) -> StableHloModule:
    """Reads the function's module into memory.

    Raises:
      ModuleError: the installed JAX cannot read it.
    """
    try:
        return StableHloModule.read(portable.module.data)
    except Exception as e:  # the exception types differ between releases of jaxlib
        newest = version_text(_jax_compat.current_stablehlo_version())
        raise ModuleError(
            f"The installed JAX cannot read the module of {portable.name}: it is written at "
            f"StableHLO {version_text(portable.module.stablehlo_version)} by {portable.producer}, "
            f"and this JAX reads up to {newest}. Upgrade JAX if that is older; else the module is "
            "damaged."
        ) from e


def retype_narrow_values(
    module: StableHloModule, function: PortableFunction, element_of: Mapping[str, str]
) -> None:
    """Changes the element types of main's arguments and results of fewer than 8 bits.

    Args:
      module: the function's module; it is modified, and converts the values inside.
      function: its abstract values tell which arguments and results are narrow.
      element_of: maps dtypes to element types: WIDE for TensorFlow, ELEMENT_TYPES for JAX.
    """
    ins, outs = module.main_types()
    inputs = _find_types_to_change(kept_avals(function), ins, element_of)
    results = _find_types_to_change(function.out_avals, outs, element_of)
    if inputs or results:
        module.retype_main(inputs, results)


def kept_avals(function: PortableFunction) -> list[Aval]:
    """Returns the abstract values of main's arguments after the platform index and tokens."""
    kept = [function.in_avals[i] for i in function.module.kept_arguments]
    return kept + [constant.aval for constant in function.lifted_constants]


def _find_types_to_change(
    avals: Sequence[Aval], types: Sequence[str], element_of: Mapping[str, str]
) -> dict[int, str]:
    first = len(types) - len(avals)
    elements = {i: element_of[a.dtype] for i, a in enumerate(avals, first) if is_narrow(a)}
    return {i: e for i, e in elements.items() if not types[i].endswith((f"x{e}>", f"<{e}>"))}
