"""Functions are called as those that they stand for: by position and by every keyword."""

import inspect
import types
from collections.abc import Iterator
from typing import Any

import flax.serialization
import numpy as np
from jax import export as jax_export

import jax2tf_bridge
from jax2tf_bridge import jax_export as export_of_the_bridge
from jax2tf_bridge import weights

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
BY_FIELDS = {"Exported", "DisabledSafetyCheck"}
"""Classes whose constructors take fields; tests/jax_export/test_exported.py calls them."""


def functions(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields public functions of a module and methods of its classes, by dotted name."""
    for name, value in vars(module).items():
        home = getattr(value, "__module__", "")
        if name.startswith("_") or isinstance(value, types.ModuleType) or "." not in home:
            continue
        if not inspect.isclass(value):
            if callable(value):
                yield name, value
            continue
        if name not in BY_FIELDS:
            yield name, value
        for method, function in inspect.getmembers(value, inspect.isroutine):
            if not method.startswith("_"):
                yield f"{name}.{method}", function


def differences(original: Any, ours: Any) -> list[str]:
    """Lists how calls of the original would fail with ours."""
    theirs = inspect.signature(original).parameters
    mine = inspect.signature(ours).parameters
    public = [p for p in theirs.values() if not p.name.startswith("_")]
    problems = [f"no {p.name}" for p in public if p.name not in mine]
    positions = [p.name for p in public if p.kind in POSITIONAL]
    if positions != [p.name for p in mine.values() if p.kind in POSITIONAL][: len(positions)]:
        problems.append(f"positions: {list(mine)}")
    for parameter in mine.values():
        in_original = theirs.get(parameter.name)
        is_optional = in_original is None or in_original.default is not inspect.Parameter.empty
        is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_optional and not is_variadic and parameter.default is inspect.Parameter.empty:
            problems.append(f"{parameter.name} must be given")
    return problems


def compare(original: Any, ours: Any) -> int:
    """Compares all functions of two modules; returns how many there are."""
    names = dict(functions(original))
    found = {}
    for name, function in names.items():
        counterpart = ours
        for part in name.split("."):
            counterpart = getattr(counterpart, part)
        found[name] = differences(function, counterpart)
    assert found == {name: [] for name in names}
    return len(names)


def test_of_jax2tf(jax2tf: Any) -> None:
    assert compare(jax2tf, jax2tf_bridge) >= 8


def test_of_jax_export() -> None:
    assert compare(jax_export, export_of_the_bridge) >= 15


def test_of_flax_serialization() -> None:
    own = types.ModuleType("flax.serialization")
    for name, value in vars(flax.serialization).items():
        if getattr(value, "__module__", "") == "flax.serialization":
            setattr(own, name, value)
    assert compare(own, weights) >= 9
    assert weights.MAX_CHUNK_SIZE == flax.serialization.MAX_CHUNK_SIZE


def test_first_arguments_by_keyword() -> None:
    def double(x: Any) -> Any:
        return x + x

    ones = np.ones(3, np.float32)
    specs = jax2tf_bridge.eval_polymorphic_shape(fun_jax=double, polymorphic_shapes="b")(ones)
    assert specs[1] == "(b,)"
    assert jax2tf_bridge.convert(fun_jax=double)(3.0).numpy() == 6
    assert float(jax2tf_bridge.call_tf(callable_tf=double)(3.0)) == 6
    encoded = weights.to_bytes({"w": ones})
    assert weights.msgpack_restore(encoded_pytree=encoded)["w"].tolist() == [1, 1, 1]
    assert weights.from_bytes({"w": 0}, encoded_bytes=encoded)["w"].tolist() == [1, 1, 1]
