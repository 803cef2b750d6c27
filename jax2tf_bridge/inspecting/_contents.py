"""Describes the modules of a SavedModel: what they hold, and where they run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from jax2tf_bridge.errors import BridgeError, FileFormatError
from jax2tf_bridge.portable import (
    TENSORFLOW_RELEASES,
    WIDENED,
    PortableFunction,
    call_problem,
    has_kernel,
    tensorflow_releases,
    unhandled_anywhere,
    unhandled_calls,
)
from jax2tf_bridge.portable.bytecode import ModuleSummary, read_summary
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
    """A module of a SavedModel, with what follows from it and from its op.

    Attributes:
      called: the op.
      order: how often is differentiated before a module of these bytes runs; None if nothing
        runs it.
      entries: the names of the signatures and methods that run it, or a gradient with it.
      summary: what is in it; None if it cannot be read, and `unreadable` says why.
      portable: its function, if the sidecar has it.
      releases: of TensorFlow that surely run it.
      unhandled: custom calls for which no TensorFlow has a handler.
      mismatch: how the op's types differ from the module's; None if they do not.
      narrow: dtypes of arguments and results that TensorFlow hands over wrongly.
    """

    called: CalledModule
    order: int | None
    entries: tuple[str, ...]
    summary: ModuleSummary | None
    unreadable: str | None
    portable: PortableFunction | None
    releases: tuple[str, ...]
    unhandled: tuple[str, ...]
    mismatch: str | None
    narrow: tuple[str, ...]

    @property
    def place(self) -> str:
        """Names where it is, for people."""
        return self.called.place


def module_contents(
    contents: SavedModelContents, portables: Mapping[str, PortableFunction]
) -> tuple[ModuleContents, ...]:
    """Describes each module.

    Args:
      contents: the SavedModel.
      portables: functions by the SHA-256 of their module, as `functions_beside` gives them.
    """
    summaries: dict[str, ModuleSummary | str] = {}
    orders: dict[str, int] = {}
    digests = [hashlib.sha256(called.module).hexdigest() for called in contents.modules]
    for called, digest in zip(contents.modules, digests, strict=True):
        if digest not in summaries:
            summaries[digest] = _summary(called)
        for entry in contents.entries:
            if (order := entry.modules.get(called.number)) is not None:
                # The gradient of what runs in pieces calls the function, too.
                orders[digest] = min(order, orders.get(digest, order))
    return tuple(
        _contents(contents, called, orders.get(digest), summaries[digest], portables.get(digest))
        for called, digest in zip(contents.modules, digests, strict=True)
    )


@dataclass(frozen=True)
class FunctionsBeside:
    """Functions that lie beside a SavedModel, as save() leaves them.

    Attributes:
      by_module: functions and their VJPs, by the SHA-256 of their modules.
      by_signature: functions by the names of their signatures.
      problems: of files that cannot be read.
    """

    by_module: Mapping[str, PortableFunction]
    by_signature: Mapping[str, PortableFunction]
    problems: tuple[str, ...]

    @property
    def own_operations(self) -> dict[str, PortableFunction]:
        """Functions of the signatures that are TensorFlow's own operations."""
        return {name: f for name, f in self.by_signature.items() if not f.target.xla}


def functions_beside(contents: SavedModelContents) -> FunctionsBeside:
    """Reads the functions beside a model."""
    found: dict[str, PortableFunction] = {}
    by_signature: dict[str, PortableFunction] = {}
    problems: list[str] = []
    for signature, file in _files_of_signatures(contents):
        try:
            functions = collect_vjps(read_function(file), None, MAX_GRADIENT_ORDERS)
        except (BridgeError, OSError) as e:
            problems.append(str(e))
        else:
            found |= {hashlib.sha256(each.module.data).hexdigest(): each for each in functions}
            by_signature[signature] = functions[0]
    return FunctionsBeside(found, by_signature, tuple(problems))


def function_files(contents: SavedModelContents) -> Iterator[AnyPath]:
    """Yields the files of the functions that the sidecar names."""
    return (file for _, file in _files_of_signatures(contents))


def _files_of_signatures(contents: SavedModelContents) -> Iterator[tuple[str, AnyPath]]:
    for signature, entry in sidecar_signatures(contents).items():
        name = entry.get("record")
        if isinstance(name, str) and FILE_NAME.fullmatch(name):
            yield signature, as_path(contents.path) / RECORDS / name


def sidecar_signatures(contents: SavedModelContents) -> dict[str, Mapping[str, object]]:
    """Returns the sidecar's entries of signatures, by name, as far as they are sound."""
    found = contents.sidecar.get("signatures")
    if not isinstance(found, dict):
        return {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def _summary(called: CalledModule) -> ModuleSummary | str:
    try:
        return read_summary(called.module)
    except FileFormatError as e:
        return str(e)


def _contents(
    contents: SavedModelContents,
    called: CalledModule,
    lowest_order: int | None,
    read: ModuleSummary | str,
    portable: PortableFunction | None,
) -> ModuleContents:
    entries = dict.fromkeys(e.name for e in contents.entries if called.number in e.modules)
    narrow = tuple(sorted({*called.arguments, *(r.dtype for r in called.results)} & WIDENED.keys()))
    summary = None if isinstance(read, str) else read
    calls = () if summary is None else tuple(summary.custom_calls)
    return ModuleContents(
        called=called,
        order=lowest_order if entries else None,
        entries=tuple(entries),
        summary=summary,
        unreadable=read if isinstance(read, str) else None,
        portable=portable,
        releases=tuple(_releases(called, calls)) if summary is not None and not narrow else (),
        unhandled=unhandled_anywhere(_without_vouched_lapack(called), calls),
        mismatch=None if summary is None or narrow else _mismatch(called, summary),
        narrow=narrow,
    )


def _without_vouched_lapack(called: CalledModule) -> CalledModule:
    """Drops the checks that vouch for handlers of linear algebra.

    JAX has handlers for it, and other tools can write such calls only without the check.
    """
    checks = (c for c in called.disabled_checks if not is_linear_algebra(c.is_custom_call() or ""))
    return replace(called, disabled_checks=tuple(checks))


def is_linear_algebra(call: str) -> bool:
    """Returns whether a custom call is one of JAX's to LAPACK or a similar library.

    >>> is_linear_algebra("lapack_sgeqrf_ffi"), is_linear_algebra("Qr")
    (True, False)
    """
    return _LINEAR_ALGEBRA.match(call) is not None


def _mismatch(called: CalledModule, summary: ModuleSummary) -> str | None:
    return call_problem(
        called.node,
        called.arguments,
        [result.dtype for result in called.results],
        (summary.inputs, summary.outputs),
        has_platform_index=len(called.platforms) > 1,
    )


def _releases(called: CalledModule, calls: Iterable[str]) -> Iterator[str]:
    """Yields the releases that read the module and handle its custom calls."""
    calls = tuple(calls)
    judged = _without_vouched_lapack(called)
    if called.stablehlo_version is None or has_kernel(judged, calls):
        return
    for release in tensorflow_releases(called.stablehlo_version, called.calling_convention_version):
        if called.uses_shardy and _numbers(release) < _FIRST_WITH_SHARDY:
            continue
        if not unhandled_calls(judged, calls, TENSORFLOW_RELEASES[release][0]):
            yield release


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
