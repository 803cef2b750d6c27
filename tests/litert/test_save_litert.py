"""save_litert(): names, open sizes, shared weights, quantisation, and what its errors say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import (
    Padding,
    Signature,
    Target,
    export,
    inspect,
    save,
    save_litert,
    write_function,
)
from jax2tf_bridge.errors import (
    DTypeError,
    SavingError,
    ShapeError,
    StructureError,
    UnsupportedByTargetError,
)

# Private: answers that LiteRT does not give are judged.
from jax2tf_bridge.litert import LiteRTModel, _checks
from jax2tf_bridge.litert._checks import Answers, check_answers
from jax2tf_bridge.signatures import ServedArray, make_example
from tests.comparing.cancelling import IDS, cancel
from tests.comparing.cancelling import X as CANCELLING
from tests.litert.running import interpreter

RANDOM = np.random.default_rng(0)
WIDTH = 64
PARAMS = {
    "dense": {
        "kernel": RANDOM.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32),
        "bias": RANDOM.normal(0, 0.1, WIDTH).astype(np.float32),
    }
}
X = RANDOM.normal(size=(4, WIDTH)).astype(np.float32)
WEIGHT_BYTES = 4 * WIDTH * (WIDTH + 1)


def classify(params: Any, x: Any) -> Any:
    dense = params["dense"]
    return {"probabilities": jax.nn.softmax(x @ dense["kernel"] + dense["bias"])}


def embed(params: Any, x: Any, scale: Any) -> Any:
    return jnp.tanh(x @ params["dense"]["kernel"]) * scale


SIGNATURES = {
    "classify": Signature(classify, args=[X], polymorphic_shapes="(b, ...)"),
    "embed": Signature(embed, args=[X, np.float32(2)], polymorphic_shapes=["(b, ...)", None]),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> LiteRTModel:
    path = tmp_path_factory.mktemp("litert") / "two.tflite"
    return save_litert(path, SIGNATURES, params=PARAMS)


@pytest.mark.costly
def test_signatures_keep_their_names_and_share_the_weights(two: LiteRTModel) -> None:
    assert interpreter(two.path).get_signature_list() == {
        "classify": {"inputs": ["x"], "outputs": ["probabilities"]},
        "embed": {"inputs": ["scale", "x"], "outputs": ["output_0"]},
    }
    assert two.size == two.path.stat().st_size
    assert WEIGHT_BYTES < two.size < 1.5 * WEIGHT_BYTES
    assert str(two).splitlines() == [
        str(two.path),
        "  classify(x: float32[b,64]) -> (probabilities: float32[b,64])",
        "  embed(x: float32[b,64], scale: float32[]) -> (output_0: float32[b,64])",
        "  0.02 MB",
    ]


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_open_sizes_stay_open(two: LiteRTModel, rows: int) -> None:
    loaded = interpreter(two.path)
    x = RANDOM.normal(size=(rows, WIDTH)).astype(np.float32)
    (found,) = loaded.get_signature_runner("classify")(x=x).values()
    np.testing.assert_allclose(found, classify(PARAMS, x)["probabilities"], atol=1e-6)
    (found,) = loaded.get_signature_runner("embed")(x=x, scale=np.float32(3)).values()
    np.testing.assert_allclose(found, embed(PARAMS, x, 3), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quantize", "share", "most"),
    [("dynamic_range", 0.5, 0.01), ("float16", 0.7, 1e-3), ("int8", 0.5, 0.05)],
)
def test_quantised(tmp_path: Path, quantize: Any, share: float, most: float) -> None:
    samples = [{"x": jnp.asarray(X) * i} for i in (0.5, 1, -1)] if quantize == "int8" else None
    saved = save_litert(
        tmp_path / "small.tflite",
        SIGNATURES["classify"],
        params=PARAMS,
        quantize=quantize,
        representative_data=samples,
    )
    assert saved.size < share * WEIGHT_BYTES
    counted = f", {saved.operations}" if quantize == "int8" else ""
    assert str(saved).endswith(f"MB, quantised: {quantize}{counted}")
    (found,) = interpreter(saved.path).get_signature_runner()(x=X).values()
    assert found.dtype == np.float32
    apart = np.abs(found - classify(PARAMS, X)["probabilities"]).max()
    assert 0 < apart < most


@pytest.mark.slow
def test_a_saved_model_gives_its_signatures(tmp_path: Path) -> None:
    both = {"for_xla": None, "without_xla": Target.widest(xla=False)}
    for name, target in both.items():
        save(tmp_path / name, SIGNATURES, params=PARAMS, target=target, vjp_order=0)
        saved = save_litert(tmp_path / f"{name}.tflite", tmp_path / name)
        assert list(saved.signatures) == ["classify", "embed"]
        assert str(saved.signatures["embed"]) == (
            "(scale: float32[], x: float32[?,64]) -> (output_0: float32[?,64])"
        )
        (found,) = interpreter(saved.path).get_signature_runner("classify")(x=X).values()
        np.testing.assert_allclose(found, classify(PARAMS, X)["probabilities"], atol=1e-6)


@pytest.mark.slow
def test_a_saved_model_with_buckets(tmp_path: Path) -> None:
    save(tmp_path / "m", SIGNATURES["classify"], params=PARAMS, buckets={"b": [1, 8]})
    with pytest.raises(
        SavingError,
        match=r"^The signature serving_default has buckets, and .* save the model without buckets",
    ):
        save_litert(tmp_path / "a.tflite", tmp_path / "m")


@pytest.mark.slow
def test_a_file_of_a_function(tmp_path: Path) -> None:
    write_function(tmp_path / "f.jaxfn", export(lambda x: x[:, :2] + 1)(X))
    saved = save_litert(tmp_path / "f.tflite", tmp_path / "f.jaxfn")
    (found,) = interpreter(saved.path).get_signature_runner()(x=X).values()
    np.testing.assert_array_equal(found, X[:, :2] + 1)


@pytest.mark.costly
def test_what_has_no_built_in_operation(tmp_path: Path) -> None:
    kernel = jnp.ones((1, 1, 2, 2), jnp.int32)

    def lacking(x: Any) -> Any:
        return lax.conv(x[None, None].astype(np.int32), kernel, (1, 1), "SAME")

    signatures = {"good": lambda x: x, "bad": lacking}
    line = lacking.__code__.co_firstlineno + 1
    (tmp_path / "a.tflite").write_bytes(b"old")
    with pytest.raises(UnsupportedByTargetError) as caught:
        save_litert(
            tmp_path / "a.tflite",
            {n: Signature(f, args=[X]) for n, f in signatures.items()},
            overwrite=True,
        )
    assert str(caught.value) == (
        "LiteRT has no built-in operation for:\n"
        f"  - tf.Conv2D of int32 at test_save_litert.py:{line} (signature bad)\n"
        "Write this part of the function with other operations, or save a SavedModel for where "
        "TensorFlow is (save)."
    )
    assert (caught.value.operation, caught.value.source) == (
        "tf.Conv2D",
        f"test_save_litert.py:{line}",
    )
    assert (tmp_path / "a.tflite").read_bytes() == b"old"


@pytest.mark.costly
def test_an_existing_file_is_replaced_if_asked_for(tmp_path: Path) -> None:
    def untraceable(x: Any) -> Any:
        raise AssertionError("it was traced")

    path = tmp_path / "a.tflite"
    path.write_bytes(b"old")
    with pytest.raises(FileExistsError) as caught:
        save_litert(path, Signature(untraceable, args=[X]))
    assert str(caught.value) == f"{path} already exists; overwrite=True replaces it"
    assert path.read_bytes() == b"old"
    saved = save_litert(path, Signature(lambda x: x + 1, args=[X]), overwrite=True)
    (got,) = interpreter(saved.path).get_signature_runner()(x=X).values()
    np.testing.assert_array_equal(got, X + 1)


@pytest.mark.slow
def test_the_dtype_of_what_is_lacking_is_not_that_of_flags(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByTargetError, match=r"tf\.SelectV2 of complex64 at "):
        save_litert(
            tmp_path / "a.tflite",
            Signature(lambda x: x**2.5, args=[X.astype(np.complex64)]),  # selects where x is 0
        )


def _refused(error: type[Exception], tmp_path: Path, **options: Any) -> str:
    given = {"signatures": SIGNATURES["classify"], "params": PARAMS, **options}
    with pytest.raises(error) as caught:
        save_litert(tmp_path / "a.tflite", **given)
    assert not (tmp_path / "a.tflite").exists()
    return str(caught.value)


def test_a_path_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    def never_traced(x: Any) -> Any:
        raise AssertionError("it was traced")

    signature = Signature(never_traced, args=[X])
    with pytest.raises(FileExistsError) as is_folder:
        save_litert(tmp_path, signature)
    assert str(is_folder.value) == f"{tmp_path} is a folder: name a file in it"
    with pytest.raises(FileNotFoundError, match=r"Create it first$"):
        save_litert(tmp_path / "models" / "model.tflite", signature)


def test_options_that_contradict(tmp_path: Path) -> None:
    assert _refused(SavingError, tmp_path, quantize="int4") == (
        "quantize must be one of 'dynamic_range', 'float16', 'int8', 'int16x8', 'as_trained', or "
        "left out. Got: 'int4'."
    )
    assert _refused(SavingError, tmp_path, quantize="int8") == (
        "quantize='int8' measures ranges with typical inputs. Pass about a hundred of them as "
        "representative_data."
    )
    assert _refused(SavingError, tmp_path, representative_data=[X]) == (
        "representative_data is for quantize='int8' and quantize='int16x8', which measure ranges. "
        "Leave it out, or add one of these."
    )
    assert _refused(SavingError, tmp_path, signatures=tmp_path) == (
        "params are the weights of functions, and a SavedModel has weights of its own. "
        "Leave them out."
    )
    in_buckets = Signature(
        classify, args=[X], polymorphic_shapes="(b, ...)", padding=Padding(buckets={"b": [8]})
    )
    assert _refused(SavingError, tmp_path, signatures=in_buckets) == (
        "The signature serving_default has buckets, and LiteRT compiles no sizes and fills in no "
        "inputs. Leave them out."
    )


@pytest.mark.costly
def test_representative_data_that_does_not_fit(tmp_path: Path) -> None:
    function = export(classify, polymorphic_shapes=[None, "(b, 64)"])(PARAMS, X)

    def refused(error: type[Exception], data: Any, **more: Any) -> str:
        options = {"signatures": function, "quantize": "int8", "representative_data": data, **more}
        return _refused(error, tmp_path, **options)

    assert refused(SavingError, [X], signatures=SIGNATURES) == (
        "representative_data must be given by the names of the signatures, as "
        "{'classify': [...]}, since there are 2: classify, embed."
    )
    assert refused(SavingError, {"a": [X]}) == (
        "representative_data is for the signatures a, and the model has serving_default. Give "
        "some for each."
    )
    assert refused(SavingError, []) == (
        "representative_data has no inputs for the signature serving_default."
    )
    assert refused(StructureError, 3) == (
        "representative_data['serving_default'] must be several inputs, as a list of dicts. Got: "
        "int."
    )
    assert refused(StructureError, [{"y": X}]) == (
        "representative_data['serving_default'][0] must have the inputs x, as a dict by these "
        "names. Got: y."
    )
    assert refused(DTypeError, [{"x": X.astype(np.float64)}]) == (
        "representative_data['serving_default'][0]['x']: expected float32, got float64."
    )
    assert refused(ShapeError, [X, X[:, 1:]]) == (
        "representative_data['serving_default'][1]['x']: expected float32[b,64], got float32[4,63]."
    )


@pytest.mark.slow
def test_what_litert_does_otherwise_by_itself(tmp_path: Path) -> None:
    """LiteRT writes loop variables one by one, and its converter makes infinities finite."""

    def rotated(x: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, c: (c[1], c[2], c[0]), (x, x + 1, x + 2))

    def masked(x: Any) -> Any:
        return jnp.where(x > 0, x, -jnp.inf)

    def gathered(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda i, sum_: sum_ + jnp.asarray(x)[i], jnp.uint32(0))

    key = jax.random.PRNGKey(1)
    cases = {
        "rotated": (rotated, X[0, :3]),
        "masked": (masked, X),
        "gathered": (gathered, np.array([1, 1 << 31, 5], np.uint32)),
        "drawn": (lambda key: jax.random.normal(key, (5,)), key),
        "shared": (lambda key: jax.random.bits(key, (5,)), key),
    }
    path = tmp_path / "a.tflite"
    save_litert(path, {name: Signature(f, args=[arg]) for name, (f, arg) in cases.items()})
    loaded = interpreter(path)
    for name, (function, arg) in cases.items():
        runner = loaded.get_signature_runner(name)
        (argument,) = runner.get_input_details()
        found = runner(**{argument: np.asarray(arg)})
        for expected, got in zip(jax.tree.leaves(function(arg)), found.values(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=name)


def _answers(tmp_path: Path, f: Any, *args: Any, **options: Any) -> dict[str, Any]:
    saved = save_litert(tmp_path / "f.tflite", Signature(f, args=list(args), **options))
    names = saved.signatures["serving_default"].inputs
    runner = interpreter(saved.path).get_signature_runner()
    answers: dict[str, Any] = runner(**dict(zip(names, args, strict=True)))
    return answers


@pytest.mark.slow
def test_switches_sorted_keys_remainders_and_roots(tmp_path: Path) -> None:
    def f(x: Any, y: Any, i: Any, words: Any) -> dict[str, Any]:
        branches = [lambda v, k=k: v * k + k for k in range(1, 6)]
        return {
            "switch": jnp.stack([lax.switch(i + j, branches, x) for j in (-9, 0, 2, 9)]),
            "permutation": jax.random.permutation(jax.random.wrap_key_data(words[:2]), 7),
            "sorted": jnp.sort(words),
            "modulo": x % y,
            "remainder": lax.rem(x, y),
            "root": jnp.cbrt(x),
        }

    x = np.array([8, -5.5, 27, -1e-3, 1e30], np.float32)
    y = np.array([3, 2, -4, 7, 1e3], np.float32)
    args = (x, y, np.int32(1), np.array([5, 2**31 + 3, 1, 2**32 - 1], np.uint32))
    found = _answers(tmp_path, f, *args)
    for name, expected in jax.jit(f)(*args).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_sorts_transposed_floats(tmp_path: Path) -> None:
    # A reshape between the bits and the sort keys would share the memory of the bits, and LiteRT
    # would overwrite them.
    x = np.array([[2.8, 1.8], [1.0, -3.0]], np.float32)
    answers = _answers(tmp_path, lambda x: lax.top_k(x.T, 2), x)
    np.testing.assert_array_equal(answers["output_0"], x.T)
    np.testing.assert_array_equal(answers["output_1"], [[0, 1], [0, 1]])


@pytest.mark.slow
def test_scatters_over_infinity_of_the_same_row_and_of_all_integers(tmp_path: Path) -> None:
    x = np.full((3, 4), np.inf, np.float32)
    x[1] = 2
    at = np.array([[0], [2], [0]], np.int32)
    whole = np.arange(12).reshape(3, 4)
    dtypes = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    integers = [whole.astype(dtype) for dtype in dtypes]

    def f(x: Any, at: Any, *integers: Any) -> dict[str, Any]:
        results = {
            "set": x.at[at[:2, 0]].set(1.0),
            "rows": jax.vmap(lambda row, i: row.at[i].set(0.5))(x, at),
            "added": jnp.ones((3, 4)).at[at[:, 0]].add(jnp.arange(3.0)[:, None]),
        }
        for n in integers:
            rows = at[:, 0]
            results[f"{n.dtype}_read"] = n[rows]
            results[f"{n.dtype}_set"] = n.at[rows[:2]].set(7)
            results[f"{n.dtype}_added"] = n.at[rows].add(3)
            results[f"{n.dtype}_max"] = n.at[rows].max(5)
        return results

    found = _answers(tmp_path, f, x, at, *integers)
    for name, expected in jax.jit(f)(x, at, *integers).items():
        np.testing.assert_array_equal(found[name], expected, err_msg=name)


@pytest.mark.slow
def test_bits_are_counted_and_segments_of_floats_multiplied(tmp_path: Path) -> None:
    x = RANDOM.normal(size=(5, 2)).astype(np.float32)
    rows = np.array([2, 0, 2, -1, 0], np.int32)
    dtypes = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    ends = [(np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in dtypes]
    integers = [np.array([0, 1, 100, *e], d) for d, e in zip(dtypes, ends, strict=True)]

    def f(x: Any, rows: Any, *integers: Any) -> dict[str, Any]:
        results = {"products": jax.ops.segment_prod(x, rows, 3)}
        for n in integers:
            results[f"{n.dtype}_bits"] = lax.population_count(n)
            results[f"{n.dtype}_zeros"] = lax.clz(n)
        return results

    found = _answers(tmp_path, f, x, rows, *integers)
    for name, expected in jax.jit(f)(x, rows, *integers).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, err_msg=name, strict=True)


@pytest.mark.slow
def test_other_values_than_tensorflows_are_refused(two: LiteRTModel) -> None:
    right = np.asarray(classify(PARAMS, X)["probabilities"])

    def check(expected: np.ndarray, *, is_quantized: bool = False) -> None:
        answers = {"classify": Answers({"x": X}, {"probabilities": expected})}
        data = two.path.read_bytes()
        check_answers(data, answers, (), lambda *_: (), is_quantized=is_quantized)

    check(right)
    check(np.where(right > right.mean(), np.nan, right))
    check(2 * right, is_quantized=True)
    with pytest.raises(SavingError) as caught:
        check(2 * right)
    assert str(caught.value) == (
        "In LiteRT the signature classify does not compute what it does in TensorFlow, for the "
        "example of its inputs:\n  - probabilities differs by 0.5 of its largest number\nNo file "
        "was written. Save parts of the function to find the operation. To write the file anyway, "
        "pass verify=False."
    )
    nan = {"classify": Answers({"x": X * np.nan}, {"probabilities": right})}
    with pytest.raises(SavingError, match="probabilities is NaN or infinite in 256 of 256 places"):
        check_answers(two.path.read_bytes(), nan, (), lambda *_: (), is_quantized=True)


@pytest.mark.slow
def test_results_where_terms_cancel_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = Signature(cancel, args=[CANCELLING, IDS])
    assert save_litert(tmp_path / "m.tflite", signature).size > 0
    save(tmp_path / "model", signature, vjp_order=0)
    assert save_litert(tmp_path / "n.tflite", tmp_path / "model").size > 0
    run = _checks._call

    def add_fault(*args: Any) -> Any:
        outputs, problems = run(*args)
        return {name: value + np.float32(9) for name, value in outputs.items()}, problems

    monkeypatch.setattr(_checks, "_call", add_fault)
    with pytest.raises(SavingError) as caught:
        save_litert(tmp_path / "o.tflite", signature)
    assert str(caught.value).count(" differs by ") == 8


@pytest.mark.slow
def test_the_example_is_compared_with_tensorflow(tmp_path: Path) -> None:
    signature = Signature(lambda x, y: x / y, args=[X, X[:1] * 0 + 2], example={"y": X[:1] * 0 + 4})
    examples = make_example("f", signature, {"x": _served(X), "y": _served(X[:1])})
    np.testing.assert_array_equal(examples["x"], X)
    np.testing.assert_array_equal(examples["y"], X[:1] * 0 + 4)
    lists = Signature(lambda ids: ids, example={"ids": [[4, 8]]})
    ids = make_example("f", lists, {"ids": ServedArray("int32", (None, 2))})["ids"]
    np.testing.assert_array_equal(ids, np.array([[4, 8]], np.int32), strict=True)
    assert save_litert(tmp_path / "a.tflite", signature, verify=False).size > 0


def _served(array: np.ndarray) -> ServedArray:
    return ServedArray.of_tensor(tf.TensorSpec(array.shape, array.dtype))


@pytest.mark.slow
def test_an_exact_gelu_is_one_operator(tmp_path: Path) -> None:
    gelu = Signature(lambda x: jax.nn.gelu(x, approximate=False), args=[X])
    model = save_litert(tmp_path / "gelu.tflite", gelu)
    assert inspect(model.path).facts["ops"] == [{"name": "GELU", "count": 1, "custom": False}]


@pytest.mark.slow
def test_atan2_of_a_number_and_an_array_of_open_sizes(tmp_path: Path) -> None:
    x = np.linspace(-2, 2, 18, dtype=np.float32).reshape(3, 2, 3)
    f = lambda x: jnp.arctan2(jnp.float32(1), x)  # noqa: E731
    answers = _answers(tmp_path, f, x, polymorphic_shapes="(b, 2, b)")
    np.testing.assert_allclose(answers["output_0"], np.arctan2(np.float32(1), x), rtol=1e-6)


@pytest.mark.slow
def test_the_gradient_of_a_max_pool_of_open_sizes(tmp_path: Path) -> None:
    def sum_of_squares(x: Any) -> Any:
        windows = (1, 3, 2, 1), (1, 2, 2, 1)
        return jnp.sum(jnp.square(lax.reduce_window(x, -jnp.inf, lax.max, *windows, "SAME")))

    x = RANDOM.normal(size=(2, 5, 6, 2)).astype(np.float32)
    gradient = jax.grad(sum_of_squares)
    answers = _answers(tmp_path, gradient, x, polymorphic_shapes="(b, 5, 6, 2)")
    np.testing.assert_allclose(answers["output_0"], gradient(x), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bool", "int64", "float32"])
def test_the_last_of_equal_indices_is_set(tmp_path: Path, dtype: str) -> None:
    def set_twice(x: Any, updates: Any) -> Any:
        return x.at[jnp.array([1, 1, -2])].set(updates)

    x, updates = np.ones(4, dtype), np.zeros(3, dtype)
    with jax.enable_x64(True):
        answers = _answers(tmp_path, set_twice, x, updates)
    np.testing.assert_array_equal(answers["output_0"], np.array([1, 0, 0, 1], dtype))


def test_results_without_elements_are_refused_before_litert_runs(tmp_path: Path) -> None:
    def empty(x: Any) -> Any:  # LiteRT corrupts the memory of the process with it
        return lax.pad(x, jnp.float32(-1), ((-1, -1, 0), (2, 1, 0)))

    text = (
        "LiteRT has no arrays without elements: output_0: float32[0,6] of the signature "
        "serving_default. Leave it out."
    )
    signature = Signature(empty, args=[np.ones((2, 3), np.float32)])
    for verify in True, False:
        with pytest.raises(SavingError, match=re.escape(text)):
            save_litert(tmp_path / "f.tflite", signature, verify=verify)


def test_arrays_without_elements_are_named(tmp_path: Path) -> None:
    def halves(x: Any) -> Any:
        return jnp.diff(x, axis=1), x

    with pytest.raises(SavingError, match=r"LiteRT has no arrays without elements: .*\[4,0\]"):
        save_litert(tmp_path / "diff.tflite", Signature(halves, args=[X[:, :1]]))


@pytest.mark.slow
def test_slices_of_six_axes(tmp_path: Path) -> None:
    """LiteRT slices at most five."""

    def take(x: Any) -> Any:
        return x[:, 1], x[:, :2, :, 1:], x[..., ::2, :, -1]

    shape = (2, 3, 2, 4, 2, 2)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    sizes = "(a, 3, 2, n, 2, 2)"
    signature = Signature(
        take, args=[x], polymorphic_shapes=sizes, polymorphic_constraints=["n >= 2"]
    )
    model = save_litert(tmp_path / "m.tflite", signature)
    x = np.concatenate([x, -x], axis=3)
    actual = interpreter(model.path).get_signature_runner()(x=x)
    for number, expected in enumerate(take(x)):
        np.testing.assert_array_equal(actual[f"output_{number}"], expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lgamma_of_an_open_size(tmp_path: Path, dtype: str) -> None:
    x = np.array([-0.4, 0.05, 3, 30], dtype)
    signature = Signature(lax.lgamma, args=[x[:2]], polymorphic_shapes="(n,)")
    model = save_litert(tmp_path / "lgamma.tflite", signature)
    (found,) = interpreter(model.path).get_signature_runner()(x=x).values()
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    expected = np.asarray(lax.lgamma(x), np.float32)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=tolerance)


@pytest.mark.slow
def test_bits_of_arrays_with_five_axes(tmp_path: Path) -> None:
    """LiteRT's BitwiseXor and RightShift end the process where they broadcast five axes."""

    def bits(x: Any, y: Any, at: Any) -> Any:
        return x ^ 5, x >> 2, lax.shift_right_logical(x, y), x // y, y.astype("f").at[at].min(0.5)

    x = np.arange(-16, 16, dtype=np.int32).reshape(2, 2, 2, 2, 2)
    args = x, np.full((1, 2, 1, 2, 1), 3, np.int32), np.array([[0, 0], [-1, 3]])
    save_litert(tmp_path / "bits.tflite", Signature(jax.jit(_spread(bits)), args=args))


