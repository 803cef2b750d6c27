"""Results that are 0 but for rounding errors, because terms cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, save, verify

X = np.linspace(9, 11, 12, dtype=np.float32).reshape(3, 4)


def cancel(x: Any) -> dict[str, Any]:
    norm = jnp.linalg.norm(x, axis=-1, keepdims=True)
    return {"norm": jnp.linalg.norm(x / norm, axis=-1) - 1, "total": x.sum()}


def round_otherwise(x: Any) -> dict[str, Any]:
    """Differs by rounding errors in every release."""
    return {**cancel(x), "norm": cancel(x)["norm"] + 2.0**-23}


def change_norm(x: Any) -> dict[str, Any]:
    return {**cancel(x), "norm": cancel(x)["norm"] + 1e-3}


def change_total(x: Any) -> dict[str, Any]:
    return {**cancel(x), "total": jnp.sin(x).sum()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cancelling") / "model"
    save(folder, Signature(round_otherwise, args=[X]))
    return folder


def test_rounding_errors_are_no_difference(saved: Path) -> None:
    report = verify(saved, cancel, samples=2, seed=1)
    assert report.ok, report
    assert (
        "output norm is what rounding leaves where terms cancel; its relative difference is to the "
        "terms" in str(report)
    )


def test_the_tolerance_is_relative_to_the_terms(saved: Path) -> None:
    assert not verify(saved, cancel, samples=2, seed=1, tolerance=1e-9).ok


def test_wrong_results_differ(saved: Path) -> None:
    report = verify(saved, change_norm, samples=2, seed=1, gradients=0)
    assert {d.name: d.within for d in report.differences} == {"norm": False, "total": True}
    assert report.problem is not None
    assert "the output norm is off by 1 of its largest number at its fixed sizes" in report.problem


def test_other_outputs_are_located(saved: Path) -> None:
    report = verify(saved, change_total, samples=1, seed=1, gradients=0, locate=True)
    assert report.location is not None
    assert report.location.operation == "sin"
