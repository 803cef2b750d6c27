"""Rewrites StableHLO programs: tables of patterns, and passes that apply them."""

from jax2tf_bridge.rewriting._fake_quantization import FAKE_QUANTIZE
from jax2tf_bridge.rewriting._fusions import (
    FLOOR_DIVIDE,
    FLOOR_MODULO,
    LOG_SOFTMAX,
    SIGN_BITS,
    SOFTMAX,
)
from jax2tf_bridge.rewriting._inlining import inline_calls
from jax2tf_bridge.rewriting._operands import (
    COMBINE,
    DROP_AXES,
    EXTREME_AND_INDEX,
    INDEX_OPERANDS,
    PLACES,
    REDUCE,
    has_reduction,
)
from jax2tf_bridge.rewriting._passes import Pass, passes_for_tensorflow, run_passes
from jax2tf_bridge.rewriting._patterns import (
    INVALID_OPERATION_ERRORS,
    Matcher,
    Pattern,
    Replacement,
    every_operation,
    rewrite,
)
from jax2tf_bridge.rewriting._regions import (
    Reducer,
    SortKey,
    match_reducers,
    match_selected_extreme,
    match_sort_keys,
)
from jax2tf_bridge.rewriting._simplifications import (
    BFLOAT16_BITS,
    BIAS_ADD,
    RANDOM_UNIT,
    RELU,
    RELU6,
    SQUARE,
)

__all__ = [
    "BFLOAT16_BITS",
    "BIAS_ADD",
    "COMBINE",
    "DROP_AXES",
    "EXTREME_AND_INDEX",
    "FAKE_QUANTIZE",
    "FLOOR_DIVIDE",
    "FLOOR_MODULO",
    "INDEX_OPERANDS",
    "INVALID_OPERATION_ERRORS",
    "LOG_SOFTMAX",
    "PLACES",
    "RANDOM_UNIT",
    "REDUCE",
    "RELU",
    "RELU6",
    "SIGN_BITS",
    "SOFTMAX",
    "SQUARE",
    "Matcher",
    "Pass",
    "Pattern",
    "Reducer",
    "Replacement",
    "SortKey",
    "every_operation",
    "has_reduction",
    "inline_calls",
    "match_reducers",
    "match_selected_extreme",
    "match_sort_keys",
    "passes_for_tensorflow",
    "rewrite",
    "run_passes",
]
