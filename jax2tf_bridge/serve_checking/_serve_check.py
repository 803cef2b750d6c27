"""serve_check(): compares a SavedModel in another TensorFlow release with the one here."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jax2tf_bridge.bytecode import version_text
from jax2tf_bridge.errors import Argument, Message, TargetError
from jax2tf_bridge.inspecting import describe_saved_model, format_releases, read_saved_model
from jax2tf_bridge.serve_checking._calls import SignatureCall, list_calls
from jax2tf_bridge.serve_checking._outcome import ServeCheck
from jax2tf_bridge.serve_checking._runs import EnvironmentRun, list_differences, run_calls
from jax2tf_bridge.serve_checking._tensorflow_environments import (
    Environment,
    ShowStep,
    describe_environment,
    find_environment,
)
from jax2tf_bridge.storage import AnyPath, as_path, on_disk
from jax2tf_bridge.targets import TENSORFLOW_RELEASES


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
        as_path(path), tensorflow, None if python is None else Path(python), _show_no_step
    )


def _show_no_step(text: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def run_serve_check(
    directory: AnyPath, tensorflow: str | None, python: Path | None, step: ShowStep
) -> ServeCheck:
    """Checks as `serve_check` does, and shows each step."""
    if tensorflow is None and python is None:
        raise TargetError(
            Message(
                *("name the release by ", Argument("tensorflow")),
                *(", or an interpreter with it by ", Argument("python")),
            )
        )
    if tensorflow is not None:
        _check_release(tensorflow)
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
            there = run_calls(environment.python, folder, calls, other=True)
        # find_spec does not import it.
        if importlib.util.find_spec("tensorflow") is not None:
            with step("running them in the TensorFlow here"):
                here = run_calls(Path(sys.executable), folder, calls, other=False)
    return ServeCheck(_collect_facts(directory, environment, description, calls, there, here))


def _check_release(release: str) -> None:
    """Raises a TargetError for an unknown release."""
    minor = ".".join(release.split(".")[:2])
    if minor in TENSORFLOW_RELEASES:
        return
    oldest, *_, newest = TENSORFLOW_RELEASES
    tensorflow = Argument("tensorflow", release)
    raise TargetError(
        Message(
            *(tensorflow, f": the releases that are known here are {oldest} to {newest}. For "),
            *("another one, name an interpreter that has it by ", Argument("python"), "."),
        )
    )


def _collect_facts(
    directory: AnyPath,
    environment: Environment,
    description: Mapping[str, Any],
    calls: Sequence[SignatureCall],
    there: EnvironmentRun,
    here: EnvironmentRun | None,
) -> dict[str, Any]:
    """Collects what `as_json` returns."""
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
        compared_arrays = list_differences(reference, result)
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

    Args:
      directory: the SavedModel.
      installed: the release, as "2.17.1".
      description: the result of `describe_saved_model`.
      signature: the name of the signature.
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
    read = TENSORFLOW_RELEASES[release][0]
    if _parse_version(newest) > read:
        why = f"needs StableHLO {newest}, and TensorFlow {release} reads up to {version_text(read)}"
    else:
        releases = [r for r in TENSORFLOW_RELEASES if all(r in m["tensorflow"] for m in failing)]
        why = f"runs on {format_releases(releases)}"
    return f"{why}: {command} writes it for that release"


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
