"""Describes the modules of a SavedModel: their contents, and the releases that run them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jax2tf_bridge._dtypes import WIDENED
from jax2tf_bridge.bytecode import ModuleSummary, read_summary
from jax2tf_bridge.errors import BridgeError, FileFormatError
from jax2tf_bridge.portable import (
    PortableFunction,
    find_call_problem,
    find_releases_for,
    find_unhandled_calls,
)
from jax2tf_bridge.saved_model import (
    FILE_NAME,
    MAX_GRADIENT_ORDERS,
    RECORDS,
    CalledModule,
    SavedModelContents,
)
from jax2tf_bridge.serialization import collect_vjps, read_function
from jax2tf_bridge.storage import AnyPath, as_path

_FIRST_WITH_SHARDY = (2, 20)
"""TensorFlow release since which the op has the attribute `use_shardy_partitioner`."""

_LINEAR_ALGEBRA = re.compile(r"(lapack|blas|cublas|cusolver|hipblas|hipsolver)")


@dataclass(frozen=True)
class ModuleContents:
    """Module of a SavedModel, with facts about it and its op.

    Attributes:
      op: the op that calls the module.
      order: the lowest order of differentiation at which a module of these bytes runs; None if
        nothing runs it.
      entries: the names of the signatures and methods that run it, or whose gradients do.
      summary: its contents; None if it cannot be read.
      unreadable: the reason why it cannot be read; None if it can.
      portable: its function, if the sidecar has it.
      releases: the TensorFlow releases that surely run it.
      unhandled_calls: custom calls for which no TensorFlow release has a handler.
      mismatch: how the types of the op differ from those of the module; None if they agree.
      narrow: dtypes of arguments and results that TensorFlow passes incorrectly.
    """

    op: CalledModule
    order: int | None
    entries: tuple[str, ...]
    summary: ModuleSummary | None
    unreadable: str | None
    portable: PortableFunction | None
    releases: tuple[str, ...]
    unhandled_calls: tuple[str, ...]
    mismatch: str | None
    narrow: tuple[str, ...]


def describe_modules(
    contents: SavedModelContents, portables: Mapping[str, PortableFunction]
) -> tuple[ModuleContents, ...]:
    """Describes each module.

    Args:
      contents: the SavedModel.
      portables: functions by the SHA-256 of their module, as in `FunctionsBeside.by_module`.
    """
    summaries: dict[str, ModuleSummary | str] = {}
    orders: dict[str, int] = {}
    digests = [hashlib.sha256(op.module).hexdigest() for op in contents.modules]
    for op, digest in zip(contents.modules, digests, strict=True):
        if digest not in summaries:
            summaries[digest] = _read_summary(op)
        for entry in contents.entries:
            if (order := entry.modules.get(op.number)) is not None:
                # The gradient of a function that runs in pieces calls the function, too.
                orders[digest] = min(order, orders.get(digest, order))
    return tuple(
        _make_contents(contents, op, orders.get(digest), summaries[digest], portables.get(digest))
        for op, digest in zip(contents.modules, digests, strict=True)
    )


@dataclass(frozen=True)
class FunctionsBeside:
    """Functions in the files that save() writes beside a SavedModel.

    Attributes:
      by_module: functions and their VJPs, by the SHA-256 of their modules.
      by_signature: functions by signature name.
      problems: the errors of files that cannot be read.
    """

    by_module: Mapping[str, PortableFunction]
    by_signature: Mapping[str, PortableFunction]
    problems: tuple[str, ...]

    @property
    def own_operations(self) -> dict[str, PortableFunction]:
        """Functions of the signatures that run as TensorFlow's own operations."""
        return {name: f for name, f in self.by_signature.items() if not f.target.xla}


def read_functions_beside(contents: SavedModelContents) -> FunctionsBeside:
    """Reads the functions beside a model."""
    by_module: dict[str, PortableFunction] = {}
    by_signature: dict[str, PortableFunction] = {}
    problems: list[str] = []
    for signature, file in _iter_signature_files(contents):
        try:
            functions = collect_vjps(read_function(file), None, MAX_GRADIENT_ORDERS)
        except (BridgeError, OSError) as e:
            problems.append(str(e))
        else:
            by_module |= {hashlib.sha256(f.module.data).hexdigest(): f for f in functions}
            by_signature[signature] = functions[0]
    return FunctionsBeside(by_module, by_signature, tuple(problems))


