"""save(): inputs that may be left out, and seeds."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, save
from jax2tf_bridge.errors import SavingError
from tests.sampling import sampled
from tests.saving.flat_signatures import flat_signature

X = np.ones((2, 3), np.float32)


def test_any_of_the_defaults_may_be_left_out(tmp_path: Path) -> None:
    def f(x: Any, scale: Any, shift: Any, *, power: Any) -> Any:
        return (x * scale + shift) ** power

    one = np.float32(1)
    defaults = {"scale": 2.0, "shift": 3.0, "power": 2.0}
    signature = Signature(f, args=[X, one, one], kwargs={"power": one}, defaults=defaults)
    save(tmp_path / "m", signature, vjp_order=0)
    method = tf.saved_model.load(tmp_path / "m").serving_default
    for given in ({}, {"scale": 4.0}, {"shift": 4.0}, {"power": 1.0}, {"scale": 1.0, "power": 3.0}):
        np.testing.assert_allclose(method(X, **given), f(X, **{**defaults, **given}))
    np.testing.assert_allclose(method(X, 4.0), (X * 4 + 3) ** 2)


def test_of_many_defaults_all_or_none_are_left_out(tmp_path: Path) -> None:
    names = [f"a{i}" for i in range(6)]
    kwargs = dict.fromkeys(names, np.float32(1))
    signature = Signature(
        lambda x, **kwargs: x * sum(kwargs.values()), args=[X], kwargs=kwargs, defaults=kwargs
    )
    save(tmp_path / "m", signature, vjp_order=0)
    method = tf.saved_model.load(tmp_path / "m").serving_default
    np.testing.assert_array_equal(method(X), X * 6)
    np.testing.assert_array_equal(method(X, **{n: tf.constant(2.0) for n in names}), X * 12)


def test_defaults_with_preprocess_are_for_what_it_takes(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "args": [X, np.float32(1)],
        "preprocess": lambda text, factor: (tf.strings.to_number(text), factor),
        "inputs": {
            "text": tf.TensorSpec([2, 3], tf.string),
            "factor": tf.TensorSpec([], tf.float32),
        },
    }

    def f(x: Any, scale: Any) -> Any:
        return x * scale

    with pytest.raises(SavingError, match=r"names 'scale', which is not an input.*text, factor"):
        save(tmp_path / "m", flat_signature(f, defaults={"scale": 2.0}, **options))
    save(tmp_path / "m", flat_signature(f, defaults={"factor": 2.0}, **options), vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    text = tf.constant([["1", "2", "3"], ["4", "5", "6"]])
    expected = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(loaded.serving_default(text=text)["output_0"], expected * 2)
    three = tf.constant(3.0)
    for call in (loaded.serving_default, loaded.signatures["serving_default"]):
        np.testing.assert_array_equal(call(text=text, factor=three)["output_0"], expected * 3)


@pytest.mark.parametrize("impl", sampled(["threefry2x32", "rbg", "unsafe_rbg"], every=2))
def test_seeds_of_every_kind_of_key(impl: str, tmp_path: Path) -> None:
    def f(keys: Any, x: Any) -> Any:
        return x + jax.vmap(lambda key: jax.random.uniform(key, (3,)))(keys)

    def keys(seeds: Any) -> Any:
        return jax.vmap(lambda seed: jax.random.key(seed, impl=impl))(seeds)

    seeds = np.array([7, 2**32 - 1], np.uint32)
    save(tmp_path / "m", Signature(f, args=[keys(seeds), X], seed="scalar"), vjp_order=0)
    loaded = tf.saved_model.load(tmp_path / "m")
    np.testing.assert_allclose(loaded.serving_default(seeds, X), f(keys(seeds), X), rtol=1e-6)


def test_seeds_that_would_have_no_effect(tmp_path: Path) -> None:
    def f(key: Any, x: Any) -> Any:
        return x + jax.random.uniform(key, (3,))

    with pytest.raises(SavingError, match="no input that is a key"):
        save(tmp_path / "m", Signature(f, args=[jax.random.PRNGKey(0), X], seed="scalar"))
    seed: Any = "Scalar"
    with pytest.raises(SavingError, match=r"must be 'key' or 'scalar'\. Got: 'Scalar'"):
        save(tmp_path / "m", Signature(f, args=[jax.random.key(0), X], seed=seed))


class _Coder(nn.Module):
    @nn.compact
    def __call__(self, image: Any, scale: Any) -> Any:
        return nn.Dense(2, name="dense")(image) * scale

    def encode(self, pixels: Any) -> Any:
        return pixels + 1


def test_inputs_of_a_linen_module_have_the_names_of_its_method(tmp_path: Path) -> None:
    coder, x, scale = _Coder(), np.ones((1, 3), np.float32), np.float32(2)
    variables = coder.init(jax.random.key(0), x, scale)
    signatures = {
        "call": Signature(coder.apply, args=[x, scale]),
        "encode": Signature(functools.partial(coder.apply, method="encode"), args=[x]),
        "method": Signature(functools.partial(coder.apply, method=_Coder.encode), args=[x]),
        "bound": Signature(
            functools.partial(coder.apply, variables, x), args=[scale], takes_params=False
        ),
    }
    saved = save(tmp_path / "m", signatures, params=variables)
    names = {name: list(signature.inputs) for name, signature in saved.signatures.items()}
    assert names == {
        "call": ["image", "scale"],
        "encode": ["pixels"],
        "method": ["pixels"],
        "bound": ["scale"],
    }
