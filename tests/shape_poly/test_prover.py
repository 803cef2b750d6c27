"""Tests the prover: real programs' questions, verdicts against sampled sizes, counterexamples."""

import concurrent.futures
import itertools
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Private: Z3 is made slow.
from shape_poly import (
    Comparison,
    Proven,
    Refuted,
    SymbolicScope,
    Unknown,
    _z3,
    parse_comparison,
    prove,
)

# The face hides the steps of a proof, which are tested one by one.
from shape_poly._comparisons import NEVER, list_facts
from shape_poly._counterexamples import OutOfBudget, find_smallest, iter_small_assignments
from shape_poly._deciding import decide, find_witness, select_related
from shape_poly._problem import find_ranges
from tests.fresh_process import run_python
from tests.sampling import examples
from tests.shape_poly.comparison_table import CASES, Case
from tests.shape_poly.proving import FOREVER, comparisons, constraint_lists, grid, larger_sizes

# The table


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.comparison} [{case.program}]")
def test_what_real_programs_ask_is_decided(case: Case) -> None:
    verdict = prove(case.comparison, SymbolicScope(case.constraints))
    if case.counterexample is None:
        assert verdict == Proven()
    else:
        assert verdict == Refuted(case.counterexample)


def test_the_table_is_worth_its_name() -> None:
    assert len(CASES) >= 40
    assert len({(c.comparison, c.constraints) for c in CASES}) == len(CASES)


# Verdicts against sampled sizes


@given(comparisons(), constraint_lists, st.lists(larger_sizes, max_size=10))
@settings(max_examples=examples(50), deadline=None)
def test_verdicts_agree_with_python(
    comparison: Comparison, constraints: list[Comparison], larger: list[Mapping[str, int]]
) -> None:
    relevant, names = select_related(constraints, comparison.variables())
    verdict = decide(constraints, comparison, time_limit=0.3)
    failing = [v for v in grid(names, relevant) if not comparison.holds(v)]
    match verdict:
        case Proven():
            assert not failing
            for sizes in larger:
                assert comparison.holds(sizes) or not all(c.holds(sizes) for c in relevant)
        case Refuted(values):
            assert values.keys() == names
            assert all(size >= 1 for size in values.values())
            assert all(c.holds(values) for c in relevant)
            assert not comparison.holds(values)
            assert not failing or _order(values) <= _order(failing[0])
        case Unknown(reason):
            assert "wrong" not in reason
            # On a busy machine the time may have been too short for small sizes too.
            assert not failing or isinstance(
                decide(constraints, comparison, time_limit=20), Refuted
            )


def _order(values: Mapping[str, int]) -> tuple[int, list[int]]:
    return sum(values.values()), [values[name] for name in sorted(values)]


@given(constraint_lists, comparisons(3) | st.just(NEVER))
@settings(max_examples=examples(37), deadline=None)
def test_enumeration_finds_the_smallest(constraints: list[Comparison], refuted: Comparison) -> None:
    names = frozenset("abc")
    ranges = find_ranges(list_facts(*constraints), names)
    failing = [
        v for v in grid(names) if all(c.holds(v) for c in constraints) and not refuted.holds(v)
    ]
    match find_smallest(constraints, refuted, ranges, count=900, deadline=FOREVER):
        case Refuted(values):
            assert all(c.holds(values) for c in constraints)
            assert not refuted.holds(values)
            assert not failing or _order(values) <= _order(failing[0])
        case Proven():
            assert not failing
        case OutOfBudget(total):
            assert not failing or sum(failing[0].values()) > total


def test_small_assignments_come_in_order() -> None:
    constraints = [parse_comparison(c) for c in ("mod(a, 2) == 0", "b <= 3", "b <= a")]
    ranges = find_ranges(list_facts(*constraints), ["a", "b"])
    first = list(itertools.islice(iter_small_assignments(constraints, ranges, deadline=FOREVER), 5))
    assert [(v["a"], v["b"]) for v in first] == [(2, 1), (2, 2), (4, 1), (4, 2), (4, 3)]
    finite = find_ranges(list_facts(parse_comparison("a <= 3")), ["a"])
    assert len(list(iter_small_assignments((), finite, deadline=FOREVER))) == 3


# Counterexamples


