"""Writes a description of a SavedModel for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import array_type_text, in_units, some
from jax2tf_bridge.inspecting._functions import (
    format_custom_calls,
    format_gradients,
    format_releases,
)
from jax2tf_bridge.saved_model import bucket_texts, padding_texts

_MAX_LISTED = 40
"""Maximum number of entries listed; a model may have thousands."""


def format_saved_model(facts: Mapping[str, Any], ops: int) -> Iterator[str]:
    """Yields the lines that `inspect` prints for a SavedModel.

    Args:
      facts: the result of `describe_saved_model`.
      ops: number of operations to show per module.
    """
    model = facts["saved_model"]
    yield f"{model['path']}, a SavedModel{format_writer(model)}"
    yield ""
    for finding in facts["findings"]:
        yield f"{finding['severity']}: {finding['text']}"
        if finding["remedy"]:
            yield f"  {finding['remedy']}"
    if facts["findings"]:
        yield ""
    for signature in facts["signatures"][:_MAX_LISTED]:
        yield f"signature {format_signature_facts(signature)}"
    yield from _format_more(facts["signatures"])
    rows = [
        ("methods", some([m["name"] for m in facts["methods"]], 8)),
        ("runs on", format_model_releases(facts)),
        ("gradients", format_gradient_releases(facts)),
        ("platforms", ", ".join(facts["platforms"])),
        ("variables", format_variables(facts["variables"])),
        ("graph", f"{model['graph_bytes']:,} bytes in saved_model.pb"),
        ("assets", some(facts["assets"], 8)),
        ("warm-up", format_warm_up(facts["warm_up"])),
    ]
    filled = [(title, text) for title, text in rows if text]
    width = max(len(title) for title, _ in filled) + 1
    for title, text in filled:
        yield f"{title + ':':{width}} {text}"
    for module in facts["modules"][:_MAX_LISTED]:
        yield ""
        yield from _format_module(module, ops)
    yield from _format_more(facts["modules"])


def format_writer(model: Mapping[str, Any]) -> str:
    """Names the writer of the model, as the end of a sentence; "" if unknown."""
    if model["bridge"]:
        return f" written by jax2tf-bridge {model['bridge']} with TensorFlow {model['written_by']}"
    return f" written by TensorFlow {model['written_by']}" if model["written_by"] else ""


def format_signature_facts(signature: Mapping[str, Any]) -> str:
    """Describes a signature in one line."""
    inputs = ", ".join(
        f"{p['name']}: {format_array_type(p)}{' (may be left out)' if p['has_default'] else ''}"
        for p in signature["inputs"]
    )
    outputs = ", ".join(f"{p['name']}: {format_array_type(p)}" for p in signature["outputs"])
    gradient, buckets = signature["gradient"], signature["buckets"]
    parts = [f"{signature['name']}({inputs}) -> ({outputs})"]
    if signature["own_operations"]:
        parts.append("TensorFlow's own operations")
    if signature["own_gradient"]:
        parts.append("gradients to any order")
    else:
        parts.append("runs no module" if gradient is None else format_gradients(gradient["orders"]))
    return "; ".join([*parts, *bucket_texts(buckets or {}), *list_padding_options(signature)])


def list_padding_options(signature: Mapping[str, Any]) -> list[str]:
    """Lists the padding options of a signature."""
    return padding_texts(
        signature["pad_values"], signature["masks"], signature["unchecked_padding"]
    )


def format_array_type(described: Mapping[str, Any]) -> str:
    """Formats a dtype and a shape, with "?" for open sizes."""
    return array_type_text(described["dtype"], described["shape"])


def format_model_releases(facts: Mapping[str, Any]) -> str:
    """Names the TensorFlow releases that surely run the model."""
    if facts["tensorflow"]:
        return format_releases(facts["tensorflow"])
    return "no TensorFlow release for sure"


def format_gradient_releases(facts: Mapping[str, Any]) -> str:
    """Names the releases that run the gradients; "" if they equal those of the model."""
    if not any(module["order"] for module in facts["modules"]):
        return ""
    releases = facts["tensorflow_for_gradients"]
    if releases == facts["tensorflow"]:
        return ""
    return format_releases(releases) if releases else "run on no TensorFlow release for sure"


def format_variables(variables: Mapping[str, Any]) -> str:
    """Counts the variables, and names the largest."""
    if not variables["count"]:
        return ""
    largest = max(variables["list"], key=lambda v: v["bytes"] or 0)
    count = "1" if variables["count"] == 1 else f"{variables['count']:,}"
    return (
        f"{count}, {in_units(variables['bytes'])}; the largest is {largest['path']}, "
        f"{format_array_type(largest)}"
    )


def format_warm_up(warm_up: Mapping[str, Any] | None) -> str:
    """Counts the warm-up requests."""
    if warm_up is None:
        return ""
    if warm_up["problem"]:
        return f"damaged: {warm_up['problem']}"
    return "1 request" if warm_up["requests"] == 1 else f"{warm_up['requests']:,} requests"


def format_module_title(module: Mapping[str, Any]) -> str:
    """Names a module by its number and its use."""
    order = module["order"]
    kind = "run by nothing" if order is None else f"gradient of order {order}" if order else ""
    name = module["name"] or module["function"] or module["node"]
    run_by = f"run by {some(module['run_by'])}" if module["run_by"] and not order else ""
    return f"module {module['number']}, {', '.join(filter(None, [name, kind, run_by]))}"


def list_module_facts(module: Mapping[str, Any]) -> list[str]:
    """Lists size, versions and platforms of a module."""
    constants = module["constant_bytes"]
    version = f"StableHLO {module['stablehlo']}" if module["stablehlo"] else "no StableHLO version"
    releases = module["tensorflow"]
    return [
        f"{module['bytes']:,} bytes{f' ({constants:,} in constants)' if constants else ''}",
        version,
        f"calling convention {module['calling_convention']}",
        *([", ".join(module["platforms"])] if module["platforms"] else []),
        format_releases(releases) if releases else "no TensorFlow release for sure",
    ]


def _format_module(module: Mapping[str, Any], ops: int) -> Iterator[str]:
    yield format_module_title(module)
    yield f"  {', '.join(list_module_facts(module))}"
    if module["unreadable"]:
        yield f"  it cannot be read: {module['unreadable']}"
        return
    yield f"  ({some(module['arguments'], 8)}) -> ({some(module['results'], 8)})"
    sizes = module["sizes"]
    if sizes and (needs := [*sizes["constraints"], *sizes["requirements"]]):
        yield f"  needs {', '.join(needs)}"
    total = sum(op["count"] for op in module["ops"])
    shown = [f"{op['count']} {op['name']}" for op in module["ops"]]
    yield f"  {total:,} ops: {some(shown, ops)}" if ops else f"  {total:,} ops"
    if module["custom_calls"]:
        yield f"  {format_custom_calls(module)}"


def _format_more(listed: Sequence[Any]) -> Iterator[str]:
    if len(listed) > _MAX_LISTED:
        yield f"  and {len(listed) - _MAX_LISTED:,} more (--json has all)"
