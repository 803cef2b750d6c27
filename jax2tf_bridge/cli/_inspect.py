"""`jax2tf-bridge inspect`: describes a file or a SavedModel, as text, JSON or an HTML page."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jax2tf_bridge._utils import format_bytes, join_names, printable, unknown_name_text
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    READABLE_PATHS,
    Command,
    UsageError,
    add_json,
    check_output,
    print_json,
    read_exported_path,
)
from jax2tf_bridge.cli._console import Console, show_report
from jax2tf_bridge.cli._html import (
    Fold,
    Page,
    PageRequest,
    PageTable,
    draw_bars,
    render,
    take_largest,
)
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.inspecting import (
    Inspection,
    format_array_type,
    format_custom_calls,
    format_gradient_releases,
    format_gradients,
    format_leaf_count,
    format_module_title,
    format_ports,
    format_releases,
    format_variables,
    format_warm_up,
    format_weights_row,
    format_writer,
    inspect,
    list_module_facts,
    list_padding_options,
    natural_sort_key,
    summarize_litert,
)
from jax2tf_bridge.portable import no_handler_text
from jax2tf_bridge.publishing import check_published
from jax2tf_bridge.saved_model import MANIFEST
from jax2tf_bridge.serving_requests import ExampleRequest, read_example_requests
from jax2tf_bridge.storage import AnyPath

_DESCRIPTION = """\
Describes a .jaxfn file, a file that jax.export wrote, or a SavedModel: its signatures and their
requirements, the TensorFlow releases that can run it, and its problems. Lists the signatures and
operators of a LiteRT model (.tflite), and the weights in a file of msgpack or safetensors. With
--request, prints calls of a SavedModel's signatures in TensorFlow Serving. Needs neither JAX nor
TensorFlow."""

_EXAMPLES = """\
examples:
  jax2tf-bridge inspect predict.jaxfn
  jax2tf-bridge inspect predict.jaxfn --json | jq .tensorflow
  jax2tf-bridge inspect predict/1 --html predict.html
  jax2tf-bridge inspect predict/1 --request rest | sh
  jax2tf-bridge inspect predict.tflite
  jax2tf-bridge inspect weights.msgpack"""

_MAX_BARS = 12
"""Maximum number of bars of a chart."""
_MAX_FILE_BARS = 20
"""Maximum number of bars on the page of a LiteRT model or a weights file."""
_WRITTEN_WITH = "its file was written with vjp_order="
_MAX_ROWS = 200
"""Maximum number of rows of a table, and of modules."""

_MAX_REQUESTS = 20
_MAX_MODULE_TEXTS = 50
_MAX_CHARACTERS = 200_000
_SECONDS = 120
"""Time limit for printing the modules."""
_PROGRAM = """\
import sys
from pathlib import Path
from jax2tf_bridge.from_jax.stablehlo import write_texts
write_texts(Path(sys.argv[1]), int(sys.argv[2]))
"""


def _add_options(parser: argparse.ArgumentParser) -> None:
    readable = f"{READABLE_PATHS}, a LiteRT model, or a file of weights"
    parser.add_argument("file", type=read_exported_path, metavar="PATH", help=readable)
    add_json(parser, "print JSON; docs/command-line.md has the fields")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page")
    form.add_argument(
        "--check",
        action="store_true",
        help="compare the files of a published version with its manifest, byte by byte",
    )
    form.add_argument(
        "--request",
        choices=["rest", "grpc"],
        help="print a call of each signature in TensorFlow Serving: rest is a curl command, grpc a "
        "program in Python",
    )
    parser.add_argument(
        "--signature", metavar="NAME", help="the only signature that --request prints"
    )
    parser.add_argument(
        "--ops",
        type=NOT_NEGATIVE,
        default=10,
        metavar="N",
        help="show the N commonest ops (default 10)",
    )


def _run(options: argparse.Namespace, console: Console) -> None:
    if options.request is not None:
        _print_requests(options)
        return
    if options.signature is not None:
        raise UsageError("--signature: without --request it does nothing; add --request rest")
    page: Path | None = options.html
    if page is not None:
        check_output(page, "--html")
        if options.json:
            raise UsageError("--json prints, and --html writes a page. Remove one of them")
    if options.check:
        _check(options, console)
        return
    with console.step(f"reading {options.file}"):
        inspection = inspect(options.file)
    if page is not None:
        with console.step(f"writing {page}"):
            page.write_text(_make_page(inspection), encoding="utf-8")
        print(printable(f"{page}: a page about {options.file}"))
    elif options.json:
        print_json(inspection.as_json())
    else:
        show_report(inspection.text(options.ops))


def _check(options: argparse.Namespace, console: Console) -> None:
    path: AnyPath = options.file
    if not path.is_dir():
        raise UsageError(f"--check: {path} is not a folder; name a version that publish wrote")
    with console.step(f"reading {path}"):
        manifest = check_published(path, contents=True)
    if options.json:
        files = None if manifest is None else len(manifest.files)
        published = None if manifest is None else manifest.published.isoformat()
        print_json({"path": str(path), "files": files, "published": published})
    elif manifest is None:
        console.note(f"publish writes {MANIFEST}; other tools, and later changes, leave it out")
        print(printable(f"{path}: complete; it has no manifest to compare its files with"))
    else:
        date = f"{manifest.published:%Y-%m-%d %H:%M}"
        print(printable(f"{path}: {len(manifest.files)} files, as they were published {date} UTC"))


def _print_requests(options: argparse.Namespace) -> None:
    """Prints the requests of a SavedModel, with comments if there are several.

    Raises:
      UsageError: the path is a file, or there is no such signature.
      BridgeError: there is no request to print; or as for `read_example_requests`.
    """
    requests = _read_requests(options.file, options.signature)
    if options.request == "grpc":
        texts = {name: request.python() for name, request in requests.items()}
    elif all(request.rest_problem for request in requests.values()):
        raise BridgeError(" ".join(request.rest_problem for request in requests.values()))
    else:
        texts = {name: _format_rest(request) for name, request in requests.items()}
    if options.json:
        print_json({"requests": texts})
    elif len(texts) == 1:
        print(printable("".join(texts.values())))
    else:
        print(printable("\n\n".join(f"# {name}\n{text}" for name, text in texts.items())))


def _read_requests(path: AnyPath, signature: str | None) -> Mapping[str, ExampleRequest]:
    if path.is_file():
        raise UsageError(f"--request: {path} is a file; name the folder of a SavedModel")
    requests = read_example_requests(path)
    if not requests:
        raise BridgeError(f"{path} has no signatures, so TensorFlow Serving cannot call it.")
    if signature is None:
        return requests
    if signature not in requests:
        text = unknown_name_text("signature", signature, requests)
        raise UsageError(f"--signature: {path} has {text}")
    return {signature: requests[signature]}


def _format_rest(request: ExampleRequest) -> str:
    return f"# {request.rest_problem}" if request.rest_problem else request.curl()


def _make_page(inspection: Inspection) -> str:
    texts = _print_modules(inspection.modules)
    page = _PAGES[inspection.kind](inspection.as_json(), texts)
    return render(replace(page, requests=_list_requests(inspection)))


def _list_requests(inspection: Inspection) -> list[PageRequest]:
    """Lists the requests of a SavedModel; none if its sidecar or its constraints prevent them."""
    try:
        requests = inspection.requests
    except (BridgeError, OSError):
        return []
    return [
        PageRequest(name, str(request), not request.rest_problem, request.python())
        for name, request in [*requests.items()][:_MAX_REQUESTS]
    ]


@dataclass(frozen=True)
class _ModuleTexts:
    """Modules as MLIR text.

    Attributes:
      texts: the text of each module; None without one.
      missing_because: the reason why there are no texts, and what to do; "" if there are some.
    """

    texts: Sequence[str | None]
    missing_because: str = ""


def _print_modules(modules: Sequence[bytes | memoryview | None]) -> _ModuleTexts:
    """Prints modules as text, where JAX is installed; None stands for modules that need no text."""
    if not modules:
        return _ModuleTexts(())
    if importlib.util.find_spec("jax") is None:
        return _ModuleTexts(
            [None] * len(modules),
            "Only JAX can print the modules as text, and it is not installed here. Install it: "
            "pip install 'jax2tf-bridge[jax]', and run inspect --html again.",
        )
    with tempfile.TemporaryDirectory(prefix="jax2tf-bridge-") as name:
        folder = Path(name)
        for i, module in enumerate(modules[:_MAX_MODULE_TEXTS]):
            if module is not None:
                (folder / f"{i}.module").write_bytes(module)
        # MLIR may hang or crash on damaged bytes, so a process with a time limit prints them.
        problem = _write_texts(folder)
        files = [folder / f"{i}.text" for i in range(len(modules))]
        texts = [file.read_text(encoding="utf-8") if file.exists() else None for file in files]
    return _ModuleTexts(texts, "" if any(texts) else problem)


def _write_texts(folder: Path) -> str:
    """Writes the texts; returns the reason to show if JAX printed none."""
    paths = os.pathsep.join(filter(None, sys.path))
    try:
        process = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(folder), str(_MAX_CHARACTERS)],
            env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"JAX did not print the modules within {_SECONDS} seconds."
    if process.returncode:
        return "JAX failed while it printed the modules: they are damaged, or JAX is."
    return "The installed JAX cannot read the modules."


def _make_directory_page(facts: Mapping[str, Any], texts: _ModuleTexts) -> Page:
    model = facts["saved_model"]
    size = format_bytes(model["graph_bytes"] + model["variables_bytes"])
    return Page(
        title=model["path"],
        subtitle=f"A SavedModel{format_writer(model)}, {size}",
        findings=[(f["severity"], f["text"], f["remedy"]) for f in facts["findings"]],
        summary=[
            ("runs on", format_releases(facts["tensorflow"])),
            ("its gradients", format_gradient_releases(facts)),
            ("platforms", ", ".join(facts["platforms"])),
            ("methods", join_names([m["name"] for m in facts["methods"]], 8)),
            ("variables", format_variables(facts["variables"])),
            ("assets", join_names(facts["assets"], 8)),
            ("warm-up", format_warm_up(facts["warm_up"])),
            ("tags", ", ".join(model["tags"])),
        ],
        tables=[_make_signature_table(facts["signatures"]), _make_constant_table(facts)],
        charts=[
            draw_bars("Where the bytes are", _list_part_bars(facts)),
            draw_bars("Variables, in bytes", _list_variable_bars(facts["variables"]["list"])),
            draw_bars("Modules, in bytes", _list_module_bars(facts["modules"])),
        ],
        modules=_make_folds(facts["modules"][:_MAX_ROWS], texts, _describe_module),
    )


def _make_file_page(facts: Mapping[str, Any], texts: _ModuleTexts) -> Page:
    file = facts["file"]
    needs = [*facts["sizes"]["constraints"], *facts["sizes"]["requirements"]]
    arrays = facts["arrays"]
    return Page(
        title=facts["name"],
        subtitle=f"{file['path']}, {file['format']} version {file['version']}, "
        f"{format_bytes(file['bytes'])}",
        findings=_list_file_findings(facts),
        summary=[
            ("runs on", format_releases(facts["tensorflow"])),
            ("platforms", ", ".join(facts["platforms"])),
            ("gradient", format_gradients(facts["gradient"]["orders"])),
            ("open sizes", ", ".join(facts["sizes"]["variables"])),
            ("needs", ", ".join(needs)),
            (
                "constants",
                f"{arrays['count']}, {format_bytes(arrays['bytes'])}" * bool(arrays["count"]),
            ),
            ("made by", facts["producer"]),
            ("made for", facts["target"]),
        ],
        tables=[
            _make_array_table("Arguments", facts["arguments"]),
            _make_array_table("Results", facts["results"]),
        ],
        charts=[
            draw_bars(
                "Captured arrays, in bytes",
                take_largest(
                    [(c["name"] or c["sha256"][:12], c["bytes"]) for c in facts["constants"]],
                    _MAX_BARS,
                ),
            ),
            draw_bars(
                "Modules, in bytes",
                [(_format_order(m["order"]), m["bytes"]) for m in facts["modules"]],
            ),
        ],
        modules=_make_folds(facts["modules"], texts, _describe_file_module),
    )


def _make_signature_table(signatures: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = []
    for signature in signatures[:_MAX_ROWS]:
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


def _make_constant_table(facts: Mapping[str, Any]) -> PageTable:
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
    return PageTable("Largest constants", ["where", "type", "bytes"], rows, number_column=2)


def _list_part_bars(facts: Mapping[str, Any]) -> list[tuple[str, int]]:
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
    return take_largest([*sizes.items()], len(sizes))


def _list_variable_bars(variables: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    in_order = sorted(variables, key=lambda v: natural_sort_key(v["path"]))
    return take_largest([(v["path"], v["bytes"] or 0) for v in in_order], _MAX_BARS)


def _list_module_bars(modules: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    bars = []
    for module in modules:
        kind = f", gradient of order {module['order']}" if module["order"] else ""
        bars.append((f"module {module['number']}{kind}", module["bytes"]))
    return take_largest(bars, _MAX_BARS, in_order=True) if len(bars) > 1 else []


def _describe_module(module: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns the title and the paragraphs of a module in a SavedModel."""
    paragraphs = [", ".join(list_module_facts(module))]
    paragraphs.append(f"in {module['function'] or 'the graph'}, node {module['node']}")
    if module["arguments"] or module["results"]:
        arguments, results = join_names(module["arguments"], 20), join_names(module["results"], 20)
        paragraphs.append(f"({arguments}) -> ({results})")
    sizes = module["sizes"] or {"constraints": [], "requirements": []}
    if needs := [*sizes["constraints"], *sizes["requirements"]]:
        paragraphs.append(f"needs {', '.join(needs)}")
    return format_module_title(module), paragraphs


