"""Writes modules for a target: of a lowered function, a portable function, or an op's call."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from jax2tf_bridge.errors import (
    Argument,
    Message,
    ModuleError,
    UnsupportedByTargetError,
)
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.archives._rewriting import rewrite_calls
from jax2tf_bridge.from_jax.arguments._avals import is_narrow
from jax2tf_bridge.from_jax.lowering._lowering import check_one_device
from jax2tf_bridge.from_jax.stablehlo._module import LossyError, StableHloModule
from jax2tf_bridge.portable._as_portable import HoldsPortable, as_portable_function
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._called_function import called_function
from jax2tf_bridge.portable._custom_calls import no_handler_text
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.portable._expressible import check_expressible
from jax2tf_bridge.portable._module_types import check_function_types
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    PortableFunction,
    mark_types_checked,
)
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck, is_vouched
from jax2tf_bridge.portable._stablehlo_version import Version, version_text
from jax2tf_bridge.portable._target import Target, as_target
from jax2tf_bridge.portable._tensorflow_releases import TENSORFLOW_RELEASES
from jax2tf_bridge.serialization.jax_exported._modules import read_stablehlo_version

_WITHOUT_EFFECTS = 8
_WITH_EFFECTS = 9
_WITH_SHARDY = 10

# StableHLO has batching dimensions in gather and scatter since then. Measured: the XLA of TF 2.17
# fails on them, so a module that has them is written for it as for TF 2.16, which has none.
_BATCHING_DIMS = (1, 1, 0)
_BATCHING_DIMS_RUN = TENSORFLOW_RELEASES["2.18"][0]
_WITHOUT_BATCHING_DIMS = TENSORFLOW_RELEASES["2.16"][0]

# Measured: TF 2.15 and 2.17 fail to compile additions of them, TF 2.15 conversions too.
_NARROW_INTEGERS = TENSORFLOW_RELEASES["2.19"][0]


@dataclass(frozen=True)
class Retargeted:
    """A module as the target reads it."""

    module: bytes
    stablehlo_version: Version
    calling_convention_version: int


def retarget_module(
    module: StableHloModule, target: Target, *, function_name: str, has_effects: bool
) -> Retargeted:
    """Writes a module at the first of the target's StableHLO versions that can express it.

    Raises:
      UnsupportedByTargetError: none of the versions can express it, or it needs a newer calling
        convention, or TensorFlow's own operations do not say it and the target has no XLA; the
        operation and its source line are named.
    """
    convention = _calling_convention(module, has_effects)
    if convention > target.calling_convention:
        raise UnsupportedByTargetError(
            Message(
                f"{function_name} cannot run on {target.name}: it holds "
                f"{'sharding annotations' if convention == _WITH_SHARDY else 'ordered effects'}, "
                f"which need calling convention {convention}, and the target reads "
                f"{target.calling_convention}.",
                _first_release_that(convention=convention),
            ),
            operation="calling convention",
            source=None,
        )
    newest = _jax_compat.current_stablehlo_version()
    problem: LossyError | None = None
    if target.xla and module.uses_narrow_integers():
        target = _for_narrow_integers(target, function_name)
    for version in _versions(module, target.stablehlo_versions):
        # An older jaxlib writes at most its own version, which newer readers accept.
        written = min(version, newest)
        try:
            found = Retargeted(module.serialize(written), written, convention)
        except LossyError as e:
            problem = e
            continue
        if not target.xla:
            check_expressible(found.module, target, function_name)
        return found
    assert problem is not None, "a target has at least one version"
    raise _unsupported(module, problem, target, function_name) from problem


def _versions(module: StableHloModule, versions: Sequence[Version]) -> Sequence[Version]:
    """Lists the versions to write the module at, so that readers of `versions` can also run it."""
    if not module.uses_batching_dims():
        return versions
    return [
        _WITHOUT_BATCHING_DIMS if _BATCHING_DIMS <= v < _BATCHING_DIMS_RUN else v for v in versions
    ]


def _for_narrow_integers(target: Target, function_name: str) -> Target:
    """Leaves out the versions of releases whose XLA fails on 4-bit integers."""
    versions = tuple(v for v in target.stablehlo_versions if v >= _NARROW_INTEGERS)
    if versions:
        return replace(target, stablehlo_versions=versions)
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: it computes with integers of 4 bits or "
            "fewer, which the XLA in it cannot.",
            _first_release_that(versions=[_NARROW_INTEGERS]),
        ),
        operation="4-bit integers",
        source=None,
    )


def _calling_convention(module: StableHloModule, has_effects: bool) -> int:
    if module.uses_shardy():
        return _WITH_SHARDY
    return _WITH_EFFECTS if has_effects else _WITHOUT_EFFECTS


def _unsupported(
    module: StableHloModule, problem: LossyError, target: Target, function_name: str
) -> UnsupportedByTargetError:
    operation = problem.operation
    tried = version_text(target.stablehlo_versions[-1])
    help_text = _first_release_that(
        versions=_versions_that_express(module, tried=target.stablehlo_versions)
    )
    place = f" (at {operation.source})" if operation.source else ""
    return UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: {operation.name}{place}, as it is used "
            f"here, cannot be expressed in StableHLO {tried}, the newest that the target reads.",
            help_text,
        ),
        operation=operation.name,
        source=operation.source,
    )


def _versions_that_express(module: StableHloModule, *, tried: Collection[Version]) -> list[Version]:
    newest = _jax_compat.current_stablehlo_version()
    for version, _ in TENSORFLOW_RELEASES.values():
        (written,) = _versions(module, [version])
        if version in tried or written != version or version > newest:
            continue
        try:
            module.serialize(version)
        except LossyError:
            continue
        return [version]
    return []


def _first_release_that(
    *, versions: Collection[Version] | None = None, convention: int = 0
) -> Message:
    for release, (version, newest_convention) in TENSORFLOW_RELEASES.items():
        if (versions is None or version in versions) and convention <= newest_convention:
            target = Argument("target", release, f"target=Target.tensorflow({release!r})")
            text = f" The first TensorFlow that can run it is {release}: export with "
            return Message(text, target, " or without ", Argument("target", code="a target"), ".")
    return Message(
        " No TensorFlow release known to this version can run it: write this part of the "
        "function with other operations or dtypes."
    )


WIDE = {narrow: ELEMENT_TYPES[wide] for narrow, wide in WIDENED.items()}
"""MLIR's element type by which TensorFlow takes a narrow dtype."""


