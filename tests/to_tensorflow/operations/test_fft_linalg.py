"""Fourier transforms and linear algebra agree with numpy; NaN is where there are no factors."""

import string
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge.errors import ModuleError
from tests.to_tensorflow.operations.running import run

_NUMPY: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}
_ELEMENTS = tuple(_NUMPY)
_TOLERANCE = {"f32": 1e-5, "complex<f32>": 1e-5, "f64": 1e-12, "complex<f64>": 1e-12}


def _random(element: str, *shape: int) -> Any:
    rng = np.random.default_rng(sum(shape))
    imaginary = 1j * rng.standard_normal(shape) if "complex" in element else 0
    return (rng.standard_normal(shape) + imaginary).astype(_NUMPY[element])


def _adjoint(a: Any) -> Any:
    return np.conj(np.swapaxes(a, -1, -2))


def _type(shape: Sequence[int | str], element: str) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, element)))}>"


class _Module:
    """Text of a module: operations of the arguments, which all are results."""

    def __init__(self) -> None:
        self.arguments: list[str] = []
        self.results: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.functions = ""
        self.values: list[Any] = []

    def argument(self, value: Any, type: str) -> str:
        name = f"%a{len(self.values)}"
        self.arguments.append(f"{name}: {type}")
        self.values.append(value)
        return name

    def operation(self, text: str, *types: str) -> None:
        """Adds an operation without the names of its results."""
        name = f"%r{len(self.lines)}"
        count = f":{len(types)}" if len(types) > 1 else ""
        self.lines.append(f"{name}{count} = {text}")
        places = [f"{name}#{i}" for i in range(len(types))] if count else [name]
        self.results += zip(places, types, strict=True)

    def run(self) -> list[Any]:
        """Runs it; the open sizes are all different."""
        types = ", ".join(type for _, type in self.results)
        names = ", ".join(name for name, _ in self.results)
        lines = "\n".join(self.lines)
        text = (
            f"module {{\nfunc.func @main({', '.join(self.arguments)}) -> ({types}) {{\n{lines}\n"
            f"return {names} : {types}\n}}\n{self.functions}}}"
        )
        symbols = (f"{letter}{i}" for letter in string.ascii_letters for i in range(9))
        return run(text, *self.values, symbols=tuple(symbols))


