"""Starts TensorFlow Serving with the text that `print(saved.serving)` prints."""

from __future__ import annotations

import contextlib
import itertools
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from jax2tf_bridge.serve_checking import ServerCommand, start_server
from tests.consumers.environments import process_environment

_SECONDS_TO_LOAD = 120


@dataclass(frozen=True)
class Runtime:
    """A server program, and TensorFlow of the same release.

    Attributes:
      program: path of the server.
      python: interpreter of an environment with TensorFlow.
    """

    program: str
    python: Path

    @property
    def libraries(self) -> Path:
        """Folder of TensorFlow's libraries, which the server may need."""
        return next(self.python.parents[1].glob("lib/python*/site-packages/tensorflow"))


@dataclass(frozen=True)
class Instructions:
    """Content of the printed text.

    Attributes:
      environment: the environment variables of the command.
      options: the options of the command.
      files: the content of each file to write before, by its path.
    """

    environment: Mapping[str, str]
    options: tuple[str, ...]
    files: Mapping[str, str]

    def with_options(self, *options: str, without: tuple[str, ...] = ()) -> Instructions:
        """Returns instructions with more options, and without those that begin so."""
        kept = [option for option in self.options if not option.startswith(without or "\0")]
        return replace(self, options=(*kept, *options))

    @property
    def model(self) -> str:
        """Name of the model."""
        (name,) = (o.partition("=")[2] for o in self.options if o.startswith("--model_name="))
        return name


def read_instructions(text: str) -> Instructions:
    """Reads the command and the files, as a person would copy them."""
    blocks = text.split("\n\n")
    command: list[str] = []
    files = {}
    for heading, block in itertools.pairwise(blocks):
        if heading.endswith("Start TensorFlow Serving with"):
            command = shlex.split(block.replace("\\\n", ""))
        elif heading.startswith("after writing to "):
            lines = (line.removeprefix("    ") for line in block.splitlines())
            files[heading.removeprefix("after writing to ")] = "\n".join(lines) + "\n"
    program = command.index("tensorflow_model_server")
    environment = dict(word.split("=", 1) for word in command[:program])
    return Instructions(environment, tuple(command[program + 1 :]), files)


@dataclass(frozen=True)
class Server:
    """A running server.

    Attributes:
      model: name of the model.
      grpc_port, rest_port: where it listens.
      dumps: folder where XLA writes each module that it compiles.
    """

    model: str
    grpc_port: int
    rest_port: int
    dumps: Path

    def count_compiles(self) -> int:
        """Counts the modules that XLA has compiled since the start."""
        return sum(1 for _ in self.dumps.glob("*before_optimizations.txt"))


@contextlib.contextmanager
def serving(
    runtime: Runtime, instructions: Instructions, folder: Path, model: str | None = None
) -> Iterator[Server]:
    """Runs a server as the instructions say, but for the ports, and stops it at the end.

    Args:
      runtime: the server.
      instructions: the printed text.
      folder: working directory of the server, and the place of its log.
      model: name of the model; None if the options have it.
    """
    model = model or instructions.model
    names = {option.partition("=")[0] for option in instructions.options}
    assert {"--port", "--rest_api_port"} <= names
    dumps = folder / "dumps"
    dumps.mkdir()
    extra = {
        **instructions.environment,
        "LD_LIBRARY_PATH": str(runtime.libraries),
        "XLA_FLAGS": f"--xla_dump_to={dumps}",
    }
    command = ServerCommand(
        runtime.program, instructions.options, process_environment(extra), instructions.files
    )
    starting = start_server(command, model, folder, seconds_to_load=_SECONDS_TO_LOAD)
    with starting as running:
        yield Server(model, running.grpc_port, running.rest_port, dumps)
        log = (folder / "server.log").read_text()
        assert running.process.poll() is None, f"it ended: {log[-4000:]}"


def wrap_server(runtime: Runtime, folder: Path) -> Path:
    """Writes a script that runs the server with the libraries of an environment's TensorFlow.

    The script compiles as XLA does by default.
    """
    script = folder / "tensorflow_model_server"
    script.write_text(
        "#!/bin/sh\n"
        "unset XLA_FLAGS\n"
        f"LD_LIBRARY_PATH={shlex.quote(str(runtime.libraries))}\n"
        "export LD_LIBRARY_PATH\n"
        f'exec {shlex.quote(runtime.program)} "$@"\n'
    )
    script.chmod(0o755)
    return script
