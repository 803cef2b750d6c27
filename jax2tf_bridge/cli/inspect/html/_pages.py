"""Makes pages about SavedModels and files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import in_units, some
from jax2tf_bridge.cli.inspect._module_texts import ModuleTexts
from jax2tf_bridge.cli.inspect.html._charts import Bar, bar_chart, largest
from jax2tf_bridge.cli.inspect.html._page import Fold, Page, PageTable
from jax2tf_bridge.inspecting import (
    format_array_type,
    format_custom_calls,
    format_gradient_releases,
    format_gradients,
    format_leaf_count,
    format_model_releases,
    format_module_title,
    format_ports,
    format_releases,
    format_variables,
    format_warm_up,
    format_weights_row,
    format_writer,
    list_module_facts,
    list_padding_options,
    natural_sort_key,
    summarize_litert,
)
from jax2tf_bridge.portable import no_handler_text

_MAX_BARS = 12
_MAX_FILE_BARS = 20
"""Maximum number of bars on the page of a LiteRT model or a weights file."""
_WRITTEN_SO = "its file was written with vjp_order="
_MANY = 200
"""Maximum number of rows of a table, and of modules."""


def directory_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a SavedModel.

    Args:
      facts: the result of `describe_saved_model`.
      texts: the texts of the modules, in the order of `facts["modules"]`.
      version: the bridge's version, for the footer.
    """
    model = facts["saved_model"]
    size = in_units(model["graph_bytes"] + model["variables_bytes"])
    return Page(
        title=model["path"],
        subtitle=f"A SavedModel{format_writer(model)}, {size}",
        findings=[(f["severity"], f["text"], f["remedy"]) for f in facts["findings"]],
        summary=[
            ("runs on", format_model_releases(facts)),
            ("its gradients", format_gradient_releases(facts)),
            ("platforms", ", ".join(facts["platforms"])),
            ("methods", some([m["name"] for m in facts["methods"]], 8)),
            ("variables", format_variables(facts["variables"])),
            ("assets", some(facts["assets"], 8)),
            ("warm-up", format_warm_up(facts["warm_up"])),
            ("tags", ", ".join(model["tags"])),
        ],
        tables=[_signatures(facts["signatures"]), _arrays(facts)],
        charts=[
            bar_chart("Where the bytes are", _parts(facts)),
            bar_chart("Variables, in bytes", _variables(facts["variables"]["list"])),
            bar_chart("Modules, in bytes", _modules(facts["modules"])),
        ],
        folds_title="Modules",
        folds=[
            _module(module, text, texts, is_open=i == 0)
            for i, (module, text) in enumerate(
                zip(facts["modules"][:_MANY], texts.texts, strict=False)
            )
        ],
        footer=_footer(version),
    )


