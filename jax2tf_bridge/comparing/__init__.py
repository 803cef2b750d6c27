"""Inputs, distances and tolerances for comparing the results of two programs.

Needs neither jax nor tensorflow.
"""

from jax2tf_bridge.comparing._distances import ROUNDING_SEEDS as ROUNDING_SEEDS
from jax2tf_bridge.comparing._distances import Distance as Distance
from jax2tf_bridge.comparing._distances import bound_rounding_errors as bound_rounding_errors
from jax2tf_bridge.comparing._distances import describe_differences as describe_differences
from jax2tf_bridge.comparing._distances import drop_explained as drop_explained
from jax2tf_bridge.comparing._distances import find_largest_finite as find_largest_finite
from jax2tf_bridge.comparing._distances import make_difference_error as make_difference_error
from jax2tf_bridge.comparing._distances import measure_distance as measure_distance
from jax2tf_bridge.comparing._distances import tolerance_of as tolerance_of
from jax2tf_bridge.comparing._distances import widen_array as widen_array
from jax2tf_bridge.comparing._plausible_inputs import DRAWS as DRAWS
from jax2tf_bridge.comparing._plausible_inputs import FULL_DRAWS as FULL_DRAWS
from jax2tf_bridge.comparing._plausible_inputs import Draw as Draw
from jax2tf_bridge.comparing._plausible_inputs import PlausibleInputs as PlausibleInputs
from jax2tf_bridge.comparing._plausible_inputs import infer_batch_variable as infer_batch_variable
