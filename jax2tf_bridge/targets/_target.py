"""Targets: the StableHLO versions, calling convention and operations of a consumer."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jax2tf_bridge._operations import COMPOSITES, CUSTOM_CALLS, OPERATIONS
from jax2tf_bridge.bytecode import (
    Block,
    Function,
    Operation,
    OtherType,
    Program,
    Value,
    Version,
    read_program,
)
from jax2tf_bridge.errors import (
    Argument,
    Message,
    TargetError,
    UnsupportedByTargetError,
    name_missing_package,
)
from jax2tf_bridge.targets._tf_compat import ask_versions

TENSORFLOW_RELEASES: Mapping[str, tuple[Version, int]] = MappingProxyType(
    {
        "2.15": ((0, 14, 24), 8),
        "2.16": ((0, 17, 7), 9),
        "2.17": ((1, 1, 1), 9),
        "2.18": ((1, 7, 3), 9),
        "2.19": ((1, 9, 1), 9),
        "2.20": ((1, 12, 1), 10),
        "2.21": ((1, 13, 7), 10),
        "2.22": ((1, 20, 0), 10),
    }
)
"""Maps each TF release to the newest StableHLO version and calling convention that it reads.

Measured with `tensorflow.compiler.mlir.stablehlo.stablehlo.get_current_version()` and
`call_module_maximum_supported_version()` of each release; 2.22 is the candidate 2.22.0rc0.
"""


def find_releases(version: Version, calling_convention: int) -> tuple[str, ...]:
    """Returns the TF releases that read a module of this version and calling convention."""
    return tuple(
        release
        for release, (newest, convention) in TENSORFLOW_RELEASES.items()
        if version <= newest and calling_convention <= convention
    )


_MAJOR_AND_MINOR = re.compile(r"\d+\.\d+")
_FINAL_RELEASE = re.compile(r"(\d+\.\d+)\.\d+")


def installed_versions() -> tuple[str, Version, int]:
    """Returns the installed TF's release, StableHLO version and newest calling convention.

    Releases in the table are not asked, because loading the library that answers takes 4 ms.

    Raises:
      MissingDependencyError: TensorFlow is not installed.
    """
    with name_missing_package("Target.installed()"):
        import tensorflow as tf
    release = str(tf.__version__)
    final = _FINAL_RELEASE.fullmatch(release)
    known = TENSORFLOW_RELEASES.get(final[1]) if final is not None else None
    return release, *(known or ask_versions())


PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The default platforms to lower a module for, by JAX's names."""

_PLATFORM_ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({"gpu": ("cuda", "rocm")})

# Without XLA the bridge itself reads the module, so the versions must express all of JAX; the
# first is preferred because older bridges read it. An older jaxlib writes its own version.
_VERSIONS_WITHOUT_XLA: tuple[Version, ...] = ((1, 13, 7), (1, 18, 0))
_NEWEST_CONVENTION = max(convention for _, convention in TENSORFLOW_RELEASES.values())

NO_XLA = Argument("no_xla", code="xla=False")
"""The option for a target without XLA, for messages."""


