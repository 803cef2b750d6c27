"""Builds the distribution; pyproject.toml has its metadata and contents."""

from setuptools import setup

setup(
    # The default, ./build, collides with ./BUILD on case-insensitive file systems.
    options={"build": {"build_base": ".build"}},
)
