"""Numerical trials: padding must change no result."""
