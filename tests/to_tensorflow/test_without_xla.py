"""to_tf(target=...): functions for XLA become operations of TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import DisabledSafetyCheck, Target, deserialize, export, serialize, to_tf
from jax2tf_bridge.bytecode import Block, Function, Operation, OtherType, Program, Value
from jax2tf_bridge.errors import GradientError, ModuleError
from jax2tf_bridge.portable import without_xla
from jax2tf_bridge.targets import find_inexpressible

X = np.arange(6, dtype=np.float32).reshape(3, 2)


def cubes(x: Any) -> Any:
    return jnp.sum(x * x * x, axis=1)


def kinds(function: Any) -> set[str]:
    concrete = tf.function(function, autograph=False).get_concrete_function(
        tf.TensorSpec([None, 2])
    )
    return {op.type for op in concrete.graph.get_operations()}


def test_values_and_gradients_of_a_function_for_xla() -> None:
    portable = deserialize(serialize(export(cubes, polymorphic_shapes="(b, _)")(X), vjp_order=1))
    assert portable.platforms == ("cpu", "cuda", "rocm", "tpu")
    f = to_tf(portable, target=Target.widest(xla=False))
    assert "XlaCallModule" in kinds(to_tf(portable))
    assert not [kind for kind in kinds(f) if "Xla" in kind]
    x = tf.constant(X)
    for call in (f, tf.function(f, autograph=False)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        np.testing.assert_allclose(y, (X**3).sum(1), rtol=1e-6)
        np.testing.assert_allclose(tape.gradient(y, x), 3 * X**2, rtol=1e-6)


def test_of_a_target_without_xla_nothing_else_is_made() -> None:
    portable = export(cubes, polymorphic_shapes="(b, _)", target=Target.widest(xla=False))(X)
    assert not [kind for kind in kinds(to_tf(portable)) if "Xla" in kind]
    # Its module may be newer than what this TensorFlow reads.
    module = replace(portable.module, stablehlo_version=(9, 0, 0), calling_convention_version=99)
    newer = replace(portable, module=module)
    np.testing.assert_allclose(to_tf(newer)(X), cubes(X), rtol=1e-6)


def test_a_call_without_a_form_is_an_error() -> None:
    def kernel(x: Any) -> Any:
        import jax

        return jax.ffi.ffi_call("my_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    vouched = [DisabledSafetyCheck.custom_call("my_kernel")]
    portable = export(kernel, platforms=["cpu"], disabled_checks=vouched)(X)
    for each in (portable, deserialize(serialize(portable))):
        with pytest.raises(
            ModuleError,
            match=r"kernel cannot become TensorFlow's own operations: they cannot express the "
            r"custom call 'my_kernel' .*\. Export it without xla=False",
        ):
            to_tf(each, target=Target.widest(xla=False))


def test_a_function_without_a_gradient_says_so_still() -> None:
    portable = export(lambda x: x)(X).with_vjp(0)
    with pytest.raises(GradientError, match="only VJPs of lower orders were made"):
        without_xla(portable).vjp()
    assert without_xla(without_xla(portable)).target.name.count("without XLA") == 1


def test_quantised_types_are_named() -> None:
    value = Value(OtherType("tensor<2x!quant.uniform<i8:f32, 1.0>>"))
    operation = Operation("add", (), (value,), {}, source="model.py:3")
    program = Program({"main": Function("main", Block((), (operation,)))})
    found = find_inexpressible(program)
    assert found is not None
    assert found.operation == "quantised types"
    assert found.problem == (
        "they cannot express the quantised type tensor<2x!quant.uniform<i8:f32, 1.0>> of a result "
        "of add at model.py:3"
    )