@dataclass(frozen=True)
class Target:
    """A consumer of modules, described by what it can run.

    Attributes:
      name: the name in messages.
      stablehlo_versions: the versions to write the module at, in order of preference; the bridge
        uses the first one that can express the module without loss.
      calling_convention: the newest calling convention that it accepts.
      xla: whether it has XLA; if not, functions become TensorFlow's own operations.
      names_lines: whether operation names begin with the user's source line, so that readers of
        the graph can trace an operation to its origin. Files do not store it.
      for_converters: whether to prefer operations that tf2onnx and OpenVINO know. Files do not
        store it.
      computes_as_trained: whether numbers that the function rounds to steps of 8 bits become
        integers. Files do not store it.
      rounding_seed: without XLA, the seed for rounding the results of operations to shorter floats,
        which shows how far rounding errors spread; None to leave them. Files do not store it.

    >>> Target.tensorflow("2.17").stablehlo_versions
    ((1, 1, 1),)
    >>> Target.widest().name
    'every TensorFlow from 2.15 on'
    >>> Target.tensorflow("2.17", xla=False).name
    'TensorFlow 2.17 without XLA'
    """

    name: str
    stablehlo_versions: tuple[Version, ...]
    calling_convention: int
    xla: bool = True
    names_lines: bool = False
    for_converters: bool = False
    computes_as_trained: bool = False
    rounding_seed: int | None = None

    @staticmethod
    def widest(*, xla: bool = True) -> Target:
        """Returns a target with the lowest versions, so that most TF releases run the module.

        Args:
          xla: False for consumers without XLA, such as LiteRT; functions then become TensorFlow's
            own operations.

        Raises:
          TargetError: `xla` is neither True nor False.
        """
        versions = tuple(v for v, _ in TENSORFLOW_RELEASES.values())
        oldest = next(iter(TENSORFLOW_RELEASES))
        target = Target(f"every TensorFlow from {oldest} on", versions, _NEWEST_CONVENTION)
        return target._with_choice(xla)

    @staticmethod
    def tensorflow(release: str, *, xla: bool = True) -> Target:
        """Returns the target of a TF release, such as "2.17" or "2.17.1".

        Args:
          release: the release; the module is written at its StableHLO version.
          xla: as in `widest`.

        Raises:
          TargetError: the release is unknown; the message names the nearest. Or `xla` is neither
            True nor False.
        """
        if not isinstance(release, str):
            raise TargetError(
                f"Target.tensorflow expected a release as text, as '2.17'. Got: {release!r} of "
                f"type {type(release).__name__}"
            )
        match = _MAJOR_AND_MINOR.match(release)
        key = match[0] if match is not None else release
        if key not in TENSORFLOW_RELEASES:
            raise TargetError(_explain_unknown_release(release, key))
        version, convention = TENSORFLOW_RELEASES[key]
        target = Target(f"TensorFlow {key}", (version,), convention)
        return target._with_choice(xla)

    @staticmethod
    def installed(*, xla: bool = True) -> Target:
        """Returns the target of the TensorFlow that is installed in this environment.

        Raises:
          MissingDependencyError: TensorFlow is not installed.
          TargetError: `xla` is neither True nor False.
        """
        release, version, convention = installed_versions()
        target = Target(f"the installed TensorFlow {release}", (version,), convention)
        return target._with_choice(xla)

    @staticmethod
    def converters() -> Target:
        """Returns a target for graphs that are converted to other formats: ONNX and OpenVINO.

        It has no XLA. It prefers operations that tf2onnx and OpenVINO know, even if TensorFlow has
        faster ones.

        >>> Target.converters().name
        'converters of TensorFlow graphs'
        """
        versions = _VERSIONS_WITHOUT_XLA
        name = "converters of TensorFlow graphs"
        return Target(name, versions, _NEWEST_CONVENTION, xla=False, for_converters=True)

    def _with_choice(self, xla: object) -> Target:
        if not isinstance(xla, bool):
            raise TargetError(
                f"xla must be True or False. Got: {xla!r} of type {type(xla).__name__}. Pass "
                "xla=False for a consumer without XLA, or leave it out."
            )
        return self if xla else self.without_xla()

    def without_xla(self) -> Target:
        """Returns the same consumer without XLA, which runs TensorFlow's own operations."""
        if not self.xla:
            return self
        name = f"{self.name} without XLA"
        return Target(name, _VERSIONS_WITHOUT_XLA, _NEWEST_CONVENTION, xla=False)

    def custom_calls(self, platforms: Sequence[str]) -> frozenset[str]:
        """Deprecated name of `handled_calls`."""
        warnings.warn(
            "Target.custom_calls is now called handled_calls, and will be removed. Call "
            "target.handled_calls(platforms).",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.handled_calls(platforms)

    def handled_calls(self, platforms: Sequence[str]) -> frozenset[str]:
        """Returns the custom calls that have a handler on at least one of `platforms`.

        Without XLA, these are the custom calls that TensorFlow has operations for.
        """
        rows = CUSTOM_CALLS.values()
        if not self.xla:
            return frozenset(row.target for row in rows if row.in_tensorflow)
        places = {"all", "tpu"} if "tpu" in platforms else {"all"}
        return frozenset(row.target for row in rows if row.in_xla in places)


def as_target(value: object) -> Target:
    """Returns `value` as a target; None means the widest.

    Raises:
      TargetError: `value` is not a target; the message says how to get one.
    """
    if value is None:
        return Target.widest()
    if isinstance(value, Target):
        return value
    release = (_find_nearest_release(value) if isinstance(value, str) else None) or "2.17"
    raise TargetError(
        f"target must be a Target, as Target.tensorflow({release!r}) or Target.installed(). "
        f"Got: {value!r}"
    )


def _name_release(release: str) -> Argument:
    return Argument("target", release, f"Target.tensorflow({release!r})")


def _explain_unknown_release(release: str, key: str) -> Message:
    known = list(TENSORFLOW_RELEASES)
    nearest = _find_nearest_release(key)
    requested, suggestion = _name_release(release), _name_release(nearest or known[-1])
    if nearest is None:
        return Message(
            requested,
            f": unknown TensorFlow release. The bridge knows {known[0]} to {known[-1]}; use ",
            suggestion,
            ".",
        )
    if nearest == known[0]:
        text = f": TensorFlow {nearest} is the oldest that can run a module: use "
        return Message(requested, text, suggestion, " or newer.")
    text = f": TensorFlow {nearest} is the newest that is known here. Use "
    installed = f"Target.installed() where {key} is installed, elsewhere {suggestion}"
    chosen = Argument("target", nearest, installed)
    return Message(
        requested, text, chosen, ", or leave ", Argument("target", code="the target"), " out."
    )


def _find_nearest_release(release: str) -> str | None:
    """Returns the nearest known release; None if `release` is not a version."""
    match = _MAJOR_AND_MINOR.match(release)
    if match is None:
        return None
    known = {tuple(map(int, r.split("."))): r for r in TENSORFLOW_RELEASES}
    requested = tuple(map(int, match[0].split(".")))
    return known[min((k for k in known if k >= requested), default=max(known))]


def canonicalize_platforms(
    platforms: Sequence[str] | None, known: Sequence[str] = PLATFORMS, *, argument: str
) -> tuple[str, ...] | None:
    """Returns JAX's names of platforms, without repetitions; None (the default) stays None.

    Args:
      platforms: the user's names; "gpu" means cuda and rocm.
      known: all existing names, including those that plug-ins registered with JAX.
      argument: the name of the user's argument, for messages.

    Raises:
      TargetError: a name is unknown (the message suggests others), there is no platform, or
        `platforms` is not a sequence.

    >>> canonicalize_platforms(["GPU", "cpu"], argument="platforms")
    ('cuda', 'rocm', 'cpu')
    """
    if platforms is None:
        return None
    if isinstance(platforms, str) or not isinstance(platforms, Sequence) or not platforms:
        raise TargetError(
            f"{argument} must be a sequence of platform names, at least one of "
            f"{', '.join(PLATFORMS)}. Got: {platforms!r}"
        )
    names: dict[str, None] = {}
    by_lower_case = {platform.lower(): platform for platform in known}
    for platform_name in platforms:
        name = str(platform_name).lower()
        expanded = _PLATFORM_ALIASES.get(name, (by_lower_case.get(name, name),))
        for platform in expanded:
            if platform not in known:
                choices = [*known, *_PLATFORM_ALIASES]
                near = difflib.get_close_matches(name, choices, n=2, cutoff=0.4) or choices
                raise TargetError(
                    Message(
                        Argument(argument),
                        f": unknown platform {platform_name!r}. Did you mean {' or '.join(near)}? "
                        f"Known here: {', '.join(choices)}.",
                    )
                )
            names[platform] = None
    return tuple(names)


# JAX's name for the platform index argument.
_PLATFORM = "_platform_index"


@dataclass(frozen=True)
class Inexpressible:
    """An operation that TensorFlow's operations cannot express.

    Attributes:
      operation: the name of the operation, or the target of the custom call.
      problem: the reason, to follow "predict cannot become TensorFlow's own operations: ".
      source: the user's line as "file:line", if known.
    """

    operation: str
    problem: str
    source: str | None


def find_inexpressible(program: Program) -> Inexpressible | None:
    """Returns the first operation that TensorFlow's operations cannot express, or None."""
    return next(iterate_inexpressible(program), None)


def iterate_inexpressible(program: Program) -> Iterator[Inexpressible]:
    """Yields the operations of a module that TensorFlow's operations cannot express."""
    return (p for o in _walk_operations(program) if (p := _find_problem(o)) is not None)


def _walk_operations(program: Program) -> Iterator[Operation]:
    """Yields the reachable operations, except in decompositions of known composites.

    Platform branches are skipped, because only one of them is emitted, and it is not known here.
    """
    seen = {"main"}
    blocks: list[Block] = [program.main.body]
    by_platform = {
        v for function in program.functions.values() for v in _find_platform_index(function)
    }
    constants: set[Value] = set()
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            if operation.name == "constant":
                constants.update(operation.results)
            if operation.name == "case" and operation.operands[0] in by_platform:
                # JAX may first select a branch index by platform, and pass it to another case.
                if constants.issuperset(v for region in operation.regions for v in region.returned):
                    by_platform.update(operation.results)
                continue
            blocks += operation.regions
            if operation.name == "composite" and operation.attributes.get("name") in COMPOSITES:
                continue
            callee = operation.callee
            if callee is not None and callee in program.functions and callee not in seen:
                seen.add(callee)
                blocks.append(program.functions[callee].body)


def _find_platform_index(function: Function) -> Iterator[Value]:
    """Yields the platform index argument of a function, if it has one."""
    attributes = function.attributes.get("arg_attrs")
    if isinstance(attributes, tuple):
        # Not strict, because a damaged artifact may have another number of attributes.
        for value, notes in zip(function.body.arguments, attributes, strict=False):
            if isinstance(notes, Mapping) and notes.get("jax.global_constant") == _PLATFORM:
                yield value


def _find_problem(operation: Operation) -> Inexpressible | None:
    name = operation.name
    if name == "custom_call":
        target = str(operation.attributes.get("call_target_name"))
        call = CUSTOM_CALLS.get(target)
        if call is not None and call.in_tensorflow:
            return None
        return _make_inexpressible(operation, target, f"the custom call {target!r}")
    kind = OPERATIONS.get(name)
    if (kind is None or not kind.in_tensorflow) and name != "return":
        return _make_inexpressible(operation, name, f"the operation {name}")
    for value in operation.results:
        if isinstance(value.type, OtherType) and "quant" in value.type.text:
            text = f"the quantised type {value.type.text} of a result of {name}"
            return _make_inexpressible(operation, "quantised types", text)
    return None


def _make_inexpressible(operation: Operation, name: str, what: str) -> Inexpressible:
    place = f" at {operation.source}" if operation.source else ""
    return Inexpressible(name, f"they cannot express {what}{place}", operation.source)


def check_expressible(artifact: bytes, target: Target, function_name: str) -> None:
    """Checks that TensorFlow has operations for everything in a module.

    Raises:
      UnsupportedByTargetError: TensorFlow lacks an operation; the error names it and its source
        line.
    """
    problem = find_inexpressible(read_program(artifact))
    if problem is None:
        return
    advice: tuple[Argument | str, ...] = (
        (", or export it without ", NO_XLA, ", for a TensorFlow that has XLA.")
        if problem.operation in Target.widest().handled_calls(("cpu",))
        else (".",)
    )
    raise UnsupportedByTargetError(
        Message(
            f"{function_name} cannot run on {target.name}, where it has to become TensorFlow's own "
            f"operations: {problem.problem}. Write this part of the function with other JAX "
            "operations",
            *advice,
        ),
        operation=problem.operation,
        source=problem.source,
    )
