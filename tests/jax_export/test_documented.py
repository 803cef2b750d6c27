"""What jax.export documents: the same programs with it and with the bridge in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jax import export as jax_export

from jax2tf_bridge import jax_export as of_the_bridge
from tests.fresh_process import run_python
from tests.jax_export.documented import PROGRAMS, as_json
from tests.jax_export.documented_devices import OVER_EIGHT_DEVICES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_give_the_same(program: Callable[[Any], Any]) -> None:
    assert as_json(program(of_the_bridge)) == as_json(program(jax_export))


def test_programs_over_eight_devices_give_the_same() -> None:
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    printed = run_python("from tests.jax_export.documented_devices import main; main()", env=flags)
    found = json.loads(printed.splitlines()[-1])
    assert list(found) == [program.__name__ for program in OVER_EIGHT_DEVICES]
    for name, (theirs, ours) in found.items():
        assert ours == theirs, name
