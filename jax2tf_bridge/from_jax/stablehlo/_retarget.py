"""Rewrites StableHLO modules for a target: those of functions and of XlaCallModule ops."""

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
from jax2tf_bridge.portable._called_function import make_called_function
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

# StableHLO 1.1.0 introduced batching dimensions in gather and scatter. Measured: the XLA of TF 2.17
# fails on them, so modules that use them are written for TF 2.17 at the version of TF 2.16.
_BATCHING_DIMS = (1, 1, 0)
_BATCHING_DIMS_RUN = TENSORFLOW_RELEASES["2.18"][0]
_WITHOUT_BATCHING_DIMS = TENSORFLOW_RELEASES["2.16"][0]

# Measured: TF 2.15 and 2.17 fail to compile additions of 4-bit integers, TF 2.15 also conversions.
_NARROW_INTEGERS = TENSORFLOW_RELEASES["2.19"][0]


@dataclass(frozen=True)
class RetargetedModule:
    """A module as the target reads it."""

    module: bytes
    stablehlo_version: Version
    calling_convention_version: int


def retarget_module(
    module: StableHloModule, target: Target, *, function_name: str, has_effects: bool
) -> RetargetedModule:
    """Writes a module at the first of the target's StableHLO versions that can express it.

    Raises:
      UnsupportedByTargetError: no version can express it, it needs a newer calling convention, or
        the target has no XLA and TensorFlow has no operations for it. The error names the
        operation and its source line.
    """
    convention = _find_calling_convention(module, has_effects)
    if convention > target.calling_convention:
        raise UnsupportedByTargetError(
            Message(
                f"{function_name} cannot run on {target.name}: it holds "
                f"{'sharding annotations' if convention == _WITH_SHARDY else 'ordered effects'}, "
                f"which need calling convention {convention}, and the target reads "
                f"{target.calling_convention}.",
                _advise_release(convention=convention),
            ),
            operation="calling convention",
            source=None,
        )
    newest = _jax_compat.current_stablehlo_version()
    problem: LossyError | None = None
    if target.xla and module.uses_narrow_integers():
        target = _drop_versions_without_narrow_integers(target, function_name)
    for version in _runnable_versions(module, target.stablehlo_versions):
        # An older jaxlib can only write up to its own version, which newer readers accept.
        written = min(version, newest)
        try:
            retargeted = RetargetedModule(module.serialize(written), written, convention)
        except LossyError as e:
            problem = e
            continue
        if not target.xla:
            check_expressible(retargeted.module, target, function_name)
        return retargeted
    assert problem is not None, "a target has at least one version"
    raise _make_unsupported_error(module, problem, target, function_name) from problem


def _runnable_versions(module: StableHloModule, versions: Sequence[Version]) -> Sequence[Version]:
    """Returns the versions to write the module at, so that readers of `versions` can run it."""
    if not module.uses_batching_dims():
        return versions
    return [
        _WITHOUT_BATCHING_DIMS if _BATCHING_DIMS <= v < _BATCHING_DIMS_RUN else v for v in versions
    ]


def _drop_versions_without_narrow_integers(target: Target, function_name: str) -> Target:
    """Drops the versions of releases whose XLA fails on 4-bit integers."""
    versions = tuple(v for v in target.stablehlo_versions if v >= _NARROW_INTEGERS)
    if versions:
        return replace(target, stablehlo_versions=versions)
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}: it computes with integers of 4 bits or "
            "fewer, which the XLA in it cannot.",
            _advise_release(versions=[_NARROW_INTEGERS]),
        ),
        operation="4-bit integers",
        source=None,
    )


def _find_calling_convention(module: StableHloModule, has_effects: bool) -> int:
    if module.uses_shardy():
        return _WITH_SHARDY
    return _WITH_EFFECTS if has_effects else _WITHOUT_EFFECTS


