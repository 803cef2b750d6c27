"""Questions of JAX that are answered while it traces: what is proven, of sizes of the bridge's."""

import itertools
import logging
import pickle
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

from jax2tf_bridge import AUTO, PortableFunction, export
from jax2tf_bridge.errors import InconclusiveShapeError

# Private: names of JAX are taken away.
from jax2tf_bridge.from_jax import jax_compat

# Private: the tests lower its limits.
from jax2tf_bridge.from_jax.shapes import _inference
from tests.from_jax.inferring import best_five, exported, in_blocks, module_text
from tests.house.seams import take_away

MULTIPLES = (2, 3, 5)


def padded(x: Any) -> Any:
    """Raises a question for each multiple, of which all are proven."""
    y = jnp.sin(x)
    return [jnp.pad(y, (0, -x.shape[0] % m)).reshape(-1, m).sum(axis=1) for m in MULTIPLES]


def counted(f: Callable[..., Any]) -> tuple[Callable[..., Any], list[Any]]:
    """Makes a function that notes the shapes with which it is traced."""
    traces: list[Any] = []

    def traced(*args: Any) -> Any:
        traces.append([x.shape for x in args])
        return f(*args)

    return traced, traces


def in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, jax_compat.SEAM, "_geq_decision", "divide_shape_sizes")


def summary(portable: PortableFunction) -> list[Any]:
    both = (portable, portable.vjp())
    return [(p.requirements, p.out_avals, module_text(p)) for p in both]


def test_what_is_proven_is_traced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    f, traces = counted(padded)
    at_once = exported(f, 3)
    assert len(traces) == 2
    in_rounds(monkeypatch)
    by_rounds = exported(f, 3)
    assert len(traces) == 2 + 1 + len(MULTIPLES)
    assert summary(at_once) == summary(by_rounds)


def test_what_is_not_proven_goes_by_rounds() -> None:
    f, traces = counted(lambda x: (padded(x), best_five(x)))
    portable = exported(f, 7, constraints=AUTO)
    assert portable.requirements == ("b >= 5",)
    assert len(traces) == 3


def test_questions_of_the_gradient_are_answered_as_well() -> None:
    rules = []

    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return 2 * x

    def backward(_: None, g: Any) -> Any:
        rules.append(g.shape)
        return (
            sum(jnp.repeat(y, m)[: g.shape[0]] for y, m in zip(padded(g), MULTIPLES, strict=True)),
        )

    doubled.defvjp(lambda x: (2 * x, None), backward)
    f, traces = counted(doubled)
    portable = exported(f, 3)
    assert portable.vjp().requirements == ()
    # The scope of the exported trace is closed: the first question of the gradient opens one anew,
    # in which the others are answered, and a third trace is made under all of them.
    assert (len(traces), len(rules)) == (3, 3)


def sizes_from_before(x: Any) -> Any:
    """Makes a size of floordiv(.., - 8), which JAX writes otherwise once the division is even."""
    blocks = jnp.pad(x, (0, -x.shape[0] % 8))
    before = jnp.zeros((blocks.shape[0] // -8) * -8)
    return before, blocks.reshape(-1, 8)


def equal_sizes(x: Any) -> Any:
    """Compares sizes that JAX takes for different ones until it knows that a division is even."""
    padded = x.shape[0] + -x.shape[0] % 8
    same = (padded // -8) * -8 == padded
    blocks = jnp.pad(x, (0, -x.shape[0] % 8)).reshape(-1, 8)
    return (x if same else jnp.zeros(3)), blocks


@pytest.mark.parametrize(
    ("f", "size"), [(sizes_from_before, "b + mod(- b, 8)"), (equal_sizes, "b")]
)
def test_sizes_are_as_if_all_had_been_known_before(
    f: Callable[..., Any], size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = exported(f, 3)
    assert str(at_once.out_avals[0]) == f"float32[{size}]"
    in_rounds(monkeypatch)
    assert summary(exported(f, 3)) == summary(at_once)


def test_what_jax_goes_on_without_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    """JAX asks whether the size of top_k fits 32 bits, and takes no answer for no."""
    with caplog.at_level(logging.DEBUG, "jax2tf_bridge"):
        exported(lambda x: lax.top_k(x, 2), 7, constraints=["b >= 5", "b <= 2000000000"])
    assert not caplog.records


def test_a_loop_that_asks_forever_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_inference, "MAX_FACTS", 3)
    monkeypatch.setattr(_inference, "MAX_ROUNDS", 2)
    asked = []

    def f(x: Any) -> Any:
        for n in itertools.count(2):
            asked.append(n)
            assert x.shape[0] % n <= x.shape[0]

    with pytest.raises(InconclusiveShapeError, match="JAX still has questions"):
        exported(f, 3)
    # JAX knows it of 2. Three facts are told at once, and one by a round.
    assert max(asked) == 7


def asks(size: Any) -> bool:
    """Returns whether JAX leaves open that size % 4 <= size."""
    with pytest.raises(jax_compat.InconclusiveDimensionOperation, match="is inconclusive"):
        bool(size % 4 <= size)
    return True


def test_sizes_of_others_are_asked_about_as_ever() -> None:
    """In the same trace, in another thread, and of the bridge's own once the trace is over."""
    seen: list[Any] = []

    def theirs() -> None:
        def inner(y: Any) -> Any:
            assert asks(y.shape[0])
            return y

        argument = jax.ShapeDtypeStruct(jax_export.symbolic_shape("n"), np.float32)
        seen.append(jax_export.export(jax.jit(inner), platforms=["cpu"])(argument))

    def f(x: Any) -> Any:
        assert x.shape[0] % 4 <= x.shape[0]
        theirs()
        thread = threading.Thread(target=theirs)
        thread.start()
        thread.join()
        assert x.shape[0] % 8 <= x.shape[0]
        seen.append(x.shape[0])
        assert str(pickle.loads(pickle.dumps(x.shape[0]))) == "b"
        return in_blocks(x)

    export(f, polymorphic_shapes="(b,)", platforms=["cpu"])(np.ones(3, np.float32))
    assert len(seen) == 2 * 3
    (b,) = jax_export.symbolic_shape("b")
    assert asks(b)
    with pytest.raises(jax_compat.InconclusiveDimensionOperation):
        bool(seen[-1] % 6 <= seen[-1])


REFUSED = ("b >= 6", "b*b - b == 30")
"""JAX takes an equality with a single term on its left side."""


def test_what_jax_does_not_take_is_answered_otherwise() -> None:
    scope = jax_compat.AnsweringScope(["b >= 5"], lambda _: [REFUSED, ("b >= 6",)])
    (b,) = jax_export.symbolic_shape("b", scope=scope)
    assert b >= 6


def test_a_scope_keeps_what_it_knew_beside_what_jax_does_not_take() -> None:
    scope = jax_compat.AnsweringScope(["b >= 5"], lambda _: [REFUSED])
    (b,) = jax_export.symbolic_shape("b", scope=scope)
    with pytest.raises(jax_compat.InconclusiveDimensionOperation):
        bool(b >= 6)
    assert b >= 5
