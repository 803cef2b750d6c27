"""What `jax2tf-bridge inspect` knows of a record: the schema of its --json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.cli._orders import stored_functions
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable._array_sizes import array_size
from jax2tf_bridge.portable._aval import Aval, LiftedConstant
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._stablehlo_version import version_text
from jax2tf_bridge.portable._tensorflow_releases import releases_that_run, unhandled_anywhere
from jax2tf_bridge.portable.bytecode import read_module
from shape_poly import Dim, is_symbolic_dim

SCHEMA = 1
"""The version of the schema; a field that is taken away or means something else raises it."""


def describe(record: PortableFunction) -> dict[str, Any]:
    """The record as JSON has it; docs/command-line.md says what each field means."""
    kept = frozenset(record.module.kept_arguments)
    functions = stored_functions(record)
    orders = [_order(i, function) for i, function in enumerate(functions)]
    return {
        "schema": SCHEMA,
        "name": record.name,
        "producer": record.producer,
        "target": record.target.name,
        "arguments": [
            {"path": port.path, **_array(port.aval), "used": i in kept}
            for i, port in enumerate(record.inputs)
        ],
        "results": [{"path": port.path, **_array(port.aval)} for port in record.outputs],
        "structure": {"arguments": str(record.in_tree), "result": str(record.out_tree)},
        "sizes": {
            "variables": sorted(_variables(record.in_avals)),
            "constraints": list(record.constraints),
            "constraints_known": record.constraints_known,
            "requirements": list(record.requirements),
        },
        "platforms": list(record.platforms),
        "dropped_platforms": [
            {"platform": platform, "reason": reason}
            for platform, reason in record.dropped_platforms
        ],
        "tensorflow": orders[0]["tensorflow"],
        "gradient": {"orders": len(orders) - 1, "then": functions[-1].gradient_problem() or ""},
        "modules": orders,
        "effects": {
            "ordered": list(record.ordered_effects),
            "unordered": list(record.unordered_effects),
        },
        "disabled_checks": [str(check) for check in record.module.disabled_checks],
        "devices": record.module.nr_devices,
        "shardings": {
            "arguments": [_text(s) for s in record.in_shardings],
            "results": [_text(s) for s in record.out_shardings],
        },
        "constants": [
            {
                "name": c.name,
                **_array(c.aval),
                "sha256": c.digest,
                "bytes": _size(c),
                "in_file": c.data is not None,
            }
            for c in record.lifted_constants
        ],
        "arrays": _arrays(functions),
    }


def _arrays(functions: Sequence[PortableFunction]) -> dict[str, Any]:
    """What the constants of all orders take, each array counted once."""
    found = {c.digest: c for function in functions for c in function.lifted_constants}
    sizes = {digest: _size(c) for digest, c in found.items()}
    largest = max(sizes, key=lambda digest: sizes[digest], default=None)
    return {
        "count": len(found),
        "bytes": sum(sizes.values()),
        "in_file": sum(c.data is not None for c in found.values()),
        "largest": {
            "name": "" if largest is None else found[largest].name,
            "bytes": 0 if largest is None else sizes[largest],
        },
    }


def _size(constant: LiftedConstant) -> int:
    size = array_size(constant.aval)
    assert isinstance(size, int)  # others are not read
    return size


def _order(order: int, function: PortableFunction) -> dict[str, Any]:
    contents = _contents(function)
    releases = releases_that_run(
        function.module, (call["name"] for call in contents["custom_calls"])
    )
    return {
        "order": order,
        "bytes": len(function.module.data),
        "stablehlo": version_text(function.module.stablehlo_version),
        "calling_convention": function.module.calling_convention_version,
        "tensorflow": list(releases),
        "requirements": list(function.requirements),
        **contents,
    }


def _contents(function: PortableFunction) -> dict[str, Any]:
    """What the module holds."""
    try:
        found = read_module(function.module.data)
    except FileFormatError as e:
        nothing: dict[str, Any] = {"ops": [], "custom_calls": [], "constant_bytes": None}
        return {**nothing, "unreadable": str(e)}
    unhandled = unhandled_anywhere(function.module, found.custom_calls)
    return {
        "ops": [{"name": name, "count": count} for name, count in found.operations.items()],
        "custom_calls": [
            {"name": name, "count": count, "handled": name not in unhandled}
            for name, count in found.custom_calls.items()
        ],
        "constant_bytes": found.constant_bytes,
        "unreadable": None,
    }


def _array(aval: Aval) -> dict[str, Any]:
    return {
        "shape": [d if isinstance(d, int) else str(d) for d in aval.shape],
        "dtype": aval.dtype,
        "memory_space": aval.memory_space,
    }


def _variables(avals: Sequence[Aval]) -> set[str]:
    dimensions: list[Dim] = [d for aval in avals for d in aval.shape]
    return {v for d in dimensions if is_symbolic_dim(d) for v in d.variables()}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
