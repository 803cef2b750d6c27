"""Portable functions from StableHLO modules of other tools."""

from jax2tf_bridge.stablehlo._from_stablehlo import from_stablehlo

__all__ = ["from_stablehlo"]
