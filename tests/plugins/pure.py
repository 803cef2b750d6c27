"""Runs the tests that need neither JAX nor TensorFlow in processes that can import neither.

`pytest --pure` runs them alone, within seconds, `pytest --not-pure` all others, and `pytest` all.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.plugins.blocked_imports import Blocker

TESTS = Path(__file__).resolve().parents[1]

PURE = (
    "cli/test_argument_specs.py",
    "cli/test_command_line.py",
    "house/test_benchmarks.py",
    "house/test_build.py",
    "saved_model/test_damage.py",
    "saved_model/test_graph.py",
    "saved_model/test_new_directory.py",
    "saved_model/test_patching.py",
    "saved_model/test_sidecar.py",
    "serving_requests/test_example_requests.py",
    "portable/test_consistency.py",
    "serialization/test_exported_errors.py",
    "serialization/test_exported_hostile.py",
    "serialization/test_exported_limits.py",
    "serialization/test_exported_read.py",
    "serialization/test_flatbuffer.py",
    "serialization/test_format.py",
    "serialization/test_jaxfn_arrays.py",
    "serialization/test_jaxfn_damage.py",
    "serialization/test_jaxfn_errors.py",
    "serialization/test_jaxfn_forged.py",
    "serialization/test_jaxfn_graphs.py",
    "serialization/test_jaxfn_round_trip.py",
    "serialization/test_protobuf.py",
    "serialization/test_xla_shardings.py",
    "shape_poly",
    "storage/test_schemes.py",
    "portable/test_dtypes.py",
    "tutorials/test_notebook.py",
    "weights/test_msgpack_hostile.py",
    "weights/test_paths.py",
    "weights/test_safetensors.py",
    "weights/test_state_dicts.py",
    "weights/test_mismatches.py",
    "weights/test_weights_file.py",
    "weights/test_weights_file_changed.py",
)
"""Folders and files below tests/ that are pure."""

BLOCKED = frozenset({"jax", "jaxlib", "tensorflow", "flax", "keras", "orbax"})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--pure",
        action="store_true",
        help="only the tests that need neither JAX nor TensorFlow, with both out of reach",
    )
    parser.addoption("--not-pure", action="store_true", help="only the other tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--pure"):
        sys.meta_path.insert(0, Blocker(BLOCKED, " (pytest --pure)"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out test modules before they are imported, since importing is what costs."""
    if collection_path.is_dir() or collection_path.suffix != ".py":
        return None
    unwanted = (config.getoption("--pure") and not is_pure(collection_path)) or (
        config.getoption("--not-pure") and is_pure(collection_path)
    )
    return True if unwanted else None


def is_pure(path: Path) -> bool:
    """Says whether a test module is one of PURE or within one."""
    return any((TESTS / name) in (path, *path.parents) for name in PURE)
