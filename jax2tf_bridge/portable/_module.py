"""Module: serialized StableHLO, and how to call it."""

from __future__ import annotations

from dataclasses import dataclass, field

from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._stablehlo_version import Version


@dataclass(frozen=True)
class Module:
    """A StableHLO module as a portable artifact, and how to call it.

    Attributes:
      data: the portable artifact.
      stablehlo_version: the StableHLO version of the artifact.
      calling_convention_version: the calling convention of XlaCallModule
        (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
      kept_arguments: sorted indices of the function's flat arguments that main takes.
      platforms: the platforms that it was lowered for, by JAX's names; the platform index refers
        to this order.
      uses_shape_polymorphism: whether its shapes must be refined before compilation.
      disabled_checks: the disabled safety checks.
      nr_devices: the number of devices that it was lowered for.
    """

    data: bytes = field(repr=False)
    stablehlo_version: Version
    calling_convention_version: int
    kept_arguments: tuple[int, ...]
    platforms: tuple[str, ...]
    uses_shape_polymorphism: bool = False
    disabled_checks: tuple[DisabledSafetyCheck, ...] = ()
    nr_devices: int = 1

    def __hash__(self) -> int:
        # Only the length of the data is hashed, because hashing megabytes takes long.
        return hash((len(self.data), self.stablehlo_version, self.kept_arguments, self.platforms))
