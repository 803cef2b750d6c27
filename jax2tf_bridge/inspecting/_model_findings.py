"""What will go wrong with a SavedModel as a whole, and with its signatures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax2tf_bridge._utils._lists import some
from jax2tf_bridge.inspecting._contents import ModuleContents, sidecar_signatures
from jax2tf_bridge.inspecting._finding import SEVERITIES, Finding, Severity, in_units, shortened
from jax2tf_bridge.inspecting._module_findings import of_modules
from jax2tf_bridge.saved_model._saved_model import EntryPoint, Gradient, SavedModelContents
from jax2tf_bridge.saved_model._sidecar import SIDECAR
from jax2tf_bridge.saved_model._tensors import TensorType

_LARGE, _NEAR_LIMIT = 1_000_000, 1_000_000_000
_SAVED_SO = "were saved up to order"
"""What stands in the message of save() for gradients of higher orders than were asked for."""
_BUCKETS = "save(..., buckets={...})"


def findings(
    contents: SavedModelContents, modules: Sequence[ModuleContents], problems: Sequence[str]
) -> tuple[Finding, ...]:
    """What will go wrong, the worst first.

    Args:
      contents: the model.
      modules: of it.
      problems: with the functions that lie beside it.
    """
    found = [
        *_missing(contents),
        *of_modules(modules, contents.path),
        *_sizes_of_files(contents),
        *_serving(contents),
        *_gradients(contents),
        *(
            Finding("warning", f"A function beside the model cannot be read: {shortened(p)}")
            for p in problems
        ),
    ]
    return tuple(sorted(found, key=lambda finding: SEVERITIES.index(finding.severity)))


def _missing(contents: SavedModelContents) -> Iterator[Finding]:
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
            f"{some(contents.missing_files)} is not there: loading fails.",
            "Copy the whole folder, or save the model again.",
        )
    if contents.missing_functions:
        names = some([shortened(name, 100) for name in contents.missing_functions])
        yield Finding(
            "error",
            f"Functions that are called are not in the file: {names}.",
            "Save the model again.",
        )


def _sizes_of_files(contents: SavedModelContents) -> Iterator[Finding]:
    if contents.constants_size >= _LARGE:
        largest = contents.constants[0]
        yield Finding(
            "warning",
            f"Arrays of {in_units(contents.constants_size)} are constants in the graph; the "
            f"largest is {shortened(largest.node, 100)} with {in_units(largest.size)}.",
            "Make them variables of the model.",
        )
    if contents.graph_size >= _NEAR_LIMIT:
        yield Finding(
            "warning",
            f"saved_model.pb has {in_units(contents.graph_size)}, and TensorFlow reads at most "
            "2.1 GB.",
            "Save the function with jax2tf_bridge.save, which makes captured arrays variables.",
        )


def _serving(contents: SavedModelContents) -> Iterator[Finding]:
    warm_up = contents.warm_up
    if warm_up is not None and warm_up.problem:
        yield Finding(
            "error",
            f"The requests to warm up cannot be read: {warm_up.problem}. TensorFlow Serving does "
            "not load the model.",
            "Write the file again, or remove it.",
        )
    sidecar = sidecar_signatures(contents)
    # What is to be said of several signatures stands once.
    same: dict[_Said, list[EntryPoint]] = {}
    for entry in contents.entries:
        if entry.is_signature and entry.modules:
            buckets = bool(sidecar.get(entry.name, {}).get("buckets"))
            for said in _compiles(contents, entry, buckets):
                same.setdefault(said, []).append(entry)
    for said, entries in same.items():
        yield said.of(entries)


@dataclass(frozen=True)
class _Said:
    """A finding about signatures; `text` is about NAMES, which ARE one or several."""

    severity: Severity
    text: str
    remedy: str

    def of(self, entries: Sequence[EntryPoint]) -> Finding:
        """The finding about these signatures."""
        names = some([shortened(entry.name, 100) for entry in entries])
        # The first places: what stands behind them may be names of the file, too.
        text = self.text.replace("NAMES ARE", f"NAMES {'is' if len(entries) == 1 else 'are'}", 1)
        numbers = (n for entry in entries for n, order in entry.modules.items() if not order)
        modules = tuple(dict.fromkeys(numbers))
        return Finding(self.severity, text.replace("NAMES", names, 1), self.remedy, modules)


def _compiles(
    contents: SavedModelContents, entry: EntryPoint, has_buckets: bool
) -> Iterator[_Said]:
    open_inputs = [port.name for port in entry.inputs if _is_open(port.type)]
    requests = contents.warm_up.requests if contents.warm_up is not None else 0
    if not open_inputs:
        yield from _fixed(entry)
        if not requests:
            yield _Said(
                "note",
                "The first request to NAMES waits for the compiler.",
                "A file of requests to warm up has TensorFlow Serving compile when it loads; "
                "jax2tf_bridge.save writes one.",
            )
        return
    where = some([shortened(i, 100) for i in open_inputs])
    if has_buckets:
        if not requests:
            yield _Said(
                "note",
                "The first request to NAMES for each bucket waits for the compiler.",
                "A file of requests to warm up has TensorFlow Serving compile when it loads.",
            )
    elif requests:
        yield _Said(
            "warning",
            f"NAMES ARE compiled anew for each size of {where} that is not among the {requests} "
            "requests to warm up, in the middle of a request.",
            f"{_BUCKETS} pads to few sizes.",
        )
    else:
        yield _Said(
            "warning",
            f"NAMES ARE compiled anew for each size of {where}, in the middle of the first "
            "request that has it.",
            f"{_BUCKETS} pads to few sizes, and writes requests to warm up for each.",
        )


def _fixed(entry: EntryPoint) -> Iterator[_Said]:
    first = [p.type.shape[0] for p in entry.inputs if p.type.shape]
    if not first:
        return
    is_one = 1 in first
    yield _Said(
        "warning" if is_one else "note",
        f"All sizes of NAMES are fixed{', a batch of 1 it seems' if is_one else ''}: requests of "
        "others fail, and a server cannot batch them.",
        "Export the function with an open batch, as 'f32[b,28]' or polymorphic_shapes.",
    )


def _is_open(kind: TensorType) -> bool:
    return kind.shape is None or None in kind.shape


def _gradients(contents: SavedModelContents) -> Iterator[Finding]:
    """One finding for the signatures and methods of which the same is to be said."""
    same: dict[tuple[str, str], list[str]] = {}
    for entry in contents.entries:
        if entry.gradient is not None and not _is_default(entry.gradient):
            same.setdefault(_gradient(entry), []).append(entry.name)
    for (text, remedy), names in same.items():
        which = some([shortened(name, 100) for name in dict.fromkeys(names)])
        yield Finding("note", f"{which}: {text}", remedy)


def _is_default(gradient: Gradient) -> bool:
    """Whether gradients end for no other reason than that no more were saved."""
    return gradient.orders > 0 and (not gradient.then or _SAVED_SO in gradient.then)


def _gradient(entry: EntryPoint) -> tuple[str, str]:
    gradient = entry.gradient
    assert gradient is not None
    text = f"gradients are stored to order {gradient.orders}" if gradient.orders else "no gradient"
    if gradient.then:
        text += f", and then: {shortened(gradient.then).rstrip('.')}"
    elif gradient.is_left_out:
        text += ", and the next one was not saved" if gradient.orders else " was saved"
    remedy = f"jax2tf_bridge.save(..., vjp_order={gradient.orders + 1}) stores one more order."
    if not gradient.orders and gradient.is_left_out:
        remedy += (
            " So does tf.saved_model.save with "
            "options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)."
        )
    return f"{text}.", remedy
