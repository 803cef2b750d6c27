"""Every public name of jax2tf is there, and takes the same keywords."""

import inspect
import types
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf_bridge
from jax2tf_bridge import convert
from jax2tf_bridge.compat import as_jax2tf

# In JAX 0.8.2 to 0.12.0.1, for each what it takes by keyword.
NAMES: dict[str, set[str]] = {
    "DisabledSafetyCheck": set(),
    "PolyShape": set(),
    "call_tf": {"has_side_effects", "ordered", "output_shape_dtype", "call_tf_graph"},
    "convert": {
        "polymorphic_shapes",
        "polymorphic_constraints",
        "with_gradient",
        "enable_xla",
        "native_serialization",
        "native_serialization_platforms",
        "native_serialization_disabled_checks",
    },
    "dtype_of_val": set(),
    "eval_polymorphic_shape": {"polymorphic_shapes"},
    "split_to_logical_devices": {"partition_dimensions"},
}
CHECKS = {"platform", "custom_call", "is_custom_call"}


def keywords(function: Callable[..., Any]) -> set[str]:
    """Returns what a function takes by keyword, beside its first argument."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


def functions() -> list[str]:
    return [name for name in NAMES if not name[0].isupper()]


def test_table_is_that_of_the_installed_jax2tf(jax2tf: Any) -> None:
    public = {n: v for n, v in vars(jax2tf).items() if not n.startswith("_")}
    names = {n for n, v in public.items() if not isinstance(v, types.ModuleType)}
    assert names == set(NAMES)
    assert {name: keywords(public[name]) for name in functions()} == {
        name: NAMES[name] for name in functions()
    }
    methods = {n for n in dir(jax2tf.DisabledSafetyCheck) if not n.startswith("_")}
    assert methods <= CHECKS


@pytest.mark.parametrize("name", sorted(NAMES))
def test_facade_has_it_with_the_same_keywords(name: str) -> None:
    ours = getattr(jax2tf_bridge, name)
    if name in functions():
        assert keywords(ours) >= NAMES[name]


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_safety_checks_have_its_methods(name: str) -> None:
    assert callable(getattr(jax2tf_bridge.DisabledSafetyCheck, name))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_compat_puts_the_facades_into_its_place(name: str) -> None:
    with as_jax2tf() as jax2tf:
        ours = getattr(jax2tf, name)
    if name != "convert":  # that one takes what Keras gives it
        assert ours is getattr(jax2tf_bridge, name)


def test_checks_of_jax_are_taken_by_their_text(jax2tf: Any) -> None:
    checks = [jax2tf.DisabledSafetyCheck.platform(), jax2tf.DisabledSafetyCheck.custom_call("k")]
    f = convert(jnp.sin, native_serialization_disabled_checks=checks)
    graph = tf.function(f, autograph=False).get_concrete_function(tf.TensorSpec(())).graph
    (op,) = (op for op in graph.get_operations() if op.type == "XlaCallModule")
    assert op.get_attr("disabled_checks") == [b"platform", b"custom_call:k"]


@pytest.mark.parametrize("name", ["enable_xla", "native_serialization"])
def test_graphs_of_tensorflows_own_operations(name: str) -> None:
    asked: dict[str, Any] = {name: False}
    with as_jax2tf() as jax2tf:
        both = convert(jnp.negative, **asked), jax2tf.convert(jnp.negative, **asked)
        with pytest.raises(ValueError, match="Leave one of them out"):
            jax2tf.convert(jnp.negative, enable_xla=False, native_serialization=True)
    for f in both:
        assert f(np.float32(1)).numpy() == -1
        graph = tf.function(f, autograph=False).get_concrete_function(tf.TensorSpec(())).graph
        kinds = {op.type for op in graph.get_operations()}
        assert "Neg" in kinds
        assert not [kind for kind in kinds if "Xla" in kind]


@pytest.mark.parametrize("name", ["enable_xla", "native_serialization"])
def test_default_of_jax2tf_is_taken_without_a_word(jax2tf: Any, name: str) -> None:
    default = inspect.signature(jax2tf.convert).parameters[name].default
    given: dict[str, Any] = {name: default}
    assert convert(jnp.sin, **given)(np.float32(0)).numpy() == 0
