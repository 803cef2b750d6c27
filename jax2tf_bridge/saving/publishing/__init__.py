"""Versions of a model in a directory, complete or not there at all."""
