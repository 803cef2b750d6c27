"""`jax2tf-bridge serve-check`: a SavedModel in another TensorFlow, and the environments for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import Signature, Target, convert, save, serve_check
from jax2tf_bridge.errors import BridgeError, FileFormatError, TargetError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.saved_model import WARM_UP
from jax2tf_bridge.serve_checking import ServeCheck

# Private: the other release's script runs in this process, and gets results that no model gives.
from jax2tf_bridge.serve_checking import _calls as _serve_check_runs
from jax2tf_bridge.serve_checking import _script as _serve_check_script
from jax2tf_bridge.serve_checking._calls import CallResult, compare_results, list_calls
from jax2tf_bridge.serve_checking._serve_check import advise_retarget
from jax2tf_bridge.serve_checking._tensorflow_environments import find_environment
from tests.cli import models
from tests.cli.conftest import Ok, Run
from tests.cli.json_fields import PAGE, list_described_fields


def rows(params: Any, x: Any) -> Any:
    return {"y": jnp.tanh(x @ params["w"]), "class": jnp.argmax(x, axis=-1)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "predict"
    signature = Signature(rows, args=[np.ones((4, 3), np.float32)], polymorphic_shapes="(b, 3)")
    save(folder, signature, params={"w": models.WEIGHTS}, buckets={"b": [1, 8]}, oversize="as is")
    return folder


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model written for the installed release, and whose sizes are constrained."""
    folder = tmp_path_factory.mktemp("served") / "newest"
    signature = Signature(
        models.halves,
        args=[np.ones((4, 3), np.float32)],
        polymorphic_shapes="(b, _)",
        polymorphic_constraints=["b >= 5", "mod(b, 2) == 0"],
    )
    save(folder, signature, target=Target.installed())
    return folder


class Plain(tf.Module):  # type: ignore[misc]  # tf.Module has no types
    """A model without a sidecar, of which nobody knows the sizes that it takes."""

    def __init__(self) -> None:
        super().__init__()
        self._reshaped = convert(
            lambda x: x.reshape(x.shape[0] // 2, 2),
            polymorphic_shapes="(b,)",
            polymorphic_constraints=["mod(b, 2) == 0"],
        )

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def pairs(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self._reshaped(x)}

    @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="text")])
    def never(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_equal(text, "other", "not this text")]):
            return {"y": tf.identity(text)}