def _describe_file_module(module: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Returns the title and the paragraphs of a module in a file."""
    constants = module["constant_bytes"]
    inside = f" ({format_bytes(constants)} in constants)" if constants else ""
    paragraphs = [
        f"{format_bytes(module['bytes'])}{inside}, StableHLO {module['stablehlo']}, calling "
        f"convention {module['calling_convention']}, {format_releases(module['tensorflow'])}"
    ]
    if module["requirements"]:
        paragraphs.append(f"needs {', '.join(module['requirements'])}")
    return _format_order(module["order"]), paragraphs


def _make_folds(
    modules: Sequence[Mapping[str, Any]],
    texts: _ModuleTexts,
    describe: Callable[[Mapping[str, Any]], tuple[str, list[str]]],
) -> list[Fold]:
    """Makes the folded parts about modules; the first is open."""
    folds = []
    for module, text in zip(modules, texts.texts, strict=False):
        title, paragraphs = describe(module)
        if module["unreadable"]:
            folds.append(Fold(title, [*paragraphs, f"It cannot be read: {module['unreadable']}"]))
            continue
        if module["custom_calls"]:
            paragraphs.append(format_custom_calls(module))
        if text is None and texts.missing_because:
            paragraphs.append(texts.missing_because)
        bars = [(op["name"], op["count"]) for op in module["ops"]]
        total = sum(count for _, count in bars)
        chart = draw_bars(
            f"Operations, {total:,} in all",
            take_largest(bars, _MAX_BARS),
            lambda count: f"{count:,}",
        )
        folds.append(Fold(title, paragraphs, chart, text or "", is_open=not folds))
    return folds


def _list_file_findings(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    findings = []
    path = facts["file"]["path"]
    for module in facts["modules"]:
        title = _format_order(module["order"])
        calls = [c["name"] for c in module["custom_calls"] if not c["handled"]]
        retarget = f"jax2tf-bridge retarget {path} --tensorflow RELEASE writes it "
        if module["unreadable"]:
            findings.append(("error", f"{title} cannot be read: {module['unreadable']}", ""))
        elif calls:
            text = f"{title} runs on no TensorFlow: {no_handler_text(calls)}."
            findings.append(
                ("error", text, f"{retarget}without them, if plain StableHLO suffices.")
            )
        elif not module["tensorflow"]:
            text = f"{title} is too new for every known TensorFlow."
            findings.append(("error", text, f"{retarget}in an older version of StableHLO."))
    for dropped in facts["dropped_platforms"]:
        findings.append(("note", f"Not for {dropped['platform']}: {dropped['reason']}", ""))
    effects = [*facts["effects"]["ordered"], *facts["effects"]["unordered"]]
    if effects:
        findings.append(
            ("warning", f"It has the effects {join_names(effects)}, which only JAX supports.", "")
        )
    if facts["devices"] > 1:
        findings.append(("warning", f"It is spread over {facts['devices']} devices.", ""))
    orders, then = facts["gradient"]["orders"], facts["gradient"]["then"]
    # Users know already how many orders they asked for.
    if then and not (orders and _WRITTEN_WITH in then):
        text = f"{format_gradients(orders).capitalize()}: {then}"
        findings.append(("note", text, ""))
    return sorted(findings, key=lambda finding: ("error", "warning", "note").index(finding[0]))


def _make_array_table(title: str, arrays: Sequence[Mapping[str, Any]]) -> PageTable:
    rows = [[a["path"] or "result", format_array_type(a)] for a in arrays[:_MAX_ROWS]]
    return PageTable(title, ["path", "type"], rows)


def _format_order(order: int) -> str:
    return "The function" if order == 0 else f"Its gradient of order {order}"


def _make_litert_page(facts: Mapping[str, Any], texts: _ModuleTexts) -> Page:
    file, ops = facts["file"], facts["ops"]
    return Page(
        title=file["path"],
        subtitle=f"LiteRT model, {format_bytes(file['bytes'])}",
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
                number_column=1,
            ),
        ],
        charts=[
            draw_bars(
                "Operators",
                take_largest([(op["name"], op["count"]) for op in ops], _MAX_FILE_BARS),
                str,
            )
        ],
    )


def _make_weights_page(facts: Mapping[str, Any], texts: _ModuleTexts) -> Page:
    file, weights = facts["file"], facts["weights"]
    bars = [(leaf["path"], leaf["bytes"]) for leaf in weights["list"]]
    return Page(
        title=file["path"],
        subtitle=f"Weights in {file['format']}, {format_bytes(file['bytes'])}",
        summary=[
            ("weights", f"{format_leaf_count(weights)}, {format_bytes(weights['bytes'])}"),
            *facts["metadata"].items(),
        ],
        tables=[
            PageTable(
                "Weights",
                ["path", "type", "size"],
                [format_weights_row(leaf) for leaf in weights["list"]],
                number_column=2,
            )
        ],
        charts=[draw_bars("Weights, in bytes", take_largest(bars, _MAX_FILE_BARS))],
    )


_PAGES: Mapping[str, Callable[[Mapping[str, Any], _ModuleTexts], Page]] = {
    "SavedModel": _make_directory_page,
    "function": _make_file_page,
    "LiteRT model": _make_litert_page,
    "weights": _make_weights_page,
}

COMMAND = Command(
    "inspect", "describe a SavedModel or a file", _DESCRIPTION, _EXAMPLES, _add_options, _run
)