def _spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Passes the second argument also with the sizes of the first."""
    return lambda x, y, at: function(x, jnp.broadcast_to(y, x.shape), at)


W = RANDOM.normal(size=(8, 8)).astype(np.float32)
TOKENS = RANDOM.normal(size=(2, 5, 8)).astype(np.float32)


def _by_rows(x: Any) -> Any:
    return jax.vmap(jax.vmap(lambda v: W @ v))(x)


# TensorFlow's converter computes the product of a constant and a matrix as a transpose.
_PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "nested_vmap": _by_rows,
    "nested_vmap_and_bias": lambda x: jnp.tanh(_by_rows(x) + W[0]),
    "axes_swapped": lambda x: jnp.swapaxes(_by_rows(x), 0, 1),
    "axes_split": lambda x: x.reshape(-1, 8).T.reshape(2, 4, -1, 5).transpose(2, 3, 1, 0),
    "bytes": lambda x: x.astype(jnp.int8).reshape(-1, 8).T.reshape(8, -1, 5).transpose(1, 2, 0),
    "bias_before": lambda x: (
        (W @ x.reshape(-1, 8).T + W[:, :1]).reshape(8, -1, 5).transpose(1, 2, 0)
    ),
    "from_a_number": lambda x: 2 - W @ x[0].T,
    "of_a_column": lambda x: W[:, :1] / (4 + jnp.abs(jnp.exp(W) @ x[0].T)),
    "in_a_loop": lambda x: lax.scan(lambda c, y: (c, 2 - W @ y.T), 0.0, x)[1],
    "row": lambda x: x[0, 0] @ x[0].T,
    "rows_in_a_loop": lambda x: lax.scan(lambda c, y: (y[0] @ (y.T @ y), c), x[0, 0], x)[1],
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [None, "(b, 5, 8)"])
def test_products_of_constants_and_matrices(tmp_path: Path, shape: str | None) -> None:
    def function(x: Any) -> Any:
        return {name: product(x) for name, product in _PRODUCTS.items()}

    signature = Signature(function, args=[TOKENS], polymorphic_shapes=shape)
    saved = save_litert(tmp_path / "model.tflite", signature, verify=False)
    run = interpreter(saved.path).get_signature_runner()
    for x in [TOKENS] if shape is None else [TOKENS, TOKENS[:1], np.repeat(TOKENS, 4, 0)]:
        answers, expected = run(x=x), function(x)
        for name, array in expected.items():
            np.testing.assert_allclose(answers[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_integers_of_16_bits_are_sorted(tmp_path: Path) -> None:
    x = np.array([3, 65535, 0, 32768, 3, 7], np.uint16)
    answers = _answers(tmp_path, lambda x: (jnp.sort(x), jnp.argsort(x, descending=True)), x)
    np.testing.assert_array_equal(answers["output_0"], np.sort(x))
    np.testing.assert_array_equal(answers["output_1"], jnp.argsort(x, descending=True))


@pytest.mark.slow
def test_wide_results_of_narrow_floats_are_as_exact_as_these(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    kernel, bias = (rng.normal(size=shape).astype(jnp.bfloat16) for shape in ((8, 64), (64,)))
    x, columns = (rng.normal(size=shape).astype(np.float32) for shape in ((1, 8), (64, 2)))

    def f(x: Any) -> Any:
        hidden = jax.nn.gelu(x.astype(jnp.bfloat16) @ kernel + bias)
        return hidden.astype(jnp.float32) @ columns

    output = _answers(tmp_path, f, x)["output_0"]  # it differs by 0.01 from TensorFlow's
    np.testing.assert_allclose(output, f(x), atol=0.1 * np.max(np.abs(output)))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [None, "(b, 320)"])
def test_complex_numbers(tmp_path: Path, shape: str | None) -> None:
    """Filters sound by its frequencies, and runs a recurrence of complex numbers."""
    poles = np.exp(-0.1 + 1j * np.arange(8)).astype(np.complex64)

    def process(x: Any) -> dict[str, Any]:
        spectrum = jnp.fft.rfft(x)
        kept = spectrum * (jnp.abs(spectrum) > 3.0)

        def step(state: Any, u: Any) -> Any:
            state = poles * state + u[:, None]
            return state, jnp.real(state.sum(1))

        state = jnp.zeros((x.shape[0], 8), jnp.complex64)
        return {
            "denoised": jnp.fft.irfft(kept, n=320),
            "magnitudes": jnp.abs(jnp.fft.fft(x[:, :96])),
            "states": jax.lax.scan(step, state, x.T)[1],
            "spectrum": spectrum,
        }

    x = np.random.default_rng(0).normal(size=(4, 320)).astype(np.float32)
    answers = _answers(tmp_path, process, x, polymorphic_shapes=shape)
    for name, expected in process(x).items():
        np.testing.assert_allclose(answers[name], expected, atol=2e-5, err_msg=name)
