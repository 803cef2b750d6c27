"""Modules are taken as JAX lowers them; where JAX lacks a name of the seam, they are read."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import erf

from jax2tf_bridge import export, retarget

# Private: a seam is what is tested.
from jax2tf_bridge.from_jax._jax_compat_lowering import SEAM, take_module
from jax2tf_bridge.from_jax.lowering._lowering import AlreadyTraced
from jax2tf_bridge.from_jax.stablehlo import StableHloModule
from tests.from_jax.inferring import module_text
from tests.house.seams import take_away

NAMES = ("_export_lowered", "_module_to_bytecode", "make_ir_context")
ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


def norm_and_product(x: Any) -> Any:
    """Squares, of CHLO; a product without its defaults; a choice between platforms; open sizes."""
    return jnp.square(x - x.mean(-1, keepdims=True)) @ x.T


def read_modules(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Lists the artifacts that are read as modules to be exported, from now on."""
    read: list[bytes] = []
    plain = StableHloModule.read.__func__  # type: ignore[attr-defined]

    def counted(cls: type[StableHloModule], artifact: bytes) -> StableHloModule:
        read.append(artifact)
        module: StableHloModule = plain(cls, artifact)
        return module

    monkeypatch.setattr(StableHloModule, "read", classmethod(counted))
    return read


def exported_text(f: Callable[[Any], Any], x: Any = ROWS) -> str:
    return module_text(export(f, polymorphic_shapes="(b, _)")(x))


@pytest.mark.parametrize("name", NAMES)
def test_without_the_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_modules(monkeypatch)
    taken = exported_text(norm_and_product)
    assert not read
    take_away(monkeypatch, SEAM, name)
    assert exported_text(norm_and_product) == taken
    assert len(read) == 1


# Only JAX expands operations of CHLO, complex functions, and functions that end otherwise.
@pytest.mark.parametrize(
    ("f", "x"),
    [(erf, ROWS), (jnp.exp, ROWS.astype(np.complex64)), (lambda x: jnp.cumsum(x, 1), ROWS)],
    ids=["chlo", "complex", "ends"],
)
def test_what_jax_expands_is_written_by_jax(
    f: Callable[[Any], Any], x: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = exported_text(f, x)
    take_away(monkeypatch, SEAM, *NAMES)
    assert exported_text(f, x) == made


def test_other_exports_write_their_modules() -> None:
    """As one that a lowering rule makes, while the bridge waits for its own."""
    traced = jax.jit(norm_and_product).trace(ROWS)
    other = jax.export.export(jax.jit(jnp.sin))
    with take_module(traced) as taken:
        assert other(ROWS).mlir_module_serialized
    assert taken.module is None
    assert other(ROWS).call(ROWS).shape == ROWS.shape


def test_what_jax_has_lowered_stays_as_it_was() -> None:
    """JAX gives it out again: the bridge has a copy."""
    traced = jax.jit(norm_and_product).trace(ROWS)
    texts = []
    for _ in range(2):
        with take_module(traced) as taken:
            exported = jax.export.export(AlreadyTraced(traced))()
        assert exported.mlir_module_serialized == b""
        texts.append(str(taken.module))
        assert StableHloModule(taken.module).finalize()
        assert "chlo.square" not in str(taken.module)
    assert "chlo.square" in texts[0]
    assert texts[0] == texts[1]


def test_nothing_is_written_of_attributes_that_are_not_there() -> None:
    """JAX 0.8 gives each argument a dict of none; retargeting would write other bytes."""
    portable = export(jnp.sin)(ROWS)
    assert retarget(portable).module == portable.module
