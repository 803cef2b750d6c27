"""Errors about sizes that stay open, in the words of jax.export."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax2tf_bridge as bridge
from jax2tf_bridge import jax_export as export
from jax2tf_bridge.errors import InconclusiveShapeError, ShapeError


def _struct(text: str, *constraints: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(export.symbolic_shape(text, constraints=constraints), np.float32)


def _refusal(f: Any, *specs: Any) -> InconclusiveShapeError:
    with pytest.raises(InconclusiveShapeError) as caught:
        export.export(jax.jit(f))(*specs)
    assert "polymorphic_" not in str(caught.value)
    return caught.value


def test_scopes_that_contradict_each_other() -> None:
    with pytest.raises(
        ShapeError,
        match=r"^The symbolic scopes of add's arguments contradict each other: The constraints "
        r"'b >= 4' and 'b <= 2' contradict each other: .* Remove or correct one of them\.$",
    ):
        export.export(jnp.add)(_struct("b", "b >= 4"), _struct("b", "b <= 2"))
    with pytest.raises(ShapeError, match=r"arguments and polymorphic_constraints contradict"):
        bridge.export(jnp.sin, polymorphic_constraints=["b >= 9"])(_struct("b", "b <= 2"))


def test_the_constraint_that_is_missing_can_be_pasted() -> None:
    def f(x: Any, y: Any) -> Any:
        return x.reshape(3, -1), x[:4] + y

    refusal = _refusal(f, _struct("b, 4", "b >= 4"), _struct("4, 4"))
    assert "If your sizes always satisfy this, add it:\n    symbolic_shape(" in str(refusal)
    assert str(refusal).endswith("\nCalls with other sizes then fail.")
    (code,) = re.findall(r"^    (symbolic_shape\(.*\))$", str(refusal), re.MULTILINE)
    assert code == 'symbolic_shape("b, 4", constraints=["b >= 4", "mod(b, 3) == 0"])'
    shape = eval(code, {"symbolic_shape": export.symbolic_shape})
    exported = export.export(jax.jit(f))(jax.ShapeDtypeStruct(shape, np.float32), _struct("4, 4"))
    x = np.ones((6, 4), np.float32)
    assert exported.call(x, x[:4])[0].shape == (3, 8)
    with pytest.raises(ValueError, match=r"floordiv\(b, 3\)"):
        exported.call(x[:4], x[:4])


def test_sizes_that_no_constraint_helps() -> None:
    numbers = _refusal(lambda x: sum(x[i] for i in range(x.shape[0])), _struct("b, 4"))
    assert "Give that size as a number in symbolic_shape, or compute with it by" in str(numbers)
    never = _refusal(lambda x: x + x[1:], _struct("b, 4", "b >= 4"))
    assert "change the function or the shapes of its arguments." in str(never)
    with pytest.raises(ShapeError, match="The shapes of sin's arguments do not determine"):
        export.export(jnp.sin)(_struct("b*c"))


def test_a_gradient_speaks_in_the_same_words() -> None:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x

    def backward(x: Any, cotangent: Any) -> Any:
        return ((cotangent.reshape(2, -1) * 2).reshape(x.shape),)

    f.defvjp(lambda x: (x, x), backward)
    exported = export.export(jax.jit(f))(_struct("b, 3"))
    with pytest.raises(InconclusiveShapeError) as caught:
        exported.vjp()
    assert '    symbolic_shape("b, 3", constraints=["mod(b, 2) == 0"])' in str(caught.value)