def retarget(
    portable: PortableFunction | HoldsPortable, target: Target | None = None
) -> PortableFunction:
    """Rewrites a portable function for another target, as an older TensorFlow needs it.

    Operations that stand for others (composites, CHLO) are expanded, calls of LAPACK become
    StableHLO, 4-bit integers cross as 8-bit ones, and the module is written at the first StableHLO
    version of the target that loses nothing.  JAX is needed for it.

    Args:
      portable: of an export, a file or one of JAX's archives.
      target: what the consumer can run; by default `Target.widest()`.

    Returns:
      The portable function. VJPs that are there are retargeted with it, others when they are
      asked for.

    Raises:
      ShardingError: it is for one device, and uses a mesh of several.
      UnsupportedByTargetError: the target cannot run an operation or custom call of the module.
      ModuleError: the installed JAX cannot read the module, a call of LAPACK has no form in
        StableHLO, or the module's types are not the function's.
      FunctionError: it is no portable function.
      TargetError: it is no Target.
    """
    portable = as_portable_function(portable, "retarget")
    target = as_target(target)
    module = read_module(portable)
    rewrite_calls(module, portable.name, keep_current=False, target=target)
    if portable.module.nr_devices == 1:
        module.reduce_to_one_device(portable.name)
    module.narrow_platform_index()
    if target.xla:
        module.expand()
    else:
        check_one_device(portable.name, portable.module.nr_devices, target)
    retype_narrow_values(module, portable, WIDE)
    if target.xla:
        _check_custom_calls(module, portable, target)
    check_function_types(portable, *module.main_types())
    retargeted = retarget_module(
        module, target, function_name=portable.name, has_effects=bool(portable.ordered_effects)
    )
    found = replace(
        portable,
        module=replace(
            portable.module,
            data=retargeted.module,
            stablehlo_version=retargeted.stablehlo_version,
            calling_convention_version=retargeted.calling_convention_version,
        ),
        target=target,
        gradient=_retargeted_vjp(portable, target),
        # For XLA composites are expanded, of which stop_gradient leaves nothing behind.
        tensorflow_differentiates=portable.tensorflow_differentiates and not target.xla,
    )
    mark_types_checked(found)
    return found


def read_module(portable: PortableFunction) -> StableHloModule:
    """Reads the function's module into memory.

    Raises:
      ModuleError: the installed JAX cannot read it.
    """
    try:
        return StableHloModule.read(portable.module.data)
    except Exception as e:  # of types that differ between releases of jaxlib
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
    """Gives main's arguments and results of fewer than 8 bits other element types.

    Args:
      module: of the function; it is changed, and converts within.
      function: its abstract values say which they are.
      element_of: the wanted element type by dtype: WIDE, as TensorFlow reads them rightly, or
        ELEMENT_TYPES, as JAX has them.
    """
    ins, outs = module.main_types()
    inputs = _to_retype(kept_avals(function), ins, element_of)
    results = _to_retype(function.out_avals, outs, element_of)
    if inputs or results:
        module.retype_main(inputs, results)


