"""Pytest plugins of this test suite; tests/conftest.py loads them."""
