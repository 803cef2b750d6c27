"""Weights as variables of a SavedModel, or for the variables of a model that is there."""
