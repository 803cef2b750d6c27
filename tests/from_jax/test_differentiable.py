"""Functions that are known to have a VJP before it is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export
from jax import lax

from jax2tf_bridge import export

# Private: an export shows only that the two predicates agree, not which of them decided.
from jax2tf_bridge.from_jax.lowering import _portable_functions
from jax2tf_bridge.from_jax.lowering._differentiable import is_surely_differentiable
from jax2tf_bridge.from_jax.lowering._tracing import trace_vjp
from tests.programs import PROGRAMS, Program

W = np.ones((4, 4), np.float32)
KERNEL = np.ones((3, 3, 2, 2), np.float32)
TABLE = np.ones((10, 4), np.float32)


def _mlp(x: Any) -> Any:
    return jax.nn.softmax(jnp.tanh(jax.nn.relu(x @ W) @ W))


def _attention(x: Any) -> Any:
    scores = jnp.einsum("bid,bjd->bij", x, x)
    return jnp.einsum("bij,bjd->bid", jax.nn.softmax(scores), x)


def _convolution(x: Any) -> Any:
    y = lax.conv_general_dilated(x, jnp.asarray(KERNEL), (2, 2), "SAME", dimension_numbers=_NHWC)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
    return jnp.mean(y, axis=(1, 2))


_NHWC = ("NHWC", "HWIO", "NHWC")


def _steps(x: Any) -> Any:
    return lax.scan(lambda c, _: (jnp.sin(c @ W), None), x, length=3)[0]


def _rematerialized(x: Any) -> Any:
    return jax.checkpoint(_mlp)(x)


def _dropped(x: Any) -> Any:
    keep = jax.random.bernoulli(jax.random.key(0), 0.5, (3, 4))
    return jnp.where(keep, x, 0) * jnp.where(x[:, :1] > 0, lax.stop_gradient(x), 1.0)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (_mlp, "b, 4"),
        (_attention, "b, n, 4"),
        (_convolution, "b, 8, 8, 2"),
        (_steps, "b, 4"),
        (_rematerialized, "b, 4"),
        (_dropped, "3, 4"),
        (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), "b"),
        (lambda x: jnp.asarray(TABLE)[x.astype(jnp.int32)], "b, n"),
    ],
)
def test_what_is_sure(function: Callable[..., Any], shape: str) -> None:
    spec = jax.ShapeDtypeStruct(jax_export.symbolic_shape(shape), np.float32)
    traced = jax.jit(function).trace(spec)
    assert is_surely_differentiable(traced.jaxpr)
    assert trace_vjp(traced).jaxpr.in_avals


@jax.custom_jvp
def _own(x: Any) -> Any:
    return x * 2


@_own.defjvp
def _own_jvp(primals: Any, tangents: Any) -> Any:
    raise NotImplementedError


@jax.custom_vjp
def _own_vjp(x: Any) -> Any:
    return x * 2


_own_vjp.defvjp(lambda x: (x, None), lambda _, g: (g,))


def _printing(x: Any) -> Any:
    jax.debug.print("{}", x)
    return x


def _under_a_policy(x: Any) -> Any:
    return jax.checkpoint(_mlp, policy=jax.checkpoint_policies.dots_saveable)(x)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + 1, x), "3"),
        (_own, "3"),
        (lambda x: jax.jit(_own)(x), "3"),
        (_own_vjp, "3"),
        (_printing, "3"),
        (_under_a_policy, "3, 4"),
        (lambda x: jnp.sort(x), "b, n"),
        (lambda x: x[:, 1:], "b, n"),
        (lambda x: lax.scan(lambda c, y: (c + y, _own(c)), x[0], x)[0], "3, 4"),
        (lambda x: lax.cond(x.sum() > 0, _own, jnp.cos, x), "3"),
        (lambda x: x[jnp.asarray([0, 1])], "b, 4"),
    ],
)
def test_what_has_to_be_traced(function: Callable[..., Any], shape: str) -> None:
    constraints = [f"{name} >= 2" for name in "bn" if name in shape]
    sizes = jax_export.symbolic_shape(shape, constraints=constraints)
    spec = jax.ShapeDtypeStruct(sizes, np.float32)
    assert not is_surely_differentiable(jax.jit(function).trace(spec).jaxpr)


def test_nothing_is_differentiated_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []

    def counted(*args: Any) -> Any:
        traced.append(args)
        return trace_vjp(*args)

    monkeypatch.setattr(_portable_functions, "trace_vjp", counted)
    portable = export(_mlp, polymorphic_shapes="b, 4")(W)
    assert portable.gradient_problem() is None
    assert traced == []
    assert portable.vjp().in_avals
    assert len(traced) == 1
    portable = export(lambda x: _own(x))(W)
    assert "has no gradient" in (portable.gradient_problem() or "")


def _of_arrays(program: Program) -> bool:
    return not (program.key_arguments or any(c.kwargs for c in program.build().calls))


def _canonical(array: Any) -> Any:
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_what_is_sure_of_the_programs_is_true(program: Program) -> None:
    with program.precision():
        if not _of_arrays(program):
            pytest.skip("its arguments are keys, or given by name")
        example = program.build()
        args = jax.tree.map(_canonical, example.calls[0].args)
        specs = jax_export.symbolic_args_specs(
            args, program.polymorphic_shapes, constraints=program.constraints
        )
        traced = jax.jit(example.function).trace(*specs)
        if is_surely_differentiable(traced.jaxpr):
            assert trace_vjp(traced).jaxpr.in_avals
