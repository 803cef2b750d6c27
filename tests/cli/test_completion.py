"""`jax2tf-bridge completion`: its scripts, in real shells."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

# Private: the completion is compared with the options of every command.
from jax2tf_bridge.cli._main import make_parsers
from jax2tf_bridge.targets import TENSORFLOW_RELEASES
from tests.cli.conftest import Ok, Run

RELEASES = [r for r in TENSORFLOW_RELEASES if r.startswith("2.1")]
FILES: list[str] = []
"""bash completes files itself where the script offers no words."""

COMPLETIONS = [
    ("ins", ["inspect"]),
    ("--verbose ro", ["rollback"]),
    ("inspect --req", ["--request"]),
    ("inspect x --request ", ["rest", "grpc"]),
    ("inspect x --request g", ["grpc"]),
    ("serve-check --protocol = R", ["REST"]),
    ("serve-check --protocol =", ["gRPC", "REST"]),
    ("export m:f --tensorflow 2.1", RELEASES),
    ("completion ", ["bash", "zsh", "fish"]),
    ("inspect pre", FILES),
    ("save pre", FILES),
    ("save x --params = wei", FILES),
    ("save a = pre", FILES),
    ("export ", []),
    ("rollback x --to ", []),
    ("nonsense ", []),
]


def run_shell(shell: str, *words: str) -> list[str]:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([path, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_bash_completes(ok: Ok) -> None:
    Path("script").write_text(ok("completion", "bash"))
    lines = ["source ./script", "complete -p jax2tf-bridge"]
    for typed, _ in COMPLETIONS:
        *before, last = f"jax2tf-bridge {typed}".split(" ")
        words = shlex.join([*before, last])
        lines += [
            f"COMP_WORDS=({words}); COMP_CWORD={len(before)}; _jax2tf_bridge",
            'echo "${COMPREPLY[@]}"',
        ]
    registered, *replies = run_shell("bash", "--norc", "--noprofile", "-c", "\n".join(lines))
    assert registered == "complete -o bashdefault -o default -F _jax2tf_bridge jax2tf-bridge"
    for (typed, expected), reply in zip(COMPLETIONS, replies, strict=True):
        assert reply.split() == expected, typed


def test_bash_offers_every_command_and_option(ok: Ok) -> None:
    Path("script").write_text(ok("completion", "bash"))
    _, commands = make_parsers()
    lines = ["source ./script"]
    for command in commands:
        lines.append(f"COMP_WORDS=(jax2tf-bridge {command.name} --); COMP_CWORD=2; _jax2tf_bridge")
        lines.append('echo "${COMPREPLY[@]}"')
    lines.append("COMP_WORDS=(jax2tf-bridge ''); COMP_CWORD=1; _jax2tf_bridge")
    lines.append('echo "${COMPREPLY[@]}"')
    *replies, names = run_shell("bash", "--norc", "--noprofile", "-c", "\n".join(lines))
    assert names.split() == [command.name for command in commands]
    for parser, reply in zip(commands.values(), replies, strict=True):
        described = re.findall(r"^  (-[^ ].*)", parser.format_help(), re.MULTILINE)
        options = set(re.findall(r"(?<!\S)--?[a-z][a-z0-9-]*", " ".join(described)))
        assert {"-h", "--help", "--verbose", "--debug"} <= options
        assert set(reply.split()) == {name for name in options if name.startswith("--")}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_scripts_can_be_read(ok: Ok, shell: str) -> None:
    Path("script").write_text(ok("completion", shell))
    assert run_shell(shell, "-n", "script") == []


def test_fish_completes(ok: Ok) -> None:
    Path("script").write_text(ok("completion", "fish"))
    Path("predict.jaxfn").touch()
    for typed, expected in (
        ("ins", ["inspect"]),
        ("inspect --req", ["--request"]),
        ("inspect x --request ", ["grpc", "rest"]),
        ("export --tensorflow 2.1", RELEASES),
        ("save classify=pre", ["classify=predict.jaxfn"]),
        ("export pre", []),
    ):
        program = f"source ./script; complete -C 'jax2tf-bridge {typed}'"
        replies = run_shell("fish", "--no-config", "-c", program)
        assert [reply.split("\t")[0] for reply in replies] == expected, typed


def test_the_shell_is_known_from_its_variable(
    ok: Ok, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert ok("completion") == ok("completion", "fish")
    monkeypatch.setenv("SHELL", "/bin/sh")
    ended = run("completion")
    assert (ended.code, ended.error) == (
        2,
        "name the shell to complete in: jax2tf-bridge completion bash, zsh or fish",
    )


def test_an_unknown_shell(run: Run) -> None:
    ended = run("completion", "tcsh")
    assert ended.code == 2
    assert ended.error.startswith("argument SHELL: invalid choice: 'tcsh' (choose from ")
