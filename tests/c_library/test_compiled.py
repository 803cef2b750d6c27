"""Compiled libraries give JAX's results, in Python and in C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jax2tf_bridge import Padding, Signature, compile_library, load_library
from jax2tf_bridge.errors import DTypeError, FileFormatError, ShapeError, StructureError

RNG = np.random.default_rng(0)
PARAMS = {
    "w": RNG.normal(size=(28, 8)).astype(np.float32),
    "v": RNG.normal(size=(8, 10)).astype(np.float32),
}
X = RNG.normal(size=(8, 28)).astype(np.float32)
ALL = RNG.normal(size=(5, 28)).astype(np.float32)


def classify(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["w"])
    top = jax.lax.top_k(hidden, 3)
    order = jnp.argsort(hidden[:, :5], axis=1)
    return {"scores": jax.nn.softmax(hidden @ params["v"]), "top": top[1], "order": order}


def sensitivity(params: Any, x: Any) -> Any:
    """The gradient of a loss by its input."""
    return {"gradient": jax.grad(lambda x: jnp.sum(jnp.tanh(x * params["w"][:, 0]) ** 2))(x)}


def convert(flag: Any, half: Any, count: Any, wave: Any, step: Any) -> Any:
    return {
        "flags": ~flag,
        "half": half * 2,
        "count": jnp.cumsum(count),
        "wave": wave * 1j,
        "step": step + 1,
        "none": count[:0],
        "wide": half.astype(jnp.float16) + jnp.float16(1),
        "narrow": count.astype(jnp.bfloat16),
    }


def pool(x: Any, mask: Any) -> Any:
    total = jnp.sum(jnp.where(mask, x, 0), axis=1)
    return {"mean": total / jnp.sum(mask, axis=1), "doubled": x * 2}


CONVERTED: dict[str, Any] = {
    "flag": np.array([True, False, True]),
    "half": np.array([[1.5], [-2]], ml_dtypes.bfloat16),
    "count": np.array([1, 2, 3], np.int32),
    "wave": np.array([1 + 2j], np.complex64),
    "step": np.float32(3),
}


def compare(actual: Any, expected: Any) -> None:
    assert set(actual) == set(expected)
    for name, value in expected.items():
        wanted = np.asarray(value)
        assert (actual[name].dtype, actual[name].shape) == (wanted.dtype, wanted.shape), name
        if wanted.dtype.kind in "biu":
            np.testing.assert_array_equal(actual[name], wanted, err_msg=name)
        else:
            kind = complex if wanted.dtype.kind == "c" else float
            np.testing.assert_allclose(
                actual[name].astype(kind), wanted.astype(kind), 2e-5, 1e-5, err_msg=name
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.mark.slow
def test_sizes_and_signatures_share_weights_in_a_file(folder: Path) -> None:
    signatures = {
        "classify": Signature(classify, args=[X], polymorphic_shapes="(b, 28)"),
        "sensitivity": Signature(sensitivity, args=[X], polymorphic_shapes="(b, 28)"),
    }
    compiled = compile_library(
        folder / "net_lib",
        signatures,
        params=PARAMS,
        sizes=[{"b": 5}, {"b": 1}],
        weights="separate",
        shared=True,
    )
    assert compiled.weights_bytes == 64 + 28 * 8 * 4 + 8 * 10 * 4
    assert compiled.shared is not None
    assert compiled.shared.stat().st_size < 1_000_000
    weights = folder / "net_lib" / "net.weights"
    library = load_library(compiled.shared, weights=weights)
    for x in (ALL, ALL[:1]):
        compare(library["classify"](x=x), jax.jit(classify)(PARAMS, x))
        compare(library["classify"](x=_copy_unaligned(x)), jax.jit(classify)(PARAMS, x))
        compare(library["sensitivity"](x=x), jax.jit(sensitivity)(PARAMS, x))
    with pytest.raises(KeyError, match=r"no signature 'clasify': did you mean 'classify'\?"):
        library["clasify"]
    with pytest.raises(ShapeError, match=r"^classify is not compiled for b=2\. Its sizes: b=1 or"):
        library["classify"](x=ALL[:2])
    with pytest.raises(ShapeError, match=r"^classify: x: expected shape \(b, 28\), got \(2, 27\)"):
        library["classify"](x=ALL[:2, 1:])
    with pytest.raises(DTypeError, match=r"expected float32, got float64\. Pass x\.astype\('float"):
        library["classify"](x=ALL.astype(np.float64))
    with pytest.raises(StructureError, match="the input 'x' is missing"):
        library["classify"]()
    with pytest.raises(StructureError, match=r"Call one of them, as library\['classify'\]"):
        library(x=ALL)
    with pytest.raises(FileFormatError, match=r"are in a file\. Pass its path"):
        load_library(compiled.shared)
    damaged = folder / "damaged.weights"
    damaged.write_bytes(b"\0" + weights.read_bytes()[1:])
    with pytest.raises(FileFormatError, match="has other weights than net"):
        load_library(compiled.shared, weights=damaged)
    damaged.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(FileFormatError, match=r"has 1279 bytes; the weights of net have 1280"):
        load_library(compiled.shared, weights=damaged)
    for place in (64, 500, 1279):
        content = bytearray(weights.read_bytes())
        content[place] ^= 4
        damaged.write_bytes(content)
        with pytest.raises(FileFormatError) as raised:
            load_library(compiled.shared, weights=damaged)
        assert str(raised.value) == (
            f"{damaged} is damaged: its values do not fit its checksum. Copy it anew."
        )
    _check_threads(lambda: load_library(compiled.shared or "", weights=weights)["classify"])


def _copy_unaligned(x: Any) -> Any:
    """Copies an array to an address that is a multiple of 4, but not of 8."""
    memory = np.empty(x.nbytes + 64, np.uint8)
    start = (4 - memory.ctypes.data) % 64
    copied = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copied[...] = x
    return copied


def _check_threads(make: Callable[[], Any]) -> None:
    """Each of eight threads has its own handle."""
    expected = jax.jit(classify)(PARAMS, ALL)
    problems = []

    def work(seed: int) -> None:
        function = make()
        try:
            for i in range(20):
                row = (seed + 13 * i) % len(ALL)
                compare(
                    function(x=ALL[row : row + 1]),
                    {name: np.asarray(value)[row : row + 1] for name, value in expected.items()},
                )
        except AssertionError as e:
            problems.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


@pytest.mark.slow
def test_dtypes_scalars_and_empty_results(folder: Path) -> None:
    signature = Signature(convert, args=list(CONVERTED.values()))
    # C has a function of this name.
    compiled = compile_library(folder / "exp", signature, shared=True)
    assert compiled.shared is not None
    library = load_library(compiled.shared)
    expected = jax.jit(convert)(*CONVERTED.values())
    compare(library(**CONVERTED), expected)
    swapped = {n: v.astype(v.dtype.newbyteorder()) for n, v in CONVERTED.items() if n != "half"}
    compare(library(**{**CONVERTED, **swapped}), expected)
    numbers = {"flag": [True, False, True], "count": [1, 2, 3], "wave": [1 + 2j], "step": 3}
    compare(library(**{**CONVERTED, **numbers}), expected)
    for wrong, text in {
        (1.5, 2, 3): r"count: expected int32, got float64\. Pass np\.asarray\(count, 'int32'\)\.$",
        (1, 2, 2**31): r"count: int32 does not hold 2147483648\. Pass numbers that it holds\.$",
        (1, 2, 2**70): r"count: expected int32, got object\. Pass numbers that int32 holds\.$",
    }.items():
        with pytest.raises(DTypeError, match=text):
            library(**{**CONVERTED, "count": wrong})
    with pytest.raises(
        ShapeError, match=r"count: its lists have different lengths\. Pass lists of"
    ):
        library(**{**CONVERTED, "count": [[1], [2, 3]]})


@pytest.mark.slow
def test_padding_fills_masks_and_cuts_results(folder: Path) -> None:
    x = RNG.normal(size=(3, 5)).astype(np.float32)
    signature = Signature(
        pool,
        args=[x, np.ones((3, 5), bool)],
        polymorphic_shapes=("(b, n)", "(b, n)"),
        padding=Padding(buckets={"b": [4], "n": [8, 16]}, mask="mask"),
    )
    compiled = compile_library(folder / "pool_lib", signature, shared=True)
    assert compiled.signatures["serving_default"] == ({"b": 4, "n": 8}, {"b": 4, "n": 16})
    assert compiled.shared is not None
    library = load_library(compiled.shared)
    for rows, columns in ((3, 5), (4, 8), (1, 16), (0, 3)):
        x = RNG.normal(size=(rows, columns)).astype(np.float32)
        compare(library(x=x), jax.jit(pool)(x, np.ones_like(x, bool)))
    with pytest.raises(ShapeError, match=r"not compiled for b=5,n=2\. Its sizes: b=4,n=8 or"):
        library(x=np.ones((5, 2), np.float32))


def convolve(x: Any, k: Any, **options: Any) -> Any:
    options = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME", **options}
    spatial = "DHW"[5 - x.ndim :]
    numbers = f"N{spatial}C", f"{spatial}IO", f"N{spatial}C"
    return jax.lax.conv_general_dilated(x, k, **options, dimension_numbers=numbers)


def multiply(
    images: Any, kernel: Any, left: Any, right: Any, long: Any, large: Any, small: Any
) -> Any:
    """Products and convolutions of every kind that programs leave to the runtime."""
    wave = jax.lax.complex(left, 2 * left)
    return {
        "plain": convolve(images, kernel),
        "strided": convolve(images, kernel, window_strides=(2, 3), padding=((2, 0), (1, 4))),
        "dilated": convolve(images, kernel, rhs_dilation=(2, 1), padding="VALID"),
        "transposed": convolve(images, kernel, lhs_dilation=(2, 2), padding=((1, 1), (1, 0))),
        "grouped": convolve(images, kernel[:, :, :3], feature_group_count=2),
        "line": convolve(images[:, 0], kernel[0]),
        "product": left @ right,
        "transposed product": left.T @ right.T,
        "long": long.T @ long,
        "large": convolve(large, kernel[:, :, :1]),
        "complex": wave @ right,
        "integers": jnp.dot(small, small, preferred_element_type=jnp.int32),
    }


def _draw_factors() -> list[Any]:
    shapes = (2, 7, 9, 6), (3, 2, 6, 38), (45, 45), (45, 45), (900, 21), (1, 60, 80, 1)
    floats = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    return [*floats, RNG.integers(-9, 9, (40, 40)).astype(np.int8)]


def multiply_much(images: Any, kernel: Any, left: Any, right: Any, tall: Any) -> Any:
    """Products and convolutions that are large enough for several threads."""
    return {
        "image": convolve(images, kernel),
        "wide": right @ left,
        "tall": tall @ left,
        "small": convolve(images[:, :3], kernel),
    }


def _draw_many_factors() -> list[Any]:
    shapes = (2, 31, 29, 6), (3, 3, 6, 38), (64, 130), (90, 64), (301, 64)
    return [RNG.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "factors", "multithreading"),
    [(multiply, _draw_factors(), False), (multiply_much, _draw_many_factors(), True)],
)
def test_products_and_convolutions(
    folder: Path, function: Any, factors: list[Any], multithreading: bool
) -> None:
    signature = Signature(function, args=factors)
    library = compile_library(
        folder / function.__name__, signature, multithreading=multithreading, shared=True
    )
    assert library.shared is not None
    assert library.shared.stat().st_size < 200_000
    loaded = load_library(library.shared)
    names = loaded.signatures["serving_default"].inputs
    answers = loaded(**dict(zip(names, factors, strict=True)))
    for key, expected in jax.jit(function)(*factors).items():
        np.testing.assert_allclose(
            answers[key.replace(" ", "_")], expected, 1e-4, 1e-4, err_msg=key
        )
