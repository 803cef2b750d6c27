"""Tests of example requests; tests/serving sends them to a server."""
