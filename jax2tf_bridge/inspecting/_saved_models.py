"""Describes a SavedModel, for `inspect --json` and for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import array_type_text, format_bytes, join_names
from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.inspecting._contents import (
    ModuleContents,
    as_mapping,
    describe_modules,
    get_sidecar_signatures,
    list_updates,
    parse_release,
    read_functions_beside,
)
from jax2tf_bridge.inspecting._findings import list_findings
from jax2tf_bridge.inspecting._functions import (
    MAX_LISTED,
    SCHEMA,
    describe_operations,
    describe_sizes,
    format_gradients,
    format_module_size,
    format_more,
    format_operations,
    format_releases,
    format_table,
)
from jax2tf_bridge.portable import Aval, PortableFunction, list_main_avals, make_call_avals
from jax2tf_bridge.saved_model import (
    MAX_GRADIENT_ORDERS,
    EntryPoint,
    SavedModelContents,
    SignaturePort,
    TensorSpec,
    format_buckets,
    format_padding,
)
from jax2tf_bridge.serialization import collect_vjps
from jax2tf_bridge.targets import TENSORFLOW_RELEASES

_MAX_SHAPE_CHARACTERS = 1000


def describe_saved_model(contents: SavedModelContents) -> dict[str, Any]:
    """Describes a SavedModel as JSON; docs/command-line.md lists the fields."""
    beside = read_functions_beside(contents)
    modules = describe_modules(contents, beside.by_module)
    signatures = [e for e in contents.entries if e.is_signature]
    methods = [e for e in contents.entries if not e.is_signature]
    sidecar = get_sidecar_signatures(contents)
    writer = contents.tensorflow if beside.own_operations else None
    warm_up = contents.warm_up
    return {
        "schema": SCHEMA,
        "saved_model": {
            "path": contents.path,
            "graph_bytes": contents.graph_size,
            "variables_bytes": contents.variables_size,
            "written_by": contents.tensorflow,
            "bridge": _as_text(contents.sidecar.get("bridge")),
            "tags": list(contents.tags),
        },
        "findings": [
            {"severity": f.severity, "text": f.text, "remedy": f.remedy, "modules": list(f.modules)}
            for f in list_findings(contents, modules, beside)
        ],
        "tensorflow": _find_releases([m for m in modules if not m.order], writer),
        "tensorflow_for_gradients": _find_releases([m for m in modules if m.order], writer),
        "platforms": _find_platforms(modules),
        "signatures": [
            _describe_signature(e, sidecar.get(e.name, {}), beside.own_operations.get(e.name))
            for e in signatures
        ],
        "methods": [_describe_entry(e) for e in methods],
        "more_methods": contents.more_entries,
        # Functions first, then gradients, then modules that nothing runs.
        "modules": [
            _describe_module(m)
            for m in sorted(modules, key=lambda m: (m.order is None, m.order or 0, m.op.number))
        ],
        "variables": {
            "count": len(contents.variables),
            "bytes": sum(v.type.size or 0 for v in contents.variables),
            "list": [
                {
                    "path": v.path,
                    "name": v.name,
                    **_describe_type(v.type),
                    "bytes": v.type.size,
                    "trainable": v.trainable,
                }
                for v in contents.variables
            ],
        },
        "constants": {
            "bytes": contents.constants_size,
            "largest": [
                {"function": c.function, "node": c.node, **_describe_type(c.type), "bytes": c.size}
                for c in contents.constants
            ],
        },
        "assets": list(contents.assets),
        "warm_up": None
        if warm_up is None
        else {"requests": warm_up.requests, "bytes": warm_up.size, "problem": warm_up.problem},
    }


def _find_releases(modules: Sequence[ModuleContents], written_by: str | None) -> list[str]:
    """Returns the releases that surely run all of the modules; none for no modules.

    Args:
      modules: modules of the model.
      written_by: the TensorFlow release that wrote operations of its own, which newer releases
        run; None without such operations.
    """
    if not modules and written_by is None:
        return []
    oldest = parse_release(written_by or "")
    releases = (r for r in TENSORFLOW_RELEASES if parse_release(r) >= oldest)
    return [r for r in releases if all(r in m.releases for m in modules)]


def _find_platforms(modules: Sequence[ModuleContents]) -> list[str]:
    """Returns the platforms of all modules that name any."""
    lists = [m.op.platforms for m in modules if m.op.platforms]
    return [p for p in lists[0] if all(p in platforms for platforms in lists)] if lists else []


def _describe_signature(
    entry: EntryPoint, sidecar_entry: Mapping[str, object], own_function: PortableFunction | None
) -> dict[str, Any]:
    """Describes a signature; `own_function` is its function if it runs without XLA."""
    facts = _describe_entry(entry)
    if own_function is not None and facts["gradient"] is None:
        orders = len(collect_vjps(own_function, None, MAX_GRADIENT_ORDERS)) - 1
        facts["gradient"] = {"orders": orders, "then": "", "left_out": False}
    return {
        **facts,
        "own_operations": own_function is not None,
        "own_gradient": own_function is not None
        and own_function.tensorflow_differentiates
        and not entry.joins_requests,
        "inputs": [
            {**_describe_port(p, sidecar_entry.get("inputs")), "has_default": p.default is not None}
            for p in entry.inputs
        ],
        "outputs": [_describe_port(p, sidecar_entry.get("outputs")) for p in entry.outputs],
        "buckets": _clean_buckets(sidecar_entry.get("buckets")),
        "unchecked_padding": _filter_names(sidecar_entry.get("unchecked_padding")),
        "masks": list(as_mapping(sidecar_entry.get("masks"))),
        "pad_values": {
            n: _as_text(v) for n, v in as_mapping(sidecar_entry.get("pad_values")).items()
        },
        "joins_requests": entry.joins_requests,
        "updates": list_updates(sidecar_entry),
    }


def _clean_buckets(buckets: object) -> dict[str, list[int]] | None:
    if not isinstance(buckets, dict):
        return None
    return {
        name: [size for size in sizes if isinstance(size, int)]
        for name, sizes in buckets.items()
        if isinstance(sizes, list)
    }


def _filter_names(names: object) -> list[str]:
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _describe_entry(entry: EntryPoint) -> dict[str, Any]:
    gradient = entry.gradient
    return {
        "name": entry.name,
        "modules": [{"module": n, "order": order} for n, order in sorted(entry.modules.items())],
        "gradient": None
        if gradient is None
        else {
            "orders": gradient.orders,
            "then": gradient.missing_because,
            "left_out": gradient.is_left_out,
        },
    }


def _describe_port(port: SignaturePort, sidecar_ports: object) -> dict[str, Any]:
    facts = {"name": port.name, **_describe_type(port.type), "tensor": port.tensor}
    entry = as_mapping(as_mapping(sidecar_ports).get(port.name))
    names, shape = _split_shape(entry.get("shape")), facts["shape"]
    # The bridge's sidecar names open sizes; the signature has the numbers.
    if names is not None and shape is not None and len(names) == len(shape):
        facts["shape"] = [
            name if size is None else size for name, size in zip(names, shape, strict=True)
        ]
    return facts


def _split_shape(text: object) -> list[str] | None:
    """Splits "(b, floordiv(n, 2))" into its sizes."""
    if (
        not isinstance(text, str)
        or len(text) > _MAX_SHAPE_CHARACTERS
        or text[:1] + text[-1:] != "()"
    ):
        return None
    sizes, depth = [""], 0
    for character in text[1:-1]:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            sizes.append("")
        else:
            sizes[-1] += character
    return [size.strip() for size in sizes if size.strip()]


def _describe_type(kind: TensorSpec) -> dict[str, Any]:
    return {"dtype": kind.dtype, "shape": None if kind.shape is None else list(kind.shape)}


def _describe_module(module: ModuleContents) -> dict[str, Any]:
    op, summary = module.op, module.summary
    return {
        "number": op.number,
        "function": op.function,
        "node": op.node,
        "order": module.order,
        "run_by": list(module.entries),
        "bytes": len(op.module),
        "stablehlo": None if op.stablehlo_version is None else version_text(op.stablehlo_version),
        "calling_convention": op.calling_convention_version,
        "platforms": list(op.platforms),
        "disabled_checks": [str(check) for check in op.disabled_checks],
        "tensorflow": list(module.releases),
        **_describe_types(module),
        **describe_operations(summary, module.unhandled_calls),
        "largest_constants": []
        if summary is None
        else [{"type": c.type, "bytes": c.size} for c in summary.largest_constants],
        "calls": list(op.functions),
        "effects": op.has_tokens,
        "unreadable": module.unreadable,
    }


def _describe_types(module: ModuleContents) -> dict[str, Any]:
    """Returns the types of arguments and results, with names of open sizes where known."""
    portable = module.portable
    if portable is None:
        arguments, results = _get_call_types(module)
        return {"name": "", "arguments": arguments, "results": results, "sizes": None}
    return {
        "name": portable.name,
        "arguments": [str(aval) for aval in list_main_avals(portable)],
        "results": [str(aval) for aval in portable.out_avals],
        "sizes": describe_sizes(portable),
    }


def _get_call_types(module: ModuleContents) -> tuple[list[str], list[str]]:
    """Returns the op's dtypes with main's sizes; open sizes have no names."""
    op, summary = module.op, module.summary
    if summary is None:
        return [], []
    if module.mismatch or module.narrow:
        return list(summary.inputs), list(summary.outputs)
    arguments, results = make_call_avals(
        op.arguments,
        [result.dtype for result in op.results],
        (summary.inputs, summary.outputs),
        has_platform_index=len(op.platforms) > 1,
    )
    return list(map(_format_unnamed, arguments)), list(map(_format_unnamed, results))


def _format_unnamed(aval: Aval) -> str:
    shape = tuple(d if isinstance(d, int) else None for d in aval.shape)
    return str(TensorSpec(aval.dtype, shape))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""


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
    for signature in facts["signatures"][:MAX_LISTED]:
        yield f"signature {format_signature_facts(signature)}"
    yield from format_more(facts["signatures"])
    rows = [
        ("methods", join_names([m["name"] for m in facts["methods"]], 8)),
        ("runs on", format_releases(facts["tensorflow"])),
        ("gradients", format_gradient_releases(facts)),
        ("platforms", ", ".join(facts["platforms"])),
        ("variables", format_variables(facts["variables"])),
        ("graph", f"{model['graph_bytes']:,} bytes in saved_model.pb"),
        ("assets", join_names(facts["assets"], 8)),
        ("warm-up", format_warm_up(facts["warm_up"])),
    ]
    yield from format_table(rows)
    for module in facts["modules"][:MAX_LISTED]:
        yield ""
        yield from _format_module(module, ops)
    yield from format_more(facts["modules"])


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
    elif signature["joins_requests"]:
        parts.append("no gradient")
    elif signature["updates"] and gradient is not None and not gradient["orders"]:
        pass  # such a signature is called for its update
    else:
        parts.append("runs no module" if gradient is None else format_gradients(gradient["orders"]))
    if updates := signature["updates"]:
        parts.append(f"changes {len(updates)} weight{'s' * (len(updates) > 1)}")
    return "; ".join([*parts, *format_buckets(buckets or {}), *list_padding_options(signature)])


def list_padding_options(signature: Mapping[str, Any]) -> list[str]:
    """Lists the padding options of a signature."""
    return format_padding(
        signature["pad_values"],
        signature["masks"],
        signature["unchecked_padding"],
        joins_requests=signature["joins_requests"],
    )


def format_array_type(facts: Mapping[str, Any]) -> str:
    """Formats a dtype and a shape, with "?" for open sizes."""
    return array_type_text(facts["dtype"], facts["shape"])


def format_gradient_releases(facts: Mapping[str, Any]) -> str:
    """Names the releases that run the gradients; "" if they equal those of the model."""
    if not any(module["order"] for module in facts["modules"]):
        return ""
    releases = facts["tensorflow_for_gradients"]
    return "" if releases == facts["tensorflow"] else format_releases(releases)


def format_variables(variables: Mapping[str, Any]) -> str:
    """Counts the variables, and names the largest."""
    if not variables["count"]:
        return ""
    largest = max(variables["list"], key=lambda v: v["bytes"] or 0)
    count = "1" if variables["count"] == 1 else f"{variables['count']:,}"
    return (
        f"{count}, {format_bytes(variables['bytes'])}; the largest is {largest['path']}, "
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
    run_by = f"run by {join_names(module['run_by'])}" if module["run_by"] and not order else ""
    return f"module {module['number']}, {', '.join(filter(None, [name, kind, run_by]))}"


def list_module_facts(module: Mapping[str, Any]) -> list[str]:
    """Lists size, versions and platforms of a module."""
    version = f"StableHLO {module['stablehlo']}" if module["stablehlo"] else "no StableHLO version"
    return [
        format_module_size(module),
        version,
        f"calling convention {module['calling_convention']}",
        *([", ".join(module["platforms"])] if module["platforms"] else []),
        format_releases(module["tensorflow"]),
    ]


def _format_module(module: Mapping[str, Any], ops: int) -> Iterator[str]:
    yield format_module_title(module)
    yield f"  {', '.join(list_module_facts(module))}"
    if module["unreadable"]:
        yield f"  it cannot be read: {module['unreadable']}"
        return
    yield f"  ({join_names(module['arguments'], 8)}) -> ({join_names(module['results'], 8)})"
    sizes = module["sizes"]
    if sizes and (needs := [*sizes["constraints"], *sizes["requirements"]]):
        yield f"  needs {', '.join(needs)}"
    yield from format_operations(module, ops)
