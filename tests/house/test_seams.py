"""Every private name of JAX and TensorFlow is there in the releases that its seam says."""

import importlib
import re
from pathlib import Path

import jax
import pytest
import tensorflow as tf

import jax2tf_bridge
from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.targets import TENSORFLOW_RELEASES
from tests.house.layering import JAX_SEAM, TENSORFLOW_SEAM

PACKAGE = Path(jax2tf_bridge.__file__).parent  # of a checkout or a wheel
FILES = [path.relative_to(PACKAGE.parent) for path in sorted(PACKAGE.rglob("_*_compat*.py"))]
MODULES = [".".join(path.with_suffix("").parts) for path in FILES]


def _entries(pattern: str) -> list[SeamName]:
    """Collects the names that the seams list whose modules are named so."""
    modules = [importlib.import_module(m) for m in MODULES if re.fullmatch(pattern, m)]
    return [entry for module in modules for entry in module.SEAM]


OF_JAX, OF_TENSORFLOW = _entries(JAX_SEAM.pattern), _entries(TENSORFLOW_SEAM.pattern)


def _minor(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)


def _has_release(span: str, release: str) -> bool:
    """Returns whether a span such as "0.8 to 0.12" contains a release such as "0.10.2"."""
    first, last = map(_minor, span.split(" to "))
    return first <= _minor(release) <= last


@pytest.mark.parametrize("entry", OF_JAX, ids=lambda entry: entry.name)
def test_name_of_jax(entry: SeamName) -> None:
    if _has_release(entry.releases, jax.__version__):
        assert entry.get() is not None, f"JAX {jax.__version__} lacks {entry.module}.{entry.name}"
    assert entry.without


@pytest.mark.parametrize("entry", OF_TENSORFLOW, ids=lambda entry: entry.name)
def test_name_of_tensorflow(entry: SeamName) -> None:
    """In releases that we know, it is also missing where the seam does not have the release."""
    if "{}.{}".format(*_minor(tf.__version__)) in TENSORFLOW_RELEASES:
        there = _has_release(entry.releases, tf.__version__)
        assert (entry.get() is not None) == there, f"{entry.name} in TensorFlow {tf.__version__}"
    assert entry.without


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("jax._src.core", "no_such_name"),
        ("jax._src.no_such_module", "name"),
        ("tensorflow.python.eager.context", "no_such_name"),
        ("tensorflow.python.no_such_module", "name"),
    ],
)
def test_missing_name_and_missing_module_are_none(module: str, name: str) -> None:
    assert SeamName(module, name, "", "").get() is None
