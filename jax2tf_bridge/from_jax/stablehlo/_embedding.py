"""Modules as JAX has them: lifted constants within, and 4-bit values of 4 bits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jax2tf_bridge.errors import FileFormatError, ModuleError
from jax2tf_bridge.from_jax._avals import is_narrow
from jax2tf_bridge.from_jax.stablehlo._module import StableHloModule
from jax2tf_bridge.from_jax.stablehlo._retarget_function import WIDE, narrow_places, read_module
from jax2tf_bridge.portable._aval import Aval, LiftedConstant
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES
from jax2tf_bridge.portable._module_types import are_types_checked, check_function_types
from jax2tf_bridge.portable._portable_function import (
    PortableFunction,
    StoredGradient,
)
from jax2tf_bridge.portable.bytecode import read_main_types
from jax2tf_bridge.serialization.jax_exported._limits import Writable


def as_jax_has_it(function: Writable) -> Writable:
    """Changes a function's module to what jax.export would write; the VJPs are left as they are.

    Raises:
      ModuleError: the arrays are not there, the installed JAX cannot read the module, or the types
        of the module are not the function's.
    """
    if not function.needs_jax:
        return function
    check_stored_types(function.record)
    record = embedded(function.record)
    if any(map(is_narrow, (*record.in_avals, *record.out_avals))):
        module = read_module(record)
        narrow_main(module, record)
        record = _with_module(record, module)
    return replace(function, record=record, needs_jax="")


def _with_module(record: PortableFunction, module: StableHloModule) -> PortableFunction:
    data = module.serialize(record.module.stablehlo_version)
    return replace(record, module=replace(record.module, data=data))


def narrow_main(module: StableHloModule, record: PortableFunction) -> None:
    """Lets 4-bit values cross as what they are, where the module takes 8 bits for TensorFlow.

    Args:
      module: of the record, with its lifted constants embedded; it is changed.
      record: whose abstract values say what they are.
    """
    ins, outs = module.main_types()
    kept = [record.in_avals[i] for i in record.module.kept_arguments]
    inputs = narrow_places(kept, ins, ELEMENT_TYPES)
    module.retype_main(inputs, narrow_places(record.out_avals, outs, ELEMENT_TYPES))


def check_stored_types(record: PortableFunction) -> None:
    """Compares the types of a record that was stored with those of its module, without MLIR.

    Raises:
      ModuleError: they differ, or the module cannot be read.
    """
    if are_types_checked(record):
        return
    try:
        ins, outs = read_main_types(record.module.data)
    except FileFormatError as e:
        raise ModuleError(f"The module of {record.name} cannot be read: {e}") from e
    kept = [record.in_avals[i] for i in record.module.kept_arguments]
    kept += [constant.aval for constant in record.lifted_constants]
    check_function_types(
        record,
        _as_tensorflow_has_them(kept, ins),
        _as_tensorflow_has_them(record.out_avals, outs),
    )


def _as_tensorflow_has_them(avals: Sequence[Aval], types: Sequence[str]) -> list[str]:
    """The types, with 8 bits where a 4-bit value crosses as what it is, as JAX has it."""
    widened = list(types)
    # Where their number differs, there is nothing to widen: check_types says so.
    for i, aval in enumerate(avals, len(types) - len(avals)):
        if 0 <= i < len(types) and is_narrow(aval):
            narrow, wide = ELEMENT_TYPES[aval.dtype], WIDE[aval.dtype]
            widened[i] = re.sub(rf"(?<=[x<]){narrow}>$", f"{wide}>", types[i])
    return widened


def embedded(record: PortableFunction, vjp_order: int = 0) -> PortableFunction:
    """The record with its lifted constants in its module again, as JAX has them.

    Args:
      record: whose types were compared with its module's.
      vjp_order: in how many of the VJPs that are there it is done as well.

    Raises:
      ModuleError: the record does not hold the arrays, or the installed JAX cannot read the module.
    """
    made = record.gradient.made
    if vjp_order and made is not None:
        record = replace(record, gradient=StoredGradient(embedded(made, vjp_order - 1)))
    if not record.lifted_constants:
        return record
    arrays = [_data(record, constant) for constant in record.lifted_constants]
    module = read_module(record)
    module.embed_constants(arrays)
    return replace(_with_module(record, module), lifted_constants=())


def _data(record: PortableFunction, constant: LiftedConstant) -> bytes:
    if constant.data is None:
        raise ModuleError(
            f"{record.name} captured the array {constant.name or constant.digest} "
            f"({constant.aval}), which its record does not hold: it was written without arrays. "
            "Write the file with arrays=True, or pass the array as an argument."
        )
    return constant.data
