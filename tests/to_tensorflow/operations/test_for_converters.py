"""Graphs for converters of other formats: with operations that these know, and JAX's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

from jax2tf_bridge import (
    KerasLayer,
    Processing,
    Signature,
    Target,
    convert,
    export,
    load,
    save,
    to_tf,
)
from jax2tf_bridge.errors import ModuleError, SavingError
from tests.consumers import own_operations
from tests.consumers.export_for_converters import AT_INFINITY, select_infinities
from tests.consumers.own_operations import operation_counts

# tf2onnx 1.17 or OpenVINO 2026.4 has no form of them, or a wrong one.
_AVOIDED = frozenset(
    {
        *("Bitcast", "Erfinv", "Erfc", "Expm1", "Lgamma", "Log1p", "ReverseV2", "Slice"),
        *("PopulationCount", "TensorStridedSliceUpdate", "TruncateMod"),
    }
)


def _results(x: Any, n: Any, words: Any, key: Any) -> dict[str, Any]:
    b = x.shape[0]
    at = n[0] % 3

    def step(state: Any, row: Any) -> Any:
        # Two variables change places, and each row is written.
        first, second, count = state
        return (second, first, count + 1), row * first[0] + second[1]

    swapped, rows = lax.scan(step, (x[0, :2], x[0, 2:4], 0), x)
    return {
        "erf_inv": lax.erf_inv(x / 8),
        "erfc": lax.erfc(x),
        "expm1": jnp.expm1(x),
        "lgamma": lax.lgamma(1.5 + jnp.abs(x)),
        "lgamma_below": lax.lgamma(jnp.stack([x, -jnp.floor(jnp.abs(x)), x * jnp.inf])),
        "log1p": jnp.log1p(jnp.abs(x)),
        "near_zero": jnp.stack([jnp.expm1(x / 1e6), jnp.log1p(x / 1e6)]) * 1e6,
        "reversed": x[::-1, ::-1],
        "remainder": lax.rem(n, jnp.int32(3)),
        "by_zero": lax.rem(n, n - n[0]),
        "shifted": words >> 9,
        "shifted_as_asked": words >> (words % 40),
        "signed": lax.shift_right_logical(n, jnp.arange(b)),
        "normal": jax.random.normal(key, x.shape),
        "uniform": jax.random.uniform(key, x.shape),
        "sorted": jnp.sort(x, axis=0),
        "descending": lax.top_k(x, 2),
        "order": jnp.argsort(-x, axis=1),
        "argmax": jnp.argmax(x, axis=1),
        "greatest": jax.ops.segment_max(x, n % 2, 2),
        "rows": rows,
        "swapped": swapped,
        "slice": lax.dynamic_slice(x, (at, 0), (1, 3)),
        "written": lax.dynamic_update_slice(x, x[:1, :2] + 1, (at, 1)),
        "row_written": lax.dynamic_update_slice(jnp.zeros((b, 4)), x[:1], (at, 0)),
    }


@pytest.mark.costly
def test_values_are_those_of_jax_by_operations_that_converters_know() -> None:
    sizes = ["(b, 4)", "(b,)", "(b,)", None]
    f = convert(_results, polymorphic_shapes=sizes, target=Target.converters(), with_gradient=False)
    rng = np.random.default_rng(0)

    def arguments(b: int) -> tuple[Any, ...]:
        n = rng.integers(-9, 9, b).astype(np.int32)
        words = rng.integers(0, 2**32, b, np.uint32)
        words[0] = 2**32 - 1
        return rng.normal(size=(b, 4)).astype(np.float32), n, words, jax.random.key_data(_key(b))

    specs = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in arguments(3)[:3]]
    specs.append(tf.TensorSpec([2], tf.uint32))
    traced = tf.function(f, input_signature=specs, autograph=False).get_concrete_function()
    assert not _AVOIDED & set(operation_counts(traced.graph))
    # The graph was traced without a size, so one is enough.
    args = arguments(5)
    expected = jax.jit(_results)(*args[:3], _key(5))
    found = traced(*(tf.constant(a) for a in args))
    for name, wanted in expected.items():
        for got, want in zip(
            tf.nest.flatten(found[name]), jax.tree_util.tree_leaves(wanted), strict=True
        ):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)


def _multiplied_selections(graph: Any) -> list[str]:
    """Lists the selections of floats that tf2onnx 1.17 would make products with 0 and 1."""

    def is_infinite(tensor: Any) -> bool:
        operation = tensor.op
        return operation.type == "Const" and not np.isfinite(tf.get_static_value(tensor)).all()

    selections = [o for o in graph.get_operations() if o.type == "SelectV2"]
    assert selections
    return [
        o.name
        for o in selections
        if o.outputs[0].dtype == tf.float16
        or (
            o.outputs[0].dtype == tf.float32
            and o.inputs[0].op.type != "IsNan"
            and not any(map(is_infinite, o.inputs[1:]))
        )
    ]


def test_an_infinity_that_is_not_selected_is_not_multiplied_by_zero() -> None:
    f = convert(select_infinities, target=Target.converters(), with_gradient=False)
    spec = tf.TensorSpec(AT_INFINITY.shape, tf.float32)
    traced = tf.function(f, input_signature=[spec], autograph=False).get_concrete_function()
    assert _multiplied_selections(traced.graph) == []
    found = traced(tf.constant(AT_INFINITY))
    for name, wanted in jax.jit(select_infinities)(AT_INFINITY).items():
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6, err_msg=name)


_GREAT = np.uint32(0x9E3779B9)


def _of_integers(x: Any, y: Any, places: Any) -> list[Any]:
    flag = x < y
    return [
        *(lax.div(x, y), lax.rem(x, y), flag, x <= y, x == y, lax.max(x, y), lax.min(x, y)),
        *(lax.clamp(jnp.minimum(x, y), x + y, y), jnp.where(flag, x, y), lax.shift_left(x, places)),
        *(lax.shift_right_logical(x, places), x.astype(np.float32), x ^ _GREAT.astype(x.dtype)),
        *(lax.population_count(x), lax.clz(x)),
    ]


def test_integers_of_32_bits_are_exact_by_sums_products_and_bits() -> None:
    ends = [
        0,
        1,
        2,
        3,
        7,
        255,
        *(2**i + j for i in (16, 24, 30, 31) for j in (-1, 0, 1)),
        2**32 - 1,
    ]
    pairs = np.array(np.meshgrid(ends, ends), np.uint64).astype(np.uint32).reshape(2, -1)
    drawn = np.random.default_rng(0).integers(0, 2**32, (3, 2000), np.uint32)
    x, y = np.concatenate([pairs, drawn[:2] >> drawn[2] % 32], 1)
    places = np.arange(x.size, dtype=np.uint32) % 50
    sizes = ["(n,)", "(n,)", "(n,)"]
    for dtype in (np.uint32, np.int32):
        f = convert(
            _of_integers,
            polymorphic_shapes=sizes,
            target=Target.converters(),
            with_gradient=False,
        )
        given = [each.view(dtype) for each in (x, y, places)]
        for got, wanted in zip(f(*given), jax.jit(_of_integers)(*given), strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_narrow_integers_are_added_in_int32() -> None:
    """OpenVINO's 8-bit integers saturate, where JAX's wrap around."""

    def compute(x: Any, y: Any) -> Any:
        return x + y, x - y, x * y, -x

    x, y = np.array([200, 7, 255], np.uint8), np.array([100, 9, 255], np.uint8)
    converted = to_tf(export(compute, target=Target.converters())(x, y), with_gradient=False)
    graph = tf.function(converted, autograph=False).get_concrete_function(x, y).graph
    bodies = [graph.as_graph_def().node]
    bodies += [f.node_def for f in graph.as_graph_def().library.function]
    for node in (node for nodes in bodies for node in nodes):
        if node.op in ("Add", "AddV2", "Sub", "Mul", "Neg"):
            assert tf.as_dtype(node.attr["T"].type) == tf.int32, node.op
    for found, expected in zip(converted(x, y), compute(x, y), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_are_shifted_by_any_amount(dtype: Any) -> None:
    info = np.iinfo(dtype)
    amounts = [*range(info.bits + 2), info.max, info.min, *([] if info.min == 0 else [-1])]
    x = np.array([info.min, info.max, 1, info.max // 3], dtype)[:, None]
    places = np.array(amounts).astype(dtype)

    def shift(x: Any, places: Any) -> Any:
        functions = [lax.shift_left, lax.shift_right_logical]
        if info.min < 0:  # unsigned integers would need Bitcast
            functions.append(lax.shift_right_arithmetic)
        x, places = jnp.broadcast_arrays(x, places)
        return [*(function(x, places) for function in functions), lax.integer_pow(x, 3)]

    convert_ = to_tf(export(shift, target=Target.converters())(x, places), with_gradient=False)
    for found, expected in zip(convert_(x, places), jax.jit(shift)(x, places), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_bits_of_integers_are_counted_by_sums_shifts_and_masks(bits: int) -> None:
    def count(x: Any) -> list[Any]:
        return [lax.population_count(x), lax.clz(x)]

    numbers = np.array([0, *(2**i + j for i in range(bits) for j in (-1, 0, 1))], object)
    for kind in "iu":
        x = (numbers % 2**bits).astype(f"u{bits // 8}").view(f"{kind}{bits // 8}")
        with jax.enable_x64(True):
            f = convert(count, target=Target.converters(), with_gradient=False)
            traced = tf.function(f, autograph=False).get_concrete_function(tf.constant(x))
            expected = jax.jit(count)(x)
        assert not _AVOIDED & set(operation_counts(traced.graph))
        for got, wanted in zip(traced(tf.constant(x)), expected, strict=True):
            np.testing.assert_array_equal(got, wanted, strict=True)


@pytest.mark.costly
def test_bfloat16_is_float32(tmp_path: Path) -> None:
    bfloat16 = jnp.bfloat16
    x = np.linspace(-2, 2, 6).reshape(3, 2).astype(bfloat16)
    captured = jnp.asarray(x[:2] * bfloat16(0.5))

    def f(params: Any, x: Any, key: Any) -> dict[str, Any]:
        noise = jax.random.uniform(key, (2,), bfloat16)
        return {"y": jnp.tanh(x @ params["w"] @ captured) + noise, "wide": x.astype("float32")}

    params = {"w": x[1:]}
    key = np.array([0, 3], np.uint32)
    signature = Signature(f, args=[x, _key(3)], polymorphic_shapes=["(b, 2)", None])
    save(tmp_path / "model", signature, params=params, target=Target.converters())
    served = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
    dtypes = {node.attr["dtype"].type for node in own_operations.nodes(served.graph)}
    assert tf.bfloat16.as_datatype_enum not in dtypes
    found = served(x=tf.constant(x.astype(np.float32)), key=tf.constant(key))
    for name, wanted in jax.jit(f)(params, x, _key(3)).items():
        assert found[name].dtype == tf.float32
        np.testing.assert_allclose(found[name], wanted.astype(np.float32), rtol=2**-6, atol=2**-6)


def test_captured_flags_are_no_variables_of_bool(tmp_path: Path) -> None:
    """OpenVINO has none."""
    flags = np.arange(5000) % 3 == 0
    x = np.ones(1, np.float32)
    signature = Signature(lambda x: jnp.where(flags, x, 2), args=[x])
    expected = np.where(flags, x, 2)
    for target, dtype in ((Target.converters(), tf.uint8), (Target.widest(xla=False), tf.bool)):
        path = tmp_path / dtype.name
        saved = save(path, signature, target=target, vjp_order=0)
        model = tf.saved_model.load(path)
        ((name, variable),) = model.constants.items()
        assert (saved.constants[name].dtype, variable.dtype) == (dtype.name, dtype)
        np.testing.assert_array_equal(model.serving_default(x), expected)
        loaded = load(path)
        assert loaded.constants[name].dtype == bool
        np.testing.assert_array_equal(loaded.functions["serving_default"](x), expected)
        layer = KerasLayer(path)
        np.testing.assert_array_equal(layer(x), expected)


def test_bits_of_bfloat16_are_refused() -> None:
    f = convert(lambda x: lax.bitcast_convert_type(x, np.uint16), target=Target.converters())
    with pytest.raises(ModuleError, match="for converters bfloat16 is float32, which has other b"):
        f(np.ones(2, jnp.bfloat16))


def _key(seed: int) -> Any:
    return jax.random.key(seed)


def test_other_targets_keep_tensorflows_own_operations() -> None:
    def f(x: Any) -> Any:
        return jnp.expm1(lax.erf_inv(x))[::-1]

    f_tf = convert(f, polymorphic_shapes="(b,)", target=Target.widest(xla=False))
    spec = tf.TensorSpec([None], tf.float32)
    traced = tf.function(f_tf, autograph=False).get_concrete_function(spec)
    assert {"Erfinv", "Expm1", "ReverseV2"} <= set(operation_counts(traced.graph))


def test_portable_functions_of_other_targets_are_taken(tmp_path: Path) -> None:
    x = np.array([0.1, -0.5, 0.3], np.float32)
    for target in (Target.widest(), Target.widest(xla=False)):
        portable = export(jnp.expm1, polymorphic_shapes="(b,)", target=target)(x)
        folder = tmp_path / str(target.xla)
        save(folder, portable, target=Target.converters())
        served = tf.saved_model.load(folder).signatures["serving_default"]
        assert "Expm1" not in operation_counts(served.graph)
        (found,) = served(tf.constant(x)).values()
        np.testing.assert_allclose(found, np.expm1(x), rtol=1e-6)


_UNUSED_BY_TENSORFLOW = ("Placeholder", "Identity")


def _unused(graph: Any, results: Any) -> set[str]:
    """Returns the operations of a graph that no result depends on, but for its inputs.

    And for TensorFlow's own: tf.custom_gradient leaves an Identity of each result unused. (On old
    releases of JAX the function has one, since its loop was not traced as it is now.)
    """
    queue = [tensor.op for tensor in tf.nest.flatten(results)]
    needed = {operation.name for operation in queue}
    for operation in queue:
        makers = [tensor.op for tensor in operation.inputs]
        queue += [maker for maker in makers if maker.name not in needed]
        needed |= {maker.name for maker in makers}
    left = (operation for operation in graph.get_operations() if operation.name not in needed)
    return {operation.name for operation in left if operation.type not in _UNUSED_BY_TENSORFLOW}


def test_no_check_and_no_unused_size_is_in_the_graph(tmp_path: Path) -> None:
    def f(x: Any, y: Any) -> dict[str, Any]:
        looped = lax.fori_loop(0, 3, lambda _, total: total + x.shape[0], 0)
        return {"tanh": jnp.tanh(x), "half": y[: x.shape[0] // 2].sum() + looped}

    x, y = np.ones((4, 3), np.float32), np.arange(6, dtype=np.float32)
    options: dict[str, Any] = {"args": [x, y], "polymorphic_shapes": ["(b, 3)", "(b + 2,)"]}
    inputs = {"x": tf.TensorSpec([None, None], tf.float32), "y": tf.TensorSpec(6, tf.float32)}
    processed = Signature(
        f,
        **options,
        processing=Processing(preprocess=lambda x, y: (2 * x, y), inputs=inputs),
    )
    target = Target.converters()
    save(tmp_path / "model", {"f": Signature(f, **options), "twice": processed}, target=target)
    loaded = tf.saved_model.load(tmp_path / "model")
    for name, factor in (("f", 1), ("twice", 2)):
        served = loaded.signatures[name]
        assert not {"Assert", "EnsureShape"} & set(operation_counts(served.graph))
        found = served(x=tf.constant(x), y=tf.constant(y))
        for key, expected in f(factor * x, y).items():
            np.testing.assert_allclose(found[key], expected, rtol=1e-6)
    portable = export(f, polymorphic_shapes=["(b, 3)", "(b + 2,)"], target=target)(x, y)
    unknown_ranks = [tf.TensorSpec(None), tf.TensorSpec(None)]
    traced = tf.function(to_tf(portable)).get_concrete_function(*unknown_ranks)
    assert _unused(traced.graph, traced.structured_outputs) == set()


_CORNERS = [0.0, 1.0, 1.5, 2.0, 1e-37, 3e-31, 1e30, np.finfo(np.float32).max, np.inf]


@pytest.mark.costly
def test_signs_orders_and_neighbours_of_floats_need_no_bits() -> None:
    def f(x: Any, y: Any, half: Any, narrow: Any) -> dict[str, Any]:
        return {
            "signbit": jnp.signbit(x),
            "signbit_of_float16": jnp.signbit(half),
            "copysign": jnp.copysign(y, x),
            "copysign_of_bfloat16": jnp.copysign(jnp.abs(narrow), narrow),
            "next_after": jnp.nextafter(x, y),
            "search": jnp.searchsorted(jnp.array([-1.0, 0.0, 2.0]), y),
            "interpolated": jnp.interp(y, jnp.arange(3.0), jnp.arange(3.0) ** 2),
        }

    corners = np.array([*_CORNERS, *(-np.array(_CORNERS)), np.nan], np.float32)
    drawn = np.random.default_rng(0).normal(size=(2, 500)).astype(np.float32)
    x, y = (np.repeat(corners, corners.size), np.tile(corners, corners.size))
    x, y = np.concatenate([x, drawn[0]]), np.concatenate([y, drawn[1]])
    half, narrow = drawn[0].astype(np.float16), drawn[1].astype(jnp.bfloat16)
    sizes = ["(n,)", "(n,)", "(m,)", "(m,)"]
    f_tf = convert(f, polymorphic_shapes=sizes, target=Target.converters(), with_gradient=False)
    specs = [tf.TensorSpec([None], dtype) for dtype in (x.dtype, y.dtype, half.dtype, np.float32)]
    traced = tf.function(f_tf, autograph=False).get_concrete_function(*specs)
    assert "Bitcast" not in operation_counts(traced.graph)
    found = traced(*map(tf.constant, (x, y, half, narrow.astype(np.float32))))
    for name, expected in jax.jit(f)(x, y, half, narrow).items():
        # TensorFlow takes subnormal numbers for zeros.
        atol = float(np.finfo(np.float32).tiny) if name == "next_after" else 0
        got, want = found[name].numpy(), np.asarray(expected).astype(found[name].dtype.name)
        np.testing.assert_allclose(got, want, rtol=0, atol=atol, err_msg=name)
        if not name.startswith("next_after"):
            np.testing.assert_array_equal(np.signbit(got), np.signbit(want), err_msg=name)


def test_what_needs_bits_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return lax.bitcast_convert_type(x, np.int32)

    line = f.__code__.co_firstlineno + 1
    signature = Signature(f, args=[np.ones(3, np.float32)], polymorphic_shapes="(b,)")
    with pytest.raises(ModuleError) as caught:
        save(tmp_path / "model", signature, target=Target.converters())
    assert str(caught.value) == (
        "f cannot be made of operations that converters support: stablehlo.bitcast_convert (at "
        f"{__file__}:{line}): it needs Bitcast, which no converter of graphs supports. Write this "
        "part of the function with other operations."
    )
    assert not (tmp_path / "model").exists()


def test_bits_in_gradients_are_not_refused(tmp_path: Path) -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return 2 * x

    def backward(_: Any, cotangent: Any) -> tuple[Any]:
        bits = lax.bitcast_convert_type(cotangent, np.int32)
        return (2 * lax.bitcast_convert_type(bits, np.float32),)

    f.defvjp(lambda x: (2 * x, None), backward)
    signature = Signature(f, args=[np.ones(3, np.float32)])
    save(tmp_path / "model", signature, target=Target.converters(), vjp_order=1)
    loaded = tf.saved_model.load(tmp_path / "model")
    x = tf.ones(3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = loaded.serving_default(x)
    np.testing.assert_array_equal(tape.gradient(result, x), 2 * np.ones(3))


def test_outputs_with_the_name_of_an_input_are_refused(tmp_path: Path) -> None:
    def f(x: Any, n: Any) -> dict[str, Any]:
        return {"x": x + 1, "y": n}

    signature = Signature(f, args=[np.ones(3, np.float32), np.float32(1)])
    save(tmp_path / "plain", signature, target=Target.widest(xla=False))
    with pytest.raises(SavingError) as caught:
        save(tmp_path / "model", signature, target=Target.converters())
    assert str(caught.value) == (
        "The signature serving_default has outputs with names of inputs: 'x'. tf2onnx and OpenVINO "
        "need different names. Rename the outputs, for example to 'x_out'."
    )
    assert not (tmp_path / "model").exists()