@pytest.fixture
def calls_here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Makes calls for the running interpreter in this process, which spares starting TensorFlow.

    Gives the variables that processes would be started with.
    """
    environments = []
    start = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[0] != sys.executable:
            return start(command, **options)
        assert command[1] == _serve_check_script.__file__
        environments.append(options["env"])
        _serve_check_script.main(*command[2:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(sys, "path", list(sys.path))
    stand_in = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(_serve_check_runs, "subprocess", stand_in)
    return environments


def test_the_calls_are_made_in_both(
    ok: Ok, model: Path, calls_here: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/packages/of/this/process")
    facts = json.loads(ok("serve-check", model, "--python", sys.executable, "--json"))
    if PAGE.exists():
        described = {*facts, *facts["signatures"][0], *facts["signatures"][0]["calls"][0]}
        assert list_described_fields("field of `serve-check`") - {"verify", "problem"} == described
    (signature,) = facts["signatures"]
    assert [(c["kind"], c["ran"], c["ok"]) for c in signature["calls"]] == [
        *[("sizes", True, True)] * 3,
        *[("warm-up", True, True)] * 2,
    ]
    there, here = calls_here
    assert here["PYTHONPATH"] == "/packages/of/this/process"
    assert "PYTHONPATH" not in there
    for variables in (there, here):
        assert variables["CUDA_VISIBLE_DEVICES"] == "-1"
        assert variables["TF_ENABLE_ONEDNN_OPTS"] == "0"


@pytest.mark.slow
def test_a_model_runs_and_gives_the_same(ok: Ok, model: Path) -> None:
    text = ok("serve-check", model, "--python", sys.executable)
    lines = text.splitlines()
    assert lines[0] == (
        f"{model} in TensorFlow {tf.__version__}, Python {sys.version_info[0]}."
        f"{sys.version_info[1]}, beside TensorFlow {tf.__version__} here"
    )
    assert lines[2] == "signature serving_default, with gradients"
    calls = lines[3:]
    assert len(calls) == 5
    assert calls[0].split("  ")[1].startswith("x: float32[1,3]")
    assert sum("(warm-up)" in line for line in calls) == 2
    assert all("ran, " in line and "BEYOND" not in line for line in calls)


@pytest.mark.usefixtures("calls_here")
def test_the_function_returns_what_the_command_prints(ok: Ok, model: Path) -> None:
    check = serve_check(model, python=sys.executable)
    assert check.ok
    assert check.problem is None
    assert check.tensorflow == tf.__version__
    printed = ok("serve-check", model, "--python", sys.executable)
    assert printed == f"{check}\n"
    assert printed == f"{ServeCheck(json.loads(json.dumps(check.as_json())))}\n"


@pytest.mark.usefixtures("calls_here")
def test_what_fails_is_told_by_its_call(run: Run, tmp_path: Path) -> None:
    plain = Plain()
    signatures = {"pairs": plain.pairs, "never": plain.never}
    tf.saved_model.save(plain, str(tmp_path / "plain"), signatures)
    ended = run("serve-check", "plain", "--python", sys.executable, "--json")
    assert ended.code == 1
    assert ended.error.startswith("plain: never fails in TensorFlow ")
    assert " at text: string[]: InvalidArgumentError: " in ended.error
    facts = json.loads(ended.out)
    calls = {s["name"]: s["calls"] for s in facts["signatures"]}
    # Sizes were guessed, and odd ones run nowhere: that is not the release's fault.
    assert [(c["kind"], c["ran"], c["ok"]) for c in calls["pairs"]] == [
        ("guess", False, True),
        ("guess", True, True),
        ("guess", False, True),
    ]
    assert [(c["kind"], c["ran"], c["ok"]) for c in calls["never"]] == [("sizes", False, False)]
    assert "not this text" in calls["never"][0]["error"]


@pytest.mark.usefixtures("calls_here")
def test_an_environment_in_which_tensorflow_does_not_start(
    run: Run, model: Path, tmp_path: Path
) -> None:
    broken = _script(
        tmp_path / "python",
        "case \"$1\" in -c) echo '[[3, 11], \"2.17.1\"]';; *) echo 'no AVX' >&2; exit 3;; esac",
    )
    ended = run("serve-check", model, "--python", broken)
    assert ended.code == 1
    assert "TensorFlow does not start: exit code 3, no AVX" in ended.error


def test_sizes_satisfy_the_constraints(newest: Path) -> None:
    calls = list_calls(read_saved_model(newest))
    sizes = [call.inputs["x"]["shape"][0] for call in calls]
    assert sizes[0] == 6
    assert len(set(sizes)) == 3
    assert all(size >= 5 and size % 2 == 0 for size in sizes)


def test_a_damaged_request_to_warm_up_is_an_error(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(model, damaged)
    file = damaged / WARM_UP
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match="it ends within a record"):
        list_calls(read_saved_model(damaged))


def test_modules_for_a_newer_release_are_mended_by_retarget(newest: Path, model: Path) -> None:
    description = describe_saved_model(read_saved_model(newest))
    remedy = advise_retarget(newest, "2.17.1", description, "serving_default")
    assert remedy is not None
    needed = ".".join(map(str, Target.installed().stablehlo_versions[0]))
    assert remedy.startswith(f"needs StableHLO {needed}, and TensorFlow 2.17 reads up to 1.1.1: ")
    assert f"jax2tf-bridge retarget {newest} --tensorflow 2.17" in remedy
    assert advise_retarget(newest, "2.21.0", description, "serving_default") is None
    other = describe_saved_model(read_saved_model(model))
    assert advise_retarget(model, "2.17.1", other, "serving_default") is None


def _floats(*values: float, dtype: str = "float32") -> CallResult:
    return CallResult(None, {("output", "y"): (dtype, np.array(values, np.float32))})


@pytest.mark.parametrize(
    ("expected", "found", "within", "problem"),
    [
        (_floats(1, 2), _floats(1, 2.0001), True, ""),
        (_floats(1, 2), _floats(1, 2.001), False, ""),
        (_floats(1, 2, dtype="bfloat16"), _floats(1, 2.05, dtype="bfloat16"), True, ""),
        (_floats(1, 2, dtype="int32"), _floats(1, 3, dtype="int32"), False, ""),
        (_floats(1, np.nan), _floats(1, np.nan), True, ""),
        (_floats(1, 2), _floats(1, np.nan), False, "NaN"),
        (_floats(1, 2), _floats(1), False, "is float32[1] instead of float32[2]"),
        (_floats(1), CallResult(None), False, "is missing"),
        (CallResult(None), _floats(1), False, "is not expected"),
    ],
)
def test_differences_are_judged_by_dtype(
    expected: CallResult, found: CallResult, within: bool, problem: str
) -> None:
    (told,) = compare_results(expected, found)
    assert told.within is within
    assert problem in told.problem
    assert bool(told.problem) is bool(problem)


def _script(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def _python(file: Path, tensorflow: str | None) -> Path:
    """Writes a stand-in for an interpreter that is asked for its TensorFlow."""
    return _script(file, f"echo '{json.dumps([[3, 11], tensorflow])}'")


def test_wrong_calls_are_one_line(run: Run, model: Path, tmp_path: Path) -> None:
    def error(*words: str | Path) -> tuple[int, str]:
        ended = run("serve-check", *words)
        return ended.code, ended.error

    for release in ("2.99", "2.17.*", "TF2.17"):
        code, text = error(model, "--tensorflow", release)
        assert code == 2
        assert text == (
            f"--tensorflow {release}: the bridge knows the releases 2.15 to 2.22. For another "
            "release, pass an interpreter that has it with --python."
        )
    with pytest.raises(TargetError, match=r"^tensorflow: expected a release as text, as '2\.17'"):
        serve_check(model, 2.17)  # type: ignore[arg-type]
    code, text = error(model)
    assert (code, text.split(",")[0]) == (2, "pass a release of TensorFlow with --tensorflow")
    code, text = error(tmp_path / "none", "--tensorflow", "2.17")
    assert (code, text) == (
        2,
        f"{tmp_path / 'none'} does not exist; name the folder that holds saved_model.pb",
    )
    code, text = error(model, "--python", tmp_path / "none")
    assert (code, text) == (
        2,
        f"--python: {tmp_path / 'none'} is not a working Python interpreter",
    )
    bare = _python(tmp_path / "bare", None)
    code, text = error(model, "--python", bare)
    assert (code, text.split(":")[1]) == (2, f" {bare} has no TensorFlow")
    older = _python(tmp_path / "venv" / "bin" / "python", "2.16.2")
    code, text = error(model, "--python", older.parents[1], "--tensorflow", "2.17")
    assert code == 2
    assert "has TensorFlow 2.16.2, and --tensorflow is 2.17" in text


@pytest.fixture
def fake_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a `uv` on the PATH that answers by cases; gives the folder of the cache."""

    def put(cases: str) -> Path:
        _script(
            tmp_path / "tools" / "uv",
            f'echo "$@" >> {tmp_path}/log\ncase "$*" in\n'
            f"  --version) exit 0;;\n  'python find'*) exit 1;;\n{cases}\nesac",
        )
        monkeypatch.setenv("PATH", str(tmp_path / "tools"), prepend=os.pathsep)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return tmp_path / "cache" / "jax2tf-bridge"

    return put


