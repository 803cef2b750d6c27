"""Primitives and public functions of the installed JAX, and which of them cases use."""

from __future__ import annotations

import importlib
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend import core as jax_core

from tests.primitives.case import Case, precision

_PRIMITIVES_IN = (
    "jax.lax",
    "jax.lax.linalg",
    "jax.extend.core.primitives",
    "jax.extend.random",
    "jax.interpreters.ad",
    "jax.interpreters.batching",
    "jax.interpreters.mlir",
    "jax.interpreters.pxla",
    "jax.interpreters.xla",
)

_FUNCTIONS_IN = (
    "jax.lax",
    "jax.lax.linalg",
    "jax.numpy.fft",
    "jax.numpy.linalg",
    "jax.random",
    "jax.image",
    "jax.nn",
    "jax.nn.initializers",
    "jax.scipy.cluster.vq",
    "jax.scipy.fft",
    "jax.scipy.integrate",
    "jax.scipy.interpolate",
    "jax.scipy.linalg",
    "jax.scipy.ndimage",
    "jax.scipy.optimize",
    "jax.scipy.signal",
    "jax.scipy.sparse.linalg",
    "jax.scipy.spatial.transform",
    "jax.scipy.special",
    "jax.scipy.stats",
)


def primitives_of_jax() -> set[str]:
    """Lists the names of the primitives that JAX makes public."""
    return {
        value.name
        for module in map(importlib.import_module, _PRIMITIVES_IN)
        for value in map(vars_of(module).get, vars_of(module))
        if isinstance(value, jax_core.Primitive)
    }


def vars_of(module: types.ModuleType) -> dict[str, Any]:
    """Lists what dir() of a module names, without deprecated names."""
    return {name: vars(module)[name] for name in dir(module) if name in vars(module)}


def functions_of_jax() -> set[str]:
    """Lists the dotted names of public functions and classes, and of the methods of these."""
    return {name for module in _FUNCTIONS_IN for name in _functions(module)}


def _functions(name: str) -> Iterator[str]:
    module = importlib.import_module(name)
    for attribute, value in vars_of(module).items():
        dotted = f"{name}.{attribute}"
        if attribute.startswith("_") or isinstance(value, jax_core.Primitive):
            continue
        if isinstance(value, types.ModuleType):
            if name == "jax.scipy.stats":  # a module for each distribution
                yield from _functions(dotted)
        elif isinstance(value, type) and name.endswith(".transform"):
            methods = {m for m in vars(value) if not m.startswith("_")}
            yield from (f"{dotted}.{m}" for m in methods - set(getattr(value, "_fields", ())))
        elif callable(value) and not _is_a_type(value):
            yield dotted


def _is_a_type(value: Any) -> bool:
    """Dimension numbers, enumerations, aliases for annotations: nothing that computes."""
    return isinstance(value, type) and value.__name__ not in {
        "RegularGridInterpolator",
        "gaussian_kde",
    }


def primitives_used(case: Case) -> set[str]:
    """Collects the primitives in the case's jaxpr and in that of its VJP, at whatever depth.

    Raises:
      AssertionError: the case does not call its function, or `no_gradient` or `no_batch` is wrong.
    """
    calls: list[None] = []
    with precision(case.x64):
        function = case.function(used=lambda: calls.append(None))
        args = case.sample(0)
        found = set(_names(jax.jit(function).trace(*args).jaxpr))
        assert calls, f"{case} does not call its function"
        _check_no_batch(case, function, args)
        try:
            found |= set(_names(jax.jit(_vjp(function)).trace(*args).jaxpr))
        except (TypeError, ValueError, NotImplementedError) as e:
            if not case.no_gradient:
                raise AssertionError(f"{case} has no gradient: {e}") from e
        else:
            assert not case.no_gradient, f"{case} has a gradient"
    return found


def _check_no_batch(case: Case, function: Any, args: list[Any]) -> None:
    if case.no_batch:
        try:
            jax.eval_shape(jax.vmap(function), *(np.stack([a, a]) for a in args))
        except NotImplementedError:
            return
        raise AssertionError(f"{case} can be mapped")


def trace_open(case: Case) -> None:
    """Has JAX trace what `no_open_gradient` says that it cannot."""
    with precision(case.x64):
        rows = [np.stack([a, a]) for a in case.sample(0)]
        function = jax.vmap(case.function())
        jax.eval_shape(_vjp(function), *export.symbolic_args_specs(rows, "b, ..."))


def _vjp(function: Any) -> Any:
    def pulled(*args: Any) -> Any:
        places = [i for i, a in enumerate(args) if jnp.issubdtype(a.dtype, np.inexact)]

        def of_inexact(*values: Any) -> Any:
            merged = list(args)
            for place, value in zip(places, values, strict=True):
                merged[place] = value
            return [r for r in function(*merged) if jnp.issubdtype(r.dtype, np.inexact)]

        results, pull_back = jax.vjp(of_inexact, *(args[i] for i in places))
        return pull_back(results)

    return pulled


def _names(jaxpr: Any) -> Iterator[str]:
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn.primitive.name
        for value in eqn.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from _names(inner)
