"""Buckets: padding to sizes that are compiled beforehand."""

from jax2tf_bridge.saving.buckets._buckets import BUCKETS as BUCKETS
from jax2tf_bridge.saving.buckets._buckets import Bucketing as Bucketing
from jax2tf_bridge.saving.buckets._buckets import Oversize as Oversize
from jax2tf_bridge.saving.buckets._buckets import check_buckets as check_buckets
from jax2tf_bridge.saving.buckets._buckets import check_inputs as check_inputs
from jax2tf_bridge.saving.buckets._buckets import check_variables as check_variables
from jax2tf_bridge.saving.buckets._buckets import format_values as format_values
from jax2tf_bridge.saving.buckets._buckets import is_plain as is_plain
from jax2tf_bridge.saving.buckets._buckets import make_bucketing as make_bucketing
from jax2tf_bridge.saving.buckets._padding import NamedCall as NamedCall
from jax2tf_bridge.saving.buckets._padding import pad_to_buckets as pad_to_buckets
from jax2tf_bridge.saving.buckets._result_changes import choose_tolerance as choose_tolerance
from jax2tf_bridge.saving.buckets._result_changes import find_change as find_change
from jax2tf_bridge.saving.buckets._sizes import SMALLEST as SMALLEST
from jax2tf_bridge.saving.buckets._sizes import TYPICAL as TYPICAL
from jax2tf_bridge.saving.buckets._sizes import choose_buckets as choose_buckets
from jax2tf_bridge.saving.buckets._sizes import find_sizes as find_sizes
from jax2tf_bridge.saving.buckets._splitting import Inputs as Inputs
from jax2tf_bridge.saving.buckets._splitting import PieceGradients as PieceGradients
from jax2tf_bridge.saving.buckets._splitting import get_carried_dtype as get_carried_dtype
from jax2tf_bridge.saving.buckets._trial import Step as Step
from jax2tf_bridge.saving.buckets._trial import check_rows as check_rows
from jax2tf_bridge.saving.buckets._trial import count_trial_steps as count_trial_steps
from jax2tf_bridge.saving.buckets._trial import (
    randomize_degenerate_weights as randomize_degenerate_weights,
)
