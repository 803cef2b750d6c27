"""Weights as variables, and into the variables of a model that is there."""
