"""Numerical trials: padding must change no result."""

from jax2tf_bridge.saving.buckets.trials._degenerate_weights import randomize_degenerate_weights
from jax2tf_bridge.saving.buckets.trials._trial import Step, check_rows, count_trial_steps

__all__ = [
    "Step",
    "check_rows",
    "count_trial_steps",
    "randomize_degenerate_weights",
]