def kept_avals(function: PortableFunction) -> list[Aval]:
    """Lists the abstract values that main takes, after a platform index and tokens."""
    kept = [function.in_avals[i] for i in function.module.kept_arguments]
    return kept + [constant.aval for constant in function.lifted_constants]


def _to_retype(
    avals: Sequence[Aval], types: Sequence[str], element_of: Mapping[str, str]
) -> dict[int, str]:
    first = len(types) - len(avals)
    elements = {i: element_of[a.dtype] for i, a in enumerate(avals, first) if is_narrow(a)}
    return {i: e for i, e in elements.items() if not types[i].endswith((f"x{e}>", f"<{e}>"))}


def _check_custom_calls(
    module: StableHloModule, portable: PortableFunction, target: Target
) -> None:
    handled = target.custom_calls(portable.platforms)
    for call in module.custom_calls():
        if call.name not in handled and not is_vouched(call.name, portable.module.disabled_checks):
            raise UnsupportedByTargetError(
                f"{portable.name} cannot run on {target.name}: {no_handler_text([str(call)])}, and "
                "it has no form in StableHLO alone. Export the function again with "
                "jax2tf_bridge.export, if need be without what made this call.",
                operation=call.name,
                source=call.source,
            )


def _retargeted_vjp(portable: PortableFunction, target: Target) -> Gradient:
    """Retargets a VJP that is there, since it is written with the rest; others when asked for."""
    is_there = portable.gradient.made is not None

    def retargeted(vjp: PortableFunction) -> PortableFunction:
        try:
            return retarget(vjp, target)
        except (ModuleError, UnsupportedByTargetError) as e:
            if not is_there:
                raise
            behind = (
                f" This is the gradient of {portable.name}: portable.with_vjp(0) leaves it behind."
            )
            hint = Message(e, behind)
            if isinstance(e, UnsupportedByTargetError):
                raise UnsupportedByTargetError(hint, operation=e.operation, source=e.source) from e
            raise ModuleError(hint) from e

    return portable.gradient.changed(portable.name, retargeted)


# Of main's module: over how many devices it is spread.
_DEVICES = ("mhlo.num_partitions", "mhlo.num_replicas")
_INTEGER = re.compile(r"\d+")


def retarget_call(
    module: bytes,
    *,
    name: str,
    argument_dtypes: Sequence[str],
    result_dtypes: Sequence[str],
    platforms: Sequence[str],
    disabled_checks: Sequence[DisabledSafetyCheck],
    has_tokens: bool,
    calling_convention_version: int,
    target: Target,
) -> Retargeted:
    """Rewrites the module of an XlaCallModule op, which others may have written, for a target.

    Args:
      module: the portable artifact, of any StableHLO version that the installed JAX reads.
      name: what errors call it.
      argument_dtypes: of the op (Tin), by TensorFlow's names.
      result_dtypes: likewise (Tout).
      platforms: for which it was lowered.
      disabled_checks: custom calls among these are taken to have a handler.
      has_tokens: whether the op passes tokens.
      calling_convention_version: of the op.
      target: what is to run it.

    Raises:
      ModuleError: the installed JAX cannot read it, it does not match the op, or a call of LAPACK
        has no form in StableHLO.
      UnsupportedByTargetError: the target cannot run it.
    """
    narrow = sorted({*argument_dtypes, *result_dtypes} & WIDENED.keys())
    if narrow:
        raise UnsupportedByTargetError(
            f"{name} takes or gives {', '.join(narrow)}, which no TensorFlow hands over to a "
            "module rightly. Export the function again with jax2tf_bridge.export, which passes "
            "them as 8-bit integers.",
            operation=narrow[0],
            source=None,
        )
    function = called_function(
        module,
        read_stablehlo_version(memoryview(module)),
        name=name,
        argument_dtypes=argument_dtypes,
        result_dtypes=result_dtypes,
        platforms=platforms,
        disabled_checks=disabled_checks,
        has_tokens=has_tokens,
        calling_convention_version=calling_convention_version,
        nr_devices=_devices(module),
    )
    found = retarget(function, target).module
    return Retargeted(found.data, found.stablehlo_version, found.calling_convention_version)


def _devices(module: bytes) -> int:
    """Counts the devices that the module is spread over."""
    with _jax_compat.make_ir_context():
        try:
            attributes = _jax_compat.deserialize_module(module).operation.attributes
        except Exception:  # of types that differ between releases; retarget says it
            return 1
        texts = [str(attributes[name]) for name in _DEVICES if name in attributes]
    return math.prod(int(_INTEGER.findall(text)[0]) for text in texts if _INTEGER.match(text))
