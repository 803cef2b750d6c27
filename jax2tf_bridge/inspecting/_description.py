"""Describes a SavedModel as `jax2tf-bridge inspect --json` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.inspecting._contents import (
    ModuleContents,
    describe_modules,
    get_sidecar_signatures,
    read_functions_beside,
)
from jax2tf_bridge.inspecting._findings import findings
from jax2tf_bridge.portable import Aval, PortableFunction, call_avals
from jax2tf_bridge.saved_model import (
    MAX_GRADIENT_ORDERS,
    EntryPoint,
    SavedModelContents,
    SignaturePort,
    TensorSpec,
)
from jax2tf_bridge.serialization import collect_vjps
from jax2tf_bridge.targets import TENSORFLOW_RELEASES
from shape_poly import is_symbolic_dim

SCHEMA = 1
"""Version of the schema, raised if a field is removed or means something else."""

_MAX_SHAPE_CHARACTERS = 1000


def describe_saved_model(contents: SavedModelContents) -> dict[str, Any]:
    """Describes a SavedModel as JSON; docs/command-line.md lists the fields."""
    beside = read_functions_beside(contents)
    modules = describe_modules(contents, beside.by_module)
    signatures = [e for e in contents.entries if e.is_signature]
    methods = [e for e in contents.entries if not e.is_signature]
    sidecar = get_sidecar_signatures(contents)
    own = contents.tensorflow if beside.own_operations else None
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
            for f in findings(contents, modules, beside)
        ],
        "tensorflow": _find_releases([m for m in modules if not m.order], own),
        "tensorflow_for_gradients": _find_releases([m for m in modules if m.order], own),
        "platforms": _find_platforms(modules),
        "signatures": [
            _describe_signature(e, sidecar.get(e.name, {}), beside.own_operations.get(e.name))
            for e in signatures
        ],
        "methods": [_describe_entry(e) for e in methods],
        "more_methods": contents.more_entries,
        # Functions first, then gradients, then modules that nothing runs.
        "modules": [_describe_module(m) for m in sorted(modules, key=_sort_key)],
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


def _sort_key(module: ModuleContents) -> tuple[bool, int, int]:
    return module.order is None, module.order or 0, module.called.number


def _find_releases(modules: Sequence[ModuleContents], written_by: str | None) -> list[str]:
    """Returns the releases that surely run all of the modules; none for no modules.

    Args:
      modules: modules of the model.
      written_by: the TensorFlow release that wrote its own operations beside the modules, which
        newer releases run; None without such operations.
    """
    if not modules and written_by is None:
        return []
    oldest = _parse_release(written_by or "")
    releases = (r for r in TENSORFLOW_RELEASES if _parse_release(r) >= oldest)
    return [r for r in releases if all(r in m.releases for m in modules)]


def _parse_release(release: str) -> tuple[int, ...]:
    """Parses "2.17.1" as (2, 17); () for text that is not a release."""
    return tuple(int(part) for part in release.split(".")[:2] if part.isdecimal())


def _find_platforms(modules: Sequence[ModuleContents]) -> list[str]:
    """Returns the platforms of all modules that name any."""
    lists = [m.called.platforms for m in modules if m.called.platforms]
    return [p for p in lists[0] if all(p in platforms for platforms in lists)] if lists else []


def _describe_signature(
    entry: EntryPoint, known: Mapping[str, object], own: PortableFunction | None
) -> dict[str, Any]:
    """Describes a signature; `own` is its function if it runs as TensorFlow's own operations."""
    buckets = known.get("buckets")
    described = _describe_entry(entry)
    if own is not None and described["gradient"] is None:
        orders = len(collect_vjps(own, None, MAX_GRADIENT_ORDERS)) - 1
        described["gradient"] = {"orders": orders, "then": "", "left_out": False}
    return {
        **described,
        "own_operations": own is not None,
        "own_gradient": own is not None and own.tensorflow_differentiates,
        "inputs": [
            {**_describe_port(p, known.get("inputs")), "has_default": p.has_default}
            for p in entry.inputs
        ],
        "outputs": [_describe_port(p, known.get("outputs")) for p in entry.outputs],
        "buckets": _clean_buckets(buckets),
        "unchecked_padding": _filter_names(known.get("unchecked_padding")),
        "masks": list(_as_mapping(known.get("masks"))),
        "pad_values": {n: _as_text(v) for n, v in _as_mapping(known.get("pad_values")).items()},
    }


