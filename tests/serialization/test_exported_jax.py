"""Reads what the installed JAX writes, and compares with what its Exported objects say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.errors import GradientError
from jax2tf_bridge.portable import AbstractMesh, Sharding
from jax2tf_bridge.serialization.jax_exported import read_exported
from tests.fresh_process import several_devices
from tests.program_cases.reference import jax_arguments
from tests.programs import PROGRAMS, Program
from tests.serialization import write_archives
from tests.serialization.read_archives import describe

QUICK = (
    "small_integers",
    "complex64",
    "nested_dicts",
    "no_results",
    "no_arguments",
    "unused_and_untouched",
    "related_dimensions",
    "keys_in_and_out",
    "fp8_arguments",
)
# In CI, besides; the others are one row of a table each.
THOROUGH = (
    *("mlp_symbolic", "conv_symbolic_image", "attention", "control_flow", "custom_vjp"),
    *("float64", "int4_arguments", "mixed_arguments", "empty_arrays", "dropout"),
)
# Named tuples and dataclasses have to be registered first, which other tests do.
UNREGISTERED = ("named_tuples", "dataclasses_and_none")


def marks(program: Program) -> Any:
    if program.name in QUICK:
        return ()
    return pytest.mark.slow if program.name in THOROUGH else pytest.mark.complete


def check(exported: Any, order: int) -> PortableFunction:
    """Reads what JAX writes, and compares with what JAX says."""
    exported = write_archives.with_vjp(exported, order)
    portable = read_exported(exported.serialize(vjp_order=order))
    theirs = json.loads(json.dumps(write_archives.describe(exported, order)))
    assert describe(portable, theirs) == theirs
    return portable


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, marks=marks(p), id=p.name) for p in PROGRAMS if p.name not in UNREGISTERED],
)
def test_programs(program: Program) -> None:
    with program.precision():
        example = program.build()
        arguments = jax_arguments(program, example.calls[0])
        shapes = program.polymorphic_shapes
        if isinstance(shapes, tuple) and len(shapes) != len(arguments):
            shapes = None
        symbolic = jax.export.symbolic_args_specs(
            arguments, None if program.constraints else shapes
        )
        # Functions that JAX cannot lower at symbolic sizes are tried at one size.
        function = jax.jit(example.function)
        try:
            exported = jax.export.export(function)(*symbolic, **example.calls[0].kwargs)
        except Exception:
            exported = jax.export.export(function)(*arguments, **example.calls[0].kwargs)
        portable = check(exported, int(program.differentiable))
        assert portable.has_vjp == program.differentiable


@pytest.mark.parametrize("order", [0, 1, 2])
def test_vjps_of_every_order(order: int) -> None:
    exported = jax.export.export(jax.jit(lambda x, n: (jnp.sin(x) * n, n)))(jnp.ones(3), 2)
    portable = check(exported, order)
    for _ in range(order):
        portable = portable.vjp()
    with pytest.raises(GradientError, match="stored without the VJP of this order"):
        portable.vjp()


def test_many_arguments_and_deep_trees() -> None:
    leaves = [jnp.float32(i) for i in range(300)]
    tree: Any = jnp.float32(0)
    for _ in range(60):
        tree = {"next": tree}
    portable = check(jax.export.export(jax.jit(lambda t, *a: (a[7], t)))(tree, *leaves), 0)
    assert portable.module.kept_arguments == (0, 8)


def test_symbolic_expressions() -> None:
    b, h = jax.export.symbolic_shape("b, h")
    sizes = (b * h - b, b // 3 + 2 * h, b % 4 + 1, 3 * b * b, jax.core.max_dim(b, h))
    specs = [jax.ShapeDtypeStruct((b, h, s), np.int8) for s in sizes]
    portable = check(jax.export.export(jax.jit(lambda *a: a))(*specs), 0)
    assert str(portable.in_avals[4].shape[2]) == "max(b, h)"


@pytest.mark.skipif(
    not hasattr(jax, "memory") or not hasattr(jax.memory, "Space"),
    reason="this JAX has no public memory spaces",
)
def test_memory_spaces() -> None:
    array = jax.ShapeDtypeStruct((2,), np.float32)
    traced = jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Host)).trace(array)
    assert "host" in str(traced.jaxpr.out_avals[0])
    exported = jax.export.export(
        jax.jit(lambda x: jax.device_put(x, jax.memory.Space.Host)), platforms=["tpu"]
    )(array)
    assert read_exported(exported.serialize()).out_avals[0].memory_space == "host"


RECIPE = Path(write_archives.__file__)


@pytest.mark.slow
def test_the_recipe_of_the_archives_still_works(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(RECIPE), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **several_devices(2)},
    )
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert folder.name == jax.__version__
    files = sorted(folder.glob("*.exported"))
    assert len(files) == len(write_archives.FUNCTIONS)
    for file in files:
        theirs = json.loads(file.with_suffix(".json").read_text())
        assert describe(read_exported(file.read_bytes()), theirs) == theirs
    sharded = read_exported((folder / "sharded.exported").read_bytes())
    if jax.__version_info__ >= (0, 9):
        sharding = sharded.in_shardings[1]
        assert isinstance(sharding, Sharding)
        assert isinstance(sharding.mesh, AbstractMesh)
        assert sharding.partitions == ((), ("y", "x"))


@pytest.mark.parametrize("written", ["mod(b,2)==0", "mod(b, 2) == 0", "mod(2*b + 2, 4) == 0"])
def test_constraints_are_those_that_the_user_wrote(written: str) -> None:
    """JAX 0.10 and later add others, by which they decide more."""
    shape = jax.export.symbolic_shape("b", constraints=[written, "b >= 2"])
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(shape, np.float32))
    assert read_exported(bytes(exported.serialize())).constraints == (written, "b >= 2")
