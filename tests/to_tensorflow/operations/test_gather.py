"""gather and dynamic_gather, against loops that do what StableHLO's specification says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.bytecode import Program

# Private: an index of 64 bits shows only in arrays of gigabytes.
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._scope import Scope
from jax2tf_bridge.emitters.operations._dynamic_slices import flatten_indices
from jax2tf_bridge.to_tensorflow import to_tf
from shape_poly import DimExpr
from tests.to_tensorflow.operations.running import graph_of, op_names, portable_of, run


@dataclass(frozen=True)
class _Case:
    operand: tuple[int, ...]
    indices: tuple[int, ...]
    offset_dims: tuple[int, ...]
    collapsed: tuple[int, ...]
    index_map: tuple[int, ...]
    vector_dim: int
    slice_sizes: tuple[int, ...]
    batching: tuple[int, ...] = ()
    indices_batching: tuple[int, ...] = ()
    index_type: str = "i32"

    @property
    def result(self) -> tuple[int, ...]:
        batch = iter(s for i, s in enumerate(self.indices) if i != self.vector_dim)
        gone = {*self.collapsed, *self.batching}
        offset = iter(s for i, s in enumerate(self.slice_sizes) if i not in gone)
        rank = len(self.indices) - (self.vector_dim < len(self.indices)) + len(self.offset_dims)
        return tuple(next(offset if i in self.offset_dims else batch) for i in range(rank))

    def reference(self, operand: Any, indices: Any) -> Any:
        result = np.zeros(self.result, operand.dtype)
        gone = {*self.collapsed, *self.batching}
        batch_dims = [i for i in range(result.ndim) if i not in self.offset_dims]
        for at in itertools.product(*map(range, result.shape)):
            batch = [at[d] for d in batch_dims]
            place: list[Any] = list(batch)
            if self.vector_dim < indices.ndim:
                place.insert(self.vector_dim, slice(None))
            start = np.atleast_1d(indices[tuple(place)])
            full = [0] * operand.ndim
            for i, d in enumerate(self.index_map):
                limit = operand.shape[d] - self.slice_sizes[d]
                full[d] = max(0, min(int(start[i]), limit))
            for d, b in zip(self.batching, self.indices_batching, strict=True):
                full[d] = batch[b - (b > self.vector_dim)]
            kept = [d for d in range(operand.ndim) if d not in gone]
            for d, r in zip(kept, self.offset_dims, strict=True):
                full[d] += at[r]
            result[at] = operand[tuple(full)]
        return result

    def numbers(self) -> str:
        return (
            f"#stablehlo.gather<offset_dims = {list(self.offset_dims)}, "
            f"collapsed_slice_dims = {list(self.collapsed)}, "
            f"operand_batching_dims = {list(self.batching)}, "
            f"start_indices_batching_dims = {list(self.indices_batching)}, "
            f"start_index_map = {list(self.index_map)}, index_vector_dim = {self.vector_dim}>"
        )

    def static(self, number: int, element: str = "f32") -> str:
        sizes = ", ".join(map(str, self.slice_sizes))
        return (
            f'%r{number} = "stablehlo.gather"(%x{number}, %i{number}) '
            f"<{{dimension_numbers = {self.numbers()}, slice_sizes = array<i64: {sizes}>, "
            f"indices_are_sorted = false}}> : ({tensor(self.operand, element)}, "
            f"{tensor(self.indices, self.index_type)}) -> {tensor(self.result, element)}"
        )

    def open_indices(self) -> list[int]:
        vectors = [-1 if size else 0 for size in self.indices]
        if self.vector_dim < len(vectors):
            vectors[self.vector_dim] = self.indices[self.vector_dim]
        return vectors

    def open_result(self) -> list[int]:
        return [-1 if size else 0 for size in self.result]

    def dynamic(self, number: int) -> str:
        """All sizes are open, but that of the index vectors, and 0."""
        vectors = self.open_indices()
        rank = len(self.slice_sizes)
        return (
            f'%r{number} = "stablehlo.dynamic_gather"(%x{number}, %i{number}, %s{number}) '
            f"<{{dimension_numbers = {self.numbers()}, indices_are_sorted = false}}> : "
            f"({tensor([-1] * rank, 'f32')}, {tensor(vectors, self.index_type)}, "
            f"tensor<{rank}xi32>) -> {tensor(self.open_result(), 'f32')}"
        )


def tensor(sizes: Sequence[int], element: str) -> str:
    return f"tensor<{''.join('?x' if s < 0 else f'{s}x' for s in sizes)}{element}>"


CASES = {
    "rows": _Case((5, 3), (4, 1), (1,), (0,), (0,), 1, (1, 3)),
    "rows, no vector axis": _Case((5, 3), (2, 2), (2,), (0,), (0,), 2, (1, 3)),
    "columns": _Case((5, 3), (4, 1), (0,), (1,), (1,), 1, (5, 1)),
    "kept axis": _Case((5, 3), (4, 1), (1, 2), (), (0,), 1, (1, 3)),
    "one element": _Case((5, 3), (2,), (), (0, 1), (0, 1), 0, (1, 1)),
    "elements": _Case((5, 3), (4, 2), (), (0, 1), (0, 1), 1, (1, 1)),
    "elements, axes swapped": _Case((5, 3), (4, 2), (), (0, 1), (1, 0), 1, (1, 1)),
    "elements, vectors first": _Case((5, 3, 2), (2, 4), (0,), (0, 2), (2, 0), 0, (1, 3, 1)),
    "windows": _Case((7, 3), (4, 1), (1, 2), (), (0,), 1, (3, 3)),
    "windows, batch behind": _Case((7, 3), (4, 1), (0, 1), (), (0,), 1, (3, 3)),
    "windows in two axes": _Case((7, 6, 2), (4, 2), (1, 2, 3), (), (0, 1), 1, (3, 2, 2)),
    "windows of part of an axis": _Case((7, 6), (4, 1), (1, 2), (), (0,), 1, (2, 3)),
    "window and element": _Case((7, 6), (4, 2), (0,), (1,), (0, 1), 1, (3, 1)),
    "one window": _Case((7, 6), (2,), (0, 1), (), (0, 1), 0, (3, 2)),
    "one of many axes": _Case((7, 6), (1, 1, 2), (0, 3), (), (0, 1), 2, (3, 2)),
    "whole axes": _Case((4, 3), (2, 2), (1, 2), (), (0, 1), 1, (4, 3)),
    "nothing indexed": _Case((4, 3), (2, 0), (1, 2), (), (), 1, (2, 3)),
    "batched": _Case((4, 5), (4, 3, 1), (), (1,), (1,), 2, (1, 1), (0,), (0,)),
    "batched, behind": _Case((5, 4), (3, 4, 1), (), (0,), (0,), 2, (1, 1), (1,), (1,)),
    "batched rows": _Case((4, 5, 2), (4, 3, 1), (2,), (1,), (1,), 2, (1, 1, 2), (0,), (0,)),
    "batched windows": _Case((4, 7), (4, 3, 1), (2,), (), (1,), 2, (1, 3), (0,), (0,)),
    "batched twice": _Case(
        (4, 5, 3, 2), (2, 3, 2, 4), (1,), (1,), (1, 2), 2, (1, 1, 2, 1), (0, 3), (3, 0)
    ),
    "batched, vectors between": _Case(
        (4, 5, 3), (3, 2, 4), (), (1, 2), (1, 2), 1, (1, 1, 1), (0,), (2,)
    ),
    "diagonal": _Case((4, 3), (4, 0, 2), (2,), (), (), 1, (1, 3), (0,), (0,)),
    "empty": _Case((4, 3), (0, 1), (1,), (0,), (0,), 1, (1, 3)),
    "empty slices": _Case((4, 3), (2, 1), (0, 1), (), (0,), 1, (0, 3)),
    "eight components": _Case(
        (2, 2, 2, 2, 2, 2, 2, 2), (5, 8), (), tuple(range(8)), tuple(range(8)), 1, (1,) * 8
    ),
}


def _operand(case: _Case, dtype: Any = np.float32) -> Any:
    return np.arange(1, 1 + np.prod(case.operand)).reshape(case.operand).astype(dtype)


def _indices(case: _Case, seed: int) -> Any:
    # Many lie outside.
    return np.random.default_rng(seed).integers(-3, 9, case.indices).astype(np.int32)


def _module(
    arguments: Sequence[str], lines: Sequence[str], count: int, types: Sequence[str]
) -> str:
    results = ", ".join(f"%r{n}" for n in range(count))
    kinds = ", ".join(types)
    body = "\n".join(lines)
    return (
        f"func.func public @main({', '.join(arguments)}) -> ({kinds}) {{\n{body}\n"
        f"return {results} : {kinds}\n}}"
    )


def _check(found: Sequence[Any], values: Sequence[tuple[Any, Any]]) -> None:
    for (name, case), result, (x, i) in zip(CASES.items(), found, values, strict=True):
        np.testing.assert_array_equal(result, case.reference(x, i), name, strict=True)


def test_known_sizes() -> None:
    values = [(_operand(case), _indices(case, n)) for n, case in enumerate(CASES.values())]
    arguments, lines, types = [], [], []
    for n, case in enumerate(CASES.values()):
        operand, indices = tensor(case.operand, "f32"), tensor(case.indices, "i32")
        arguments += [f"%x{n}: {operand}", f"%i{n}: {indices}"]
        lines.append(case.static(n))
        types.append(tensor(case.result, "f32"))
    text = _module(arguments, lines, len(CASES), types)
    _check(run(text, *(value for pair in values for value in pair)), values)


@pytest.mark.costly
def test_open_sizes() -> None:
    values = [(_operand(case), _indices(case, n)) for n, case in enumerate(CASES.values())]
    arguments, lines, types = [], [], []
    given: list[Any] = []
    for n, (case, (x, i)) in enumerate(zip(CASES.values(), values, strict=True)):
        lines.append(case.dynamic(n))
        vectors = case.open_indices()
        arguments += [
            f"%x{n}: {tensor([-1] * x.ndim, 'f32')}",
            f"%i{n}: {tensor(vectors, 'i32')}",
            f"%s{n}: tensor<{x.ndim}xi32>",
        ]
        given += [x, i, np.array(case.slice_sizes, np.int32)]
        types.append(tensor(case.open_result(), "f32"))
    symbols = [a + b for a in "abcdefgh" for b in "abcdefghijklmnopqrstuvw"]
    text = _module(arguments, lines, len(CASES), types)
    _check(run(text, *given, symbols=symbols), values)


def test_known_indices() -> None:
    values = [(_operand(case), _indices(case, n)) for n, case in enumerate(CASES.values())]
    arguments, lines, types = [], [], []
    for n, (case, (x, i)) in enumerate(zip(CASES.values(), values, strict=True)):
        kind = tensor(case.indices, "i32")
        value = f"dense<{i.tolist() if i.size else ''}>"
        arguments.append(f"%x{n}: {tensor(x.shape, 'f32')}")
        lines += [f"%i{n} = stablehlo.constant {value} : {kind}", case.static(n)]
        types.append(tensor(case.result, "f32"))
    text = _module(arguments, lines, len(CASES), types)
    _check(run(text, *(x for x, _ in values)), values)


def test_operands_that_repeat_elements() -> None:
    """Only the first axis of each operand, or none, has different elements."""
    arguments, lines, types, given, values = [], [], [], [], []
    for n, case in enumerate(CASES.values()):
        own = np.arange(1, 1 + case.operand[0]).astype(np.float32)
        whole = np.broadcast_to(own.reshape(-1, *[1] * (len(case.operand) - 1)), case.operand)
        kind = tensor(own.shape, "f32")
        arguments += [f"%o{n}: {kind}", f"%i{n}: {tensor(case.indices, 'i32')}"]
        lines += [
            f"%x{n} = stablehlo.broadcast_in_dim %o{n}, dims = [0] : ({kind}) -> "
            f"{tensor(case.operand, 'f32')}",
            case.static(n),
        ]
        types.append(tensor(case.result, "f32"))
        values.append((whole, _indices(case, n)))
        given += [own, values[-1][1]]
    _check(run(_module(arguments, lines, len(CASES), types), *given), values)


_OUTSIDE: Sequence[tuple[str, Any, tuple[int, ...]]] = (
    ("i8", np.int8, (-128, -1, 0, 2, 5, 127)),
    ("i16", np.int16, (-(2**15), -1, 0, 2, 5, 2**15 - 1)),
    ("i32", np.int32, (-(2**31), -1, 0, 2, 5, 2**31 - 1)),
    ("i64", np.int64, (-(2**63), -(2**32), 0, 2, 2**32 + 1, 2**63 - 1)),
    ("ui8", np.uint8, (0, 1, 2, 5, 128, 255)),
    ("ui16", np.uint16, (0, 1, 2, 5, 2**15, 2**16 - 1)),
    ("ui32", np.uint32, (0, 1, 2, 5, 2**31, 2**32 - 1)),
    ("ui64", np.uint64, (0, 1, 2, 2**32 + 1, 2**63, 2**64 - 1)),
)


def test_indices_of_every_dtype_and_any_size() -> None:
    """They are moved into arrays of fewer and of more elements than their dtype can count."""
    arguments: list[str] = []
    lines: list[str] = []
    types: list[str] = []
    given: list[Any] = []
    expected: list[Any] = []
    for element, dtype, numbers in _OUTSIDE:
        for rows in (4, 300):
            case = _Case((rows,), (6, 1), (), (0,), (0,), 1, (1,), index_type=element)
            k = len(types)
            x, i = _operand(case), np.array(numbers, dtype)[:, None]
            kind = tensor((6, 1), element)
            arguments += [f"%x{k}: {tensor((rows,), 'f32')}", f"%i{k}: {kind}"]
            lines.append(case.static(k))
            expected.append(case.reference(x, i))
            types.append(tensor((6,), "f32"))
            # And as a constant.
            arguments.append(f"%x{k + 1}: {tensor((rows,), 'f32')}")
            lines += [
                f"%i{k + 1} = stablehlo.constant dense<{i.tolist()}> : {kind}",
                case.static(k + 1),
            ]
            types.append(tensor((6,), "f32"))
            expected.append(expected[-1])
            given += [x, i, x]
    found = run(_module(arguments, lines, len(types), types), *given)
    for result, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result, wanted, strict=True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rows", {"GatherV2": 1, "Minimum": 1, "Maximum": 1, "Reshape": 1}),
        ("columns", {"GatherV2": 1, "Minimum": 1, "Maximum": 1, "Reshape": 1}),
        ("elements", {"GatherNd": 1, "Minimum": 1, "Maximum": 1}),
        ("batched", {"GatherV2": 1, "Minimum": 1, "Maximum": 1, "Reshape": 1}),
        ("whole axes", {"BroadcastTo": 1}),
    ],
)
def test_common_ones_are_the_plain_operation(name: str, expected: dict[str, int]) -> None:
    case = CASES[name]
    arguments = [f"%x0: {tensor(case.operand, 'f32')}", f"%i0: {tensor(case.indices, 'i32')}"]
    text = _module(arguments, [case.static(0)], 1, [tensor(case.result, "f32")])
    assert operations_of(text, _operand(case), _indices(case, 0)) == expected


def operations_of(text: str, *args: Any) -> dict[str, int]:
    """Counts what a module becomes, without arguments, constants and results."""
    graph = graph_of(to_tf(portable_of(text), with_gradient=False), args)
    plumbing = {"Placeholder", "Const", "Identity", "PreventGradient", "NoOp"}
    return dict(Counter(name for name in op_names(graph) if name not in plumbing))


def test_constant_places_are_slices() -> None:
    text = """func.func public @main(%x: tensor<9x2xf32>) -> tensor<3x2xf32> {
    %i = stablehlo.constant dense<[[1], [4], [7]]> : tensor<3x1xi32>
    %r = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 2>}> : (tensor<9x2xf32>, tensor<3x1xi32>) -> tensor<3x2xf32>
    return %r : tensor<3x2xf32>
    }"""
    x = np.arange(18, dtype=np.float32).reshape(9, 2)
    np.testing.assert_array_equal(run(text, x)[0], x[1:8:3])
    assert operations_of(text, x) == {"StridedSlice": 1}


def test_positions_of_large_arrays_have_64_bits() -> None:
    scope = Scope("f", Program({}), {}, {"n": tf.constant(3)})
    index = Array("i32", (2,), known=np.array([1, 2], np.int32))
    for size, element in ((2**20, "i64"), (DimExpr.variable("n"), "i64"), (9, "i32")):
        assert flatten_indices(scope, [index, index], (2**12, size)).element == element
