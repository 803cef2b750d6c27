"""Describes SavedModels and files: their contents and their problems.

Imports neither jax nor tensorflow.
"""

from jax2tf_bridge.inspecting._contents import function_files as function_files
from jax2tf_bridge.inspecting._description import SCHEMA, describe_saved_model
from jax2tf_bridge.inspecting._directory_text import gradients_run_on_text as gradients_run_on_text
from jax2tf_bridge.inspecting._directory_text import module_facts as module_facts
from jax2tf_bridge.inspecting._directory_text import module_title as module_title
from jax2tf_bridge.inspecting._directory_text import padding_text as padding_text
from jax2tf_bridge.inspecting._directory_text import runs_on_text as runs_on_text
from jax2tf_bridge.inspecting._directory_text import type_text as type_text
from jax2tf_bridge.inspecting._directory_text import variables_text as variables_text
from jax2tf_bridge.inspecting._directory_text import warm_up_text as warm_up_text
from jax2tf_bridge.inspecting._directory_text import written_by as written_by
from jax2tf_bridge.inspecting._findings import Finding
from jax2tf_bridge.inspecting._functions import custom_calls_text as custom_calls_text
from jax2tf_bridge.inspecting._functions import gradients_text as gradients_text
from jax2tf_bridge.inspecting._functions import natural_order as natural_order
from jax2tf_bridge.inspecting._functions import releases_text as releases_text
from jax2tf_bridge.inspecting._functions import stored_functions as stored_functions
from jax2tf_bridge.inspecting._functions import summary as summary
from jax2tf_bridge.inspecting._inspect import Inspection, inspect
from jax2tf_bridge.inspecting._litert import litert_summary as litert_summary
from jax2tf_bridge.inspecting._litert import ports_text as ports_text
from jax2tf_bridge.inspecting._weights import count_text as count_text
from jax2tf_bridge.inspecting._weights import weights_row as weights_row
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
