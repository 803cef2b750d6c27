"""A function from a file runs in TensorFlow without JAX, if its types are those of its module."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import PortableFunction, export, to_tf
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.serialization import read_function, write_function
from shape_poly import DimExpr
from tests.fresh_process import run_python
from tests.serialization.records import changed


@pytest.fixture(scope="module")
def portable() -> PortableFunction:
    def f(params: Any, x: Any) -> Any:
        return {"y": jnp.square(x @ params["w"]), "n": x.shape[0] * jnp.int32(1)}

    params = {"w": np.ones((3, 1), np.float32)}
    return export(f, polymorphic_shapes=[None, "(b, 3)"])(params, np.ones((2, 3), np.float32))


B = DimExpr.variable("b")
X, W = Aval((B, 3), "float32"), Aval((3, 1), "float32")
N, Y = Aval((), "int32"), Aval((B, 1), "float32")
WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"out_avals": (N, replace(Y, dtype="float64"))},
        "result 1: the portable function says float64[b,1], the module tensor<?x1xf32>",
    ),
    (
        {"out_avals": (replace(N, dtype="int64"), Y)},
        "result 0: the portable function says int64[], the module tensor<i32>",
    ),
    (
        {"out_avals": (N, replace(Y, shape=(B, 1000)))},
        "result 1: the portable function says float32[b,1000], the module tensor<?x1xf32>",
    ),
    (
        {"in_avals": (W, replace(X, shape=(B, 4)))},
        "argument 1: the portable function says float32[b,4], the module tensor<?x3xf32>",
    ),
    ({"kept_arguments": (0,)}, "the portable function has 1 arguments, the module 2"),
]


def test_a_file_runs(portable: PortableFunction, tmp_path: Path) -> None:
    write_function(tmp_path / "f.jaxfn", portable, vjp_order=1)
    assert (portable.in_avals, portable.out_avals) == ((W, X), (N, Y))
    f = to_tf(read_function(tmp_path / "f.jaxfn"))
    w = tf.constant([[1.0], [2.0], [3.0]])
    for batch in (1, 4):
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = f({"w": w}, tf.ones((batch, 3)))["y"]
        np.testing.assert_array_equal(y, [[36.0]] * batch)
        np.testing.assert_array_equal(tape.gradient(y, w), [[12.0 * batch]] * 3)


@pytest.mark.parametrize(("changes", "text"), WRONG)
def test_files_that_contradict_their_modules_are_refused(
    changes: dict[str, Any], text: str, portable: PortableFunction, tmp_path: Path
) -> None:
    write_function(tmp_path / "f.jaxfn", changed(portable, **changes), vjp_order=0)
    with pytest.raises(ModuleError) as caught:
        to_tf(read_function(tmp_path / "f.jaxfn"))
    assert str(caught.value).splitlines() == [
        "The StableHLO module of f does not match its portable function:",
        f"  - {text}",
    ]


RUN = """
import sys
import tensorflow as tf
from jax2tf_bridge import to_tf
from jax2tf_bridge.serialization import read_function

f = to_tf(read_function(sys.argv[1]))
print(f({"w": tf.constant([[1.0], [2.0], [3.0]])}, tf.ones((1, 3)))["y"].numpy().tolist())
print("jax" in sys.modules)
"""


@pytest.mark.slow
def test_a_file_runs_where_jax_cannot_be_imported(
    portable: PortableFunction, tmp_path: Path
) -> None:
    write_function(tmp_path / "f.jaxfn", portable, vjp_order=1)
    lines = run_python(RUN, str(tmp_path / "f.jaxfn"), without_jax=True).splitlines()
    assert lines == ["[[36.0]]", "False"]
