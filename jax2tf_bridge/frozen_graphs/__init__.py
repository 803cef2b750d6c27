"""Frozen graphs of functions and SavedModels, for runtimes whose only integers are int32."""

from jax2tf_bridge.frozen_graphs._freeze import FrozenGraph, GraphPort
from jax2tf_bridge.frozen_graphs._signatures import FrozenSignature, ModelRuntime, freeze_signatures

__all__ = ["FrozenGraph", "FrozenSignature", "GraphPort", "ModelRuntime", "freeze_signatures"]
