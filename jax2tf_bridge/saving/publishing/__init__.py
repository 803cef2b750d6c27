"""Publishes versions of a model in a directory, each complete or invisible."""
