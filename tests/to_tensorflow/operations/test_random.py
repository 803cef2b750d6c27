"""Random bits: XLA's, word by word."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import ModuleError
from tests.to_tensorflow.operations.running import run, run_each

_WORD = 0xFFFFFFFF
_WIDTHS = {"ui32": 32, "ui64": 64, "ui16": 16, "ui8": 8}


def _generating(
    algorithm: str, element: str, sizes: tuple[int, ...], n_state: int = 2
) -> tuple[str, str]:
    """One operation, and the type of its result."""
    kind = f"tensor<{''.join(f'{size}x' for size in sizes)}{element}>"
    state = f"tensor<{n_state}xui64>"
    return (
        f"stablehlo.rng_bit_generator %state, algorithm = {algorithm} : ({state}) -> "
        f"({state}, {kind})",
        kind,
    )


def _all_of(operations: list[tuple[str, str]], n_state: int = 2) -> str:
    """A module that gives the new state and the bits of each operation."""
    state = f"tensor<{n_state}xui64>"
    lines = [f"%s{i}, %b{i} = {line}" for i, (line, _) in enumerate(operations)]
    names = ", ".join(f"%s{i}, %b{i}" for i in range(len(operations)))
    types = ", ".join(f"{state}, {kind}" for _, kind in operations)
    body = "\n".join(lines)
    return f"func.func @main(%state: {state}) -> ({types}) {{\n{body}\nreturn {names} : {types}\n}}"


def _philox_block(counter: int, key: int) -> list[int]:
    c = [counter >> shift & _WORD for shift in (0, 32, 64, 96)]
    k = [key & _WORD, key >> 32]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right >> 32 ^ c[1] ^ k[0], right & _WORD, left >> 32 ^ c[3] ^ k[1], left & _WORD]
        k = [k[0] + 0x9E3779B9 & _WORD, k[1] + 0xBB67AE85 & _WORD]
    return c


def _philox(state: np.ndarray, sizes: tuple[int, ...], width: int) -> tuple[Any, Any]:
    numbers = [int(number) for number in state]
    key, counter = numbers[0], numbers[1] + (numbers[-1 if len(numbers) == 3 else 0] << 64)
    total = int(np.prod(sizes))
    n_blocks = -(-total * (2 if width == 64 else 1) // 4)
    words = [w for i in range(n_blocks) for w in _philox_block((counter + i) % 2**128, key)]
    if width == 64:
        words = [low + (high << 32) for low, high in zip(words[::2], words[1::2], strict=True)]
    after = (counter + n_blocks) % 2**128
    halves = [after % 2**64, after >> 64]
    bits = np.array([w % 2**width for w in words[:total]], f"uint{width}").reshape(sizes)
    return np.array([key, *halves[: len(numbers) - 1]], np.uint64), bits


def _three_fry_blocks(key: int, counter: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    counts = [(counter + i) % 2**64 for i in range(total)]
    x, y = ([n >> shift & _WORD for n in counts] for shift in (0, 32))
    keys = [key & _WORD, key >> 32]
    keys.append(keys[0] ^ keys[1] ^ 0x1BD11BDA)
    x, y = [n + keys[0] & _WORD for n in x], [n + keys[1] & _WORD for n in y]
    for step in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[step % 2]:
            x = [a + b & _WORD for a, b in zip(x, y, strict=True)]
            y = [(b << r | b >> 32 - r) & _WORD ^ a for a, b in zip(x, y, strict=True)]
        x = [a + keys[(step + 1) % 3] & _WORD for a in x]
        y = [b + keys[(step + 2) % 3] + step + 1 & _WORD for b in y]
    return np.array(x, np.uint64), np.array(y, np.uint64)


def _three_fry(state: np.ndarray, sizes: tuple[int, ...], width: int) -> tuple[Any, Any]:
    key, counter = (int(number) for number in state)
    if width == 64:
        total = int(np.prod(sizes))
        low, high = _three_fry_blocks(key, counter, total)
        bits = (low | high << np.uint64(32)).reshape(sizes)
    else:
        shape = sizes or (1,)
        even = [axis for axis, size in enumerate(shape) if size % 2 == 0]
        axis = even[0] if even else int(np.argmax(shape))
        half = tuple(-(-size // 2) if i == axis else size for i, size in enumerate(shape))
        total = int(np.prod(half))
        pairs = [part.reshape(half) for part in _three_fry_blocks(key, counter, total)]
        joined = np.stack(pairs, axis + 1)
        whole = joined.reshape([2 * size if i == axis else size for i, size in enumerate(half)])
        bits = whole[tuple(slice(size) for size in shape)].reshape(sizes)
        bits = (bits % 2**width).astype(f"uint{width}")
    return np.array([key, (counter + total) % 2**64], np.uint64), bits


STATES = [
    np.array([0x0123456789ABCDEF, 77], np.uint64),
    np.array([2**64 - 5, 2**64 - 1], np.uint64),  # the counter carries over
]
SIZES: list[tuple[int, ...]] = [(), (7,), (3, 5), (3, 4), (5, 3, 1)]


@pytest.mark.parametrize("algorithm", ["PHILOX", "DEFAULT", "THREE_FRY"])
def test_words_and_states_are_xlas(algorithm: str) -> None:
    cases = [(element, sizes) for element in ("ui32", "ui64") for sizes in SIZES]
    cases += [("ui16", (3, 2)), ("ui8", (5,))]
    text = _all_of([_generating(algorithm, *case) for case in cases])
    reference = _three_fry if algorithm == "THREE_FRY" else _philox
    for state, results in zip(STATES, run_each(text, [[s] for s in STATES]), strict=True):
        found = iter(results)
        for element, sizes in cases:
            after, bits = reference(state, sizes, _WIDTHS[element])
            np.testing.assert_array_equal(next(found), after)
            np.testing.assert_array_equal(next(found), bits, f"{element} {sizes}")


def test_known_answers() -> None:
    """Compares with the bits of jax.lax.rng_bit_generator, from XLA on the CPU."""
    text = _all_of([_generating(name, "ui32", (6,)) for name in ("PHILOX", "THREE_FRY")])
    state = np.array([123456789012345, 987654321], np.uint64)
    after_philox, of_philox, after, bits = run(text, state)
    assert after_philox.tolist() == [123456789012345, 987654323]
    assert of_philox.tolist() == KNOWN_PHILOX
    assert after.tolist() == [123456789012345, 987654324]
    assert bits.tolist() == KNOWN_THREE_FRY


KNOWN_PHILOX = [415071797, 3427436099, 461868215, 1275194873, 691875981, 2353413298]
KNOWN_THREE_FRY = [3051021335, 898609572, 1406459948, 161622902, 878968531, 1962684649]


def test_counters_of_128_bits() -> None:
    text = _all_of(
        [_generating("PHILOX", "ui32", (9,), 3), _generating("PHILOX", "ui64", (), 3)], 3
    )
    states = [[7, 2**64 - 2, 9], [7, 2**64 - 1, 2**64 - 1], [2**63, 5, 6]]
    calls = [np.array(state, np.uint64) for state in states]
    for given, found in zip(calls, run_each(text, [[c] for c in calls]), strict=True):
        for i, (sizes, width) in enumerate((((9,), 32), ((), 64))):
            after, bits = _philox(given, sizes, width)
            np.testing.assert_array_equal(found[2 * i], after)
            np.testing.assert_array_equal(found[2 * i + 1], bits)


def test_signed_narrow_and_float_results_are_the_same_bits() -> None:
    elements = ["i32", "i64", "i16", "i8", "f32", "f64", "f16", "bf16"]
    state = STATES[0]
    found = run(_all_of([_generating("PHILOX", element, (10,)) for element in elements]), state)
    for element, bits in zip(elements, found[1::2], strict=True):
        _, expected = _philox(state, (10,), bits.dtype.itemsize * 8)
        np.testing.assert_array_equal(bits.view(expected.dtype), expected, element)


def test_results_of_four_bits() -> None:
    text = """
    func.func @main(%s: tensor<2xui64>) -> (tensor<9xui8>, tensor<9xi8>) {
      %0:2 = stablehlo.rng_bit_generator %s, algorithm = PHILOX
          : (tensor<2xui64>) -> (tensor<2xui64>, tensor<9xui4>)
      %1:2 = stablehlo.rng_bit_generator %s, algorithm = PHILOX
          : (tensor<2xui64>) -> (tensor<2xui64>, tensor<9xi4>)
      %2 = stablehlo.convert %0#1 : (tensor<9xui4>) -> tensor<9xui8>
      %3 = stablehlo.convert %1#1 : (tensor<9xi4>) -> tensor<9xi8>
      return %2, %3 : tensor<9xui8>, tensor<9xi8>
    }
    """
    _, expected = _philox(STATES[0], (9,), 8)
    unsigned, signed = run(text, STATES[0])
    np.testing.assert_array_equal(unsigned, expected % 16)
    np.testing.assert_array_equal(signed, [(n % 16 + 8) % 16 - 8 for n in expected.tolist()])


DYNAMIC = """
func.func @main(%state: tensor<2xui64>, %x: tensor<?x?xf32>)
    -> (tensor<2xui64>, tensor<?x?xELEMENT>) {
  %0 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x?xf32>) -> tensor<i32>
  %1 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<?x?xf32>) -> tensor<i32>
  %2 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
  %3 = stablehlo.reshape %1 : (tensor<i32>) -> tensor<1xi32>
  %4 = stablehlo.concatenate %2, %3, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %5:2 = stablehlo.custom_call @stablehlo.dynamic_rng_bit_generator(%state, %4) {
    rng_algorithm = #stablehlo<rng_algorithm ALGORITHM>
  } : (tensor<2xui64>, tensor<2xi32>) -> (tensor<2xui64>, tensor<?x?xELEMENT>)
  return %5#0, %5#1 : tensor<2xui64>, tensor<?x?xELEMENT>
}
"""


@pytest.mark.parametrize("algorithm", ["DEFAULT", "THREE_FRY"])
@pytest.mark.parametrize("element", ["ui32", "ui64"])
def test_open_sizes(algorithm: str, element: str) -> None:
    text = DYNAMIC.replace("ALGORITHM", algorithm).replace("ELEMENT", element)
    reference = _three_fry if algorithm == "THREE_FRY" else _philox
    every = ((3, 4), (2, 3), (3, 5), (5, 5), (1, 1))
    calls = [(STATES[1], np.zeros(sizes, np.float32)) for sizes in every]
    for sizes, found in zip(every, run_each(text, calls), strict=True):
        after, bits = reference(STATES[1], sizes, _WIDTHS[element])
        np.testing.assert_array_equal(found[0], after)
        np.testing.assert_array_equal(found[1], bits, f"{sizes}")


def test_numbers_without_a_key() -> None:
    # With a seed, which a page may have set before, each call gives the same numbers.
    tf.random.set_seed(None)
    kinds = {"f32": (-2.0, 3.0), "bf16": (0.0, 1.0), "i32": (-5, 9), "ui8": (3, 200)}
    lines, names, types = [], [], []
    for kind, (low, high) in kinds.items():
        lines += [
            f"%l{kind} = stablehlo.constant dense<{low}> : tensor<{kind}>",
            f"%h{kind} = stablehlo.constant dense<{high}> : tensor<{kind}>",
            f"%r{kind} = stablehlo.rng %l{kind}, %h{kind}, %shape, distribution = UNIFORM : "
            f"(tensor<{kind}>, tensor<{kind}>, tensor<2xi64>) -> tensor<20x50x{kind}>",
        ]
        names.append(f"%r{kind}")
        types.append(f"tensor<20x50x{kind}>")
    lines.append(
        "%n = stablehlo.rng %lf32, %hf32, %shape, distribution = NORMAL : "
        "(tensor<f32>, tensor<f32>, tensor<2xi64>) -> tensor<20x50xf32>"
    )
    names.append("%n")
    types.append("tensor<20x50xf32>")
    body = "\n".join(["%shape = stablehlo.constant dense<[20, 50]> : tensor<2xi64>", *lines])
    results = ", ".join(types)
    text = f"func.func @main() -> ({results}) {{\n{body}\nreturn {', '.join(names)} : {results}\n}}"
    *uniform, normal = run(text)
    again = run(text)[0]
    for found, (low, high) in zip(uniform, kinds.values(), strict=True):
        wide = found.astype(np.float64)
        assert found.shape == (20, 50)
        assert wide.min() >= low
        assert wide.max() < high
        assert abs(wide.mean() - (low + high) / 2) < (high - low) / 10
    assert abs(normal.mean() + 2) < 0.5
    assert abs(normal.std() - 3) < 0.5
    assert not np.array_equal(uniform[0], again)


def test_what_has_no_bits_is_named() -> None:
    text = """
    func.func @main() -> tensor<3xui64> {
      %0 = stablehlo.constant dense<0> : tensor<ui64>
      %1 = stablehlo.constant dense<9> : tensor<ui64>
      %2 = stablehlo.constant dense<3> : tensor<1xi64>
      %3 = stablehlo.rng %0, %1, %2, distribution = UNIFORM
          : (tensor<ui64>, tensor<ui64>, tensor<1xi64>) -> tensor<3xui64>
      return %3 : tensor<3xui64>
    }
    """
    with pytest.raises(ModuleError, match=r"stablehlo\.rng.*UNIFORM numbers of ui64"):
        run(text)
