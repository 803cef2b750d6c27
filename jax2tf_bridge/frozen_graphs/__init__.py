"""Frozen graphs of functions and SavedModels, for runtimes whose only integers are int32."""

from jax2tf_bridge.frozen_graphs._freeze import (
    FrozenGraph,
    FrozenSignature,
    GraphPort,
    ModelRuntime,
    freeze_signatures,
)

__all__ = ["FrozenGraph", "FrozenSignature", "GraphPort", "ModelRuntime", "freeze_signatures"]
