"""Programs that jax.export documents, with it and with the bridge in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import export as jax_export

from jax2tf_bridge import jax_export as of_the_bridge
from tests.fresh_process import run_python, several_devices
from tests.jax_export.documented import PROGRAMS, as_json
from tests.jax_export.documented_devices import OVER_EIGHT_DEVICES
from tests.sampling import sampled

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_give_the_same(program: Callable[[Any], Any]) -> None:
    assert as_json(program(of_the_bridge)) == as_json(program(jax_export))


@pytest.fixture(scope="module")
def over_eight_devices(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Runs the programs that the selected tests need, in one process."""
    names = [item.callspec.params.get("name") for item in _list_parametrized(request.session)]
    printed = run_python(
        "import sys; from tests.jax_export.documented_devices import main; main(sys.argv[1:])",
        *filter(None, names),
        env={**several_devices(8), "PYTHONPATH": str(ROOT)},
    )
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def _list_parametrized(session: pytest.Session) -> list[Any]:
    items = [item for item in session.items if item.path == Path(__file__)]
    return [item for item in items if hasattr(item, "callspec")]


NAMES = [program.__name__ for program in OVER_EIGHT_DEVICES]


@pytest.mark.costly
@pytest.mark.parametrize("name", sampled(NAMES, every=len(NAMES), others=pytest.mark.slow))
def test_programs_over_eight_devices_give_the_same(
    over_eight_devices: dict[str, Any], name: str
) -> None:
    theirs, ours = over_eight_devices["programs"][name]
    assert ours == theirs


def test_gradients_of_what_was_lowered_for_several_devices(
    over_eight_devices: dict[str, Any],
) -> None:
    expected = -np.sin(np.arange(32, dtype=np.float32).reshape(8, 4) / 9)
    assert len(over_eight_devices["gradients"]) == 2
    for axis, got in over_eight_devices["gradients"]:
        assert axis == "a"
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
