"""Files and settings that TensorFlow Serving needs beside the model."""

from jax2tf_bridge.saving.serving._instructions import (
    BatchingParameters,
    ServingInstructions,
    instructions,
)
from jax2tf_bridge.saving.serving._precompile import (
    list_program_names,
    precompile,
    remove_programs,
    share_programs,
)
from jax2tf_bridge.saving.serving._requests import make_example_arguments, make_warm_up_requests
from jax2tf_bridge.saving.serving._warm_up import check_example, write_warm_up

__all__ = [
    "BatchingParameters",
    "ServingInstructions",
    "check_example",
    "instructions",
    "list_program_names",
    "make_example_arguments",
    "make_warm_up_requests",
    "precompile",
    "remove_programs",
    "share_programs",
    "write_warm_up",
]
