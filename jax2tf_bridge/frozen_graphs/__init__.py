"""Frozen graphs of functions and SavedModels, for runtimes whose only integers are int32."""

from jax2tf_bridge.frozen_graphs._freeze import FrozenGraph as FrozenGraph
from jax2tf_bridge.frozen_graphs._freeze import FrozenSignature as FrozenSignature
from jax2tf_bridge.frozen_graphs._freeze import GraphPort as GraphPort
from jax2tf_bridge.frozen_graphs._freeze import ModelRuntime as ModelRuntime
from jax2tf_bridge.frozen_graphs._freeze import freeze_signatures as freeze_signatures
