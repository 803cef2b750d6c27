"""Lowers traced functions to StableHLO: platforms, lowering rules, gradients."""
