"""`jax2tf-bridge serve-check`: a SavedModel in another TensorFlow release, beside the one here."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf_bridge.cli._commands import Command, UsageError
from jax2tf_bridge.cli._console import Console, printable
from jax2tf_bridge.cli.serve_check._calls import Call, calls_of
from jax2tf_bridge.cli.serve_check._options import DESCRIPTION, EXAMPLES, add_options
from jax2tf_bridge.cli.serve_check._runs import Run, differences, run_calls
from jax2tf_bridge.cli.serve_check._tensorflow_environments import (
    Environment,
    environment_at,
    environment_of,
)
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.inspecting._function_text import releases_text
from jax2tf_bridge.portable._stablehlo_version import version_text
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable._tensorflow_releases import TENSORFLOW_RELEASES
from jax2tf_bridge.storage._directories import on_disk
from jax2tf_bridge.storage._paths import AnyPath


def run(options: argparse.Namespace) -> None:
    """Makes the calls there and here, prints how they went, and fails if one did not go well."""
    console = Console(verbose=options.verbose)
    if options.tensorflow is None and options.python is None:
        raise UsageError("name the release by --tensorflow, or an interpreter with it by --python")
    if options.tensorflow is not None:
        Target.tensorflow(options.tensorflow)
    directory: AnyPath = options.directory
    with console.step(f"reading {directory}"):
        contents = read_saved_model(directory)
        calls = calls_of(contents)
        description = describe_saved_model(contents)
    environment = _environment(options, console)
    here = None
    with on_disk(directory) as folder:
        with console.step(f"running {len(calls)} calls in TensorFlow {environment.tensorflow}"):
            there = run_calls(environment.python, folder, calls, other=True)
        # Looked for, and not imported.
        if importlib.util.find_spec("tensorflow") is not None:
            with console.step("running them in the TensorFlow here"):
                here = run_calls(Path(sys.executable), folder, calls, other=False)
    facts = _facts(directory, environment, description, calls, there, here)
    print(printable(json.dumps(facts, indent=2) if options.json else "\n".join(_lines(facts))))
    _refuse(facts)


def _environment(options: argparse.Namespace, console: Console) -> Environment:
    if options.python is not None:
        return environment_at(options.python.expanduser(), options.tensorflow)
    return environment_of(options.tensorflow, console)


def _facts(
    directory: AnyPath,
    environment: Environment,
    description: Mapping[str, Any],
    calls: Sequence[Call],
    there: Run,
    here: Run | None,
) -> dict[str, Any]:
    """Collects what --json prints."""
    release = environment.tensorflow or ""
    signatures = []
    numbered = itertools.groupby(enumerate(calls), key=lambda each: each[1].signature)
    for name, group in numbered:
        members = list(group)
        mended = retarget_advice(directory, release, description, name)
        told = [_call(call, number, there, here) for number, call in members]
        some_ran = any(call["ran"] for call in told)
        for (_, call), facts in zip(members, told, strict=True):
            # Sizes that nobody vouches for, and that run nowhere, are not the release's fault.
            refused = call.kind == "guess" and some_ran and not facts["ran_here"]
            within = all(d["within"] for d in facts["differences"])
            facts["ok"] = refused or (facts["ran"] and within)
            facts["remedy"] = None if facts["ran"] or refused else mended
        signatures.append({"name": name, "calls": told})
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


def _call(call: Call, number: int, there: Run, here: Run | None) -> dict[str, Any]:
    result = there.results[number] if there.error is None else None
    other = here.results[number] if here is not None and here.error is None else None
    compared = []
    if result and other and result.error is None and other.error is None:
        compared = differences(other, result)
    return {
        "inputs": call.text,
        "kind": call.kind,
        "gradients": call.gradients,
        "ran": result is not None and result.error is None,
        "error": there.error if result is None else result.error,
        "ran_here": other is not None and other.error is None,
        "error_here": None if other is None else other.error,
        "differences": [vars(d) for d in compared],
    }


def retarget_advice(
    directory: AnyPath, installed: str, description: Mapping[str, Any], signature: str
) -> str | None:
    """Advises on a signature whose modules are not for a release; None if they are.

    Args:
      directory: the SavedModel.
      installed: the release, as "2.17.1".
      description: what `describe_saved_model` says.
      signature: its name.
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
    newest = max((m["stablehlo"] or "" for m in failing), key=_version)
    read = TENSORFLOW_RELEASES[release][0]
    if _version(newest) > read:
        why = f"needs StableHLO {newest}, and TensorFlow {release} reads up to {version_text(read)}"
    else:
        releases = [r for r in TENSORFLOW_RELEASES if all(r in m["tensorflow"] for m in failing)]
        why = f"runs on {releases_text(releases)}"
    return f"{why}: {command} writes it for that release"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
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
        width = max(len(_label(call)) for call in calls)
        for call in calls:
            yield f"  {_label(call):{width}}  {_verdict(call)}"
        for remedy in dict.fromkeys(call["remedy"] for call in calls if call["remedy"]):
            yield f"  it {remedy}"


def _label(call: Mapping[str, Any]) -> str:
    return f"{call['inputs']}{' (warm-up)' if call['kind'] == 'warm-up' else ''}"


def _verdict(call: Mapping[str, Any]) -> str:
    if not call["ran"]:
        # Said once above, of all.
        if call["ok"]:
            return f"refuses this size: {call['error']}"
        return f"failed: {call['error']}"
    if not call["ran_here"]:
        return f"ran; here it fails: {call['error_here']}" if call["error_here"] else "ran"
    worst = _worst(call)
    if worst is None:
        return "ran"
    return f"ran, {_difference(worst)}"


def _worst(call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the difference beyond its tolerance, or the largest."""
    found: Sequence[Mapping[str, Any]] = call["differences"]
    return max(found, key=lambda d: (not d["within"], d["relative"] or 0.0), default=None)


def _difference(told: Mapping[str, Any]) -> str:
    name = f"{told['what']} {told['name']}"
    if told["problem"]:
        return f"{name} {told['problem']}"
    if not told["relative"]:
        return "the same"
    beyond = "" if told["within"] else f" BEYOND {told['tolerance']:.0e}"
    return f"differs by {told['relative']:.1e} of the largest number in {name}{beyond}"


def _refuse(facts: Mapping[str, Any]) -> None:
    """Raises for what did not go well, in a line with what mends it."""
    named = f"{facts['saved_model']}"
    release = f"TensorFlow {facts['tensorflow']}"
    failed = [(s["name"], c) for s in facts["signatures"] for c in s["calls"] if not c["ok"]]
    if not failed:
        return
    name, call = failed[0]
    remedy = next((c["remedy"] for _, c in failed if c["remedy"]), None)
    more = f"; it {remedy}" if remedy else ""
    if facts["load_error"]:
        raise BridgeError(f"{named} cannot be loaded by {release}: {facts['load_error']}{more}")
    others = f" ({len(failed) - 1} more)" if len(failed) > 1 else ""
    if not call["ran"]:
        text = f"{name} fails in {release} at {call['inputs']}: {call['error']}"
    else:
        told = _worst(call)
        assert told is not None  # without differences it is well
        text = f"{name} gives something else in {release} at {call['inputs']}: {_difference(told)}"
    raise BridgeError(f"{named}: {text}{others}{more}")


COMMAND = Command("serve-check", DESCRIPTION, EXAMPLES, add_options, run)
