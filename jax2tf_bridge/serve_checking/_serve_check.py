"""serve_check(): runs a SavedModel in another TensorFlow release, beside the one here."""

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

from jax2tf_bridge.errors import Argument, Message, TargetError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model, releases_text
from jax2tf_bridge.portable import TENSORFLOW_RELEASES, version_text
from jax2tf_bridge.serve_checking._calls import SignatureCall, calls_of
from jax2tf_bridge.serve_checking._outcome import ServeCheck
from jax2tf_bridge.serve_checking._runs import EnvironmentRun, differences, run_calls
from jax2tf_bridge.serve_checking._tensorflow_environments import (
    Environment,
    Step,
    environment_at,
    environment_of,
)
from jax2tf_bridge.storage import AnyPath, as_path, on_disk


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
      tensorflow: the release, as "2.17" or "2.17.1"; by default that of `python`. Its environment
        is made by uv or pip when it is first needed, which takes minutes, and kept in
        ~/.cache/jax2tf-bridge.
      python: an interpreter with TensorFlow, or the folder of a virtual environment, instead.

    Returns:
      How each call went. Printing it shows the report.

    Raises:
      TargetError: no release is named, it is not known, or `python` does not have it.
      FileFormatError: `path` is no SavedModel, or a damaged one.
      BridgeError: there is nothing to call, or the environment cannot be made.
      FileNotFoundError: there is nothing at `path`.

    In a test::

        check = jax2tf_bridge.serve_check("predict/1", "2.17")
        assert check.ok, check
    """
    return check(as_path(path), tensorflow, None if python is None else Path(python), _say_nothing)


def _say_nothing(text: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def check(
    directory: AnyPath, tensorflow: str | None, python: Path | None, step: Step
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
        calls = calls_of(contents)
        description = describe_saved_model(contents)
    if python is not None:
        environment = environment_at(python.expanduser(), tensorflow)
    else:
        assert tensorflow is not None
        environment = environment_of(tensorflow, step)
    here = None
    with on_disk(directory) as folder:
        with step(f"running {len(calls)} calls in TensorFlow {environment.tensorflow}"):
            there = run_calls(environment.python, folder, calls, other=True)
        # Looked for, and not imported.
        if importlib.util.find_spec("tensorflow") is not None:
            with step("running them in the TensorFlow here"):
                here = run_calls(Path(sys.executable), folder, calls, other=False)
    return ServeCheck(_facts(directory, environment, description, calls, there, here))


def _check_release(release: str) -> None:
    """Raises for a release that no environment would be made for."""
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


def _facts(
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


def _call(
    call: SignatureCall, number: int, there: EnvironmentRun, here: EnvironmentRun | None
) -> dict[str, Any]:
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