def test_counterexamples_are_the_smallest_far_away_too() -> None:
    assert prove("b + h < 4000") == Refuted({"b": 1, "h": 3999})
    assert prove("b + 2*h != 9001", SymbolicScope(["h >= 2000"])) == Refuted({"b": 1, "h": 4500})
    assert prove("b*h != 10403", SymbolicScope(["b >= 2", "h >= 2"])) == Refuted(
        {"b": 101, "h": 103}
    )
    assert prove("floordiv(b, 4096) <= 2") == Refuted({"b": 12288})


def test_counterexamples_speak_of_what_touches_the_comparison() -> None:
    scope = SymbolicScope(["h >= w + 1", "w >= b", "k >= 3"])
    assert prove("b >= 2", scope) == Refuted({"b": 1, "h": 2, "w": 1})
    assert prove("1 >= 2", scope) == Refuted({})


def test_a_divisor_that_can_be_0_refutes() -> None:
    assert prove("mod(b, k - 2) == mod(b, k - 2)") == Refuted({"b": 1, "k": 2})
    assert prove("mod(b, k - 2) == mod(b, k - 2)", SymbolicScope(["k != 2"])) == Proven()
    assert prove("floordiv(b, k - 40) != 0", SymbolicScope(["k >= 40", "b >= k"])) == Refuted(
        {"b": 40, "k": 40}
    )


def test_constraints_with_a_divisor_imply_that_it_is_not_0() -> None:
    assert prove("k != 2", SymbolicScope(["mod(b, k - 2) >= 0"])) == Proven()


def test_contradictory_constraints_imply_everything() -> None:
    scope = SymbolicScope(["b >= 4", "b <= 2"], check=False)
    assert prove("b >= 100", scope) == Proven()
    constraints = [parse_comparison(c) for c in ("b >= 4", "b <= 2")]
    assert find_witness(constraints, time_limit=1) == Proven()


def test_threads_prove_independently() -> None:
    def proofs(seed: int) -> list[str]:
        cases = random.Random(seed).sample([c for c in CASES if not c.counterexample], 20)
        return [
            type(
                decide(
                    [parse_comparison(c) for c in case.constraints],
                    parse_comparison(case.comparison),
                    time_limit=20,
                )
            ).__name__
            for case in cases
        ]

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert list(threads.map(proofs, range(4))) == [["Proven"] * 20] * 4


# z3 as a dependency


def test_loading_z3_takes_none_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_slowly(purpose: str) -> Any:
        time.sleep(0.6)
        return import_z3(purpose)

    import_z3 = _z3.import_z3
    monkeypatch.setattr(_z3, "import_z3", load_slowly)
    comparison = parse_comparison("h >= 2")
    constraints = [parse_comparison(text) for text in ("h >= w", "w >= b", "b >= 2")]
    assert decide(constraints, comparison, time_limit=0.5) == Proven()


def test_most_proofs_do_not_load_z3() -> None:
    code = """
    import sys
    import shape_poly
    from shape_poly import Proven, Refuted, SymbolicScope, prove
    proven = [
        ("mod(mod(-b, 8) + b, -8) == 0", ()),
        ("floordiv(b + 1, 2) + floordiv(b, 2) == b", ()),
        ("mod(b*h, 6) == 0", ("mod(b, 2) == 0", "mod(h, 3) == 0")),
        ("max(floordiv(h - 3, 2) + 1, 0) <= h", ()),
        ("b*floordiv(h, b) <= h", ()),
    ]
    for text, constraints in proven:
        assert prove(text, SymbolicScope(constraints)) == Proven()
    assert prove("mod(35*b, -2) == 0") == Refuted({"b": 1})
    print("z3" in sys.modules)
    """
    assert run_python(code) == "False"


def test_a_missing_z3_is_named() -> None:
    code = """
    import sys
    sys.modules["z3"] = None
    from shape_poly import SymbolicScope, prove
    try:
        prove("h*h + w*w >= 2*h*w")
    except ImportError as e:
        print(e)
    try:
        SymbolicScope(["h*h + w*w + 5000 == 2*h*w"])
    except ImportError as e:
        print(e)
    """
    rest = (
        "needs z3-solver, which is not installed here. "
        "Install it with: pip install 'jax2tf-bridge[jax]'"
    )
    assert run_python(code).splitlines() == [
        f"Proving that h^2 + w^2 >= 2*h*w {rest}",
        f"Proving that sizes satisfy h^2 + w^2 + 5000 == 2*h*w {rest}",
    ]
