"""Reads the modules of portable functions, and converts them to the form of jax.export."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax2tf_bridge._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.bytecode import read_main_types, version_text
from jax2tf_bridge.errors import FileFormatError, ModuleError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments import is_narrow
from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    StoredGradient,
    are_types_checked,
    check_function_types,
    list_main_avals,
)
from jax2tf_bridge.serialization.jax_exported import WritableFunction

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
            f"and this JAX reads up to {newest}. If that is older, upgrade JAX; otherwise the "
            "module is damaged."
        ) from e


def retype_narrow_values(
    module: StableHloModule, function: PortableFunction, element_of: Mapping[str, str]
) -> None:
    """Changes the element types of main's arguments and results of fewer than 8 bits.

    The module then converts the values. `element_of` maps dtypes to element types:
    WIDE_ELEMENT_TYPES for TensorFlow, ELEMENT_TYPES for JAX.
    """
    ins, outs = module.main_types()
    inputs = _find_types_to_change(list_main_avals(function), ins, element_of)
    results = _find_types_to_change(function.out_avals, outs, element_of)
    if inputs or results:
        module.retype_main(inputs, results)


def _find_types_to_change(
    avals: Sequence[Aval], types: Sequence[str], element_of: Mapping[str, str]
) -> dict[int, str]:
    first = len(types) - len(avals)
    elements = {i: element_of[a.dtype] for i, a in enumerate(avals, first) if is_narrow(a)}
    return {i: e for i, e in elements.items() if not types[i].endswith((f"x{e}>", f"<{e}>"))}


def convert_to_jax_form(function: WritableFunction) -> WritableFunction:
    """Rewrites a function's module to the form of jax.export; the VJPs stay unchanged.

    Raises:
      ModuleError: the function was stored without arrays, the installed JAX cannot read the module,
        or the types of the module and the function differ.
    """
    if not function.needs_jax:
        return function
    check_stored_types(function.portable)
    portable = embed_lifted_constants(function.portable)
    has_narrow = any(map(is_narrow, (*portable.in_avals, *portable.out_avals)))
    if has_narrow or not portable.target.xla:
        module = read_stablehlo_module(portable)
        retype_narrow_values(module, portable, ELEMENT_TYPES)
        if not portable.target.xla:
            module.expand()  # JAX cannot refine the shapes of composites
        portable = _replace_module(portable, module)
    return replace(function, portable=portable, needs_jax="")


def _replace_module(portable: PortableFunction, module: StableHloModule) -> PortableFunction:
    data = module.serialize(portable.module.stablehlo_version)
    return replace(portable, module=replace(portable.module, data=data))


def check_stored_types(portable: PortableFunction) -> None:
    """Compares the types of a stored function with those of its module, without MLIR.

    Raises:
      ModuleError: they differ, or the module cannot be read.
    """
    if are_types_checked(portable):
        return
    try:
        ins, outs = read_main_types(portable.module.data)
    except FileFormatError as e:
        raise ModuleError(f"The module of {portable.name} cannot be read: {e}") from e
    check_function_types(
        portable,
        _widen_types(list_main_avals(portable), ins),
        _widen_types(portable.out_avals, outs),
    )


def _widen_types(avals: Sequence[Aval], types: Sequence[str]) -> list[str]:
    """Widens 4-bit element types to 8 bits, as TensorFlow passes them."""
    widened = list(types)
    # If the numbers of types and avals differ, check_function_types reports it.
    for i, aval in enumerate(avals, len(types) - len(avals)):
        if 0 <= i < len(types) and is_narrow(aval):
            narrow, wide = ELEMENT_TYPES[aval.dtype], WIDE_ELEMENT_TYPES[aval.dtype]
            widened[i] = re.sub(rf"(?<=[x<]){narrow}>$", f"{wide}>", types[i])
    return widened


def embed_lifted_constants(portable: PortableFunction, vjp_order: int = 0) -> PortableFunction:
    """Embeds the lifted constants in the module again, as in jax.export.

    Args:
      portable: a function whose types were checked against its module.
      vjp_order: number of stored VJPs (first order, second order, ...) to embed constants in.

    Raises:
      ModuleError: the function was stored without arrays, or the installed JAX cannot read the
        module.
    """
    vjp = portable.gradient.vjp
    if vjp_order and vjp is not None:
        portable = replace(
            portable, gradient=StoredGradient(embed_lifted_constants(vjp, vjp_order - 1))
        )
    if not portable.lifted_constants:
        return portable
    arrays = [_read_data(portable, constant) for constant in portable.lifted_constants]
    module = read_stablehlo_module(portable)
    module.embed_constants(arrays)
    return replace(_replace_module(portable, module), lifted_constants=())


def _read_data(portable: PortableFunction, constant: LiftedConstant) -> bytes | memoryview:
    if constant.data is None:
        raise ModuleError(
            f"{portable.name} captured the array {constant.name or constant.digest} "
            f"({constant.aval}), which is missing: it was written without arrays. "
            "Write the file with arrays=True, or pass the array as an argument."
        )
    return constant.data
