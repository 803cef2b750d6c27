"""Files and settings that TensorFlow Serving needs beside the model, and batching inside the model.

The model itself pads requests and fills masks: see `saving.buckets`.
"""

from jax2tf_bridge.saving.serving._batching import Batching as Batching
from jax2tf_bridge.saving.serving._batching import check_batching as check_batching
from jax2tf_bridge.saving.serving._batching import check_joinable as check_joinable
from jax2tf_bridge.saving.serving._batching import find_obstacle as find_obstacle
from jax2tf_bridge.saving.serving._batching import join_requests as join_requests
from jax2tf_bridge.saving.serving._batching import make_no_buckets_error as make_no_buckets_error
from jax2tf_bridge.saving.serving._instructions import BatchingParameters as BatchingParameters
from jax2tf_bridge.saving.serving._instructions import ServedSignature as ServedSignature
from jax2tf_bridge.saving.serving._instructions import ServingInstructions as ServingInstructions
from jax2tf_bridge.saving.serving._instructions import read_instructions as read_instructions
from jax2tf_bridge.saving.serving._instructions import read_signature as read_signature
from jax2tf_bridge.saving.serving._warm_up import WarmUpRequest as WarmUpRequest
from jax2tf_bridge.saving.serving._warm_up import encode_predict_request as encode_predict_request
from jax2tf_bridge.saving.serving._warm_up import encode_tensor as encode_tensor
from jax2tf_bridge.saving.serving._warm_up import precompile as precompile
from jax2tf_bridge.saving.serving._warm_up import write_warm_up as write_warm_up
from jax2tf_bridge.saving.serving._warm_up_requests import check_example as check_example
from jax2tf_bridge.saving.serving._warm_up_requests import (
    make_example_arguments as make_example_arguments,
)
from jax2tf_bridge.saving.serving._warm_up_requests import make_example_rows as make_example_rows
from jax2tf_bridge.saving.serving._warm_up_requests import (
    make_warm_up_requests as make_warm_up_requests,
)
