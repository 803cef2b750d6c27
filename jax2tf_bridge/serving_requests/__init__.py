"""Example requests for TensorFlow Serving: a curl command, or a program in Python.

Imports neither jax nor tensorflow.
"""

from jax2tf_bridge.serving_requests._example_request import GRPC_PORT as GRPC_PORT
from jax2tf_bridge.serving_requests._example_request import REST_PORT as REST_PORT
from jax2tf_bridge.serving_requests._example_request import ExampleInput as ExampleInput
from jax2tf_bridge.serving_requests._example_request import ExampleRequest as ExampleRequest
from jax2tf_bridge.serving_requests._example_request import (
    find_dtypes_without_rest as find_dtypes_without_rest,
)
from jax2tf_bridge.serving_requests._read_requests import ServedName as ServedName
from jax2tf_bridge.serving_requests._read_requests import find_served_name as find_served_name
from jax2tf_bridge.serving_requests._read_requests import (
    find_versions_folder as find_versions_folder,
)
from jax2tf_bridge.serving_requests._read_requests import (
    read_example_requests as read_example_requests,
)
