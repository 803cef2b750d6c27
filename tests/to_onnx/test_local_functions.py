"""save_onnx(functions=True): functions of the model for jitted functions that are called often."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge import Signature, save_onnx
from tests.to_onnx.running import run

import onnx  # isort: skip  # where it is missing, the import of tests.to_onnx.running skips
import onnx.inliner

_WIDTH = 4
_RNG = np.random.default_rng(0)


def _draw(*shape: int) -> Any:
    return _RNG.normal(size=shape).astype(np.float32)


@jax.jit
def attention(p: Any, x: Any) -> Any:
    scores = jnp.einsum("bnd,bmd->bnm", x @ p["q"], x @ p["k"])
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    return jax.nn.softmax(jnp.where(mask, scores, -1e9)) @ x


@jax.jit
def block(p: Any, x: Any) -> Any:
    x = x + attention(p["a"], x)
    x = x + attention(p["b"], jax.nn.relu(x))
    return jax.nn.gelu(x) * p["scale"]


def _layer() -> Any:
    heads = {name: {c: _draw(_WIDTH, _WIDTH) for c in "qk"} for name in "ab"}
    return {**heads, "scale": _draw(_WIDTH)}


PARAMS = {"layers": [_layer() for _ in range(3)]}
X = _draw(2, 3, _WIDTH)


def net(params: Any, x: Any) -> Any:
    for p in params["layers"]:
        x = block(p, x)
    return {"y": x}


def _save(path: Path, function: Any, *args: Any, **options: Any) -> onnx.ModelProto:
    """Writes a model with functions, and reads it after ONNX's own check."""
    shapes = options.pop("shapes", None)
    signature = Signature(function, args=list(args), polymorphic_shapes=shapes)
    save_onnx(path, signature, functions=True, **options)
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(str(path))


def _operations(nodes: Any) -> list[str]:
    return [node.op_type for node in nodes]


def _names(model: onnx.ModelProto) -> list[str]:
    return [function.name for function in model.functions]


