"""Describes a portable function, for `inspect --json` and for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from jax2tf_bridge._utils import array_type_text, some
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    array_size,
    iterate_inexpressible,
    no_handler_text,
    releases_that_run,
    unhandled_anywhere,
    version_text,
)
from jax2tf_bridge.portable.bytecode import read_program, read_summary
from shape_poly import Dim, is_symbolic_dim

SCHEMA = 1
"""The version of the schema; a field that is taken away or means something else raises it."""

_MANY = 40
"""Limits the arguments or results that are listed; a model may have thousands."""

_NUMBER = re.compile(r"([0-9]+)")


def describe(portable: PortableFunction) -> dict[str, Any]:
    """Describes a portable function; docs/command-line.md explains each field."""
    kept = frozenset(portable.module.kept_arguments)
    functions = stored_functions(portable)
    orders = [_order(i, function) for i, function in enumerate(functions)]
    return {
        "schema": SCHEMA,
        "name": portable.name,
        "producer": portable.producer,
        "target": portable.target.name,
        "xla": portable.target.xla,
        "arguments": [
            {"path": port.path, **_array(port.aval), "used": i in kept}
            for i, port in enumerate(portable.inputs)
        ],
        "results": [{"path": port.path, **_array(port.aval)} for port in portable.outputs],
        "structure": {"arguments": str(portable.in_tree), "result": str(portable.out_tree)},
        "sizes": {
            "variables": sorted(_variables(portable.in_avals)),
            "constraints": list(portable.constraints),
            "constraints_known": portable.constraints_known,
            "requirements": list(portable.requirements),
        },
        "platforms": list(portable.platforms),
        "dropped_platforms": [
            {"platform": platform, "reason": reason}
            for platform, reason in portable.dropped_platforms
        ],
        "tensorflow": orders[0]["tensorflow"],
        "gradient": {"orders": len(orders) - 1, "then": functions[-1].gradient_problem() or ""},
        "modules": orders,
        "effects": {
            "ordered": list(portable.ordered_effects),
            "unordered": list(portable.unordered_effects),
        },
        "disabled_checks": [str(check) for check in portable.module.disabled_checks],
        "devices": portable.module.nr_devices,
        "shardings": {
            "arguments": [_text(s) for s in portable.in_shardings],
            "results": [_text(s) for s in portable.out_shardings],
        },
        "constants": [
            {
                "name": c.name,
                **_array(c.aval),
                "sha256": c.digest,
                "bytes": _size(c),
                "in_file": c.data is not None,
            }
            for c in portable.lifted_constants
        ],
        "arrays": _arrays(functions),
    }


def _arrays(functions: Sequence[PortableFunction]) -> dict[str, Any]:
    """Sums the constants of all orders, each array once."""
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
    releases = function.tensorflow_releases
    if function.target.xla:
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
    """Lists the operations and custom calls of the module."""
    try:
        found = read_summary(function.module.data)
        unhandled = set(unhandled_anywhere(function.module, found.custom_calls))
        if not function.target.xla:
            # Those within composites that TensorFlow has an operation for are not reached.
            program = read_program(function.module.data)
            unhandled &= {problem.operation for problem in iterate_inexpressible(program)}
    except FileFormatError as e:
        nothing: dict[str, Any] = {"ops": [], "custom_calls": [], "constant_bytes": None}
        return {**nothing, "unreadable": str(e)}
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


def natural_order(text: str) -> list[tuple[int, str]]:
    """Makes a key for sorting by which "block_2" comes before "block_10".

    >>> sorted(["block_10", "block_2"], key=natural_order)
    ['block_2', 'block_10']
    """
    # Texts and numbers take turns, of which the longer is the larger.
    parts = [part.lstrip("0") if i % 2 else part for i, part in enumerate(_NUMBER.split(text))]
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def function_lines(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields what `inspect` prints of a function.

    Args:
      facts: as `describe` gives them, with the file's.
      ops: how many of the operations to show.
    """
    file = facts["file"]
    yield f"{facts['name']}, in {file['path']}"
    yield ""
    yield from _array_lines("arguments", facts["arguments"])
    yield from _array_lines("results", facts["results"])
    yield from _array_lines("constants", [{**c, "path": c["name"]} for c in facts["constants"]])
    yield from _table(
        [
            ("constants", _constants_text(facts["arrays"])),
            ("sizes", _sizes_text(facts["sizes"])),
            ("runs on", _runs_on(facts)),
            ("platforms", [", ".join(facts["platforms"])]),
            *((f"not {d['platform']}", [d["reason"]]) for d in facts["dropped_platforms"]),
            ("gradient", _gradient(facts)),
            ("devices", [str(facts["devices"])] if facts["devices"] > 1 else []),
            ("effects", [", ".join(chain(*facts["effects"].values()))]),
            ("checks off", [", ".join(facts["disabled_checks"])]),
            ("made by", [facts["producer"]]),
            ("made for", [facts["target"]] if facts["target"] != facts["producer"] else []),
            ("format", [f"{file['format']} version {file['version']}, {file['bytes']:,} bytes"]),
        ]
    )
    for module in facts["modules"]:
        yield ""
        yield from _module_lines(module, ops)