def _make_unsupported_error(
    module: StableHloModule, problem: LossyError, target: Target, function_name: str
) -> UnsupportedByTargetError:
    operation = problem.operation
    tried = version_text(target.stablehlo_versions[-1])
    help_text = _advise_release(
        versions=_find_version_that_expresses(module, tried=target.stablehlo_versions)
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


def _find_version_that_expresses(
    module: StableHloModule, *, tried: Collection[Version]
) -> list[Version]:
    newest = _jax_compat.current_stablehlo_version()
    for version, _ in TENSORFLOW_RELEASES.values():
        (written,) = _runnable_versions(module, [version])
        if version in tried or written != version or version > newest:
            continue
        try:
            module.serialize(version)
        except LossyError:
            continue
        return [version]
    return []


def _advise_release(*, versions: Collection[Version] | None = None, convention: int = 0) -> Message:
    for release, (version, newest_convention) in TENSORFLOW_RELEASES.items():
        if (versions is None or version in versions) and convention <= newest_convention:
            target = Argument("target", release, f"target=Target.tensorflow({release!r})")
            text = f" The first TensorFlow that can run it is {release}: export with "
            return Message(text, target, " or without ", Argument("target", code="a target"), ".")
    return Message(
        " No TensorFlow release known to this version can run it: write this part of the "
        "function with other operations or dtypes."
    )


WIDE_ELEMENT_TYPES = {narrow: ELEMENT_TYPES[wide] for narrow, wide in WIDENED.items()}
"""Maps each narrow dtype to the MLIR element type that TensorFlow passes it as."""


def retarget(
    portable: PortableFunction | HoldsPortable, target: Target | None = None
) -> PortableFunction:
    """Rewrites a portable function for another target, such as an older TensorFlow.

    Composites and CHLO operations are expanded, LAPACK calls become StableHLO, and 4-bit integers
    are passed as 8-bit integers. The module is written at the first StableHLO version of the target
    that can express it without loss. This needs JAX.

    Args:
      portable: a function from an export, a file or a JAX archive.
      target: the consumer's capabilities; `Target.widest()` by default.

    Returns:
      The rewritten function. Existing VJPs are retargeted at once, others on demand.

    Raises:
      ShardingError: the function is for one device but uses a mesh of several.
      UnsupportedByTargetError: the target cannot run an operation or custom call of the module.
      ModuleError: the installed JAX cannot read the module, a LAPACK call has no equivalent in
        StableHLO, or the types of the module and the function differ.
      FunctionError: `portable` is not a portable function.
      TargetError: `target` is not a Target.
    """
    portable = as_portable_function(portable, "retarget")
    target = as_target(target)
    module = read_stablehlo_module(portable)
    rewrite_calls(module, portable.name, keep_current=False, target=target)
    if portable.module.nr_devices == 1:
        module.reduce_to_one_device(portable.name)
    module.narrow_platform_index()
    if target.xla:
        module.expand()
    else:
        check_one_device(portable.name, portable.module.nr_devices, target)
    retype_narrow_values(module, portable, WIDE_ELEMENT_TYPES)
    if target.xla:
        _check_custom_calls(module, portable, target)
    check_function_types(portable, *module.main_types())
    retargeted = retarget_module(
        module, target, function_name=portable.name, has_effects=bool(portable.ordered_effects)
    )
    result = replace(
        portable,
        module=replace(
            portable.module,
            data=retargeted.module,
            stablehlo_version=retargeted.stablehlo_version,
            calling_convention_version=retargeted.calling_convention_version,
        ),
        target=target,
        gradient=_retarget_vjp(portable, target),
        # For XLA composites are expanded; the stop_gradient composite then disappears.
        tensorflow_differentiates=portable.tensorflow_differentiates and not target.xla,
    )
    mark_types_checked(result)
    return result


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


def _retarget_vjp(portable: PortableFunction, target: Target) -> Gradient:
    # An existing VJP is retargeted at once because files contain it; others on demand.
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

    return portable.gradient.map_vjp(portable.name, retargeted)


# Module attributes whose product is the number of devices.
_DEVICE_COUNTS = ("mhlo.num_partitions", "mhlo.num_replicas")
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
) -> RetargetedModule:
    """Rewrites the module of an XlaCallModule op, written by any tool, for a target.

    Args:
      module: a portable artifact of any StableHLO version that the installed JAX reads.
      name: the name in error messages.
      argument_dtypes: the op's argument dtypes (Tin), by TensorFlow's names.
      result_dtypes: the op's result dtypes (Tout).
      platforms: the platforms that the module was lowered for.
      disabled_checks: custom calls that these name are assumed to have a handler.
      has_tokens: whether the op passes tokens.
      calling_convention_version: the op's calling convention.
      target: the consumer.

    Raises:
      ModuleError: the installed JAX cannot read the module, it does not match the op, or a LAPACK
        call has no equivalent in StableHLO.
      UnsupportedByTargetError: the target cannot run the module.
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
    function = make_called_function(
        module,
        read_stablehlo_version(memoryview(module)),
        name=name,
        argument_dtypes=argument_dtypes,
        result_dtypes=result_dtypes,
        platforms=platforms,
        disabled_checks=disabled_checks,
        has_tokens=has_tokens,
        calling_convention_version=calling_convention_version,
        nr_devices=_count_devices(module),
    )
    retargeted = retarget(function, target).module
    return RetargetedModule(
        retargeted.data, retargeted.stablehlo_version, retargeted.calling_convention_version
    )


def _count_devices(module: bytes) -> int:
    """Returns the number of devices that the module is partitioned over."""
    with _jax_compat.make_ir_context():
        try:
            attributes = _jax_compat.deserialize_module(module).operation.attributes
        except Exception:  # types differ between releases; retarget reports the error
            return 1
        texts = [str(attributes[name]) for name in _DEVICE_COUNTS if name in attributes]
    return math.prod(int(_INTEGER.findall(text)[0]) for text in texts if _INTEGER.match(text))