def iterate_function_files(contents: SavedModelContents) -> Iterator[AnyPath]:
    """Yields the files of the functions that the sidecar names."""
    return (file for _, file in _iter_signature_files(contents))


def _iter_signature_files(contents: SavedModelContents) -> Iterator[tuple[str, AnyPath]]:
    for signature, entry in get_sidecar_signatures(contents).items():
        name = entry.get("record")
        if isinstance(name, str) and FILE_NAME.fullmatch(name):
            yield signature, as_path(contents.path) / RECORDS / name


def get_sidecar_signatures(contents: SavedModelContents) -> dict[str, Mapping[str, object]]:
    """Returns the sidecar's entries of signatures by name, without malformed ones."""
    signatures = as_mapping(contents.sidecar.get("signatures"))
    return {name: entry for name, entry in signatures.items() if isinstance(entry, dict)}


def as_mapping(value: object) -> Mapping[str, object]:
    """Returns a value of the sidecar if it is an object, and otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def list_updates(sidecar_entry: Mapping[str, object]) -> list[str]:
    """Lists the paths of the weights that a signature of the sidecar changes."""
    paths = as_mapping(sidecar_entry.get("updates")).values()
    return [path for path in paths if isinstance(path, str)]


def _read_summary(op: CalledModule) -> ModuleSummary | str:
    try:
        return read_summary(op.module)
    except FileFormatError as e:
        return str(e)


def _make_contents(
    contents: SavedModelContents,
    op: CalledModule,
    lowest_order: int | None,
    summary_or_error: ModuleSummary | str,
    portable: PortableFunction | None,
) -> ModuleContents:
    entries = dict.fromkeys(e.name for e in contents.entries if op.number in e.modules)
    narrow = tuple(sorted({*op.arguments, *(r.dtype for r in op.results)} & WIDENED.keys()))
    summary = None if isinstance(summary_or_error, str) else summary_or_error
    calls = () if summary is None else tuple(summary.custom_calls)
    mismatch = None
    if summary is not None and not narrow:
        mismatch = find_call_problem(
            op.node,
            op.arguments,
            [result.dtype for result in op.results],
            (summary.inputs, summary.outputs),
            has_platform_index=len(op.platforms) > 1,
        )
    return ModuleContents(
        op=op,
        order=lowest_order if entries else None,
        entries=tuple(entries),
        summary=summary,
        unreadable=summary_or_error if isinstance(summary_or_error, str) else None,
        portable=portable,
        releases=tuple(_iter_releases(op, calls)) if summary is not None and not narrow else (),
        unhandled_calls=find_unhandled_calls(_drop_vouched_lapack(op), calls),
        mismatch=mismatch,
        narrow=narrow,
    )


def _drop_vouched_lapack(op: CalledModule) -> CalledModule:
    """Drops the disabled checks of linear algebra calls, which other tools need to export them.

    JAX has handlers for such calls, and TensorFlow has none.
    """
    checks = (c for c in op.disabled_checks if not is_linear_algebra(c.is_custom_call() or ""))
    return replace(op, disabled_checks=tuple(checks))


def is_linear_algebra(call: str) -> bool:
    """Returns whether a custom call is one of JAX's to LAPACK or a similar library.

    >>> is_linear_algebra("lapack_sgeqrf_ffi"), is_linear_algebra("Qr")
    (True, False)
    """
    return _LINEAR_ALGEBRA.match(call) is not None


def _iter_releases(op: CalledModule, calls: Sequence[str]) -> Iterator[str]:
    """Yields the releases that run the module and have the attributes of its op."""
    for release in find_releases_for(_drop_vouched_lapack(op), calls):
        if not op.uses_shardy or parse_release(release) >= _FIRST_WITH_SHARDY:
            yield release


def parse_release(release: str) -> tuple[int, ...]:
    """Parses the first two numbers of a release; () for other text.

    >>> parse_release("2.17.1"), parse_release("9" * 5000)
    ((2, 17), ())
    """
    match = re.match(r"(\d{1,9})\.(\d{1,9})", release)
    return tuple(map(int, match.groups())) if match else ()
