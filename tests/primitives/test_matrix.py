"""Every case of the table in TensorFlow, converted, against JAX: values and gradients."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import pytest

from tests.fresh_process import run_python
from tests.primitives.arguments import normal
from tests.primitives.case import cases
from tests.primitives.groups import GROUPS, processes
from tests.primitives.running import disagreements
from tests.primitives.table import CASES, SUBJECTS
from tests.sampling import sampled

_RUN = "import sys; from tests.primitives.groups import main; main(sys.argv[1:])"


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", sampled(processes(), every=16), ids=lambda names: f"{names[0]}-and-on"
)
def test_values_and_gradients_are_those_of_jax(names: list[str]) -> None:
    assert run_python(_RUN, *names) == ""


def test_groups_hold_every_case_once() -> None:
    assert [name for names in processes() for name in names] == list(GROUPS)
    assert Counter(case.name for group in GROUPS.values() for case in group) == Counter(
        case.name for case in CASES
    )


@pytest.mark.costly
@pytest.mark.parametrize("part", sampled([1, 0], every=2, others=pytest.mark.slow))
def test_a_sample_of_every_subject(part: int) -> None:
    """So that the fast tests notice when the table does not run at all.

    They try every other subject so, and those between without XLA (test_operations.py).
    """
    sample = [next(case for case in found if not case.x64) for found in SUBJECTS.values()]
    assert not (found := disagreements(sample[part::2])), "\n".join(map(str, found))


def test_a_case_that_differs_is_found() -> None:
    """By its name, in a group with others that agree."""
    calls = iter(range(1000))
    (wrong,) = cases("jax.lax.sin", normal(3), call=lambda f, x: f(x) + next(calls))
    (right,) = cases("jax.lax.cos", normal(3))
    assert {d.case.name for d in disagreements([wrong, right])} == {wrong.name}


def test_a_case_that_fails_is_found() -> None:
    def fails(f: object, x: object) -> object:
        raise ValueError("it fails")

    (wrong,) = cases("jax.lax.sin", normal(3), call=fails)
    (right,) = cases("jax.lax.cos", normal(3), call=lambda f, x: f(x) + jnp.sin(x))
    found = disagreements([right, wrong])
    assert {d.case.name for d in found} == {wrong.name}
    assert "it fails" in str(found[0])
