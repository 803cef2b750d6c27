"""A lowering rule for ragged contractions: StableHLO on every platform.

On GPU and TPU, JAX writes an operation of CHLO, which no TensorFlow runs, and which cannot be
expanded in an open batch. Its rule for the CPU masks each group, as that expansion does.
"""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.from_jax._jax_compat_lowering import (
    Rule,
    by_platform,
    common_rule,
    ragged_dot_general_p,
    ragged_dot_possible,
)
from jax2tf_bridge.portable._target import PLATFORMS


def ragged_rules() -> tuple[tuple[Any, Rule], ...]:
    """(primitive, rule) pairs for ragged_dot_general."""
    if not ragged_dot_possible():
        return ()
    rule = common_rule(ragged_dot_general_p)
    return (
        (ragged_dot_general_p, by_platform(ragged_dot_general_p, dict.fromkeys(PLATFORMS, rule))),
    )
