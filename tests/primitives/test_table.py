"""Completeness of the table: it has every public primitive and function of JAX, or excepts it."""

from __future__ import annotations

import pytest

from tests.primitives.case import Case
from tests.primitives.coverage import (
    functions_of_jax,
    primitives_of_jax,
    primitives_used,
    trace_open,
)
from tests.primitives.excepted import FUNCTIONS, PRIMITIVES
from tests.primitives.table import CASES, SUBJECTS


@pytest.mark.complete
def test_every_primitive_is_in_a_case_or_excepted() -> None:
    """Checks also where a case says that JAX has no gradient or no batches of it."""
    used = frozenset().union(*(primitives_used(case) for case in CASES if case.exists))
    missing = primitives_of_jax() - used - set(PRIMITIVES)
    assert not missing, f"neither in a case nor excepted: {', '.join(sorted(missing))}"


def test_cases_use_primitives_of_their_functions() -> None:
    """Checks on a sample what is said of each case."""
    for case in CASES[::50]:
        if case.exists:
            assert primitives_used(case), case


def test_every_public_function_is_in_a_case_or_excepted() -> None:
    targets = {case.target for case in CASES}
    missing = functions_of_jax() - targets - set(FUNCTIONS)
    assert not missing, f"neither in a case nor excepted: {', '.join(sorted(missing))}"
    assert not targets & set(FUNCTIONS), "both in a case and excepted"


def test_most_cases_exist_in_every_release() -> None:
    """A misspelt name would be taken for one that this release lacks."""
    absent = [case.name for case in CASES if not case.exists]
    assert len(absent) <= len(CASES) // 20, absent


@pytest.mark.parametrize("case", [c for c in CASES if c.no_open_gradient], ids=str)
def test_jax_cannot_trace_its_gradient_with_an_open_size(case: Case) -> None:
    if case.exists:
        with pytest.raises(Exception, match=r"Symbolic dimension|number of batch dimensions"):
            trace_open(case)


def test_a_missing_primitive_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [case for case in SUBJECTS["fourier"][:6] if case.exists]
    used = {name for case in few for name in primitives_used(case)}
    assert "fft" in used
    assert "sort" in primitives_of_jax() - used
