"""Buckets: padding to sizes that are compiled beforehand."""

from jax2tf_bridge.saving.buckets._batch_splitting import Inputs
from jax2tf_bridge.saving.buckets._bucket_names import (
    BUCKETS,
    check_buckets,
    check_inputs,
    check_unchecked,
    check_variables,
    list_masks,
)
from jax2tf_bridge.saving.buckets._buckets import (
    Bucketing,
    Oversize,
    choose_buckets,
    format_sizes,
    is_plain,
    make_bucketing,
)
from jax2tf_bridge.saving.buckets._likely_sizes import find_smallest_sizes
from jax2tf_bridge.saving.buckets._padding import NamedCall, pad_to_buckets
from jax2tf_bridge.saving.buckets._pieces import PieceGradients

__all__ = [
    "BUCKETS",
    "Bucketing",
    "Inputs",
    "NamedCall",
    "Oversize",
    "PieceGradients",
    "check_buckets",
    "check_inputs",
    "check_unchecked",
    "check_variables",
    "choose_buckets",
    "find_smallest_sizes",
    "format_sizes",
    "is_plain",
    "list_masks",
    "make_bucketing",
    "pad_to_buckets",
]
