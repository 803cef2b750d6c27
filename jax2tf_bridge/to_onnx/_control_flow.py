"""Loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax2tf_bridge.to_onnx._functions import function, to_tensor
from jax2tf_bridge.to_onnx._graph import DTYPES, ComplexTensor, OnnxGraph, Shape, Tensor

_BOOL, _INT64 = DTYPES["bool"], DTYPES["int64"]


def split_complex(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Replaces complex tensors by their two parts."""
    return [
        part
        for x in tensors
        for part in ((x.real, x.imag) if isinstance(x, ComplexTensor) else (x,))
    ]


def join_complex(parts: Sequence[Tensor], are_complex: Sequence[bool]) -> list[Tensor]:
    """Makes complex tensors of their parts; reverses `split_complex`."""
    rest = iter(parts)
    return [ComplexTensor(next(rest), next(rest)) if flag else next(rest) for flag in are_complex]


@function("cond")
def _cond(
    graph: OnnxGraph, flag: Tensor, on_true: Callable[[], Any], on_false: Callable[[], Any]
) -> Any:
    single = False
    are_complex: list[bool] = []

    def run(branch: Callable[[], Any]) -> list[Tensor]:
        nonlocal single, are_complex
        results = branch()
        single = isinstance(results, Tensor)
        listed = [results] if single else [to_tensor(graph, x) for x in results]
        are_complex = [isinstance(x, ComplexTensor) for x in listed]
        return split_complex(listed)

    then = graph.new_subgraph([], lambda: run(on_true))
    other = graph.new_subgraph([], lambda: run(on_false))
    results = [
        (a.dtype, [n if n == m else None for n, m in zip(a.shape, b.shape, strict=True)])
        for a, b in zip(then.outputs, other.outputs, strict=True)
    ]
    outputs = graph.add_several("If", [flag], results, then_branch=then, else_branch=other)
    outputs = join_complex(outputs, are_complex)
    return outputs[0] if single else outputs


@function("while_loop")
def _while_loop(
    graph: OnnxGraph,
    condition: Callable[..., Tensor],
    body: Callable[..., Sequence[Tensor]],
    loop_vars: Sequence[Any],
    shape_invariants: Sequence[Sequence[int | None]] | None = None,
) -> list[Tensor]:
    """Repeats a body while a condition holds; zero times if it does not hold at first."""
    variables = [to_tensor(graph, x) for x in loop_vars]
    are_complex = [isinstance(x, ComplexTensor) for x in variables]
    invariants = shape_invariants or [x.shape for x in variables]
    shapes = [
        shape
        for x, shape in zip(variables, invariants, strict=True)
        for _ in range(1 + isinstance(x, ComplexTensor))
    ]
    initial = split_complex(variables)
    begins = condition(*variables)
    state = [
        graph.argument(graph.new_name("state"), x.dtype, shape)
        for x, shape in zip(initial, shapes, strict=True)
    ]
    joined = join_complex(state, are_complex)
    number = graph.argument(graph.new_name("iteration"), _INT64, ())
    before = graph.argument(graph.new_name("condition"), _BOOL, ())

    def run() -> list[Tensor]:
        new = [to_tensor(graph, x) for x in body(*joined)]
        return [condition(*new), *split_complex(new)]

    inner = graph.new_subgraph([number, before, *state], run)
    results = [(x.dtype, Shape(shape)) for x, shape in zip(initial, shapes, strict=True)]
    operands = [None, begins, *initial]
    return join_complex(graph.add_several("Loop", operands, results, body=inner), are_complex)


@function("debugging.Assert")
def _assert(graph: OnnxGraph, condition: Tensor, data: Any) -> None:
    """Does nothing: ONNX has no assertions."""
