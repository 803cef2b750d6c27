"""Measurements against what a user would pick instead; README.md has the results."""

import os

# Read when TensorFlow starts, so before any of the modules here imports it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
