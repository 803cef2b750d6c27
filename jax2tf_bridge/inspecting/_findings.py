"""Finds problems of a SavedModel, its modules and its signatures, and their remedies."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, TypeVar

from jax2tf_bridge._utils import format_bytes, join_names
from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.inspecting._contents import (
    FunctionsBeside,
    ModuleContents,
    get_sidecar_signatures,
    is_linear_algebra,
    list_updates,
)
from jax2tf_bridge.portable import SHARD_MAP_CALLS, find_prng_keys, no_handler_text, prng_keys_text
from jax2tf_bridge.saved_model import (
    SIDECAR,
    EntryPoint,
    GradientOrders,
    SavedModelContents,
    TensorSpec,
)
from jax2tf_bridge.targets import TENSORFLOW_RELEASES

_K = TypeVar("_K")
_V = TypeVar("_V")

_LARGE_BYTES, _HUGE_BYTES, _NEAR_LIMIT_BYTES = 1_000_000, 10_000_000, 1_000_000_000
_SHARDINGS = SHARD_MAP_CALLS | {"Sharding", "xla.sdy.FuncResultSharding"}
_NEWEST_RELEASE = list(TENSORFLOW_RELEASES)[-1]
_NEWEST, _NEWEST_CONVENTION = TENSORFLOW_RELEASES[_NEWEST_RELEASE]
_SAVED_UP_TO = "were saved up to order"
"""Part of save()'s message about gradients of higher orders than requested."""
_BUCKETS = "save(..., buckets={...})"

Severity: TypeAlias = Literal["error", "warning", "note"]
"""An error fails; a warning may fail or is slow; a note only informs."""

SEVERITIES: Sequence[Severity] = ("error", "warning", "note")
"""Severities, the worst first."""


@dataclass(frozen=True)
class Finding:
    """Problem of a SavedModel, or a note about it.

    Attributes:
      severity: "error", "warning" or "note".
      text: one or two sentences.
      remedy: a sentence that says what helps; "" if nothing does, or nothing is needed.
      modules: the numbers of the modules concerned.
    """

    severity: Severity
    text: str
    remedy: str = ""
    modules: tuple[int, ...] = ()


