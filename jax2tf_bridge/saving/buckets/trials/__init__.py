"""Numerical trials: padding must change no result."""

from jax2tf_bridge.saving.buckets.trials._degenerate_weights import randomized_degenerate_weights
from jax2tf_bridge.saving.buckets.trials._trial import Step, check_rows, trial_steps

__all__ = [
    "Step",
    "check_rows",
    "randomized_degenerate_weights",
    "trial_steps",
]