def _array_lines(title: str, arrays: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not arrays:
        if title != "constants":
            yield f"{title}: none"
        return
    yield f"{title}:"
    shown = arrays[:_MANY]
    width = max(len(_path(array)) for array in shown)
    for array in shown:
        unused = "" if array.get("used", True) else "  (not used)"
        space = "" if array["memory_space"] == "device" else f"  in {array['memory_space']} memory"
        kind = array_type_text(array["dtype"], array["shape"])
        yield f"  {_path(array):{width}}  {kind}{space}{unused}"
    if len(arrays) > len(shown):
        yield f"  and {len(arrays) - len(shown):,} more (--json has all)"


def _path(array: Mapping[str, Any]) -> str:
    return array["path"] or "result"


def _constants_text(arrays: Mapping[str, Any]) -> list[str]:
    count, largest = arrays["count"], arrays["largest"]
    if not count:
        return []
    if not arrays["in_file"]:
        where = "not in the file"
    elif arrays["in_file"] < count:
        where = f"{arrays['in_file']:,} of them in the file"
    else:
        where = "in the file"
    name = f" ({largest['name']})" if largest["name"] else ""
    arrays_text = "1 array" if count == 1 else f"{count:,} arrays"
    return [
        f"{arrays_text}, {arrays['bytes']:,} bytes, {where}",
        *([f"the largest{name} has {largest['bytes']:,}"] if count > 1 else []),
    ]


def _sizes_text(sizes: Mapping[str, Any]) -> list[str]:
    if not sizes["variables"]:
        return []
    found = [f"{', '.join(sizes['variables'])} open"]
    if sizes["constraints"]:
        found.append(f"under {', '.join(sizes['constraints'])}")
    if sizes["requirements"]:
        found.append(f"needs {', '.join(sizes['requirements'])}")
    if not sizes["constraints_known"]:
        found.append("other constraints are not known: the file's format has none")
    return found


def _runs_on(facts: Mapping[str, Any]) -> list[str]:
    names = [c["name"] for c in facts["modules"][0]["custom_calls"] if not c["handled"]]
    if names:
        return [
            f"no TensorFlow: {no_handler_text(names)}",
            "jax2tf-bridge retarget writes it without, if it has a form in StableHLO alone",
        ]
    retarget = [] if facts["tensorflow"] else ["jax2tf-bridge retarget writes it for one"]
    own = [] if facts["xla"] else ["as TensorFlow's own operations, without XLA"]
    return [releases_text(facts["tensorflow"]), *own, *retarget]


def _gradient(facts: Mapping[str, Any]) -> list[str]:
    gradient = facts["gradient"]
    if not gradient["orders"]:
        return [gradient["then"]]
    return [f"to order {gradient['orders']}"]


def _module_lines(module: Mapping[str, Any], ops: int) -> Iterator[str]:
    order = module["order"]
    title = "the function" if order == 0 else f"its gradient of order {order}"
    total = sum(op["count"] for op in module["ops"])
    constants = module["constant_bytes"]
    facts = [f"{module['bytes']:,} bytes{f' ({constants:,} in constants)' if constants else ''}"]
    facts += [f"StableHLO {module['stablehlo']}"]
    facts.append(f"calling convention {module['calling_convention']}")
    facts.append(releases_text(module["tensorflow"]))
    if order and module["requirements"]:
        facts.append(f"needs {', '.join(module['requirements'])}")
    yield f"{title}: {', '.join(facts)}"
    if module["unreadable"]:
        yield f"  its operations cannot be read: {module['unreadable']}"
        return
    shown = [f"{op['count']} {op['name']}" for op in module["ops"]]
    yield f"  {total:,} ops: {some(shown, ops)}"
    if module["custom_calls"]:
        yield f"  {custom_calls_text(module)}"


def custom_calls_text(module: Mapping[str, Any]) -> str:
    """Lists the custom calls of a module, and says which TensorFlow has no handler for."""
    calls = (
        f"{c['count']} {c['name']}{'' if c['handled'] else ' (no handler in TensorFlow)'}"
        for c in module["custom_calls"]
    )
    return f"custom calls: {', '.join(calls)}"


def _table(rows: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    filled = [(title, "; ".join(filter(None, texts))) for title, texts in rows]
    width = max(len(title) for title, text in filled if text) + 1
    for title, text in filled:
        if text:
            yield f"{title + ':':{width}} {text}"


def stored_functions(portable: PortableFunction) -> tuple[PortableFunction, ...]:
    """Returns the function and those of its VJPs that are stored, by order."""
    functions = [portable]
    while (vjp := functions[-1].gradient.made) is not None:
        functions.append(vjp)
    return tuple(functions)


def summary(portable: PortableFunction) -> str:
    """Describes a portable function in one line."""
    arguments = [f"{p}: {a}" for p, a in zip(portable.in_paths(), portable.in_avals, strict=True)]
    results = [str(aval) for aval in portable.out_avals]
    sizes = (*portable.constraints, *portable.requirements)
    own = "" if portable.target.xla else ", as its own operations"
    return "; ".join(
        [
            f"{portable.name}({some(arguments, 8)}) -> ({some(results, 8)})",
            *([f"needs {', '.join(sizes)}"] if sizes else []),
            f"{gradients_text(len(stored_functions(portable)) - 1)}",
            f"runs on {releases_text(portable.tensorflow_releases)}{own}",
        ]
    )


def gradients_text(orders: int) -> str:
    """Describes how many orders of gradients there are.

    >>> gradients_text(0), gradients_text(2)
    ('no gradient', 'gradients to order 2')
    """
    return f"gradients to order {orders}" if orders else "no gradient"


def releases_text(releases: Sequence[str]) -> str:
    """Names the oldest and the newest of some TensorFlow releases.

    >>> releases_text(["2.15", "2.16", "2.17"])
    'TensorFlow 2.15 to 2.17'
    """
    if not releases:
        return "no TensorFlow release that is known"
    first, last = releases[0], releases[-1]
    return f"TensorFlow {first}" if first == last else f"TensorFlow {first} to {last}"
