"""Scores many rows with a SavedModel, in any engine that runs Python. Never imports jax."""

from jax2tf_bridge.scoring._row_scorer import RowScorer

__all__ = ["RowScorer"]
