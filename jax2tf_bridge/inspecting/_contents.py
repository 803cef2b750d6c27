"""What a module of a SavedModel holds, and where it runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jax2tf_bridge.errors import BridgeError, FileFormatError
from jax2tf_bridge.portable._call_types import call_problem
from jax2tf_bridge.portable._dtypes import WIDENED
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._target import TENSORFLOW_RELEASES, tensorflow_releases
from jax2tf_bridge.portable._tensorflow_releases import (
    has_kernel,
    unhandled_anywhere,
    unhandled_calls,
)
from jax2tf_bridge.portable.bytecode import ModuleSummary, read_module
from jax2tf_bridge.saved_model._saved_model import CalledModule, SavedModelContents
from jax2tf_bridge.saved_model._sidecar import RECORDS
from jax2tf_bridge.serialization import read_function

_FIRST_WITH_SHARDY = (2, 20)
"""The TensorFlow release since which the op has the attribute `use_shardy_partitioner`."""

_LINEAR_ALGEBRA = re.compile(r"(lapack|blas|cublas|cusolver|hipblas|hipsolver)")
_RECORD_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}\.jaxfn")
_MOST_ORDERS = 200


@dataclass(frozen=True)
class ModuleContents:
    """What is known of a module.

    Attributes:
      called: the op.
      order: how often is differentiated before it runs; None if nothing runs it.
      entries: the names of the signatures and methods that run it, or a gradient with it.
      summary: what is in it; None if it cannot be read, and `unreadable` says why.
      record: its function, if the sidecar has it.
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
    record: PortableFunction | None
    releases: tuple[str, ...]
    unhandled: tuple[str, ...]
    mismatch: str | None
    narrow: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where it is, for people."""
        called = self.called
        return f"{called.function}/{called.node}" if called.function else called.node


def module_contents(
    contents: SavedModelContents, records: Mapping[str, PortableFunction]
) -> tuple[ModuleContents, ...]:
    """What is known of each module.

    Args:
      contents: the SavedModel.
      records: functions by the SHA-256 of their module, as `records_of` gives them.
    """
    summaries: dict[str, ModuleSummary | str] = {}
    found = []
    for called in contents.modules:
        digest = hashlib.sha256(called.module).hexdigest()
        if digest not in summaries:
            summaries[digest] = _summary(called)
        found.append(_contents(contents, called, summaries[digest], records.get(digest)))
    return tuple(found)


def records_of(contents: SavedModelContents) -> tuple[dict[str, PortableFunction], list[str]]:
    """The functions that lie beside the model, by the SHA-256 of their modules, and problems."""
    found: dict[str, PortableFunction] = {}
    problems: list[str] = []
    for file in record_files(contents):
        try:
            record: PortableFunction | None = read_function(file)
        except (BridgeError, OSError) as e:
            problems.append(str(e))
            continue
        for _ in range(_MOST_ORDERS):
            if record is None:
                break
            found[hashlib.sha256(record.module.data).hexdigest()] = record
            record = record.gradient.made
    return found, problems


def record_files(contents: SavedModelContents) -> Iterator[Path]:
    """The files of the functions that the sidecar names."""
    for signature in sidecar_signatures(contents).values():
        name = signature.get("record")
        if isinstance(name, str) and _RECORD_NAME.fullmatch(name):
            yield Path(contents.path) / RECORDS / name


def sidecar_signatures(contents: SavedModelContents) -> dict[str, Mapping[str, object]]:
    """What the sidecar says of signatures, by their names, as far as it is what it should be."""
    found = contents.sidecar.get("signatures")
    if not isinstance(found, dict):
        return {}
    return {name: entry for name, entry in found.items() if isinstance(entry, dict)}


def _summary(called: CalledModule) -> ModuleSummary | str:
    try:
        return read_module(called.module)
    except FileFormatError as e:
        return str(e)


def _contents(
    contents: SavedModelContents,
    called: CalledModule,
    read: ModuleSummary | str,
    record: PortableFunction | None,
) -> ModuleContents:
    runs = [(e, e.modules[called.number]) for e in contents.entries if called.number in e.modules]
    narrow = tuple(sorted({*called.arguments, *(r.dtype for r in called.results)} & WIDENED.keys()))
    summary = None if isinstance(read, str) else read
    calls = () if summary is None else tuple(summary.custom_calls)
    return ModuleContents(
        called=called,
        order=min((order for _, order in runs), default=None),
        entries=tuple(dict.fromkeys(entry.name for entry, _ in runs)),
        summary=summary,
        unreadable=read if isinstance(read, str) else None,
        record=record,
        releases=tuple(_releases(called, calls)) if summary is not None and not narrow else (),
        unhandled=unhandled_anywhere(_judged(called), calls),
        mismatch=None if summary is None or narrow else _mismatch(called, summary),
        narrow=narrow,
    )


def _judged(called: CalledModule) -> CalledModule:
    """The op without the checks that say of linear algebra that there is a handler for it.

    In JAX there is; other tools need the check to be off to write the call at all.
    """
    checks = (c for c in called.disabled_checks if not is_linear_algebra(c.is_custom_call() or ""))
    return replace(called, disabled_checks=tuple(checks))


def is_linear_algebra(call: str) -> bool:
    """Whether a custom call is one of JAX's of LAPACK and its like, that no TensorFlow has.

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
    """The releases that read the module, and have handlers for its custom calls."""
    calls = tuple(calls)
    if called.stablehlo_version is None or has_kernel(_judged(called), calls):
        return
    for release in tensorflow_releases(called.stablehlo_version, called.calling_convention_version):
        if called.uses_shardy and _numbers(release) < _FIRST_WITH_SHARDY:
            continue
        if not unhandled_calls(_judged(called), calls, TENSORFLOW_RELEASES[release][0]):
            yield release


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
