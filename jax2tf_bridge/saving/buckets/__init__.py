"""Buckets: padding to sizes that are compiled beforehand."""

from jax2tf_bridge.saving.buckets._buckets import (
    BUCKETS,
    Bucketing,
    Oversize,
    check_buckets,
    check_inputs,
    check_unchecked,
    check_variables,
    format_sizes,
    is_plain,
    list_masks,
    make_bucketing,
)
from jax2tf_bridge.saving.buckets._padding import NamedCall, pad_to_buckets
from jax2tf_bridge.saving.buckets._sizes import choose_buckets, find_smallest_sizes
from jax2tf_bridge.saving.buckets._splitting import Inputs, PieceGradients
from jax2tf_bridge.saving.buckets._trial import (
    Step,
    check_rows,
    count_trial_steps,
    randomize_degenerate_weights,
)

__all__ = [
    "BUCKETS",
    "Bucketing",
    "Inputs",
    "NamedCall",
    "Oversize",
    "PieceGradients",
    "Step",
    "check_buckets",
    "check_inputs",
    "check_rows",
    "check_unchecked",
    "check_variables",
    "choose_buckets",
    "count_trial_steps",
    "find_smallest_sizes",
    "format_sizes",
    "is_plain",
    "list_masks",
    "make_bucketing",
    "pad_to_buckets",
    "randomize_degenerate_weights",
]
