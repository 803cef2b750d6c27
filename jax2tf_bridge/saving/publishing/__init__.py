"""Versions of a model in a directory, each complete or not there at all."""
