"""Module: StableHLO as bytes, and what whoever runs it has to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._stablehlo_version import Version


@dataclass(frozen=True)
class Module:
    """A StableHLO module as a portable artifact, and how it is to be called.

    Attributes:
      data: the portable artifact.
      stablehlo_version: the version that it is written at.
      calling_convention_version: of XlaCallModule
        (https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions).
      kept_arguments: sorted indices of the function's flat arguments that main takes.
      platforms: those it was lowered for, by JAX's names, in the order of its platform index.
      uses_shape_polymorphism: whether its shapes are refined before it is compiled.
      disabled_checks: safety checks that are off.
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
        # Of the bytes, the length says enough; hashing megabytes would take long.
        return hash((len(self.data), self.stablehlo_version, self.kept_arguments, self.platforms))
