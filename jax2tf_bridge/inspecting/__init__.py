"""Describes SavedModels and files: their contents and their problems.

Imports neither jax nor tensorflow.
"""

from jax2tf_bridge.inspecting._contents import iterate_function_files as iterate_function_files
from jax2tf_bridge.inspecting._findings import Finding
from jax2tf_bridge.inspecting._functions import SCHEMA
from jax2tf_bridge.inspecting._functions import format_custom_calls as format_custom_calls
from jax2tf_bridge.inspecting._functions import format_gradients as format_gradients
from jax2tf_bridge.inspecting._functions import format_releases as format_releases
from jax2tf_bridge.inspecting._functions import natural_sort_key as natural_sort_key
from jax2tf_bridge.inspecting._functions import summarize_function as summarize_function
from jax2tf_bridge.inspecting._inspect import Inspection, inspect
from jax2tf_bridge.inspecting._inspect import format_leaf_count as format_leaf_count
from jax2tf_bridge.inspecting._inspect import format_weights_row as format_weights_row
from jax2tf_bridge.inspecting._litert import LiteRTGraph as LiteRTGraph
from jax2tf_bridge.inspecting._litert import LiteRTTensor as LiteRTTensor
from jax2tf_bridge.inspecting._litert import ModelField as ModelField
from jax2tf_bridge.inspecting._litert import SignatureDefField as SignatureDefField
from jax2tf_bridge.inspecting._litert import SubGraphField as SubGraphField
from jax2tf_bridge.inspecting._litert import format_ports as format_ports
from jax2tf_bridge.inspecting._litert import read_litert_graphs as read_litert_graphs
from jax2tf_bridge.inspecting._litert import read_litert_signature as read_litert_signature
from jax2tf_bridge.inspecting._litert import summarize_litert as summarize_litert
from jax2tf_bridge.inspecting._saved_models import describe_saved_model
from jax2tf_bridge.inspecting._saved_models import format_array_type as format_array_type
from jax2tf_bridge.inspecting._saved_models import (
    format_gradient_releases as format_gradient_releases,
)
from jax2tf_bridge.inspecting._saved_models import format_module_title as format_module_title
from jax2tf_bridge.inspecting._saved_models import format_variables as format_variables
from jax2tf_bridge.inspecting._saved_models import format_warm_up as format_warm_up
from jax2tf_bridge.inspecting._saved_models import format_writer as format_writer
from jax2tf_bridge.inspecting._saved_models import list_module_facts as list_module_facts
from jax2tf_bridge.inspecting._saved_models import list_padding_options as list_padding_options
from jax2tf_bridge.saved_model import SavedModelContents, read_saved_model

__all__ = [
    "SCHEMA",
    "Finding",
    "Inspection",
    "SavedModelContents",
    "describe_saved_model",
    "inspect",
    "read_saved_model",
]