def test_functions_of_functions(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    model = _save(path, net, X, params=PARAMS, shapes="(b, n, 4)")
    assert _names(model) == ["attention", "block"]
    main = _operations(model.graph.node)
    assert main[-4:] == ["block", "block", "block", "Identity"]
    assert {*main[:-4]} <= {"Shape", "Cast", "Gather", "Range", "Unsqueeze"}  # sizes
    assert {node.domain for node in model.graph.node[-4:-1]} == {"jax2tf_bridge"}
    assert "at.test_local_functions.py" in model.graph.node[-4].name
    inner, outer = model.functions
    assert _operations(outer.node).count("attention") == 2
    assert {"a/q", "a/k", "b/q", "b/k", "scale"} <= {*outer.input}
    assert {"q", "k"} <= {*inner.input}
    weights = {f"layers/{i}/{part}" for i in range(3) for part in ("a/q", "b/k", "scale")}
    assert weights <= {each.name for each in model.graph.initializer}
    for shape in ((2, 3), (1, 1), (3, 5)):
        x = _draw(*shape, _WIDTH)
        np.testing.assert_allclose(run(path, {"x": x})["y"], net(PARAMS, x)["y"], atol=1e-5)


def test_without_functions_the_model_has_the_same_nodes(tmp_path: Path) -> None:
    model = _save(tmp_path / "m.onnx", net, X, params=PARAMS, shapes="(b, n, 4)")
    signature = Signature(net, args=[X], polymorphic_shapes="(b, n, 4)")
    save_onnx(tmp_path / "plain.onnx", signature, params=PARAMS, verify=False)
    plain = onnx.load(str(tmp_path / "plain.onnx"))
    inlined = onnx.inliner.inline_local_functions(model)
    kept = [o for o in _operations(inlined.graph.node) if o != "Constant"]
    assert sorted(kept) == sorted(_operations(plain.graph.node))
    assert (len(plain.functions), [o.domain for o in plain.opset_import]) == (0, [""])
    assert len(model.SerializeToString()) < 0.7 * len(plain.SerializeToString())


@functools.partial(jax.jit, static_argnums=1)
def power(x: Any, n: int) -> Any:
    for _ in range(n):
        x = jnp.sin(x) * x
    return x


@jax.jit
def halve_until_small(x: Any, limit: Any) -> Any:
    x = jnp.where(jnp.isnan(x), 0, x)
    return jax.lax.while_loop(
        lambda x: jnp.max(jnp.abs(x)) > limit,
        lambda x: x / 2,
        x,
    )


def test_calls_that_differ_have_functions_of_their_own(tmp_path: Path) -> None:
    """A static argument gives other operations; a single call stays inline."""

    def every(x: Any) -> Any:
        x = power(power(power(x, 3), 3), 4)
        return power(power(x, 5), 4)

    model = _save(tmp_path / "m.onnx", every, X)
    assert [len(function.node) for function in model.functions] == [6, 8]
    assert len({*_names(model)}) == 2
    assert _operations(model.graph.node).count("Sin") == 5
    np.testing.assert_allclose(run(tmp_path / "m.onnx", {"x": X})["output_0"], every(X), atol=1e-5)


def test_loops_in_functions_and_calls_in_loops(tmp_path: Path) -> None:
    def every(x: Any) -> Any:
        limits = jnp.asarray([0.5, 0.25], jnp.float32)

        def step(x: Any, limit: Any) -> Any:
            x = halve_until_small(x, limit) + power(x, 3)
            return x, power(x, 3).sum()

        @jax.jit
        def repeat(x: Any) -> Any:  # too small for a function
            return jax.lax.scan(step, x, limits)

        x, sums = repeat(halve_until_small(x, 1.0))
        return {"last": x, "sums": sums}

    model = _save(tmp_path / "m.onnx", every, X, shapes="(b, 3, 4)")
    assert "power" in _names(model)
    loops = [node for node in model.graph.node if node.op_type == "Loop"]
    bodies = [each.g for node in loops for each in node.attribute if each.name == "body"]
    assert 2 in [_operations(body.node).count("power") for body in bodies]
    x = 5 * _draw(4, 3, _WIDTH)
    got, want = run(tmp_path / "m.onnx", {"x": x}), every(x)
    for name in ("last", "sums"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5)


def test_loops_with_other_limits_share_a_function(tmp_path: Path) -> None:
    def every(x: Any, limits: Any) -> Any:
        return halve_until_small(halve_until_small(x, limits[0]), limits[1])

    limits = np.array([2, 0.5], np.float32)
    model = _save(tmp_path / "m.onnx", every, X, limits, shapes=["(b, 3, 4)", None])
    assert _names(model) == ["halve_until_small"]
    assert "Loop" in _operations(model.functions[0].node)
    got = run(tmp_path / "m.onnx", {"x": 9 * X, "limits": limits})["output_0"]
    np.testing.assert_allclose(got, every(9 * X, limits), rtol=1e-6)


def test_functions_of_jax_stay_inline(tmp_path: Path) -> None:
    def every(x: Any) -> Any:
        x = jax.nn.gelu(jnp.var(x, 0) + x)
        return jax.nn.gelu(jnp.var(x, 0) + x)

    assert _names(_save(tmp_path / "m.onnx", every, X)) == []


def test_several_models_with_functions_share_weights(tmp_path: Path) -> None:
    def double(params: Any, x: Any) -> Any:
        return {"y": 2 * net(params, x)["y"]}

    both = {name: Signature(f, args=[X]) for name, f in (("net", net), ("double", double))}
    saved = save_onnx(tmp_path / "both", both, params=PARAMS, functions=True, opset=23)
    assert saved.signatures["double"].checked.startswith("compared with JAX")
    for name in both:
        model = onnx.load(str(tmp_path / "both" / f"{name}.onnx"), load_external_data=False)
        assert _names(model) == ["attention", "block"]
        assert {(o.domain, o.version) for o in model.opset_import} == {
            ("", 23),
            ("jax2tf_bridge", 1),
        }
