"""Builds the distribution; what it is called, holds and needs is in pyproject.toml."""

from setuptools import setup

setup(
    # Setuptools would build in ./build, which a file system that ignores case takes for ./BUILD.
    options={"build": {"build_base": ".build"}},
)