def test_transforms() -> None:
    """All four, over one to three axes, of odd and even lengths, with an open batch."""
    module, expected = _Module(), []
    for real, full in (("f32", "complex<f32>"), ("f64", "complex<f64>")):
        for lengths in ((6,), (5,), (4, 5), (3, 4), (2, 3, 4)):
            half = (*lengths[:-1], lengths[-1] // 2 + 1)
            axes = tuple(range(1, len(lengths) + 1))
            for kind, taken, made, sizes in (
                ("FFT", full, full, (lengths, lengths)),
                ("IFFT", full, full, (lengths, lengths)),
                ("RFFT", real, full, (lengths, half)),
                ("IRFFT", full, real, (half, lengths)),
            ):
                types = _type(("?", *sizes[0]), taken), _type(("?", *sizes[1]), made)
                value = _random(taken, 2, *sizes[0])
                if kind == "IRFFT":  # of a real signal
                    value = np.fft.rfftn(_random(real, 2, *lengths), axes=axes)
                    value = value.astype(_NUMPY[full])
                name = module.argument(value, types[0])
                module.operation(
                    f"stablehlo.fft {name}, type = {kind}, length = {list(lengths)}"
                    f" : ({types[0]}) -> {types[1]}",
                    types[1],
                )
                function = getattr(np.fft, f"{kind.lower()}n")
                extra = {"s": lengths} if kind == "IRFFT" else {}
                expected.append((kind, made, function(value, axes=axes, **extra)))
    for (kind, made, wanted), found in zip(expected, module.run(), strict=True):
        assert found.dtype == _NUMPY[made]
        np.testing.assert_allclose(found, wanted, atol=10 * _TOLERANCE[made], err_msg=kind)


def _definite(element: str, *shape: int) -> Any:
    a = _random(element, *shape, shape[-1])
    return (a @ _adjoint(a) + np.eye(shape[-1])).astype(_NUMPY[element])


@pytest.mark.costly
def test_cholesky() -> None:
    """Both triangles, of which the other one is not read."""
    module, expected = _Module(), []
    for element in _ELEMENTS:
        for lower in (True, False):
            a = _definite(element, 2, 4)
            factor = np.linalg.cholesky(a)
            expected.append((element, factor if lower else _adjoint(factor)))
            unread = np.triu(np.full((4, 4), np.nan), 1)
            type = _type(("?", 4, 4), element)
            # NaN times 0 is NaN: chosen, not multiplied.
            a = np.where(np.isnan(unread if lower else unread.T), np.nan, a).astype(a.dtype)
            name = module.argument(a, type)
            module.operation(
                f"stablehlo.cholesky {name}, lower = {str(lower).lower()} : {type}", type
            )
    for (element, wanted), found in zip(expected, module.run(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=10 * _TOLERANCE[element])


def test_matrices_without_a_factor() -> None:
    """A matrix that is not positive definite has NaN and spares the others; nothing fails."""
    type = _type(("?", 3, 3), "f32")
    module = _Module()
    fine, nearly = _definite("f32", 3), np.diag([1.0, 1e-9, 1.0]).astype(np.float32)
    bad = [-fine, np.zeros((3, 3)), np.full((3, 3), np.nan), np.diag([1.0, 1.0, -1e-3])]
    matrices = np.stack([fine, nearly, *bad]).astype(np.float32)
    name = module.argument(matrices, type)
    module.operation(f"stablehlo.cholesky {name}, lower = true : {type}", type)
    (found,) = module.run()
    np.testing.assert_allclose(found[:2], np.linalg.cholesky(matrices[:2]), atol=1e-5)
    below = np.tril_indices(3)
    assert np.isnan(found[2:, below[0], below[1]]).all()
    assert not np.triu(found, 1).any()


def test_triangular_solve() -> None:
    """All flags, for complex matrices; the other triangle is not read."""
    module, expected = _Module(), []
    type = _type(("?", 3, 3), "complex<f32>")
    a, b = _random("complex<f32>", 2, 3, 3) + 3 * np.eye(3), _random("complex<f32>", 2, 3, 3)
    a = a.astype(np.complex64)
    names = module.argument(a, type), module.argument(b, type)
    for transpose in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
        for left in (True, False):
            for lower in (True, False):
                for unit in (True, False):
                    flags = {"left_side": left, "lower": lower, "unit_diagonal": unit}
                    text = ", ".join(f"{key} = {str(x).lower()}" for key, x in flags.items())
                    module.operation(
                        f'"stablehlo.triangular_solve"({", ".join(names)}) <{{{text}, '
                        f"transpose_a = #stablehlo<transpose {transpose}>}}>"
                        f" : ({type}, {type}) -> {type}",
                        type,
                    )
                    half = np.tril(a) if lower else np.triu(a)
                    if unit:
                        half = half * (1 - np.eye(3)) + np.eye(3)
                    if transpose != "NO_TRANSPOSE":
                        half = np.swapaxes(half, -1, -2)
                    half = np.conj(half) if transpose == "ADJOINT" else half
                    inverse = np.linalg.inv(half)
                    expected.append(inverse @ b if left else b @ inverse)
    for wanted, found in zip(expected, module.run(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_narrow_matrices_are_computed_as_float32(element: str) -> None:
    """The result is the one of float32, rounded once."""
    dtype = np.dtype(np.float16) if element == "f16" else np.dtype(ml_dtypes.bfloat16)
    module = _Module()
    type = _type(("?", 3, 3), element)
    a, b = _random("f32", 2, 3, 3), _random("f32", 2, 3, 3).astype(dtype)
    a = (a @ np.swapaxes(a, -1, -2) + 3 * np.eye(3)).astype(dtype)
    name, other = module.argument(a, type), module.argument(b, type)
    module.operation(f"stablehlo.cholesky {name}, lower = true : {type}", type)
    module.operation(
        f'"stablehlo.triangular_solve"({name}, {other}) <{{left_side = true, lower = true, '
        "unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}> "
        f": ({type}, {type}) -> {type}",
        type,
    )
    factor, solution = module.run()
    wide = a.astype(np.float32)
    expected = np.linalg.cholesky(wide), np.linalg.inv(np.tril(wide)) @ b.astype(np.float32)
    for found, array in zip((factor, solution), expected, strict=True):
        assert found.dtype == dtype
        eps = 2.0 ** (-10 if element == "f16" else -7)
        np.testing.assert_allclose(found.astype(np.float32), array, rtol=eps, atol=eps)


def _composite(
    module: _Module, name: str, a: Any, element: str, attributes: str, *results: str
) -> None:
    """Calls a composite, whose decomposition gives nothing that could be mistaken for it."""
    type = _type(("?", *a.shape[1:]), element)
    function = f"@f{len(module.lines)}"
    argument = module.argument(a, type)
    made = ", ".join(results)
    lines = []
    for i, result in enumerate(results):
        target = f'"stablehlo.custom_call"() <{{call_target_name = "none"}}> : () -> {result}'
        lines.append(f"%{i} = {target}")
    names = ", ".join(f"%{i}" for i in range(len(results)))
    body = "\n".join(lines)
    module.functions += (
        f"func.func private {function}(%x: {type}) -> ({made}) {{\n"
        f"{body}\nreturn {names} : {made}\n}}\n"
    )
    module.operation(
        f'stablehlo.composite "{name}" {argument} {{composite_attributes = {{{attributes}}}, '
        f"decomposition = {function}}} : ({type}) -> ({made})",
        *results,
    )


def _real(element: str) -> str:
    return element.removeprefix("complex<").removesuffix(">")


@pytest.mark.costly
def test_composites() -> None:
    """Factors make the matrix again, and are what they have to be; open batches."""
    module = _Module()
    cases = [(element, 4, 4) for element in _ELEMENTS]
    cases += [("f32", 5, 3), ("complex<f32>", 5, 3), ("f32", 3, 5)]
    for element, m, n in cases:
        a, k, real = _random(element, 2, m, n), min(m, n), _real(element)
        batch = "?"
        _composite(
            module,
            "jax2tf.qr",
            a,
            element,
            "full_matrices = false",
            _type((batch, m, k), element),
            _type((batch, k, n), element),
        )
        _composite(
            module,
            "jax2tf.svd",
            a,
            element,
            "compute_uv = true, full_matrices = true",
            _type((batch, k), real),
            _type((batch, m, m), element),
            _type((batch, n, n), element),
        )
        _composite(
            module,
            "jax2tf.svd",
            a,
            element,
            "compute_uv = false, full_matrices = false",
            _type((batch, k), real),
        )
        _composite(
            module,
            "jax2tf.lu",
            a,
            element,
            "",
            _type((batch, m, n), element),
            _type((batch, k), "i32"),
            _type((batch, m), "i32"),
        )
    found = iter(module.run())
    for element, m, n in cases:
        a, k, close = _random(element, 2, m, n), min(m, n), 20 * _TOLERANCE[element]
        q, r = next(found), next(found)
        np.testing.assert_allclose(q @ r, a, atol=close)
        np.testing.assert_allclose(
            _adjoint(q) @ q, np.broadcast_to(np.eye(k), (2, k, k)), atol=close
        )
        assert not np.tril(r, -1).any()
        s, u, vh, alone = (next(found) for _ in range(4))
        np.testing.assert_allclose((u[..., :k] * s[:, None]) @ vh[:, :k], a, atol=close)
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=close)
        np.testing.assert_allclose(alone, s, atol=close)
        factors, pivots, permutation = next(found), next(found), next(found)
        lower = np.tril(factors, -1)[:, :, :k] + np.eye(m, k)
        upper = np.triu(factors)[:, :k]
        for i in range(2):
            np.testing.assert_allclose(lower[i] @ upper[i], a[i][permutation[i]], atol=close)
            rows = np.arange(m)
            for step, place in enumerate(pivots[i]):
                rows[[step, place]] = rows[[place, step]]
            np.testing.assert_array_equal(rows, permutation[i])
        # Partial pivoting; large complex matrices are measured in another way.
        assert np.abs(lower.real).max() <= 1.0001 or "complex" in element


def test_eigenvectors() -> None:
    """Compares Hermitian matrices, by either triangle, and others; NaN stays in its matrix."""
    module, expected = _Module(), []
    for element in _ELEMENTS:
        h = _random(element, 2, 4, 4)
        h = (h + _adjoint(h)).astype(h.dtype)
        for lower in (True, False):
            half = np.tril(h) if lower else np.triu(h)
            _composite(
                module,
                "jax2tf.eigh",
                half.astype(h.dtype),
                element,
                f"lower = {str(lower).lower()}",
                _type(("?", 4, 4), element),
                _type(("?", 4), _real(element)),
            )
            expected.append((element, h))
    a = _random("f64", 2, 4, 4)
    both = "compute_left_eigenvectors = false, compute_right_eigenvectors = true"
    _composite(
        module,
        "jax2tf.eig",
        a,
        "f64",
        both,
        _type(("?", 4), "complex<f64>"),
        _type(("?", 4, 4), "complex<f64>"),
    )
    broken = np.stack([np.full((2, 2), np.nan), np.eye(2)])
    _composite(
        module,
        "jax2tf.eigh",
        broken,
        "f64",
        "lower = true",
        _type(("?", 2, 2), "f64"),
        _type(("?", 2), "f64"),
    )
    found = iter(module.run())
    for element, h in expected:
        vectors, values = next(found), next(found)
        close = 20 * _TOLERANCE[element]
        np.testing.assert_allclose(h @ vectors, vectors * values[:, None], atol=close)
        np.testing.assert_allclose(values, np.linalg.eigvalsh(h), atol=close)
    values, vectors = next(found), next(found)
    np.testing.assert_allclose(a @ vectors, vectors * values[:, None], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1)
    vectors, values = next(found), next(found)
    assert np.isnan(vectors[0]).all()
    assert np.isnan(values[0]).all()
    np.testing.assert_allclose(values[1], 1)


def test_singular_matrices() -> None:
    """LU of a singular matrix has a 0 in U, where TensorFlow's kernel fails."""
    module = _Module()
    a = np.array([[[1, 2, 3], [2, 4, 6], [1, 1, 1]], np.zeros((3, 3))], np.float32)
    _composite(
        module,
        "jax2tf.lu",
        a,
        "f32",
        "",
        _type(("?", 3, 3), "f32"),
        _type(("?", 3), "i32"),
        _type(("?", 3), "i32"),
    )
    factors, _, permutation = module.run()
    for i in range(2):
        lower = np.tril(factors[i], -1) + np.eye(3)
        np.testing.assert_allclose(lower @ np.triu(factors[i]), a[i][permutation[i]], atol=1e-6)
    assert factors[0, 2, 2] == 0


def test_householder_reflectors() -> None:
    """XLA's Qr gives R and reflectors, of which its other call makes Q."""
    module = _Module()
    for element in _ELEMENTS:
        type, taus = _type((2, 5, 3), element), _type((2, 3), element)
        name = module.argument(_random(element, 2, 5, 3), type)
        module.operation(
            f"stablehlo.custom_call @Qr({name}) : ({type}) -> ({type}, {taus})", type, taus
        )
        packed = f"%r{len(module.lines) - 1}"
        module.operation(
            "stablehlo.custom_call @ProductOfElementaryHouseholderReflectors"
            f"({packed}#0, {packed}#1) : ({type}, {taus}) -> {type}",
            type,
        )
    found = iter(module.run())
    for element in _ELEMENTS:
        packed, taus, q = (next(found) for _ in range(3))
        close = 20 * _TOLERANCE[element]
        np.testing.assert_allclose(
            q @ np.triu(packed)[:, :3], _random(element, 2, 5, 3), atol=close
        )
        np.testing.assert_allclose(
            _adjoint(q) @ q, np.broadcast_to(np.eye(3), (2, 3, 3)), atol=close
        )
        # The first reflector, by its definition.
        for i in range(2):
            v = np.concatenate([[1], packed[i, 1:, 0]])
            first = np.eye(5) - taus[i, 0] * np.outer(v, np.conj(v))
            np.testing.assert_allclose(
                _adjoint(first) @ _random(element, 2, 5, 3)[i][:, 0],
                packed[i, 0, 0] * np.eye(5)[0],
                atol=close,
            )


def test_lapack_calls() -> None:
    """JAX's calls of LAPACK on CPUs are the same factorizations."""
    module = _Module()
    a = _definite("f32", 4)
    type, vector, info = _type((4, 4), "f32"), _type((4,), "f32"), "tensor<i32>"
    name = module.argument(a, type)

    def call(routine: str, config: str, operands: str, taken: str, *results: str) -> None:
        module.operation(
            f"stablehlo.custom_call @lapack_s{routine}_ffi({operands}) {{api_version = 4 : i32, "
            f"backend_config = {{{config}}}}} : ({taken}) -> ({', '.join(results)})",
            *results,
        )

    call("potrf", f"uplo = {ord('U')} : ui8", name, type, type, info)
    call("getrf", "", name, type, type, "tensor<4xi32>", info)
    mode = f"uplo = {ord('L')} : ui8, mode = {ord('V')} : ui8"
    call("syevd", mode, name, type, type, vector, info)
    call("gesdd", f"mode = {ord('S')} : ui8", name, type, type, vector, type, type, info)
    call("geqrf", "", name, type, type, vector)
    call("orgqr", "", "%r4#0, %r4#1", f"{type}, {vector}", type)
    flags = {"side": "R", "uplo": "L", "trans_x": "T", "diag": "N"}
    text = ", ".join(f"{key} = {ord(x)} : ui8" for key, x in flags.items())
    call("trsm", text, f"{name}, {name}", f"{type}, {type}", type)
    found = module.run()
    np.testing.assert_allclose(found[0], np.linalg.cholesky(a).T, atol=1e-4)
    assert found[1] == 0
    np.testing.assert_array_equal(found[3] >= 1, True)
    np.testing.assert_allclose(found[6], np.linalg.eigvalsh(a), rtol=1e-4)
    np.testing.assert_allclose((found[10] * found[9]) @ found[11], a, atol=1e-4)
    np.testing.assert_allclose(found[15] @ np.triu(found[13]), a, atol=1e-4)
    np.testing.assert_allclose(found[16] @ np.tril(a).T, a, atol=1e-3)


def test_dtypes_without_a_kernel() -> None:
    """A matrix of 8 bits is refused by name."""
    text = """func.func @main(%a: tensor<2x2xf8E4M3FN>) -> tensor<2x2xf8E4M3FN> {
      %0 = stablehlo.cholesky %a, lower = true : tensor<2x2xf8E4M3FN>
      return %0 : tensor<2x2xf8E4M3FN>
    }"""
    with pytest.raises(ModuleError, match=r"stablehlo\.cholesky.*matrices of f8E4M3FN"):
        run(text, np.eye(2).astype(ml_dtypes.float8_e4m3fn))
