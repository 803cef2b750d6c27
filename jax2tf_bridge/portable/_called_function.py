"""Makes portable functions from the modules of XlaCallModule ops, which any tool may write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jax2tf_bridge.errors import FileFormatError, ModuleError
from jax2tf_bridge.portable._call_types import call_avals
from jax2tf_bridge.portable._module import Module
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._stablehlo_version import Version
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable.bytecode import read_main_types


def make_called_function(
    module: bytes,
    version: Version | None,
    *,
    name: str,
    argument_dtypes: Sequence[str],
    result_dtypes: Sequence[str],
    platforms: Sequence[str],
    disabled_checks: Sequence[DisabledSafetyCheck],
    has_tokens: bool,
    calling_convention_version: int,
    nr_devices: int = 1,
    target: Target | None = None,
) -> PortableFunction:
    """Makes a portable function of flat arrays from an op's module.

    Args:
      module: the portable artifact.
      version: its StableHLO version; None if it is not a portable artifact.
      name: the name in error messages.
      argument_dtypes: the op's argument dtypes (Tin), by TensorFlow's names.
      result_dtypes: the op's result dtypes (Tout).
      platforms: the platforms that the module was lowered for.
      disabled_checks: custom calls that these name are assumed to have a handler.
      has_tokens: whether the op passes tokens.
      calling_convention_version: the op's calling convention.
      nr_devices: the number of devices that the module is partitioned over.
      target: the target of the function; by default any consumer that reads the module unchanged.

    Raises:
      ModuleError: the module cannot be read.
    """
    try:
        inputs, outputs = read_main_types(module)
    except FileFormatError as e:
        raise ModuleError(f"The module of {name} cannot be read: {e}") from e
    if version is None:
        raise ModuleError(f"The module of {name} is no portable artifact of StableHLO.")
    in_avals, out_avals = call_avals(
        argument_dtypes,
        result_dtypes,
        (inputs, outputs),
        has_platform_index=len(platforms) > 1,
    )
    function = PortableFunction.over_leaves(
        name,
        Module(
            module,
            version,
            calling_convention_version,
            kept_arguments=tuple(range(len(in_avals))),
            platforms=tuple(platforms),
            uses_shape_polymorphism=any("?" in t for t in inputs),
            disabled_checks=tuple(disabled_checks),
            nr_devices=nr_devices,
        ),
        in_avals,
        out_avals,
        target=target or Target("another tool", (version,), calling_convention_version),
        producer="another tool",
    )
    effects = ("tokens",) if has_tokens else ()
    return replace(function, ordered_effects=effects, constraints_known=False)
