"""retarget_record(): a record that exists already, from whatever JAX, for another target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jax2tf_bridge.errors import (
    GradientError,
    Message,
    ModuleError,
    UnsupportedByTargetError,
)
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._avals import is_narrow
from jax2tf_bridge.from_jax.archives._rewriting import rewrite_calls
from jax2tf_bridge.from_jax.stablehlo._module import FoundOperation, StableHloModule
from jax2tf_bridge.from_jax.stablehlo._retarget import retarget
from jax2tf_bridge.portable._as_portable import HoldsPortable, as_record
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.portable._module_types import check_function_types
from jax2tf_bridge.portable._portable_function import Aval, LazyVjp, PortableFunction
from jax2tf_bridge.portable._safety_checks import is_vouched
from jax2tf_bridge.portable._stablehlo_version import version_text
from jax2tf_bridge.portable._target import Target, as_target
from jax2tf_bridge.portable._tensorflow_releases import no_handler_text

WIDE = {narrow: ELEMENT_TYPES[wide] for narrow, wide in WIDENED.items()}
"""MLIR's element type by which TensorFlow takes a narrow dtype."""


def retarget_record(
    record: PortableFunction | HoldsPortable, target: Target | None = None
) -> PortableFunction:
    """`record` for another target: what a TensorFlow release needs to run an older file.

    Operations that stand for others (composites, CHLO) are expanded, calls of LAPACK become
    StableHLO, 4-bit integers cross as 8-bit ones, and the module is written at the first StableHLO
    version of the target that loses nothing.  JAX is needed for it.

    Args:
      record: of an export, a file or one of JAX's archives.
      target: what the consumer can run; by default `Target.widest()`.

    Returns:
      The record. VJPs that are there are retargeted with it, others when they are asked for.

    Raises:
      ShardingError: it is for one device, and speaks of several.
      UnsupportedByTargetError: the target cannot run an operation or custom call of the module.
      ModuleError: the installed JAX cannot read the module, a call of LAPACK has no form in
        StableHLO, or the module's types are not the record's.
      FunctionError: it is no record.
      TargetError: it is no Target.
    """
    record = as_record(record, "retarget_record")
    target = as_target(target)
    module = read_module(record)
    rewrite_calls(module, record.name, keep_current=False)
    if record.nr_devices == 1:
        module.reduce_to_one_device(record.name)
    module.narrow_platform_index()
    module.expand()
    _widen(module, record)
    _check_custom_calls(module, record, target)
    check_function_types(record, *module.main_types())
    retargeted = retarget(
        module, target, function_name=record.name, has_effects=bool(record.ordered_effects)
    )
    return replace(
        record,
        module=retargeted.module,
        stablehlo_version=retargeted.stablehlo_version,
        calling_convention_version=retargeted.calling_convention_version,
        target=target,
        lazy_vjp=_retargeted_vjp(record, target),
        types_checked=True,
    )


def read_module(record: PortableFunction) -> StableHloModule:
    """The record's module in memory.

    Raises:
      ModuleError: the installed JAX cannot read it.
    """
    try:
        return StableHloModule(record.module)
    except Exception as e:  # of types that differ between releases of jaxlib
        newest = version_text(_jax_compat.current_stablehlo_version())
        raise ModuleError(
            f"The installed JAX cannot read the module of {record.name}: it is written at "
            f"StableHLO {version_text(record.stablehlo_version)} by {record.producer}, and this "
            f"JAX reads up to {newest}. Upgrade JAX if that is older; else the module is damaged."
        ) from e


def narrow_places(
    avals: Sequence[Aval], types: Sequence[str], element_of: Mapping[str, str]
) -> dict[int, str]:
    """Where `types` holds the values of narrow avals by another element type, and by which instead.

    Args:
      avals: of the last of the types; a platform index and tokens come before.
      types: of main's arguments or results, as MLIR prints them.
      element_of: by a narrow dtype the element type that is wanted.
    """
    first = len(types) - len(avals)
    return {
        first + i: element_of[aval.dtype]
        for i, aval in enumerate(avals)
        if is_narrow(aval) and not types[first + i].endswith(_ends(element_of[aval.dtype]))
    }


def _ends(element: str) -> tuple[str, str]:
    return f"x{element}>", f"<{element}>"


def _widen(module: StableHloModule, record: PortableFunction) -> None:
    """Lets 4-bit values cross as 8-bit ones, which TensorFlow reads rightly."""
    ins, outs = module.main_types()
    kept = [record.in_avals[i] for i in record.module_kept_var_idx]
    kept += [constant.aval for constant in record.lifted_constants]
    inputs = narrow_places(kept, ins, WIDE)
    results = narrow_places(record.out_avals, outs, WIDE)
    if inputs or results:
        module.retype_main(inputs, results)


def _check_custom_calls(module: StableHloModule, record: PortableFunction, target: Target) -> None:
    handled = target.custom_calls(record.platforms)
    for call in module.custom_calls():
        if call.name not in handled and not is_vouched(call.name, record.disabled_checks):
            raise _unregistered(call, record, target)


def _unregistered(
    call: FoundOperation, record: PortableFunction, target: Target
) -> UnsupportedByTargetError:
    return UnsupportedByTargetError(
        f"{record.name} cannot run on {target.name}: {no_handler_text([str(call)])}, and it "
        "has no form in StableHLO alone. Export the function again "
        "with jax2tf_bridge.export, if need be without what made this call.",
        operation=call.name,
        source=call.source,
    )


def _retargeted_vjp(record: PortableFunction, target: Target) -> LazyVjp:
    """The VJP for the target: made now if it is there, since it is to be written with the rest."""
    made = record.lazy_vjp.made
    if made is None:
        return retargeted_later(record.lazy_vjp, record.name, target)
    try:
        return LazyVjp(made=retarget_record(made, target))
    except (ModuleError, UnsupportedByTargetError) as e:
        behind = f" This is the gradient of {record.name}: record.with_vjp(0) leaves it behind."
        hint = Message(e, behind)
        if isinstance(e, UnsupportedByTargetError):
            raise UnsupportedByTargetError(hint, operation=e.operation, source=e.source) from e
        raise ModuleError(hint) from e


def retargeted_later(lazy_vjp: LazyVjp, name: str, target: Target) -> LazyVjp:
    """The VJP of the function `name`, retargeted when it is asked for."""
    if not lazy_vjp.available:
        return lazy_vjp

    def check() -> None:
        problem = lazy_vjp.problem(name)
        if problem is not None:
            raise GradientError(problem)

    return LazyVjp(lambda: retarget_record(lazy_vjp.get(name), target), check=check)
