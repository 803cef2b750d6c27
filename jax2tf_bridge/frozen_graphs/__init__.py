"""Frozen graphs of functions and SavedModels, for runtimes whose only integers are int32."""

from jax2tf_bridge.frozen_graphs._freeze import FrozenGraph, Port
from jax2tf_bridge.frozen_graphs._signatures import FrozenSignature, Runtime, freeze_signatures

__all__ = ["FrozenGraph", "FrozenSignature", "Port", "Runtime", "freeze_signatures"]