def _quietly(text: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


_MAKES = """\
  'pip compile'*) exit 0;;
  venv*) for folder; do :; done; mkdir -p "$folder/bin"
    printf '#!/bin/sh\\necho [[3,11],\\\\"2.17.1\\\\"]\\n' > "$folder/bin/python"
    chmod +x "$folder/bin/python";;"""


def test_an_environment_is_made_once_and_kept(
    fake_uv: Callable[[str], Path], tmp_path: Path
) -> None:
    cache = fake_uv(f"{_MAKES}\n  'pip install'*) exit 0;;")
    made = find_environment("2.17", _quietly)
    running = f"py{sys.version_info[0]}.{sys.version_info[1]}"
    assert made.python == cache / f"tensorflow-2.17-{running}" / "bin" / "python"
    assert made.tensorflow == "2.17.1"
    log = (tmp_path / "log").read_text()
    assert "tensorflow-cpu==2.17.*" in log
    assert find_environment("2.17", _quietly) == made
    assert (tmp_path / "log").read_text() == log
    assert [path.name for path in cache.iterdir()] == [f"tensorflow-2.17-{running}"]


def test_an_environment_whose_python_is_gone_is_made_anew(fake_uv: Callable[[str], Path]) -> None:
    cache = fake_uv(f"{_MAKES}\n  'pip install'*) exit 0;;")
    made = find_environment("2.17", _quietly)
    made.python.unlink()
    made.python.symlink_to("/none")
    assert find_environment("2.17", _quietly) == made
    assert len(list(cache.iterdir())) == 1


def test_an_environment_that_cannot_be_filled_is_not_there(
    fake_uv: Callable[[str], Path],
) -> None:
    cache = fake_uv(f"{_MAKES}\n  'pip install'*) echo 'error: the disk is full' >&2; exit 2;;")
    with pytest.raises(BridgeError) as raised:
        find_environment("2.17", _quietly)
    assert str(raised.value) == "TensorFlow 2.17 cannot be installed: the disk is full"
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("error: No solution found when resolving", "2.17 has no wheels for this platform and"),
        ("error: Failed to fetch the index", "2.17 cannot be installed: Failed to fetch the index"),
    ],
)
def test_no_wheels_and_no_network_are_told_apart(
    fake_uv: Callable[[str], Path], says: str, error: str
) -> None:
    fake_uv(f"  'pip compile'*) echo '{says}' >&2; exit 1;;")
    with pytest.raises(BridgeError, match=error):
        find_environment("2.17", _quietly)


@pytest.mark.slow
def test_another_release_is_installed_and_runs_the_model(
    run: Run, model: Path, newest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # TensorFlow 2.17 does not know all of them
    ended = run("serve-check", model, "--tensorflow", "2.17")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"{model} in TensorFlow 2.17.")
    (folder,) = (tmp_path / "cache" / "jax2tf-bridge").iterdir()
    assert folder.name.startswith("tensorflow-2.17-py3.")
    ended = run("serve-check", newest, "--tensorflow", "2.17")
    assert ended.code == 1
    assert "Cannot deserialize computation" in ended.error
    assert f"jax2tf-bridge retarget {newest} --tensorflow 2.17" in ended.error
