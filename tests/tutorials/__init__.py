"""Runs the tutorials of docs/tutorials."""
