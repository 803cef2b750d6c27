"""Portable functions of StableHLO that other tools wrote."""

from jax2tf_bridge.stablehlo._from_stablehlo import from_stablehlo

__all__ = ["from_stablehlo"]
