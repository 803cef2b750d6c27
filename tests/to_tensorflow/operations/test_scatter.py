"""scatter, against loops that do what StableHLO's specification says."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.sampling import sampled
from tests.to_tensorflow.operations.running import run
from tests.to_tensorflow.operations.test_gather import operations_of, tensor


@dataclass(frozen=True)
class _Case:
    operand: tuple[int, ...]
    indices: tuple[int, ...]
    updates: tuple[int, ...]
    window_dims: tuple[int, ...]
    inserted: tuple[int, ...]
    index_map: tuple[int, ...]
    vector_dim: int
    batching: tuple[int, ...] = ()
    indices_batching: tuple[int, ...] = ()

    def reference(
        self, operand: Any, indices: Any, updates: Any, body: Callable[[Any, Any], Any]
    ) -> Any:
        result = operand.copy()
        gone = {*self.inserted, *self.batching}
        kept = [d for d in range(operand.ndim) if d not in gone]
        batch_dims = [i for i in range(updates.ndim) if i not in self.window_dims]
        window = [updates.shape[d] for d in self.window_dims]
        for batch in itertools.product(*(range(updates.shape[d]) for d in batch_dims)):
            place: list[Any] = list(batch)
            if self.vector_dim < indices.ndim:
                place.insert(self.vector_dim, slice(None))
            start = np.atleast_1d(indices[tuple(place)])
            full = [0] * operand.ndim
            for i, d in enumerate(self.index_map):
                full[d] = int(start[i])
            for d, b in zip(self.batching, self.indices_batching, strict=True):
                full[d] = batch[b - (b > self.vector_dim)]
            sizes = [1] * operand.ndim
            for d, size in zip(kept, window, strict=True):
                sizes[d] = size
            # A window that is not wholly inside is not written at all.
            if any(f < 0 or f + s > o for f, s, o in zip(full, sizes, operand.shape, strict=True)):
                continue
            for offset in itertools.product(*map(range, window)):
                at = list(full)
                for d, o in zip(kept, offset, strict=True):
                    at[d] += o
                source: list[int] = [0] * updates.ndim
                for d, b in zip(batch_dims, batch, strict=True):
                    source[d] = b
                for d, o in zip(self.window_dims, offset, strict=True):
                    source[d] = o
                result[tuple(at)] = body(result[tuple(at)], updates[tuple(source)])
        return result

    def text(
        self,
        number: int,
        body: str,
        element: str = "f32",
        *,
        index: str = "i32",
        unique: bool = False,
        is_open: bool = False,
    ) -> str:
        operand, indices, updates = self.types(element, index, is_open=is_open)
        return (
            f'%r{number} = "stablehlo.scatter"(%x{number}, %i{number}, %u{number}) <{{'
            "scatter_dimension_numbers = #stablehlo.scatter<"
            f"update_window_dims = {list(self.window_dims)}, "
            f"inserted_window_dims = {list(self.inserted)}, "
            f"input_batching_dims = {list(self.batching)}, "
            f"scatter_indices_batching_dims = {list(self.indices_batching)}, "
            f"scatter_dims_to_operand_dims = {list(self.index_map)}, "
            f"index_vector_dim = {self.vector_dim}>, indices_are_sorted = false, "
            f"unique_indices = {str(unique).lower()}}}> ({{\n"
            f"^bb0(%a: tensor<{element}>, %b: tensor<{element}>):\n{body}\n"
            f"}}) : ({operand}, {indices}, {updates}) -> {operand}"
        )

    def types(self, element: str, index: str, *, is_open: bool = False) -> tuple[str, str, str]:
        if not is_open:
            shapes = [list(self.operand), list(self.indices), list(self.updates)]
        else:
            shapes = [
                [-1 if size else 0 for size in sizes]
                for sizes in (self.operand, self.indices, self.updates)
            ]
            if self.vector_dim < len(self.indices):
                shapes[1][self.vector_dim] = self.indices[self.vector_dim]
        operand, indices, updates = shapes
        return tensor(operand, element), tensor(indices, index), tensor(updates, element)


CASES = {
    "rows": _Case((5, 3), (4, 1), (4, 3), (1,), (0,), (0,), 1),
    "rows, no vector axis": _Case((5, 3), (2, 2), (2, 2, 3), (2,), (0,), (0,), 2),
    "columns": _Case((5, 3), (4, 1), (5, 4), (0,), (1,), (1,), 1),
    "kept axis": _Case((5, 3), (4, 1), (4, 1, 3), (1, 2), (), (0,), 1),
    "one element": _Case((5, 3), (2,), (), (), (0, 1), (0, 1), 0),
    "one row": _Case((5, 3), (1,), (3,), (0,), (0,), (0,), 0),
    "one row of a batch": _Case((5, 3), (1, 1), (1, 3), (1,), (0,), (0,), 1),
    "elements": _Case((5, 3), (6, 2), (6,), (), (0, 1), (0, 1), 1),
    "elements, vectors first": _Case((5, 3, 2), (2, 4), (3, 4), (0,), (0, 2), (2, 0), 0),
    "windows": _Case((7, 3), (4, 1), (4, 3, 3), (1, 2), (), (0,), 1),
    "windows in two axes": _Case((7, 6, 2), (4, 2), (4, 3, 2, 2), (1, 2, 3), (), (0, 1), 1),
    "windows of part of an axis": _Case((7, 6), (4, 1), (2, 3, 4), (0, 1), (), (0,), 1),
    "window and element": _Case((7, 6), (4, 2), (3, 4), (0,), (1,), (0, 1), 1),
    "one window": _Case((7, 6), (2,), (3, 2), (0, 1), (), (0, 1), 0),
    "whole axes": _Case((4, 3), (5, 2), (5, 4, 3), (1, 2), (), (0, 1), 1),
    "nothing indexed": _Case((4, 3), (2, 0), (2, 4, 3), (1, 2), (), (), 1),
    "part of what is not indexed": _Case((4, 3), (2, 0), (2, 2, 3), (1, 2), (), (), 1),
    "batched": _Case((4, 5), (4, 3, 1), (4, 3), (), (1,), (1,), 2, (0,), (0,)),
    "batched windows": _Case((4, 7), (4, 3, 1), (4, 3, 3), (2,), (), (1,), 2, (0,), (0,)),
    "batched twice": _Case(
        (4, 5, 3, 2), (2, 3, 2, 4), (2, 3, 2, 4), (2,), (1,), (1, 2), 2, (0, 3), (3, 0)
    ),
    "empty": _Case((4, 3), (0, 1), (0, 3), (1,), (0,), (0,), 1),
    "empty windows": _Case((4, 3), (2, 1), (2, 0, 3), (1, 2), (), (0,), 1),
    "empty operand": _Case((0, 3), (2, 1), (2, 0, 3), (1, 2), (), (0,), 1),
    "eight components": _Case(
        (2, 2, 2, 2, 2, 2, 2, 2), (5, 8), (5,), (), tuple(range(8)), tuple(range(8)), 1
    ),
}


def _op(name: str, element: str = "f32") -> str:
    return (
        f"%s = stablehlo.{name} %a, %b : tensor<{element}>\nstablehlo.return %s : tensor<{element}>"
    )


def _replacing(element: str = "f32") -> str:
    return f"stablehlo.return %b : tensor<{element}>"


_OTHER = """%p = stablehlo.add %a, %a : tensor<f32>
%s = stablehlo.subtract %b, %p : tensor<f32>
stablehlo.return %s : tensor<f32>"""

BODIES: Mapping[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "replace": (_replacing(), lambda a, b: b),
    "add": (_op("add"), lambda a, b: a + b),
    "multiply": (_op("multiply"), lambda a, b: a * b),
    "maximum": (_op("maximum"), np.maximum),
    "minimum": (_op("minimum"), np.minimum),
    "other": (_OTHER, lambda a, b: b - (a + a)),
}


def _values(case: _Case, seed: int) -> tuple[Any, Any, Any]:
    """Returns an operand, indices of which some lie outside, and updates."""
    rng = np.random.default_rng(seed)
    most = max(case.operand, default=0)
    low, high = (0, 2) if len(case.operand) == 8 else (-1, 5) if most < 7 else (-2, 8)
    operand = np.arange(1, 1 + np.prod(case.operand, dtype=int)).reshape(case.operand)
    return (
        operand.astype(np.float32),
        rng.integers(low, high, case.indices).astype(np.int32),
        rng.integers(1, 9, case.updates).astype(np.float32),
    )


def _module(arguments: Sequence[str], lines: Sequence[str], types: Sequence[str]) -> str:
    results = ", ".join(f"%r{n}" for n in range(len(types)))
    kinds = ", ".join(types)
    body = "\n".join(lines)
    return (
        f"func.func public @main({', '.join(arguments)}) -> ({kinds}) {{\n{body}\n"
        f"return {results} : {kinds}\n}}"
    )


_SYMBOLS = [a + b for a in "abcdefghijkl" for b in "abcdefghijklmnopqrstuvw"]


# Each form with known sizes or with open ones; all cases of replacing and adding.
_FAST = (
    ("replace", False),
    ("replace", True),
    ("add", False),
    ("multiply", False),
    ("minimum", True),
    ("other", False),
)
_BODIES = [
    pytest.param(body, is_open, marks=() if (body, is_open) in _FAST else pytest.mark.slow)
    for is_open in (False, True)
    for body in BODIES
]


@pytest.mark.parametrize(("body", "is_open"), _BODIES)
def test_each_case(body: str, is_open: bool) -> None:
    arguments, lines, types, given = [], [], [], []
    text, function = BODIES[body]
    cases = list(CASES.items())
    if (body, is_open) in _FAST and is_open:
        cases = cases[1 if body == "replace" else 3 :: 4]  # both together have half of the cases
    elif is_open or body in ("maximum", "multiply", "other"):
        cases = cases[is_open::2]
    for n, (_, case) in enumerate(cases):
        lines.append(case.text(n, text, is_open=is_open))
        operand, indices, updates = case.types("f32", "i32", is_open=is_open)
        arguments += [f"%x{n}: {operand}", f"%i{n}: {indices}", f"%u{n}: {updates}"]
        types.append(operand)
        given.append(_values(case, n))
    found = run(
        _module(arguments, lines, types),
        *(value for values in given for value in values),
        symbols=_SYMBOLS,
    )
    for (name, case), result, values in zip(cases, found, given, strict=True):
        np.testing.assert_array_equal(result, case.reference(*values, function), name, strict=True)


def test_known_indices_and_operands() -> None:
    arguments, lines, types, given = [], [], [], []
    for n, case in enumerate(CASES.values()):
        _, i, u = _values(case, n)
        operand, indices, updates = case.types("f32", "i32")
        lines += [
            f"%x{n} = stablehlo.constant dense<0.0> : {operand}",
            f"%i{n} = stablehlo.constant dense<{i.tolist() if i.size else ''}> : {indices}",
            case.text(n, BODIES["add"][0]),
        ]
        arguments.append(f"%u{n}: {updates}")
        types.append(operand)
        given.append((np.zeros(case.operand, np.float32), i, u))
    found = run(_module(arguments, lines, types), *(u for _, _, u in given))
    for (name, case), result, values in zip(CASES.items(), found, given, strict=True):
        wanted = case.reference(*values, BODIES["add"][1])
        np.testing.assert_array_equal(result, wanted, name, strict=True)


_ELEMENTS: Mapping[str, Any] = {
    "i1": np.bool_,
    "i4": np.int8,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui4": np.uint8,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}
_OF_FLAGS: Mapping[str, Callable[[Any, Any], Any]] = {
    "replace": lambda a, b: b,
    "add": np.logical_or,
    "maximum": np.logical_or,
    "or": np.logical_or,
    "multiply": np.logical_and,
    "minimum": np.logical_and,
    "and": np.logical_and,
}


def _wrapped(element: str, value: Any) -> Any:
    if element == "ui4":
        return value & 15
    return ((value + 8) & 15) - 8 if element == "i4" else value


def _functions(element: str) -> dict[str, Callable[[Any, Any], Any]]:
    if element == "i1":
        return dict(_OF_FLAGS)
    found = {name: function for name, (_, function) in BODIES.items() if name != "other"}
    if element.startswith(("complex", "f8")):
        del found["maximum"], found["minimum"]
    if element.startswith("f8"):
        del found["add"], found["multiply"]
    if element.startswith(("i", "ui")):
        found["or"] = lambda a, b: a | b
    return found


_FIRST_ELEMENTS = ("i1", "i4", "ui8", "i32", "ui64", "f8E5M2", "bf16", "f32", "complex<f32>")
_OTHER_ELEMENTS = tuple(element for element in _ELEMENTS if element not in _FIRST_ELEMENTS)


@pytest.mark.costly
@pytest.mark.parametrize(
    "elements",
    sampled([_FIRST_ELEMENTS, _OTHER_ELEMENTS], every=2, others=pytest.mark.slow),
    ids=lambda elements: f"{elements[0]}-and-on",
)
def test_every_dtype(elements: Sequence[str]) -> None:
    """Two of the updates go to the same element, and one lies outside."""
    case = _Case((4,), (5, 1), (5,), (), (0,), (0,), 1)
    indices = np.array([[2], [-1], [0], [2], [3]], np.int32)
    arguments, given = ["%i: tensor<5x1xi32>"], [indices]
    lines: list[str] = []
    types: list[str] = []
    expected: list[tuple[str, Any]] = []
    for e, element in enumerate(elements):
        dtype = _ELEMENTS[element]
        x = np.array([0, 1, 3, 5]).astype(dtype)
        u = np.array([0, 7, 1, 6, 2]).astype(dtype)
        own = element.replace("i4", "i8")
        arguments += [f"%y{e}: tensor<4x{own}>", f"%v{e}: tensor<5x{own}>"]
        given += [x, u]
        for name, function in _functions(element).items():
            n = len(types)
            text = _replacing(element) if name == "replace" else _op(name, element)
            line = case.text(n, text, element).replace(f"%i{n}", "%i")
            if own == element:
                line = line.replace(f"%x{n},", f"%y{e},").replace(f"%u{n})", f"%v{e})")
                lines.append(line)
            else:
                lines += [
                    f"%x{n} = stablehlo.convert %y{e} : (tensor<4x{own}>) -> tensor<4x{element}>",
                    f"%u{n} = stablehlo.convert %v{e} : (tensor<5x{own}>) -> tensor<5x{element}>",
                    line.replace(f"%r{n} =", f"%q{n} ="),
                    f"%r{n} = stablehlo.convert %q{n} : (tensor<4x{element}>) -> tensor<4x{own}>",
                ]
            types.append(f"tensor<4x{own}>")
            wanted = _wrapped(element, case.reference(x, indices, u, function))
            expected.append((f"{name} of {element}", wanted.astype(dtype)))
    found = run(_module(arguments, lines, types), *given)
    for (name, wanted), result in zip(expected, found, strict=True):
        np.testing.assert_array_equal(result, wanted, name, strict=True)


def test_nan_and_signs_of_zero() -> None:
    nan, inf = np.nan, np.inf
    case = _Case((7,), (9, 1), (9,), (), (0,), (0,), 1)
    x = np.array([nan, 1, 1, -0.0, -0.0, -inf, 0.0])
    indices = np.array([[0], [1], [2], [2], [3], [-1], [9], [5], [6]], np.int32)
    u = np.array([1, -nan, 2, nan, 0.0, 5, 6, -inf, -0.0])
    arguments, given = ["%i: tensor<9x1xi32>"], [indices]
    lines: list[str] = []
    types: list[str] = []
    expected: list[tuple[str, Any]] = []
    for e, element in enumerate(("f16", "bf16", "f32", "f64")):
        dtype = _ELEMENTS[element]
        arguments += [f"%y{e}: tensor<7x{element}>", f"%v{e}: tensor<9x{element}>"]
        given += [x.astype(dtype), u.astype(dtype)]
        for name in ("add", "maximum", "minimum", "replace"):
            n = len(types)
            text = _replacing(element) if name == "replace" else _op(name, element)
            line = case.text(n, text, element).replace(f"%i{n}", "%i")
            lines.append(line.replace(f"%x{n},", f"%y{e},").replace(f"%u{n})", f"%v{e})"))
            types.append(f"tensor<7x{element}>")
            with np.errstate(invalid="ignore"):
                expected.append(
                    (f"{name} of {element}", case.reference(x, indices, u, BODIES[name][1]))
                )
    for (name, wanted), result in zip(
        expected, run(_module(arguments, lines, types), *given), strict=True
    ):
        np.testing.assert_array_equal(result.astype(float), wanted, name)
        # Elements that no update reaches keep their sign.
        assert np.signbit(result[4].astype(float)), name
        if name.startswith(("add", "replace")):
            wanted_signs, signs = np.signbit(wanted), np.signbit(result.astype(float))
            np.testing.assert_array_equal(signs[3:], wanted_signs[3:], name)


def _pair(unique: bool) -> str:
    """Keeps the greater key, and the value that came with it."""
    return f"""func.func public @main(%k: tensor<4xf32>, %v: tensor<4xi32>, %i: tensor<6x1xi32>,
      %uk: tensor<6xf32>, %uv: tensor<6xi32>) -> (tensor<4xf32>, tensor<4xi32>) {{
    %r:2 = "stablehlo.scatter"(%k, %v, %i, %uk, %uv) <{{
      scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>,
      indices_are_sorted = false, unique_indices = {str(unique).lower()}}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<i32>):
      %p = stablehlo.compare GT, %c, %a : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %x = stablehlo.select %p, %c, %a : tensor<i1>, tensor<f32>
      %y = stablehlo.select %p, %d, %b : tensor<i1>, tensor<i32>
      stablehlo.return %x, %y : tensor<f32>, tensor<i32>
    }}) : (tensor<4xf32>, tensor<4xi32>, tensor<6x1xi32>, tensor<6xf32>, tensor<6xi32>)
      -> (tensor<4xf32>, tensor<4xi32>)
    return %r#0, %r#1 : tensor<4xf32>, tensor<4xi32>
    }}"""


@pytest.mark.parametrize("unique", [False, True])
def test_several_operands_with_one_body(unique: bool) -> None:
    keys, values = np.array([3, 1, 4, 1], np.float32), np.arange(4, dtype=np.int32)
    indices = np.array(
        [[3], [-1], [0], [9], [1], [2]] if unique else [[3], [-1], [3], [0], [3], [2]]
    )
    new_keys, new_values = (
        np.array([5, 9, 2, 6, 5, 8], np.float32),
        10 + np.arange(6, dtype=np.int32),
    )
    wanted_keys, wanted_values = keys.copy(), values.copy()
    for i, key, value in zip(indices[:, 0], new_keys, new_values, strict=True):
        if 0 <= i < 4 and key > wanted_keys[i]:
            wanted_keys[i], wanted_values[i] = key, value
    found = run(_pair(unique), keys, values, indices.astype(np.int32), new_keys, new_values)
    np.testing.assert_array_equal(found[0], wanted_keys)
    np.testing.assert_array_equal(found[1], wanted_values)


def test_the_last_update_of_an_element_stays() -> None:
    case = _Case((3, 2), (50, 1), (50, 2), (1,), (0,), (0,), 1)
    rng = np.random.default_rng(0)
    x, i = np.zeros((3, 2), np.float32), rng.integers(0, 3, (50, 1)).astype(np.int32)
    u = rng.normal(size=(50, 2)).astype(np.float32)
    operand, indices, updates = case.types("f32", "i32")
    text = _module(
        [f"%x0: {operand}", f"%i0: {indices}", f"%u0: {updates}"],
        [case.text(0, _replacing())],
        [operand],
    )
    np.testing.assert_array_equal(run(text, x, i, u)[0], case.reference(x, i, u, lambda a, b: b))


_INDICES: Sequence[tuple[str, Any, tuple[int, ...]]] = (
    ("i8", np.int8, (-128, -1, 0, 3, 4, 127)),
    ("i64", np.int64, (-(2**63), -(2**32), 0, 3, 2**32 + 1, 2**63 - 1)),
    ("ui8", np.uint8, (0, 3, 4, 128, 255, 2)),
    ("ui32", np.uint32, (0, 3, 4, 2**31, 2**32 - 1, 2)),
    ("ui64", np.uint64, (0, 3, 2**32 + 1, 2**63, 2**64 - 1, 2)),
)


def test_indices_of_every_dtype_and_any_size() -> None:
    arguments: list[str] = []
    lines: list[str] = []
    types: list[str] = []
    given: list[Any] = []
    expected: list[Any] = []
    case = _Case((4,), (6, 1), (6,), (), (0,), (0,), 1)
    x, u = np.arange(4, dtype=np.float32), 10 + np.arange(6, dtype=np.float32)
    for element, dtype, numbers in _INDICES:
        i = np.array(numbers, dtype)[:, None]
        for name in ("add", "replace"):
            n = len(types)
            operand, indices, updates = case.types("f32", element)
            arguments += [f"%x{n}: {operand}", f"%i{n}: {indices}", f"%u{n}: {updates}"]
            lines.append(case.text(n, BODIES[name][0], index=element))
            types.append(operand)
            given += [x, i, u]
            expected.append(case.reference(x, i, u, BODIES[name][1]))
    for result, wanted in zip(run(_module(arguments, lines, types), *given), expected, strict=True):
        np.testing.assert_array_equal(result, wanted)


def _operations(name: str, body: str, zeros: bool = False) -> dict[str, int]:
    case = CASES[name]
    x, i, u = _values(case, 0)
    operand, indices, updates = case.types("f32", "i32")
    lines = [case.text(0, BODIES[body][0])]
    if zeros:
        lines.insert(0, f"%x0 = stablehlo.constant dense<0.0> : {operand}")
        arguments = [f"%i0: {indices}", f"%u0: {updates}"]
        return operations_of(_module(arguments, lines, [operand]), i, u)
    arguments = [f"%x0: {operand}", f"%i0: {indices}", f"%u0: {updates}"]
    return operations_of(_module(arguments, lines, [operand]), x, i, u)


def test_common_ones_are_the_plain_operation() -> None:
    gradient = _operations("rows", "add", zeros=True)
    assert gradient["UnsortedSegmentSum"] == 1
    assert sum(gradient.values()) <= 6
    added = _operations("rows", "add")
    assert added["TensorScatterAdd"] == 1
    assert sum(added.values()) <= 8
    replaced = _operations("rows", "replace")
    assert replaced["TensorScatterUpdate"] == 1
    assert sum(replaced.values()) <= 10
    assert not {"While", "StatelessWhile"} & set(_operations("windows in two axes", "add"))
