"""Hooks for all tests: quiet runtimes, and the check that they test the wheel."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.consumers.summary import pytest_terminal_summary as pytest_terminal_summary
from tests.plugins.quick_compilation import compile_quickly
from tests.sampling import examples

pytest_plugins = (
    "tests.plugins.compiled_programs",
    "tests.plugins.cpu_times",
    "tests.plugins.frozen_heap",
    "tests.plugins.parameter_samples",
    "tests.plugins.pure",
    "tests.plugins.shared_contexts",
)

# Both are read when JAX and TensorFlow are first used, so before any test module.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
compile_quickly()
# No deadline for an example: a busy machine is no failure.
settings.register_profile("jax2tf-bridge", max_examples=examples(25), deadline=None)
settings.load_profile("jax2tf-bridge")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against-wheel",
        action="store_true",
        help="fail unless the packages are imported from an installed wheel, not from a checkout",
    )
    parser.addoption(
        "--record-errors",
        action="store_true",
        help="write the errors of the real models into tests/models/consumers.json, and the sizes "
        "of their files into tests/models/measures.json",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    if not session.config.getoption("--against-wheel"):
        return
    import jax2tf_bridge
    import shape_poly

    for package in (jax2tf_bridge, shape_poly):
        path = Path(str(package.__file__))
        if "site-packages" not in path.parts:
            pytest.exit(f"{package.__name__} is imported from {path.parent}, not a wheel", 2)
