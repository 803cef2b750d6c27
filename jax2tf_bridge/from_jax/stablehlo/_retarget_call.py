"""retarget_call(): the module of an XlaCallModule op, which others may have written."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from jax2tf_bridge.errors import FileFormatError, ModuleError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.stablehlo._retarget import Retargeted
from jax2tf_bridge.from_jax.stablehlo._retarget_function import retarget_record
from jax2tf_bridge.portable._call_types import call_avals
from jax2tf_bridge.portable._dtypes import WIDENED
from jax2tf_bridge.portable._module import Module
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable.bytecode import read_main_types
from jax2tf_bridge.serialization.jax_exported._modules import stablehlo_version

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
    """The module of an op for another target, with the same arguments and results.

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
    record = _record(
        module,
        name,
        (argument_dtypes, result_dtypes),
        tuple(platforms),
        tuple(disabled_checks),
        has_tokens,
        calling_convention_version,
    )
    retargeted = retarget_record(record, target)
    found = retargeted.module
    return Retargeted(found.data, found.stablehlo_version, found.calling_convention_version)


def _record(
    module: bytes,
    name: str,
    dtypes: tuple[Sequence[str], Sequence[str]],
    platforms: tuple[str, ...],
    disabled_checks: tuple[DisabledSafetyCheck, ...],
    has_tokens: bool,
    convention: int,
) -> PortableFunction:
    """The record of a function over flat arguments that the op calls."""
    narrow = sorted({*dtypes[0], *dtypes[1]} & WIDENED.keys())
    if narrow:
        raise UnsupportedByTargetError(
            f"{name} takes or gives {', '.join(narrow)}, which no TensorFlow hands over to a "
            "module rightly. Export the function again with jax2tf_bridge.export, which passes "
            "them as 8-bit integers.",
            operation=narrow[0],
            source=None,
        )
    version = stablehlo_version(memoryview(module))
    try:
        inputs, outputs = read_main_types(module)
    except FileFormatError as e:
        raise ModuleError(f"The module of {name} cannot be read: {e}") from e
    if version is None:
        raise ModuleError(f"The module of {name} is no portable artifact of StableHLO.")
    in_avals, out_avals = call_avals(
        *dtypes, (inputs, outputs), has_platform_index=len(platforms) > 1
    )
    function = PortableFunction.over_leaves(
        name,
        Module(
            module,
            version,
            convention,
            kept_arguments=tuple(range(len(in_avals))),
            platforms=platforms,
            uses_shape_polymorphism=any("?" in t for t in inputs),
            disabled_checks=disabled_checks,
            nr_devices=_devices(module),
        ),
        in_avals,
        out_avals,
        target=Target("another tool", (version,), convention),
        producer="another tool",
    )
    effects = ("tokens",) if has_tokens else ()
    return replace(function, ordered_effects=effects, constraints_known=False)


def _devices(module: bytes) -> int:
    """Over how many devices the module is spread."""
    with _jax_compat.make_ir_context():
        try:
            attributes = _jax_compat.deserialize_module(module).operation.attributes
        except Exception:  # of types that differ between releases; retarget_record says it
            return 1
        texts = [str(attributes[name]) for name in _DEVICES if name in attributes]
    return math.prod(int(_INTEGER.findall(text)[0]) for text in texts if _INTEGER.match(text))
