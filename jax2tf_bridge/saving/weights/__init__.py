"""Weights as variables of a SavedModel, or for the variables of a model that is there."""

from jax2tf_bridge.saving.weights._assign import Rename, WeightsReport, assign_weights
from jax2tf_bridge.saving.weights._checkpoint import hold_values, renew_fingerprint, write_values
from jax2tf_bridge.saving.weights._params import PathWeights, differences, leaves_for, open_params
from jax2tf_bridge.saving.weights._variables import (
    PARAMS,
    ConstantVariables,
    SavedVariable,
    WeightLeaf,
    Weights,
    as_saved,
    beginnings,
    begins,
    check_prefixes,
    is_trainable,
    leaf_names,
    weight_leaves,
)

__all__ = [
    "PARAMS",
    "ConstantVariables",
    "PathWeights",
    "Rename",
    "SavedVariable",
    "WeightLeaf",
    "Weights",
    "WeightsReport",
    "as_saved",
    "assign_weights",
    "beginnings",
    "begins",
    "check_prefixes",
    "differences",
    "hold_values",
    "is_trainable",
    "leaf_names",
    "leaves_for",
    "open_params",
    "renew_fingerprint",
    "weight_leaves",
    "write_values",
]
