"""The modules lowered for CUDA, as functions hold them, run by JAX on a GPU where there is one.

What TensorFlow does with the module on a GPU is XLA's doing too, so that a lowering that only
works on the CPU shows here.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from jax import export as jax_export

import jax2tf_bridge as bridge
from tests.consumers.comparison import differences
from tests.program_cases.answers import Reference
from tests.program_cases.reference import conjugate, jax_arguments, reference
from tests.programs import PROGRAMS, Program


def _has_cuda() -> bool:
    try:
        return bool(jax.devices("cuda"))
    except RuntimeError:
        return False


pytestmark = pytest.mark.skipif(not _has_cuda(), reason="no CUDA device that JAX can use")


def _with_module_of(
    portable: bridge.PortableFunction, exported: jax_export.Exported
) -> jax_export.Exported:
    return dataclasses.replace(
        exported,
        mlir_module_serialized=portable.module.data,
        module_kept_var_idx=portable.module.kept_arguments,
        platforms=portable.platforms,
        # As the bridge's own files of jax.export have it: JAX then folds the choice of a platform
        # everywhere. Without it, XLA keeps custom calls of other platforms within branches.
        uses_global_constants=True,
    )


def _exported(program: Program, function: Any, specs: Any, kwargs: Any) -> jax_export.Exported:
    every = jax_export.DisabledSafetyCheck.custom_call("ALL")
    return jax_export.export(jax.jit(function), platforms=["cuda"], disabled_checks=[every])(
        *specs, **kwargs
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_the_module_on_a_gpu(program: Program) -> None:
    with program.precision(), jax.default_matmul_precision("highest"):
        example = program.build()
        first = example.calls[0]
        args = jax_arguments(program, first)
        portable = bridge.export(
            example.function,
            polymorphic_shapes=program.polymorphic_shapes,
            polymorphic_constraints=program.constraints,
        )(*args, **first.kwargs)
        assert "cuda" in portable.platforms, portable.dropped_platforms
        if any(a.dtype in ("int4", "uint4") for a in (*portable.in_avals, *portable.out_avals)):
            pytest.skip("4-bit values cross TensorFlow's op as int8, and JAX's as they are")
        specs = jax_export.symbolic_args_specs(
            args, program.polymorphic_shapes, constraints=program.constraints
        )
        exported = _exported(program, example.function, specs, first.kwargs)
        forward = _with_module_of(portable, exported)
        for call in example.calls:
            expected = reference(program, example, call)
            got = jax.tree_util.tree_leaves(
                forward.call(*jax_arguments(program, call), **call.kwargs)
            )
            results = [np.asarray(_words(g)) for g in got]
            assert differences("result", results, expected.results, program.tolerance) == []
            if expected.gradients:
                _check_gradient(program, portable, exported, call, expected)


def _check_gradient(
    program: Program,
    portable: bridge.PortableFunction,
    exported: jax_export.Exported,
    call: Any,
    expected: Reference,
) -> None:
    vjp = _with_module_of(portable.vjp(), exported.vjp())
    leaves = jax.tree_util.tree_leaves((jax_arguments(program, call), dict(call.kwargs)))
    given = dict(zip(expected.targets, expected.cotangents, strict=True))
    cotangents = [
        given[i] if i in given else _zeros(result, aval.is_differentiable)
        for i, (result, aval) in enumerate(zip(expected.results, portable.out_avals, strict=True))
    ]
    pulled = vjp.call(*leaves, *cotangents)
    got = [conjugate(np.asarray(pulled[i])) for i in expected.sources]
    assert differences("gradient", got, expected.gradients, program.tolerance) == []


def _zeros(result: np.ndarray[Any, Any], differentiable: bool) -> Any:
    dtype = result.dtype if differentiable else jax.dtypes.float0
    return np.zeros(result.shape, dtype)


def _words(value: Any) -> Any:
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(value) if is_key else value