def shorten_text(text: str, max_length: int = 500) -> str:
    """Puts a text from a file on one line, and cuts it off after `max_length` characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_length else f"{line[:max_length]}..."


def list_findings(
    contents: SavedModelContents, modules: Sequence[ModuleContents], beside: FunctionsBeside
) -> tuple[Finding, ...]:
    """Lists the problems of a model, the worst first.

    Args:
      contents: the model.
      modules: its modules.
      beside: the functions beside the model.
    """
    results = [
        *_check_files(contents),
        *_check_modules(modules, contents.path),
        *_check_sizes(contents),
        *_check_serving(contents),
        *_check_gradients(contents),
        *_check_keys(contents, beside),
        *(
            Finding("warning", f"A function beside the model cannot be read: {shorten_text(p)}")
            for p in beside.problems
        ),
    ]
    return tuple(sorted(results, key=lambda finding: SEVERITIES.index(finding.severity)))


def _check_modules(modules: Sequence[ModuleContents], path: str) -> Iterator[Finding]:
    retarget = f"jax2tf-bridge retarget {shlex.quote(path)} --tensorflow RELEASE"
    for module in modules:
        yield from _check_module(module)
    yield from _check_custom_calls(modules, retarget)
    yield from _check_versions(modules, retarget)
    yield from _check_platforms(modules)
    yield from _check_constants(modules)
    yield from _check_shardings(modules)
    unreached = [m for m in modules if m.order is None]
    if unreached:
        yield Finding(
            "note",
            f"{_format_subject(unreached)} not run by any signature or method that was found.",
            modules=_get_numbers(unreached),
        )


def _group(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """Groups values by key, so that one finding covers all values with the same problem."""
    groups: dict[_K, list[_V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _check_module(module: ModuleContents) -> Iterator[Finding]:
    number = (module.op.number,)
    if module.unreadable:
        yield Finding(
            "error",
            f"The module of {module.op.place} cannot be read: {shorten_text(module.unreadable)}",
            "Copy the model again, or save it again.",
            number,
        )
    if module.mismatch:
        yield Finding(
            "error",
            f"{shorten_text(module.mismatch)}. TensorFlow does not compare them, and computes with "
            "stray memory.",
            "Save the model again.",
            number,
        )
    if module.narrow:
        yield Finding(
            "error",
            f"The module of {module.op.place} takes or returns {', '.join(module.narrow)}, which "
            "every TensorFlow release passes incorrectly: results are wrong.",
            "Export the function again with jax2tf_bridge.export, which passes them as 8-bit "
            "integers.",
            number,
        )
    if module.op.has_tokens:
        yield Finding(
            "warning",
            f"The module of {module.op.place} has ordered effects, which TensorFlow cannot run.",
            "Remove the calls that cause them, such as jax.debug.print, and export it again.",
            number,
        )


def _check_custom_calls(modules: Sequence[ModuleContents], retarget: str) -> Iterator[Finding]:
    by_calls = _group((m.unhandled_calls, m) for m in modules if m.unhandled_calls)
    for calls, failing in by_calls.items():
        if all(map(is_linear_algebra, calls)):
            remedy = f"{retarget} writes linear algebra as StableHLO."
        else:
            remedy = (
                "Export the function again with jax2tf_bridge.export, if need be without the "
                "operation that made the call."
            )
        yield Finding(
            "error",
            f"{_format_subject(failing, 'fail')} to run: "
            f"{no_handler_text([shorten_text(call, 100) for call in calls])}.",
            remedy,
            _get_numbers(failing),
        )


def _check_versions(modules: Sequence[ModuleContents], retarget: str) -> Iterator[Finding]:
    by_need = _group(
        ((m.releases, m.op.stablehlo_version, m.op.calling_convention_version), m)
        for m in modules
        if m.summary is not None and not m.unhandled_calls and not m.narrow
    )
    for group in by_need.values():
        if len(group[0].releases) == len(TENSORFLOW_RELEASES):
            continue
        op, releases = group[0].op, group[0].releases
        version = op.stablehlo_version
        convention = op.calling_convention_version
        if version is None:
            yield Finding(
                "warning",
                f"{_format_subject(group, 'have')} no known StableHLO version.",
                f"{retarget} writes one.",
                _get_numbers(group),
            )
            continue
        written = f"StableHLO {version_text(version)}, calling convention {convention}"
        if releases:
            text = (
                f"{_format_subject(group)} for TensorFlow {releases[0]} and newer ({written}): "
                "running fails in older ones."
            )
            yield Finding(
                "warning", text, f"{retarget} writes for an older release.", _get_numbers(group)
            )
            continue
        text = (
            f"{_format_subject(group)} newer ({written}) than TensorFlow {_NEWEST_RELEASE}, the "
            f"newest known release, reads ({version_text(_NEWEST)} and {_NEWEST_CONVENTION}): "
            "running fails where an operation is newer, and in all older releases."
        )
        yield Finding("error", text, f"{retarget} fixes this.", _get_numbers(group))


def _check_platforms(modules: Sequence[ModuleContents]) -> Iterator[Finding]:
    by_platforms = _group((m.op.platforms, m) for m in modules if m.op.platforms)
    for platforms, group in by_platforms.items():
        unchecked = any(str(c) == "platform" for m in group for c in m.op.disabled_checks)
        how = "is not checked" if unchecked else "fails"
        if "cpu" not in platforms:
            yield Finding(
                "warning",
                f"{_format_subject(group)} for {join_names(platforms)} and not for the CPU: "
                f"running there {how}.",
                "Export the function for more platforms; by default the bridge takes all.",
                _get_numbers(group),
            )
        elif len(platforms) == 1:
            yield Finding(
                "note",
                f"{_format_subject(group)} for the CPU alone: running on a GPU or TPU {how}.",
                "Export the function for more platforms; by default the bridge takes all.",
                _get_numbers(group),
            )


def _check_constants(modules: Sequence[ModuleContents]) -> Iterator[Finding]:
    large = [
        m for m in modules if m.summary is not None and m.summary.constant_bytes >= _LARGE_BYTES
    ]
    if not large:
        return
    forward = _sum_constant_bytes(m for m in large if not m.order)
    gradients = _sum_constant_bytes(m for m in large if m.order)
    text = f"Arrays of {format_bytes(forward + gradients)} are constants in the modules"
    if forward and gradients:
        text += f", {format_bytes(gradients)} of them in gradients"
    text += ": loading and compiling take long and much memory."
    yield Finding(
        "warning" if forward + gradients >= _HUGE_BYTES else "note",
        text,
        "Save the function with jax2tf_bridge.save, which stores captured arrays once, as "
        "variables; or pass them as arguments.",
        _get_numbers(large),
    )


def _check_shardings(modules: Sequence[ModuleContents]) -> Iterator[Finding]:
    sharded = [m for m in modules if _is_sharded(m)]
    if sharded:
        yield Finding(
            "note",
            f"{_format_subject(sharded, 'hold')} shardings: TensorFlow runs a model on one device, "
            "and fails if they ask for several.",
            "If running fails, export the function without shardings.",
            _get_numbers(sharded),
        )


def _is_sharded(module: ModuleContents) -> bool:
    if module.summary is None:
        return False
    return not _SHARDINGS.isdisjoint(module.summary.custom_calls) or any(
        name.startswith("sdy.") for name in module.summary.operations
    )


def _sum_constant_bytes(modules: Iterable[ModuleContents]) -> int:
    return sum(m.summary.constant_bytes for m in modules if m.summary is not None)


def _get_numbers(modules: Sequence[ModuleContents]) -> tuple[int, ...]:
    return tuple(m.op.number for m in modules)


def _format_subject(modules: Sequence[ModuleContents], verb: str = "are") -> str:
    """Formats the subject of a sentence and its verb."""
    if len(modules) > 1:
        return f"{len(modules)} modules {verb}"
    singular = {"are": "is", "fail": "fails", "have": "has", "hold": "holds"}[verb]
    kind = "gradient" if modules[0].order else "module"
    return f"The {kind} {shorten_text(modules[0].op.place, 100)} {singular}"


def _check_files(contents: SavedModelContents) -> Iterator[Finding]:
    if contents.sidecar_problem:
        yield Finding(
            "warning",
            f"{SIDECAR.as_posix()} cannot be read: {contents.sidecar_problem}. TensorFlow does not "
            "need it; the bridge cannot load the model, or publish other weights for it.",
            "Copy the whole folder, or save the model again.",
        )
    if contents.missing_files:
        yield Finding(
            "error",
            f"Files of the model are missing: {join_names(contents.missing_files)}. "
            "Loading it fails.",
            "Copy the whole folder, or save the model again.",
        )
    if contents.missing_functions:
        names = join_names([shorten_text(name, 100) for name in contents.missing_functions])
        yield Finding(
            "error",
            f"The graph calls functions that are not in the file: {names}.",
            "Save the model again.",
        )


def _check_sizes(contents: SavedModelContents) -> Iterator[Finding]:
    if contents.constants_size >= _LARGE_BYTES:
        largest = contents.constants[0]
        yield Finding(
            "warning",
            f"Arrays of {format_bytes(contents.constants_size)} are constants in the graph; the "
            f"largest is {shorten_text(largest.node, 100)} with {format_bytes(largest.size)}.",
            "Make them variables of the model.",
        )
    if contents.graph_size >= _NEAR_LIMIT_BYTES:
        yield Finding(
            "warning",
            f"saved_model.pb has {format_bytes(contents.graph_size)}, and TensorFlow reads at most "
            "2.1 GB.",
            "Save the function with jax2tf_bridge.save, which makes captured arrays variables.",
        )


def _check_serving(contents: SavedModelContents) -> Iterator[Finding]:
    warm_up = contents.warm_up
    if warm_up is not None and warm_up.problem:
        yield Finding(
            "error",
            f"The warm-up requests cannot be read: {warm_up.problem}. TensorFlow Serving does "
            "not load the model.",
            "Write the file again, or remove it.",
        )
    sidecar = get_sidecar_signatures(contents)
    # Signatures with the same finding share one.
    by_finding = _group(
        (finding, entry)
        for entry in contents.entries
        if entry.is_signature and entry.modules
        for finding in _check_compilation(contents, entry, sidecar.get(entry.name, {}))
    )
    for finding, entries in by_finding.items():
        yield _name_signatures(finding, entries)


def _name_signatures(finding: Finding, entries: Sequence[EntryPoint]) -> Finding:
    """Replaces NAMES and ARE in the text of a finding by the signatures and their verb."""
    names = join_names([shorten_text(entry.name, 100) for entry in entries])
    # Only the first match, since names from the file may follow it.
    text = finding.text.replace("NAMES ARE", f"NAMES {'is' if len(entries) == 1 else 'are'}", 1)
    numbers = (n for entry in entries for n, order in entry.modules.items() if not order)
    modules = tuple(dict.fromkeys(numbers))
    return replace(finding, text=text.replace("NAMES", names, 1), modules=modules)


def _check_compilation(
    contents: SavedModelContents, entry: EntryPoint, sidecar_entry: Mapping[str, object]
) -> Iterator[Finding]:
    open_inputs = [port.name for port in entry.inputs if _is_open(port.type)]
    requests = contents.warm_up.requests if contents.warm_up is not None else 0
    changes_weights = bool(list_updates(sidecar_entry))
    if not open_inputs:
        yield from _check_fixed_sizes(entry)
        if not requests and not changes_weights:
            yield Finding(
                "note",
                "The first request to NAMES waits for the compiler.",
                "A file of warm-up requests makes TensorFlow Serving compile when it loads; "
                "jax2tf_bridge.save writes one.",
            )
        return
    input_names = join_names([shorten_text(name, 100) for name in open_inputs])
    if sidecar_entry.get("buckets"):
        if not requests and not changes_weights:
            yield Finding(
                "note",
                "The first request to NAMES for each bucket waits for the compiler.",
                "A file of warm-up requests makes TensorFlow Serving compile when it loads.",
            )
    elif requests:
        yield Finding(
            "warning",
            f"NAMES ARE compiled anew for each size of {input_names} that is not among the "
            f"{requests} warm-up requests, in the middle of a request.",
            f"{_BUCKETS} pads to few sizes.",
        )
    else:
        yield Finding(
            "warning",
            f"NAMES ARE compiled anew for each size of {input_names}, in the middle of the first "
            "request that has it.",
            f"{_BUCKETS} pads to few sizes."
            if changes_weights
            else f"{_BUCKETS} pads to few sizes, and writes warm-up requests for each.",
        )


def _check_fixed_sizes(entry: EntryPoint) -> Iterator[Finding]:
    first = [p.type.shape[0] for p in entry.inputs if p.type.shape]
    if not first:
        return
    is_one = 1 in first
    yield Finding(
        "warning" if is_one else "note",
        f"All sizes of NAMES are fixed{' (to a batch of 1, it seems)' if is_one else ''}: requests "
        "of other sizes fail, and a server cannot batch them.",
        "Export the function with an open batch, as 'f32[b,28]' or polymorphic_shapes.",
    )


def _is_open(kind: TensorSpec) -> bool:
    return kind.shape is None or None in kind.shape


def _check_gradients(contents: SavedModelContents) -> Iterator[Finding]:
    sidecar = get_sidecar_signatures(contents)
    by_text = _group(
        (_describe_gradient(entry.gradient), entry.name)
        for entry in contents.entries
        if entry.gradient is not None
        and not entry.joins_requests
        and not sidecar.get(entry.name, {}).get("updates")
        and not _is_as_requested(entry.gradient)
    )
    for (text, remedy), names in by_text.items():
        signatures = join_names([shorten_text(name, 100) for name in dict.fromkeys(names)])
        yield Finding("note", f"{signatures}: {text}", remedy)


def _check_keys(contents: SavedModelContents, beside: FunctionsBeside) -> Iterator[Finding]:
    """Finds signatures whose results depend on PRNG keys among the weights."""
    sidecar = get_sidecar_signatures(contents)
    updated = {path for entry in sidecar.values() for path in list_updates(entry)}
    for name, entry in sidecar.items():
        portable = beside.by_signature.get(name)
        if portable is None or not entry.get("takes_params"):
            continue
        weights = portable.in_tree.children[0].children[:1]
        names = [path for tree in weights for path in tree.leaf_paths("params")]
        # Keys that calls update differ in each call.
        changing = {p for p, n in zip(portable.in_paths(), names, strict=False) if n in updated}
        paths = [path for path in find_prng_keys(portable, len(names)) if path not in changing]
        if paths:
            text = prng_keys_text(
                [shorten_text(path, 100) for path in paths], shorten_text(name, 100)
            )
            yield Finding("note", text[0].upper() + text[1:])


def _is_as_requested(gradient: GradientOrders) -> bool:
    """Returns whether all orders that save() was asked for are stored, and at least one."""
    return gradient.orders > 0 and (
        not gradient.missing_because or _SAVED_UP_TO in gradient.missing_because
    )


def _describe_gradient(gradient: GradientOrders) -> tuple[str, str]:
    text = f"gradients are stored to order {gradient.orders}" if gradient.orders else "no gradient"
    if gradient.missing_because:
        reason = shorten_text(gradient.missing_because).rstrip(".")
        text += f", and then: {reason}" if gradient.orders else f": {reason}"
        if _SAVED_UP_TO not in gradient.missing_because:
            return f"{text}.", ""  # there is no further gradient to save
    elif gradient.is_left_out:
        text += ", and the next one was not saved" if gradient.orders else " was saved"
    remedy = f"jax2tf_bridge.save(..., vjp_order={gradient.orders + 1}) stores one more order."
    if not gradient.orders and gradient.is_left_out:
        remedy += (
            " So does tf.saved_model.save with "
            "options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)."
        )
    return f"{text}.", remedy
