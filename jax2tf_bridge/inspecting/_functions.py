"""Describes a portable function, for `inspect --json` and for a terminal."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from jax2tf_bridge._utils import array_type_text, join_names
from jax2tf_bridge.bytecode import ModuleSummary, read_program, read_summary, version_text
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable import (
    Aval,
    LiftedConstant,
    PortableFunction,
    array_size,
    find_releases_for,
    find_unhandled_calls,
    get_stored_functions,
    no_handler_text,
    variables_in,
)
from jax2tf_bridge.targets import iterate_inexpressible

SCHEMA = 1
"""Version of the schema, raised if a field is removed or means something else."""

MAX_LISTED = 40
"""Maximum number of entries listed; a model may have thousands."""

_NUMBER = re.compile(r"([0-9]+)")


def describe_function(portable: PortableFunction) -> dict[str, Any]:
    """Describes a portable function; docs/command-line.md explains each field."""
    kept = frozenset(portable.module.kept_arguments)
    functions = get_stored_functions(portable)
    orders = [_describe_order(i, function) for i, function in enumerate(functions)]
    return {
        "schema": SCHEMA,
        "name": portable.name,
        "producer": portable.producer,
        "target": portable.target.name,
        "xla": portable.target.xla,
        "arguments": [
            {"path": port.path, **_describe_array(port.aval), "used": i in kept}
            for i, port in enumerate(portable.inputs)
        ],
        "results": [{"path": port.path, **_describe_array(port.aval)} for port in portable.outputs],
        "structure": {"arguments": str(portable.in_tree), "result": str(portable.out_tree)},
        "sizes": {
            **describe_sizes(portable),
            "constraints_known": portable.constraints_known,
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
            "arguments": [_format_optional(s) for s in portable.in_shardings],
            "results": [_format_optional(s) for s in portable.out_shardings],
        },
        "constants": [
            {
                "name": c.name,
                **_describe_array(c.aval),
                "sha256": c.digest,
                "bytes": _get_size(c),
                "in_file": c.data is not None,
            }
            for c in portable.lifted_constants
        ],
        "arrays": _sum_constants(functions),
    }


def _sum_constants(functions: Sequence[PortableFunction]) -> dict[str, Any]:
    """Sums the constants of all orders, counting each array once."""
    constants = {c.digest: c for function in functions for c in function.lifted_constants}
    sizes = {digest: _get_size(c) for digest, c in constants.items()}
    largest = max(sizes, key=lambda digest: sizes[digest], default=None)
    return {
        "count": len(constants),
        "bytes": sum(sizes.values()),
        "in_file": sum(c.data is not None for c in constants.values()),
        "largest": {
            "name": "" if largest is None else constants[largest].name,
            "bytes": 0 if largest is None else sizes[largest],
        },
    }


def _get_size(constant: LiftedConstant) -> int:
    size = array_size(constant.aval)
    assert isinstance(size, int)  # others are not read
    return size


def _describe_order(order: int, function: PortableFunction) -> dict[str, Any]:
    contents = _describe_module(function)
    releases = function.tensorflow_releases
    if function.target.xla:
        releases = find_releases_for(
            function.module, [call["name"] for call in contents["custom_calls"]]
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


def _describe_module(function: PortableFunction) -> dict[str, Any]:
    try:
        summary = read_summary(function.module.data)
        unhandled = set(find_unhandled_calls(function.module, summary.custom_calls))
        if not function.target.xla:
            # Calls within composites that TensorFlow has an operation for never run.
            program = read_program(function.module.data)
            unhandled &= {problem.operation for problem in iterate_inexpressible(program)}
    except FileFormatError as e:
        return {**describe_operations(None), "unreadable": str(e)}
    return {**describe_operations(summary, unhandled), "unreadable": None}


def describe_operations(
    summary: ModuleSummary | None, unhandled: Collection[str] = ()
) -> dict[str, Any]:
    """Lists the operations and custom calls of a module; none if it cannot be read.

    Args:
      summary: the contents of the module; None if it cannot be read.
      unhandled: custom calls for which no TensorFlow release has a handler.
    """
    if summary is None:
        return {"ops": [], "custom_calls": [], "constant_bytes": None}
    return {
        "ops": [{"name": name, "count": count} for name, count in summary.operations.items()],
        "custom_calls": [
            {"name": name, "count": count, "handled": name not in unhandled}
            for name, count in summary.custom_calls.items()
        ],
        "constant_bytes": summary.constant_bytes,
    }


def _describe_array(aval: Aval) -> dict[str, Any]:
    return {
        "shape": [d if isinstance(d, int) else str(d) for d in aval.shape],
        "dtype": aval.dtype,
        "memory_space": aval.memory_space,
    }


def describe_sizes(portable: PortableFunction) -> dict[str, list[str]]:
    """Lists the variables of a function's arguments, and the conditions on them."""
    return {
        "variables": sorted({v for aval in portable.in_avals for v in variables_in(aval)}),
        "constraints": list(portable.constraints),
        "requirements": list(portable.requirements),
    }


