"""serve_check(): compares a SavedModel in another TensorFlow release with the one here."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.errors import Argument, Message, TargetError
from jax2tf_bridge.inspecting import describe_saved_model, format_releases, read_saved_model
from jax2tf_bridge.serve_checking._calls import (
    EnvironmentRun,
    SignatureCall,
    compare_results,
    list_calls,
    run_calls,
)
from jax2tf_bridge.serve_checking._tensorflow_environments import (
    Environment,
    ShowStep,
    check_release,
    describe_environment,
    find_environment,
    show_no_step,
)
from jax2tf_bridge.storage import AnyPath, as_path, on_disk
from jax2tf_bridge.targets import TENSORFLOW_RELEASES


@dataclass(frozen=True)
class ServeCheck:
    """Outcome of `serve_check`; its text is what `jax2tf-bridge serve-check` prints.

    Attributes:
      facts: what `--json` prints: every call, and every difference.
    """

    facts: Mapping[str, Any] = field(repr=False)

    @property
    def tensorflow(self) -> str:
        """The release that ran the model, as "2.17.1"."""
        return str(self.facts["tensorflow"])

    @property
    def ok(self) -> bool:
        """True if every call ran with the same results as in the TensorFlow here."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Sentence about the first failure and its remedy; None if every call succeeded."""
        facts = self.facts
        release = f"TensorFlow {facts['tensorflow']}"
        failed = [(s["name"], c) for s in facts["signatures"] for c in s["calls"] if not c["ok"]]
        if not failed:
            return None
        name, call = failed[0]
        remedy = next((c["remedy"] for _, c in failed if c["remedy"]), None)
        more = f"; it {remedy}" if remedy else ""
        model = facts["saved_model"]
        if facts["load_error"]:
            return f"{model} cannot be loaded by {release}: {facts['load_error']}{more}"
        others = f" ({len(failed) - 1} more)" if len(failed) > 1 else ""
        if not call["ran"]:
            text = f"{name} fails in {release} at {call['inputs']}: {call['error']}"
        else:
            worst = _find_worst(call)
            assert worst is not None  # a call without differences is ok
            difference = _format_difference(worst)
            text = f"{name} gives other results in {release} at {call['inputs']}: {difference}"
        return f"{model}: {text}{others}{more}"

    def as_json(self) -> dict[str, Any]:
        """Returns what `jax2tf-bridge serve-check --json` prints."""
        return dict(self.facts)

    def __str__(self) -> str:
        return "\n".join(_format_lines(self.facts))


def _format_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    there = f"TensorFlow {facts['tensorflow']}, Python {facts['python']}"
    if facts["compared_with"]:
        yield f"{facts['saved_model']} in {there}, beside TensorFlow {facts['compared_with']} here"
    else:
        yield f"{facts['saved_model']} in {there}"
        why = facts["load_error_here"]
        yield f"(not compared: {f'here, {why}' if why else 'there is no TensorFlow here'})"
    if facts["load_error"]:
        yield f"it cannot be loaded: {facts['load_error']}"
    for signature in facts["signatures"]:
        calls = signature["calls"]
        yield ""
        gradients = ", with gradients" if any(call["gradients"] for call in calls) else ""
        yield f"signature {signature['name']}{gradients}"
        width = max(len(_format_label(call)) for call in calls)
        for call in calls:
            yield f"  {_format_label(call):{width}}  {_format_verdict(call)}"
        for remedy in dict.fromkeys(call["remedy"] for call in calls if call["remedy"]):
            yield f"  it {remedy}"


def _format_label(call: Mapping[str, Any]) -> str:
    return f"{call['inputs']}{' (warm-up)' if call['kind'] == 'warm-up' else ''}"


def _format_verdict(call: Mapping[str, Any]) -> str:
    if not call["ran"]:
        if call["ok"]:
            return f"refuses this size: {call['error']}"
        return f"failed: {call['error']}"
    if not call["ran_here"]:
        return f"ran; here it fails: {call['error_here']}" if call["error_here"] else "ran"
    worst = _find_worst(call)
    if worst is None:
        return "ran"
    return f"ran, {_format_difference(worst)}"


