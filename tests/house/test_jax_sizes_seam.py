"""Inference asks in rounds where JAX lacks the private names by which it is answered at once."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf_bridge import PortableFunction, export

# Private: a seam is what is tested.
from jax2tf_bridge.from_jax._jax_compat import SEAM
from tests.from_jax.inferring import in_blocks, module_text
from tests.house.seams import take_away


def whole_blocks(x: Any) -> Any:
    """Compares mod(b, 4) and mod(b, 6) with b."""
    return [lax.slice_in_dim(x, x.shape[0] % n, x.shape[0]) for n in (4, 6)]


def two_reshapes(x: Any) -> Any:
    """Divides two sizes."""
    return in_blocks(x), jnp.pad(x, (0, -x.shape[0] % 6)).reshape(-1, 6)


def outcome(f: Callable[[Any], Any]) -> tuple[int, PortableFunction]:
    """Exports a function; returns how often it was traced, too."""
    traces = []

    def traced(x: Any) -> Any:
        traces.append(x)
        return f(x)

    exported = export(traced, polymorphic_shapes="(b,)", platforms=["cpu"])
    portable = exported(np.ones(6, np.float32))
    return len(traces), portable


def in_rounds(f: Callable[[Any], Any], without: Callable[[], None]) -> None:
    traces, at_once = outcome(f)
    assert traces == 2
    without()
    traces, by_rounds = outcome(f)
    assert traces == 3
    assert module_text(by_rounds) == module_text(at_once)
    for portable in (by_rounds, at_once):
        assert portable.requirements == ()
    assert by_rounds.out_avals == at_once.out_avals


BEHAVIOURS: dict[str, Callable[[Any], Any]] = {
    "_geq_decision": whole_blocks,
    "divide_shape_sizes": two_reshapes,
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_without_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First with the name, then without it: a test that sees no difference would prove nothing."""
    in_rounds(BEHAVIOURS[name], lambda: take_away(monkeypatch, SEAM, name))


def test_without_any_of_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(x: Any) -> Any:
        return whole_blocks(x), jnp.sum(in_blocks(x), axis=1)

    traces, at_once = outcome(both)
    assert traces == 2
    take_away(monkeypatch, SEAM, *BEHAVIOURS)
    traces, by_rounds = outcome(both)
    assert traces == 4
    assert module_text(by_rounds) == module_text(at_once)
