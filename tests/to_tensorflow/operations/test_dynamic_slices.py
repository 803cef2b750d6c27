"""dynamic_slice and dynamic_update_slice, whose starts are moved into the array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.to_tensorflow.operations.running import run
from tests.to_tensorflow.operations.test_gather import tensor

# The array's sizes, the slice's sizes, the starts.
CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = (
    ((5, 3), (1, 3), (2, 0)),
    ((5, 3), (1, 3), (-2, 1)),
    ((5, 3), (1, 3), (9, 0)),
    ((5, 3), (5, 1), (0, 2)),
    ((5, 3), (2, 3), (4, 0)),
    ((5, 3), (2, 2), (1, 1)),
    ((5, 3), (2, 2), (7, -1)),
    ((5, 3), (5, 3), (2, 2)),
    ((5, 3), (0, 3), (2, 2)),
    ((5, 3, 4), (2, 3, 2), (1, 0, 3)),
    ((5, 3, 4), (5, 1, 4), (1, 1, 3)),
    ((0, 3), (0, 2), (1, 1)),
    ((70000, 1), (3, 1), (69998, 0)),
    ((700, 3, 40), (2, 3, 7), (17, 0, 38)),
    ((700, 3, 40), (700, 1, 7), (17, 1, 38)),
    ((), (), ()),
)


def _inside(sizes: Sequence[int], lengths: Sequence[int], starts: Sequence[int]) -> Any:
    first = [
        max(0, min(start, size - length))
        for size, length, start in zip(sizes, lengths, starts, strict=True)
    ]
    return tuple(slice(f, f + length) for f, length in zip(first, lengths, strict=True))


def _text(element: str = "f32", index: str = "i32", known: bool = False) -> str:
    arguments, lines, results, types = [], [], [], []
    for n, (sizes, lengths, starts) in enumerate(CASES):
        whole, part = tensor(sizes, element), tensor(lengths, element)
        arguments += [f"%x{n}: {whole}", f"%u{n}: {part}"]
        names = [f"%s{n}_{i}" for i in range(len(starts))]
        if known:
            lines += [
                f"{name} = stablehlo.constant dense<{start}> : tensor<{index}>"
                for name, start in zip(names, starts, strict=True)
            ]
        else:
            arguments += [f"{name}: tensor<{index}>" for name in names]
        kinds = ", ".join([whole, *(f"tensor<{index}>" for _ in names)])
        updates = ", ".join([whole, part, *(f"tensor<{index}>" for _ in names)])
        numbers = ", ".join(map(str, lengths))
        lines += [
            f'%a{n} = "stablehlo.dynamic_slice"({", ".join([f"%x{n}", *names])}) '
            f"<{{slice_sizes = array<i64{': ' if numbers else ''}{numbers}>}}> : "
            f"({kinds}) -> {part}",
            f'%b{n} = "stablehlo.dynamic_update_slice"({", ".join([f"%x{n}", f"%u{n}", *names])}) '
            f": ({updates}) -> {whole}",
        ]
        results += [f"%a{n}", f"%b{n}"]
        types += [part, whole]
    return (
        f"func.func public @main({', '.join(arguments)}) -> ({', '.join(types)}) {{\n"
        + "\n".join(lines)
        + f"\nreturn {', '.join(results)} : {', '.join(types)}\n}}"
    )


def _check(known: bool) -> None:
    arguments: list[Any] = []
    expected = []
    for sizes, lengths, starts in CASES:
        whole = np.arange(np.prod(sizes)).reshape(sizes).astype(np.float32)
        part = -1 - np.arange(np.prod(lengths)).reshape(lengths).astype(np.float32)
        arguments += [whole, part, *([] if known else [np.int32(start) for start in starts])]
        place = _inside(sizes, lengths, starts)
        written = whole.copy()
        written[place] = part
        expected += [whole[place], written]
    found = run(_text(known=known), *arguments)
    for n, (result, wanted) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(result, wanted, str(CASES[n // 2]), strict=True)


def test_starts_that_are_computed() -> None:
    _check(known=False)


def test_starts_that_are_known() -> None:
    _check(known=True)


def test_updates_of_a_constant_that_repeats_one_element() -> None:
    text = """func.func public @main(%u: tensor<2x2x1xf32>, %i: tensor<i32>, %z: tensor<i32>)
        -> (tensor<5x4x3xf32>, tensor<2x2x1xf32>) {
      %x = stablehlo.constant dense<7.0> : tensor<5x4x3xf32>
      %r = stablehlo.dynamic_update_slice %x, %u, %i, %z, %i
        : (tensor<5x4x3xf32>, tensor<2x2x1xf32>, tensor<i32>, tensor<i32>, tensor<i32>)
        -> tensor<5x4x3xf32>
      %s = stablehlo.dynamic_slice %x, %i, %z, %i, sizes = [2, 2, 1]
        : (tensor<5x4x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<2x2x1xf32>
      return %r, %s : tensor<5x4x3xf32>, tensor<2x2x1xf32>
    }"""
    update = np.arange(4, dtype=np.float32).reshape(2, 2, 1)
    wanted = np.full((5, 4, 3), 7, np.float32)
    wanted[2:4, 1:3, 2:3] = update
    found = run(text, update, np.int32(2), np.int32(1))
    np.testing.assert_array_equal(found[0], wanted)
    np.testing.assert_array_equal(found[1], np.full((2, 2, 1), 7))