def _format_optional(value: object) -> str | None:
    return None if value is None else str(value)


def natural_sort_key(text: str) -> list[tuple[int, str]]:
    """Makes a sort key that puts "block_2" before "block_10".

    >>> sorted(["block_10", "block_2"], key=natural_sort_key)
    ['block_2', 'block_10']
    """
    # Texts and numbers alternate. A number with more digits is larger.
    parts = [part.lstrip("0") if i % 2 else part for i, part in enumerate(_NUMBER.split(text))]
    return [(len(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def format_function(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields the lines that `inspect` prints for a function.

    Args:
      facts: the result of `describe_function`, and the file's facts.
      ops: number of operations to show.
    """
    file = facts["file"]
    yield f"{facts['name']}, in {file['path']}"
    yield ""
    yield from _format_arrays("arguments", facts["arguments"])
    yield from _format_arrays("results", facts["results"])
    yield from _format_arrays("constants", [{**c, "path": c["name"]} for c in facts["constants"]])
    yield from format_table(
        [
            ("constants", "; ".join(_format_constants(facts["arrays"]))),
            ("sizes", "; ".join(_format_sizes(facts["sizes"]))),
            ("runs on", "; ".join(_format_runs_on(facts))),
            ("platforms", ", ".join(facts["platforms"])),
            *((f"not {d['platform']}", d["reason"]) for d in facts["dropped_platforms"]),
            ("gradient", _format_gradient(facts["gradient"])),
            ("devices", str(facts["devices"]) if facts["devices"] > 1 else ""),
            ("effects", ", ".join(chain(*facts["effects"].values()))),
            ("checks off", ", ".join(facts["disabled_checks"])),
            ("made by", facts["producer"]),
            ("made for", facts["target"] if facts["target"] != facts["producer"] else ""),
            ("format", f"{file['format']} version {file['version']}, {file['bytes']:,} bytes"),
        ]
    )
    for module in facts["modules"]:
        yield ""
        yield from _format_module(module, ops)


def _format_arrays(title: str, arrays: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not arrays:
        if title != "constants":
            yield f"{title}: none"
        return
    yield f"{title}:"
    shown = arrays[:MAX_LISTED]
    width = max(len(_get_path(array)) for array in shown)
    for array in shown:
        unused = "" if array.get("used", True) else "  (not used)"
        space = "" if array["memory_space"] == "device" else f"  in {array['memory_space']} memory"
        kind = array_type_text(array["dtype"], array["shape"])
        yield f"  {_get_path(array):{width}}  {kind}{space}{unused}"
    yield from format_more(arrays)


def _get_path(array: Mapping[str, Any]) -> str:
    return array["path"] or "result"


def _format_constants(arrays: Mapping[str, Any]) -> list[str]:
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


def _format_sizes(sizes: Mapping[str, Any]) -> list[str]:
    if not sizes["variables"]:
        return []
    texts = [f"{', '.join(sizes['variables'])} open"]
    if sizes["constraints"]:
        texts.append(f"under {', '.join(sizes['constraints'])}")
    if sizes["requirements"]:
        texts.append(f"needs {', '.join(sizes['requirements'])}")
    if not sizes["constraints_known"]:
        texts.append("other constraints are not known: the file's format does not store them")
    return texts


def _format_runs_on(facts: Mapping[str, Any]) -> list[str]:
    names = [c["name"] for c in facts["modules"][0]["custom_calls"] if not c["handled"]]
    if names:
        return [
            f"no TensorFlow: {no_handler_text(names)}",
            "jax2tf-bridge retarget writes it without them, if plain StableHLO suffices",
        ]
    retarget = [] if facts["tensorflow"] else ["jax2tf-bridge retarget writes it for a known one"]
    without_xla = [] if facts["xla"] else ["as TensorFlow's own operations, without XLA"]
    return [format_releases(facts["tensorflow"]), *without_xla, *retarget]


def _format_gradient(gradient: Mapping[str, Any]) -> str:
    return f"to order {gradient['orders']}" if gradient["orders"] else gradient["then"]


def _format_module(module: Mapping[str, Any], ops: int) -> Iterator[str]:
    order = module["order"]
    title = "the function" if order == 0 else f"its gradient of order {order}"
    facts = [
        format_module_size(module),
        f"StableHLO {module['stablehlo']}",
        f"calling convention {module['calling_convention']}",
        format_releases(module["tensorflow"]),
    ]
    if order and module["requirements"]:
        facts.append(f"needs {', '.join(module['requirements'])}")
    yield f"{title}: {', '.join(facts)}"
    if module["unreadable"]:
        yield f"  its operations cannot be read: {module['unreadable']}"
        return
    yield from format_operations(module, ops)


def format_module_size(module: Mapping[str, Any]) -> str:
    """Formats the size of a module, and that of its constants."""
    constants = module["constant_bytes"]
    return f"{module['bytes']:,} bytes{f' ({constants:,} in constants)' if constants else ''}"


def format_operations(module: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields lines about the `ops` commonest operations of a module, and its custom calls."""
    total = sum(op["count"] for op in module["ops"])
    shown = [f"{op['count']} {op['name']}" for op in module["ops"]]
    yield f"  {total:,} ops: {join_names(shown, ops)}" if ops else f"  {total:,} ops"
    if module["custom_calls"]:
        yield f"  {format_custom_calls(module)}"


def format_custom_calls(module: Mapping[str, Any]) -> str:
    """Lists the custom calls of a module, and marks those without a handler in TensorFlow."""
    calls = (
        f"{c['count']} {c['name']}{'' if c['handled'] else ' (no handler in TensorFlow)'}"
        for c in module["custom_calls"]
    )
    return f"custom calls: {', '.join(calls)}"


def format_more(entries: Sequence[Any]) -> Iterator[str]:
    """Yields a line about the entries that a list leaves out, if there are any."""
    if len(entries) > MAX_LISTED:
        yield f"  and {len(entries) - MAX_LISTED:,} more (--json has all)"


def format_table(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each title with a text; leaves out empty texts."""
    filled = [(title, text) for title, text in rows if text]
    width = max(len(title) for title, _ in filled) + 1
    for title, text in filled:
        yield f"{title + ':':{width}} {text}"


def summarize_function(portable: PortableFunction) -> str:
    """Describes a portable function in one line."""
    arguments = [f"{p}: {a}" for p, a in zip(portable.in_paths(), portable.in_avals, strict=True)]
    results = [str(aval) for aval in portable.out_avals]
    sizes = (*portable.constraints, *portable.requirements)
    own = "" if portable.target.xla else ", as its own operations"
    return "; ".join(
        [
            f"{portable.name}({join_names(arguments, 8)}) -> ({join_names(results, 8)})",
            *([f"needs {', '.join(sizes)}"] if sizes else []),
            f"{format_gradients(len(get_stored_functions(portable)) - 1)}",
            f"runs on {format_releases(portable.tensorflow_releases)}{own}",
        ]
    )


def format_gradients(orders: int) -> str:
    """Formats the number of orders of gradients.

    >>> format_gradients(0), format_gradients(2)
    ('no gradient', 'gradients to order 2')
    """
    return f"gradients to order {orders}" if orders else "no gradient"


def format_releases(releases: Sequence[str]) -> str:
    """Formats a range of TensorFlow releases.

    >>> format_releases(["2.15", "2.16", "2.17"])
    'TensorFlow 2.15 to 2.17'
    """
    if not releases:
        return "no known TensorFlow release"
    first, last = releases[0], releases[-1]
    return f"TensorFlow {first}" if first == last else f"TensorFlow {first} to {last}"