def _find_worst(call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the largest difference; those beyond their tolerance come first."""
    differences: Sequence[Mapping[str, Any]] = call["differences"]
    return max(differences, key=lambda d: (not d["within"], d["relative"] or 0.0), default=None)


def _format_difference(difference: Mapping[str, Any]) -> str:
    name = f"{difference['what']} {difference['name']}"
    if difference["problem"]:
        return f"{name} {difference['problem']}"
    if not difference["relative"]:
        return "the same"
    beyond = "" if difference["within"] else f" BEYOND {difference['tolerance']:.0e}"
    return f"differs by {difference['relative']:.1e} of the largest number in {name}{beyond}"


def serve_check(
    path: str | os.PathLike[str],
    tensorflow: str | None = None,
    *,
    python: str | os.PathLike[str] | None = None,
) -> ServeCheck:
    """Runs a SavedModel in another TensorFlow release, and compares it with the one here.

    Calls each signature at a few sizes that it allows and with its warm-up requests, and takes
    gradients of first order. If TensorFlow is installed here, another process makes the same calls
    with it. Needs neither JAX nor TensorFlow here.

    Args:
      path: a SavedModel's folder.
      tensorflow: the release, as "2.17" or "2.17.1"; by default that of `python`. uv or pip makes
        its environment when it is first needed, which takes minutes; it is kept in
        ~/.cache/jax2tf-bridge.
      python: an interpreter with TensorFlow, or the folder of a virtual environment, to use
        instead.

    Returns:
      The outcome of each call. Printing it shows the report.

    Raises:
      TargetError: no release is named, the release is unknown, or `python` has another.
      FileFormatError: `path` is not a SavedModel, or is damaged.
      BridgeError: there is nothing to call, or the environment cannot be made.
      FileNotFoundError: there is nothing at `path`.

    In a test::

        check = jax2tf_bridge.serve_check("predict/1", "2.17")
        assert check.ok, check
    """
    return run_serve_check(
        as_path(path), tensorflow, None if python is None else Path(python), show_no_step
    )


def run_serve_check(
    directory: AnyPath, tensorflow: str | None, python: Path | None, step: ShowStep
) -> ServeCheck:
    """Checks as `serve_check` does, and shows each step."""
    if tensorflow is None and python is None:
        raise TargetError(
            Message(
                *("pass a release of TensorFlow with ", Argument("tensorflow")),
                *(", or an interpreter that has one with ", Argument("python")),
            )
        )
    if tensorflow is not None:
        check_release(tensorflow)
    with step(f"reading {directory}"):
        contents = read_saved_model(directory)
        calls = list_calls(contents)
        description = describe_saved_model(contents)
    if python is not None:
        environment = describe_environment(python.expanduser(), tensorflow)
    else:
        assert tensorflow is not None
        environment = find_environment(tensorflow, step)
    here = None
    with on_disk(directory) as folder:
        with step(f"running {len(calls)} calls in TensorFlow {environment.tensorflow}"):
            there = run_calls(environment.python, folder, calls, is_other=True)
        # find_spec does not import it.
        if importlib.util.find_spec("tensorflow") is not None:
            with step("running them in the TensorFlow here"):
                here = run_calls(Path(sys.executable), folder, calls, is_other=False)
    return ServeCheck(_collect_facts(directory, environment, description, calls, there, here))


def _collect_facts(
    directory: AnyPath,
    environment: Environment,
    description: Mapping[str, Any],
    calls: Sequence[SignatureCall],
    there: EnvironmentRun,
    here: EnvironmentRun | None,
) -> dict[str, Any]:
    release = environment.tensorflow or ""
    signatures = []
    numbered = itertools.groupby(enumerate(calls), key=lambda each: each[1].signature)
    for name, group in numbered:
        members = list(group)
        remedy = advise_retarget(directory, release, description, name)
        facts_of_calls = [_describe_call(call, number, there, here) for number, call in members]
        some_ran = any(call["ran"] for call in facts_of_calls)
        for (_, call), facts in zip(members, facts_of_calls, strict=True):
            # Guessed sizes that fail here too say nothing about the release.
            refused = call.kind == "guess" and some_ran and not facts["ran_here"]
            within = all(d["within"] for d in facts["differences"])
            facts["ok"] = refused or (facts["ran"] and within)
            facts["remedy"] = None if facts["ran"] or refused else remedy
        signatures.append({"name": name, "calls": facts_of_calls})
    return {
        "saved_model": str(directory),
        "tensorflow": there.tensorflow or release,
        "python": ".".join(map(str, environment.version)),
        "interpreter": str(environment.python),
        "compared_with": None if here is None or here.error else here.tensorflow,
        "load_error": there.error,
        "load_error_here": None if here is None else here.error,
        "signatures": signatures,
    }


def _describe_call(
    call: SignatureCall, number: int, there: EnvironmentRun, here: EnvironmentRun | None
) -> dict[str, Any]:
    result = there.results[number] if there.error is None else None
    reference = here.results[number] if here is not None and here.error is None else None
    compared_arrays = []
    if result and reference and result.error is None and reference.error is None:
        compared_arrays = compare_results(reference, result)
    return {
        "inputs": call.text,
        "kind": call.kind,
        "gradients": call.gradients,
        "ran": result is not None and result.error is None,
        "error": there.error if result is None else result.error,
        "ran_here": reference is not None and reference.error is None,
        "error_here": None if reference is None else reference.error,
        "differences": [vars(d) for d in compared_arrays],
    }


def advise_retarget(
    directory: AnyPath, installed: str, description: Mapping[str, Any], signature: str
) -> str | None:
    """Returns advice for a signature that does not run on a release; None if it runs.

    `description` is the result of `describe_saved_model`.
    """
    release = ".".join(installed.split(".")[:2])
    if release not in TENSORFLOW_RELEASES:
        return None
    entries = [each for each in description["signatures"] if each["name"] == signature]
    numbers = {used["module"] for entry in entries for used in entry["modules"]}
    modules = [m for m in description["modules"] if m["number"] in numbers]
    failing = [m for m in modules if release not in m["tensorflow"]]
    if not failing:
        return None
    command = f"jax2tf-bridge retarget {shlex.quote(str(directory))} --tensorflow {release}"
    newest = max((m["stablehlo"] or "" for m in failing), key=_parse_version)
    max_version = TENSORFLOW_RELEASES[release][0]
    if _parse_version(newest) > max_version:
        limit = version_text(max_version)
        why = f"needs StableHLO {newest}, and TensorFlow {release} reads up to {limit}"
    else:
        releases = [r for r in TENSORFLOW_RELEASES if all(r in m["tensorflow"] for m in failing)]
        why = f"runs on {format_releases(releases)}"
    return f"{why}: {command} writes it for that release"


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