def file_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a .jaxfn file, or of a file that jax.export wrote.

    Args:
      facts: the result of `describe_function`, with the file's facts.
      texts: the texts of the function's module and of its gradients' modules.
      version: the bridge's version, for the footer.
    """
    file = facts["file"]
    needs = [*facts["sizes"]["constraints"], *facts["sizes"]["requirements"]]
    arrays = facts["arrays"]
    return Page(
        title=facts["name"],
        subtitle=f"{file['path']}, {file['format']} version {file['version']}, "
        f"{in_units(file['bytes'])}",
        findings=_file_findings(facts),
        summary=[
            ("runs on", format_releases(facts["tensorflow"])),
            ("platforms", ", ".join(facts["platforms"])),
            ("gradient", format_gradients(facts["gradient"]["orders"])),
            ("open sizes", ", ".join(facts["sizes"]["variables"])),
            ("needs", ", ".join(needs)),
            (
                "constants",
                f"{arrays['count']}, {in_units(arrays['bytes'])}" * bool(arrays["count"]),
            ),
            ("made by", facts["producer"]),
            ("made for", facts["target"]),
        ],
        tables=[
            _file_arrays("Arguments", facts["arguments"]),
            _file_arrays("Results", facts["results"]),
        ],
        charts=[
            bar_chart(
                "Captured arrays, in bytes",
                largest(
                    [_bar(c["name"] or c["sha256"][:12], c["bytes"]) for c in facts["constants"]],
                    _MAX_BARS,
                    in_units,
                ),
            ),
            bar_chart(
                "Modules, in bytes",
                [_bar(_order_title(m["order"]), m["bytes"]) for m in facts["modules"]],
            ),
        ],
        folds_title="Modules",
        folds=[
            _file_module(module, text, texts, is_open=i == 0)
            for i, (module, text) in enumerate(zip(facts["modules"], texts.texts, strict=True))
        ],
        footer=_footer(version),
    )


def _signatures(signatures: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = []
    for signature in signatures[:_MANY]:
        gradient, buckets = signature["gradient"], signature["buckets"] or {}
        rows.append(
            [
                signature["name"],
                "; ".join(f"{p['name']}: {format_array_type(p)}" for p in signature["inputs"]),
                "; ".join(f"{p['name']}: {format_array_type(p)}" for p in signature["outputs"]),
                "runs no module" if gradient is None else format_gradients(gradient["orders"]),
                "; ".join(
                    [
                        *(f"{n}: {', '.join(map(str, s))}" for n, s in buckets.items()),
                        *list_padding_options(signature),
                    ]
                )
                or "none",
            ]
        )
    return PageTable("Signatures", ["name", "inputs", "outputs", "gradient", "buckets"], rows)


def _arrays(facts: Mapping[str, Any]) -> PageTable:
    """Tabulates the largest constants of the graph and of modules."""
    array_rows = [
        (f"module {m['number']}", c["type"], c["bytes"])
        for m in facts["modules"]
        for c in m["largest_constants"]
    ]
    array_rows += [
        (f"{c['function']}/{c['node']}".strip("/"), format_array_type(c), c["bytes"])
        for c in facts["constants"]["largest"]
    ]
    array_rows.sort(key=lambda row: -row[2])
    rows = [
        [place, kind, f"{size:,}"] for place, kind, size in array_rows[:_MAX_BARS] if size > 1000
    ]
    head = ["where", "type", "bytes"]
    return PageTable("Largest constants", head, rows, numbers=frozenset({2}))


def _parts(facts: Mapping[str, Any]) -> list[Bar]:
    model, modules = facts["saved_model"], facts["modules"]
    constants = {False: 0, True: 0}
    operations = 0
    for module in modules:
        inside = module["constant_bytes"] or 0
        constants[bool(module["order"])] += inside
        operations += max(module["bytes"] - inside, 0)
    graph_constants = facts["constants"]["bytes"]
    rest = model["graph_bytes"] - sum(constants.values()) - operations - graph_constants
    sizes = {
        "variables": model["variables_bytes"],
        "modules: constants": constants[False],
        "modules: constants in gradients": constants[True],
        "modules: operations": operations,
        "graph: constants": graph_constants,
        "graph: all else": max(rest, 0),
    }
    return largest([_bar(label, size) for label, size in sizes.items()], len(sizes), in_units)


def _variables(variables: Sequence[Mapping[str, Any]]) -> list[Bar]:
    in_order = sorted(variables, key=lambda v: natural_sort_key(v["path"]))
    return largest([_bar(v["path"], v["bytes"] or 0) for v in in_order], _MAX_BARS, in_units)


def _modules(modules: Sequence[Mapping[str, Any]]) -> list[Bar]:
    bars = [_bar(_short_title(m), m["bytes"]) for m in modules]
    return largest(bars, _MAX_BARS, in_units, in_order=True) if len(bars) > 1 else []


def _short_title(module: Mapping[str, Any]) -> str:
    kind = f", gradient of order {module['order']}" if module["order"] else ""
    return f"module {module['number']}{kind}"


def _module(
    module: Mapping[str, Any], text: str | None, texts: ModuleTexts, *, is_open: bool
) -> Fold:
    paragraphs = [", ".join(list_module_facts(module))]
    paragraphs.append(f"in {module['function'] or 'the graph'}, node {module['node']}")
    if module["arguments"] or module["results"]:
        arguments, results = some(module["arguments"], 20), some(module["results"], 20)
        paragraphs.append(f"({arguments}) -> ({results})")
    sizes = module["sizes"] or {"constraints": [], "requirements": []}
    if needs := [*sizes["constraints"], *sizes["requirements"]]:
        paragraphs.append(f"needs {', '.join(needs)}")
    return _fold(format_module_title(module), paragraphs, module, text, texts, is_open=is_open)


def _file_module(
    module: Mapping[str, Any], text: str | None, texts: ModuleTexts, *, is_open: bool
) -> Fold:
    constants = module["constant_bytes"]
    inside = f" ({in_units(constants)} in constants)" if constants else ""
    paragraphs = [
        f"{in_units(module['bytes'])}{inside}, StableHLO {module['stablehlo']}, calling convention "
        f"{module['calling_convention']}, {format_releases(module['tensorflow'])}"
    ]
    if module["requirements"]:
        paragraphs.append(f"needs {', '.join(module['requirements'])}")
    title = _order_title(module["order"])
    return _fold(title, paragraphs, module, text, texts, is_open=is_open)


def _fold(
    title: str,
    paragraphs: list[str],
    module: Mapping[str, Any],
    text: str | None,
    texts: ModuleTexts,
    *,
    is_open: bool,
) -> Fold:
    if module["unreadable"]:
        return Fold(title, [*paragraphs, f"It cannot be read: {module['unreadable']}"])
    if module["custom_calls"]:
        paragraphs.append(format_custom_calls(module))
    if text is None and texts.missing_because:
        paragraphs.append(texts.missing_because)
    bars = [Bar(op["name"], op["count"], f"{op['count']:,}") for op in module["ops"]]
    total = sum(op["count"] for op in module["ops"])
    chart = bar_chart(f"Operations, {total:,} in all", largest(bars, _MAX_BARS, lambda n: f"{n:,}"))
    return Fold(title, paragraphs, [chart], "StableHLO", text or "", is_open)


def _file_findings(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    parts = []
    path = facts["file"]["path"]
    for module in facts["modules"]:
        title = _order_title(module["order"])
        calls = [c["name"] for c in module["custom_calls"] if not c["handled"]]
        retarget = (
            f"jax2tf-bridge retarget {path} --tensorflow RELEASE writes it without, if it has a "
            "form in StableHLO alone."
        )
        if module["unreadable"]:
            parts.append(("error", f"{title} cannot be read: {module['unreadable']}", ""))
        elif calls:
            text = f"{title} runs on no TensorFlow: {no_handler_text(calls)}."
            parts.append(("error", text, retarget))
        elif not module["tensorflow"]:
            text = f"{title} is newer than what every known TensorFlow reads."
            parts.append(("error", text, retarget.replace("it without, if it has", "it in")))
    for dropped in facts["dropped_platforms"]:
        parts.append(("note", f"Not for {dropped['platform']}: {dropped['reason']}", ""))
    effects = [*facts["effects"]["ordered"], *facts["effects"]["unordered"]]
    if effects:
        parts.append(
            ("warning", f"It has the effects {some(effects)}, which exist in JAX alone.", "")
        )
    if facts["devices"] > 1:
        parts.append(("warning", f"It is spread over {facts['devices']} devices.", ""))
    orders, then = facts["gradient"]["orders"], facts["gradient"]["then"]
    # Users know already how many orders they asked for.
    if then and not (orders and _WRITTEN_SO in then):
        text = f"{format_gradients(orders).capitalize()}: {then}"
        parts.append(("note", text, ""))
    return sorted(parts, key=lambda finding: ("error", "warning", "note").index(finding[0]))


def _file_arrays(title: str, arrays: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = [[a["path"] or "result", format_array_type(a)] for a in arrays[:_MANY]]
    return PageTable(title, ["path", "type"], rows)


def _order_title(order: int) -> str:
    return "The function" if order == 0 else f"Its gradient of order {order}"


def _bar(label: str, size: int) -> Bar:
    return Bar(label, size, in_units(size))


def _footer(version: str) -> str:
    return f"Made by jax2tf-bridge {version} inspect."


def litert_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a LiteRT model."""
    file, ops = facts["file"], facts["ops"]
    bars = [Bar(op["name"], op["count"], str(op["count"])) for op in ops]
    return Page(
        title=file["path"],
        subtitle=f"LiteRT model, {in_units(file['bytes'])}",
        summary=summarize_litert(facts, 0),
        tables=[
            PageTable(
                "Signatures",
                ["name", "inputs", "outputs"],
                [
                    (s["name"] or "", format_ports(s["inputs"]), format_ports(s["outputs"]))
                    for s in facts["signatures"]
                ],
            ),
            PageTable(
                "Operators",
                ["name", "count", "LiteRT's own"],
                [(op["name"], str(op["count"]), "no" if op["custom"] else "yes") for op in ops],
                numbers=frozenset({1}),
            ),
        ],
        charts=[bar_chart("Operators", largest(bars, _MAX_FILE_BARS, str))],
        footer=_footer(version),
    )


def weights_page(facts: Mapping[str, Any], texts: ModuleTexts, version: str) -> Page:
    """Makes the page of a weights file."""
    file, weights = facts["file"], facts["weights"]
    bars = [Bar(leaf["path"], leaf["bytes"], in_units(leaf["bytes"])) for leaf in weights["list"]]
    return Page(
        title=file["path"],
        subtitle=f"Weights in {file['format']}, {in_units(file['bytes'])}",
        summary=[
            ("weights", f"{format_leaf_count(weights)}, {in_units(weights['bytes'])}"),
            *facts["metadata"].items(),
        ],
        tables=[
            PageTable(
                "Weights",
                ["path", "type", "size"],
                [format_weights_row(leaf) for leaf in weights["list"]],
                numbers=frozenset({2}),
            )
        ],
        charts=[bar_chart("Weights, in bytes", largest(bars, _MAX_FILE_BARS, in_units))],
        footer=_footer(version),
    )
