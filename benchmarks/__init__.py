"""Benchmarks against the alternatives that a user has; README.md has the results."""

import os

# TensorFlow reads this when it starts, so it is set before any of these modules imports it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