def _as_mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


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
            "then": gradient.then,
            "left_out": gradient.is_left_out,
        },
    }


def _describe_port(port: SignaturePort, known: object) -> dict[str, Any]:
    described = {"name": port.name, **_describe_type(port.type)}
    entry = known.get(port.name) if isinstance(known, dict) else None
    names = _split_shape(entry.get("shape")) if isinstance(entry, dict) else None
    shape = described["shape"]
    # The bridge's sidecar names open sizes; the signature has the numbers.
    if names is not None and shape is not None and len(names) == len(shape):
        described["shape"] = [
            name if size is None else size for name, size in zip(names, shape, strict=True)
        ]
    return described


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
    called, summary = module.called, module.summary
    return {
        "number": called.number,
        "function": called.function,
        "node": called.node,
        "order": module.order,
        "run_by": list(module.entries),
        "bytes": len(called.module),
        "stablehlo": None
        if called.stablehlo_version is None
        else version_text(called.stablehlo_version),
        "calling_convention": called.calling_convention_version,
        "platforms": list(called.platforms),
        "disabled_checks": [str(check) for check in called.disabled_checks],
        "tensorflow": list(module.releases),
        **_describe_types(module),
        "ops": []
        if summary is None
        else [{"name": name, "count": count} for name, count in summary.operations.items()],
        "custom_calls": []
        if summary is None
        else [
            {"name": name, "count": count, "handled": name not in module.unhandled}
            for name, count in summary.custom_calls.items()
        ],
        "constant_bytes": None if summary is None else summary.constant_bytes,
        "largest_constants": []
        if summary is None
        else [{"type": c.type, "bytes": c.size} for c in summary.largest_constants],
        "calls": list(called.functions),
        "effects": called.has_tokens,
        "unreadable": module.unreadable,
    }


def _describe_types(module: ModuleContents) -> dict[str, Any]:
    """Returns the types of arguments and results, with names of open sizes where known."""
    portable = module.portable
    if portable is None:
        arguments, results = _get_call_types(module)
        return {"name": "", "arguments": arguments, "results": results, "sizes": None}
    kept = [portable.in_avals[i] for i in portable.module.kept_arguments]
    kept += [constant.aval for constant in portable.lifted_constants]
    dims = [d for aval in portable.in_avals for d in aval.shape if is_symbolic_dim(d)]
    return {
        "name": portable.name,
        "arguments": [str(aval) for aval in kept],
        "results": [str(aval) for aval in portable.out_avals],
        "sizes": {
            "variables": sorted({v for d in dims for v in d.variables()}),
            "constraints": list(portable.constraints),
            "requirements": list(portable.requirements),
        },
    }


def _get_call_types(module: ModuleContents) -> tuple[list[str], list[str]]:
    """Returns the op's dtypes with main's sizes; open sizes have no names."""
    called, summary = module.called, module.summary
    if summary is None:
        return [], []
    if module.mismatch or module.narrow:
        return list(summary.inputs), list(summary.outputs)
    arguments, results = call_avals(
        called.arguments,
        [result.dtype for result in called.results],
        (summary.inputs, summary.outputs),
        has_platform_index=len(called.platforms) > 1,
    )
    return [_format_unnamed(aval) for aval in arguments], [
        _format_unnamed(aval) for aval in results
    ]


def _format_unnamed(aval: Aval) -> str:
    shape = tuple(d if isinstance(d, int) else None for d in aval.shape)
    return str(TensorSpec(aval.dtype, shape))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else ""
