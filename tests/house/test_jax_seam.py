"""Tracing and configuration do without each private name of JAX that they use."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jax2tf_bridge import PortableFunction, export
from jax2tf_bridge.errors import InconclusiveShapeError, TargetError

# Private: a seam is what is tested.
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import SEAM
from jax2tf_bridge.targets import PLATFORMS
from tests.house.seams import take_away
from tests.house.test_jax_sizes_seam import BEHAVIOURS as SIZES


def _inside() -> bool:
    seen: list[bool] = []

    def f(x: Any) -> Any:
        seen.append(_jax_compat.is_inside_transformation())
        return x

    jax.jit(f)(1.0)
    return seen[0]


def _trace_state_clean(without: Callable[[], None]) -> None:
    assert _inside()
    assert not _jax_compat.is_inside_transformation()
    without()
    assert not _inside()


def _trace_context(without: Callable[[], None]) -> None:
    def compared() -> dict[str, bool]:
        """For each setting, whether the configuration shows a change of it."""
        before, shown = _jax_compat.configuration(), {}
        changes = {"jax_default_matmul_precision": "float32", "jax_debug_nans": True}
        for flag, value in {"jax_enable_x64": True, **changes}.items():
            kept = getattr(jax.config, flag)
            jax.config.update(flag, value)
            try:
                shown[flag] = _jax_compat.configuration() != before
            finally:
                jax.config.update(flag, kept)
        assert _jax_compat.configuration() == before
        return shown

    seen = compared()
    assert seen["jax_enable_x64"]
    assert seen["jax_default_matmul_precision"]
    without()
    assert compared() == {
        "jax_enable_x64": True,
        "jax_default_matmul_precision": True,
        "jax_debug_nans": False,
    }
    hash(_jax_compat.configuration())


def _known_platforms(without: Callable[[], None]) -> None:
    assert _jax_compat.list_known_platforms()[: len(PLATFORMS)] == PLATFORMS
    without()
    assert _jax_compat.list_known_platforms() == PLATFORMS
    with pytest.raises(TargetError, match="my_plugin"):
        export(jnp.sin, platforms=["my_plugin"])(1.0)
    assert export(jnp.sin, platforms=["cpu"])(1.0).platforms == ("cpu",)


def _summarize(without: Callable[[], None]) -> None:
    (equation,) = jax.make_jaxpr(lambda x: jax.lax.sin(x))(1.0).eqns
    assert "test_jax_seam.py:" in (_jax_compat.find_source_of_equation(equation) or "")
    without()
    assert _jax_compat.find_source_of_equation(equation) is None


BEHAVIOURS: dict[str, Callable[[Callable[[], None]], None]] = {
    "trace_state_clean": _trace_state_clean,
    "trace_context": _trace_context,
    "known_platforms": _known_platforms,
    "summarize": _summarize,
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_without_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First with the name, then without it: a test that sees no difference would prove nothing."""
    BEHAVIOURS[name](lambda: take_away(monkeypatch, SEAM, name))


def test_every_name_has_a_test() -> None:
    assert {entry.name for entry in SEAM} == {*BEHAVIOURS, *SIZES}


def test_without_any_of_the_names_an_export_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def exported() -> PortableFunction:
        f = export(lambda x: jnp.tanh(x) @ x.T, polymorphic_shapes="(b, 3)", platforms=["cpu"])
        return f(jnp.ones((2, 3)))

    expected = exported()
    take_away(monkeypatch, SEAM, *(entry.name for entry in SEAM))
    found = exported()
    assert (found.in_avals, found.out_avals) == (expected.in_avals, expected.out_avals)
    assert len(found.module.data) == len(expected.module.data)


def test_a_line_without_the_name_of_the_local_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def running_sum(x: Any) -> Any:
        y = x[1:]
        return jnp.cumsum(y)

    def line() -> int:
        with pytest.raises(InconclusiveShapeError) as caught:
            export(running_sum, polymorphic_shapes="(b,)")(jnp.ones(4))
        return int(str(caught.value.source).partition(".py:")[2].partition(" ")[0])

    first = running_sum.__code__.co_firstlineno
    assert line() == first + 2
    monkeypatch.setattr(_jax_compat, "_EQUATION", "no_such_variable")
    assert line() in (first, first + 2)  # JAX 0.8 has the line in its own stack


def test_static_arguments_without_the_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    jitted = jax.jit(lambda n, x: x * n, static_argnums=0)
    assert _jax_compat.read_static_arguments(jitted) == (frozenset({0}), frozenset({"n"}))
    monkeypatch.setattr(_jax_compat, "_JIT_INFO", "no_such_attribute")
    assert _jax_compat.read_static_arguments(jitted) == (frozenset(), frozenset())
