"""Turns modules into the form of jax.export: embedded constants, 4-bit types, no composites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jax2tf_bridge.errors import FileFormatError, ModuleError
from jax2tf_bridge.from_jax.arguments import is_narrow
from jax2tf_bridge.from_jax.stablehlo._function_modules import (
    WIDE_ELEMENT_TYPES,
    kept_avals,
    read_stablehlo_module,
    retype_narrow_values,
)
from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule
from jax2tf_bridge.portable import (
    ELEMENT_TYPES,
    Aval,
    LiftedConstant,
    PortableFunction,
    StoredGradient,
    are_types_checked,
    check_function_types,
)
from jax2tf_bridge.portable.bytecode import read_main_types
from jax2tf_bridge.serialization.jax_exported import WritableFunction


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
    if any(map(is_narrow, (*portable.in_avals, *portable.out_avals))):
        module = read_stablehlo_module(portable)
        retype_narrow_values(module, portable, ELEMENT_TYPES)
        portable = _replace_module(portable, module)
    if not portable.target.xla:
        module = read_stablehlo_module(portable)
        # JAX cannot refine the shapes of composites.
        module.expand()
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
        _widen_types(kept_avals(portable), ins),
        _widen_types(portable.out_avals, outs),
    )


def _widen_types(avals: Sequence[Aval], types: Sequence[str]) -> list[str]:
    """Widens 4-bit element types to 8 bits, as TensorFlow passes them."""
    widened = list(types)
    # If the numbers of types and avals differ, check_types reports it.
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
    vjp = portable.gradient.made
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
            f"({constant.aval}), which is not there: it was written without arrays. "
            "Write the file with arrays=True, or pass the array as an argument."
        )
    return constant.data
