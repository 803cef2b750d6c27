"""save_coreml(): what its errors say, without coremltools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from jax2tf_bridge import save_coreml
from jax2tf_bridge.coreml._save import find_shapes  # private: the rest needs coremltools
from jax2tf_bridge.errors import MissingDependencyError, SavingError
from jax2tf_bridge.signatures import ServedArray
from shape_poly import symbolic_shape
from tests.plugins.blocked_imports import blocked


def double(x: Any) -> Any:
    return x + x


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    expected = 'precision must be "float16" or "float32". Got: \'int8\'.'
    with pytest.raises(SavingError, match=re.escape(expected)):
        save_coreml(tmp_path / "a.mlpackage", double, precision="int8")  # type: ignore[arg-type]
    expected = f"A Core ML package needs a name that ends with .mlpackage. Got: {tmp_path / 'a'}."
    with pytest.raises(SavingError, match=re.escape(expected)):
        save_coreml(tmp_path / "a", double)
    (tmp_path / "a.mlpackage").mkdir()
    (tmp_path / "a.mlpackage" / "file").touch()
    with pytest.raises(FileExistsError):
        save_coreml(tmp_path / "a.mlpackage", double)


def test_coremltools_is_missing(tmp_path: Path) -> None:
    with blocked("coremltools"), pytest.raises(MissingDependencyError) as caught:
        save_coreml(tmp_path / "a.mlpackage", double)
    assert str(caught.value) == (
        "Writing a Core ML package needs coremltools, which is not installed here. Install it "
        "with: pip install 'jax2tf-bridge[coreml]'"
    )
    assert not (tmp_path / "a.mlpackage").exists()


def served(shape: str) -> ServedArray:
    return ServedArray("float32", symbolic_shape(shape))


def test_open_sizes() -> None:
    inputs = {"x": served("(b, 2*n, 3)"), "y": ServedArray("int32", (None,))}
    assert find_shapes(inputs, {"b": (1, 8), "n": 2, "y.0": 5}) == {"x": ["b", 4, 3], "y": [5]}
    assert find_shapes({"x": served("()")}, {}) == {"x": []}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (
            {},
            "Core ML needs the size b of the input x: float32[b,2*n], or its range. Pass "
            "sizes={'b': 1}, or sizes={'b': (1, 8)}.",
        ),
        (
            {"b": 1, "n": (1, 4)},
            "The size 2*n of the input x depends on a range, and Core ML has no such sizes. Fix n "
            "in sizes.",
        ),
        (
            {"b": 1, "n": 2, "m": 3},
            "sizes has 'm', which is not an open size of the function. It has: b, n.",
        ),
    ],
)
def test_sizes_that_do_not_fit(sizes: Any, expected: str) -> None:
    with pytest.raises(SavingError, match=re.escape(expected)):
        find_shapes({"x": served("(b, 2*n)")}, sizes)
