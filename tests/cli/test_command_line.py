"""Command line itself: help, versions, typos, exit codes, and how it ends early."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jax2tf_bridge
from jax2tf_bridge._utils import one_line, progress_bar

# Private: a command is made to fail, and steps are timed without one.
from jax2tf_bridge.cli import _console, _inspect, main
from jax2tf_bridge.cli._console import Console, show_report
from jax2tf_bridge.cli._main import make_parsers, parse
from jax2tf_bridge.errors import MissingDependencyError
from jax2tf_bridge.serialization import write_function
from jax2tf_bridge.weights import write_weights
from tests.cli.conftest import FINDS_PACKAGES, Ok, Run
from tests.saved_model.by_hand import Call, Model
from tests.serialization.records import simple

COMMANDS = ("export", "save", "litert", "onnx", "inspect", "retarget", "serve-check")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            ["--verbose"],
            "a command is missing: one of export, save, publish, versions, rollback, promote, "
            "litert, tfjs, onnx, coreml, compile, weights, inspect, retarget, verify, "
            "serve-check, completion "
            "({} --help says more)",
        ),
        (
            ["-v"],
            "no option -v: did you mean --version or --verbose? ({} --help says more)",
        ),
        (
            ["inspect", "f", "--sig", "x"],
            "no option --sig: did you mean --signature? ({} inspect --help says more)",
        ),
        (
            ["--json", "inspect", "f"],
            "--json is an option of inspect: write it after inspect ({} --help says more)",
        ),
        (["exprot"], "no command exprot: did you mean export? ({} --help says more)"),
        (
            ["zzz"],
            "no command zzz: there are export, save, publish, versions, rollback, promote, "
            "litert, tfjs, onnx, coreml, compile, weights, inspect, retarget, verify, "
            "serve-check, completion "
            "({} --help says more)",
        ),
        (["--verbos", "save"], "no option --verbos: did you mean --verbose? ({} --help says more)"),
        (
            ["export", "m:f", "--shape", "(b)"],
            "no option --shape: did you mean --shapes? ({} export --help says more)",
        ),
        (
            ["inspect", "f", "--jsn=1"],
            "no option --jsn: did you mean --json? ({} inspect --help says more)",
        ),
        (
            ["save", "f", "-output", "m"],
            "no option -output: did you mean --output? ({} save --help says more)",
        ),
        (["inspect", "f", "g"], "unrecognized arguments: g ({} --help says more)"),
        (
            ["save", "f"],
            "the following arguments are required: -o/--output, which names what to write "
            "({} save --help says more)",
        ),
        *(
            (
                [command, source, *more],
                f"argument {metavar}: {source} {problem}; this command reads exported functions. "
                f"Export it first: jax2tf-bridge export {exported} "
                f"({{}} {command} --help says more)",
            )
            for command, metavar, *more in (
                ("inspect", "PATH"),
                ("save", "[NAME=]PATH", "-o", "m"),
                ("publish", "[NAME=]PATH", "-o", "m"),
                ("retarget", "PATH", "--tensorflow", "2.17"),
                ("verify", "DIR", "--against", "m:f"),
                ("serve-check", "DIR"),
            )
            for source, problem, exported in (
                ("d/zoo.py", "is Python source", "zoo:FUNCTION --args ... -o FUNCTION.jaxfn"),
                ("a.b:net.f", "names a function", "a.b:net.f --args ... -o f.jaxfn"),
            )
        ),
        (
            ["export", "--args", "f32", "m:f", "-o", "x"],
            "the following arguments are required: module:function, which goes before --args "
            "({} export --help says more)",
        ),
        (
            ["inspect", "f", "--ops", "-1"],
            "argument --ops: expected a number of at least 0. Got: -1 ({} inspect --help says "
            "more)",
        ),
        (
            ["export", "m:f", "--vjp-order", "x", "-o", "f"],
            "argument --vjp-order: expected a number. Got: 'x' ({} export --help says more)",
        ),
    ],
)
def test_usage_errors(run: Run, words: list[str], error: str) -> None:
    ended = run(*words)
    assert (ended.code, ended.out) == (2, "")
    assert ended.error == error.format("jax2tf-bridge")


def test_values_and_paths_may_begin_with_a_dash() -> None:
    words = ["export", "m:f", "--constraints", "-b + 8 >= 0", "-of.jaxfn"]
    options = parse(words)
    assert (options.constraints, str(options.output)) == (["-b + 8 >= 0"], "f.jaxfn")
    assert str(parse(["inspect", "--", "-old.jaxfn"]).file) == "-old.jaxfn"


def _examples(text: str) -> list[list[str]]:
    """Returns the words of each command in a help text, without what a pipe or a file gets."""
    lines = re.findall(r"^  jax2tf-bridge (.+)$", re.sub(r"\\\n\s*", "", text), re.MULTILINE)
    words = [shlex.split(line) for line in lines]
    return [list(itertools.takewhile(lambda word: word not in "|>", each)) for each in words]


@pytest.mark.parametrize("command", [command.name for command in make_parsers()[1]])
def test_help_has_examples_that_can_be_pasted(ok: Ok, command: str) -> None:
    text = ok(command, "--help")
    assert text.startswith(f"usage: jax2tf-bridge {command} ")
    examples = _examples(text)
    assert examples
    for words in examples:
        assert words[0] == command
        assert parse(words).command == command


def test_every_command_prints_json() -> None:
    for command, parser in make_parsers()[1].items():
        if command.name != "completion":
            usage = parser.format_usage()
            assert "[--json]" in usage, command.name


def test_cheap_examples_of_the_help_run(ok: Ok) -> None:
    write_function("predict.jaxfn", simple())
    write_weights("weights.msgpack", {"w": np.ones(3, np.float32)})
    Model({"main": [Call(simple().module.data, platforms=["CPU"]).node()]}).write(
        Path("predict", "1")
    )
    count = 0
    for command in ("inspect", "completion"):
        for words in _examples(ok(command, "--help")):
            if "--html" not in words and "predict.tflite" not in words:
                assert ok(*words)
                count += 1
    assert count == 7


@pytest.mark.parametrize(
    ("variables", "is_terminal", "is_coloured"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": "", "TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
    ],
)
def test_colours(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    is_terminal: bool,
    is_coloured: bool,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    write_function("f.jaxfn", simple())
    out = run("inspect", "f.jaxfn").out
    assert out.startswith("\x1b[1mf\x1b[0m, in f.jaxfn\n" if is_coloured else "f, in f.jaxfn\n")
    assert run("--help").out.startswith("\x1b[1musage\x1b[0m: " if is_coloured else "usage: ")
    error = run("inspect", "gone").err
    label = "\x1b[1;31merror\x1b[0m" if is_coloured else "error"
    assert error.endswith(f"jax2tf-bridge: {label}: gone: No such file or directory\n")
    assert "\x1b" not in run("inspect", "f.jaxfn", "--json").out


def test_colours_of_a_report(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    show_report(
        "a/1, a model\n\nwarning: note: slow\nsignature f(x) -> (y)\nmodule 0, f\n error: x"
    )
    assert capsys.readouterr().out == (
        "\x1b[1ma/1\x1b[0m, a model\n\n\x1b[1;33mwarning\x1b[0m: note: slow\n"
        "\x1b[1msignature f\x1b[0m(x) -> (y)\n\x1b[1mmodule 0\x1b[0m, f\n error: x\n"
    )
    show_report("1  model\n2  model  NOT SOUND: \x1b[0m", has_title=False)
    assert capsys.readouterr().out == ("1  model\n2  model  \x1b[1;31mNOT SOUND\x1b[0m: \\x1b[0m\n")


def test_help_is_shown_without_a_command_and_as_a_word(ok: Ok, run: Run) -> None:
    assert ok("help") == ok("--help")
    assert ok("help", "save") == ok("save", "--help")
    ended = run()
    assert (ended.code, ended.out) == (2, "")
    text, _, error = ended.err.partition("jax2tf-bridge: error: ")
    assert text == ok("--help")
    assert error.startswith("a command is missing: one of export, ")
    assert run("help", "sav").error.startswith("no command sav: did you mean save?")


def test_help_and_version(ok: Ok) -> None:
    text = ok("--help")
    assert "Needs" not in text  # which each command says itself
    assert "exit codes: 0 all is well, 1 the bridge refused, 2 the command line is wrong" in text
    # argparse writes what a long name stands for into the next line.
    assert all(re.search(rf"\n    {command}\s", text) for command in COMMANDS)
    version = ok("--version")
    assert version.startswith(f"jax2tf-bridge {jax2tf_bridge.__version__}, Python 3.")
    assert ", JAX " in version


def _raising(error: BaseException) -> Callable[[Any], None]:
    def fail(_: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 141, ""),
        (FileNotFoundError(2, "No such file or directory", "x"), 2, "x: No such file or directory"),
        (OSError("odd"), 1, "OSError: odd (--debug shows all of it)"),
        (RecursionError("deep\nand deeper"), 1, "RecursionError: deep (--debug shows all of it)"),
        (
            MissingDependencyError("JAX", "jax", "jax2tf-bridge retarget"),
            1,
            "jax2tf-bridge retarget needs JAX, which is not installed here. Install it with: "
            "pip install 'jax2tf-bridge[jax]'",
        ),
    ],
)
def test_ends(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    text: str,
) -> None:
    monkeypatch.setattr(_inspect, "inspect", _raising(error))
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # stdout stays pytest's
    assert main(["inspect", "x"]) == code
    assert capsys.readouterr() == ("", f"jax2tf-bridge: error: {text}\n" if text else "")


def test_broken_pipe_of_python_m_is_quiet(tmp_path: Path) -> None:
    write_function(tmp_path / "f.jaxfn", simple())
    command = [sys.executable, "-m", "jax2tf_bridge", "inspect", "--json", "f.jaxfn"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **FINDS_PACKAGES},
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


LOADING = """
import sys, time
from jax2tf_bridge.cli._console import Console
with Console().loading("JAX", "export"):
    print("ready", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        print("swallowed", flush=True)
"""
SLEEPING = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
from jax2tf_bridge.cli import _inspect, main
def sleeps(_):
    print("ready", flush=True)
    time.sleep(60)
_inspect.inspect = sleeps
raise SystemExit(main(["inspect", "x"]))
"""


@pytest.mark.parametrize(("code", "status"), [(LOADING, -signal.SIGINT), (SLEEPING, 130)])
def test_ctrl_c_is_quiet(code: str, status: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **FINDS_PACKAGES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == status


def test_debug_shows_the_traceback(run: Run) -> None:
    for words in (["inspect", "x", "--debug"], ["--debug", "inspect", "x"]):
        ended = run(*words)
        assert ended.code == 2
        assert ended.err.startswith("Traceback (most recent call last):")
        assert ended.err.endswith("jax2tf-bridge: error: x: No such file or directory\n")


def test_steps_are_shown_on_a_terminal_and_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Console().step("working"):
        assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Console().step("working"):
        assert capsys.readouterr().err.strip() == "working ..."
    assert capsys.readouterr().err.strip() == ""
    with pytest.raises(ValueError, match="x"), Console(verbose=True).step("working"):
        raise ValueError("x")
    assert re.fullmatch(
        r"\s*working ...\s+jax2tf-bridge: working: 0.0 s\n", capsys.readouterr().err
    )


def test_long_steps_show_their_time_beside_bars_and_notes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_console, "_STEP_SECONDS", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    def wait_for(*texts: str) -> None:
        seen = ""
        end = time.monotonic() + 30
        while any(text not in seen for text in texts):
            seen += capsys.readouterr().err
            assert time.monotonic() < end, seen[-80:]
            time.sleep(0.01)

    with Console().step("working"):
        wait_for("\rworking ... 00:0")
        with progress_bar("trying", 3, "trial") as advance:
            advance(1)
            wait_for("trying: ", "\rworking ... 00:0")
        Console().note("a note")
        wait_for("\rjax2tf-bridge: note: a note\n", "\rworking ... 00:0")
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_similar_path_is_suggested(run: Run) -> None:
    Path("folder").mkdir()
    for name in ("predict.jaxfn", "folder/other.jaxfn"):
        Path(name).touch()
    for wrong, right in (
        ("predct.jaxfn", "predict.jaxfn"),
        ("folder/othr.jaxfn", "folder/other.jaxfn"),
    ):
        ended = run("inspect", wrong)
        assert (ended.code, ended.error) == (
            2,
            f"{wrong}: No such file or directory: did you mean {right}?",
        )
    for wrong in ("gone/predict.jaxfn", "x.jaxfn"):
        assert run("inspect", wrong).error == f"{wrong}: No such file or directory"


def test_one_line() -> None:
    assert one_line("Two things:\n  - x: a\n  - y: b.\n\nCast them.") == (
        "Two things: x: a; y: b. Cast them."
    )
