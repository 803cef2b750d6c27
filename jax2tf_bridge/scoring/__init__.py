"""Scores many rows with a SavedModel, in any engine that runs Python. Never imports jax."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("RowScorer"):
    import tensorflow as _tf  # noqa: F401

from jax2tf_bridge.scoring._row_scorer import RowScorer

__all__ = ["RowScorer"]
