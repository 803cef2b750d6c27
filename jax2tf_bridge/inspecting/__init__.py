"""Describes SavedModels and files: what is in them, and what will go wrong.

Imports neither jax nor tensorflow.
"""

from jax2tf_bridge.inspecting._description import SCHEMA, describe_saved_model
from jax2tf_bridge.inspecting._findings import Finding
from jax2tf_bridge.inspecting._inspect import Inspection, inspect
from jax2tf_bridge.saved_model._reading import read_saved_model
from jax2tf_bridge.saved_model._saved_model import SavedModelContents

__all__ = [
    "SCHEMA",
    "Finding",
    "Inspection",
    "SavedModelContents",
    "describe_saved_model",
    "inspect",
    "read_saved_model",
]
