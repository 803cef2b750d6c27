"""`jax2tf-bridge serve-check`: runs a SavedModel in another TensorFlow release."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import Command, exported_path
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.serve_checking import run_serve_check


def run(options: argparse.Namespace) -> None:
    """Runs the calls there and here, prints the results, and fails if a call failed."""
    console = Console(verbose=options.verbose)
    outcome = run_serve_check(options.directory, options.tensorflow, options.python, console.step)
    print(printable(json.dumps(outcome.as_json(), indent=2) if options.json else str(outcome)))
    if outcome.problem is not None:
        raise BridgeError(outcome.problem)


DESCRIPTION = """\
Loads and runs a SavedModel with another TensorFlow release, in an environment that is made for it
and kept, and compares what comes out with the TensorFlow that is installed here, if there is one.
Needs neither JAX nor TensorFlow here."""

EXAMPLES = """\
exit code 1 if the model does not load or run there, or gives other numbers

examples:
  jax2tf-bridge serve-check predict/1 --tensorflow 2.17
  jax2tf-bridge serve-check predict/1 --python ~/serving/bin/python --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `serve-check`."""
    parser.add_argument("directory", type=exported_path, metavar="DIR", help="the SavedModel")
    parser.add_argument(
        "--tensorflow",
        metavar="RELEASE",
        help="the release, as 2.17 or 2.17.1; by default that of --python",
    )
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="an interpreter with TensorFlow to run it with; by default one in the cache, "
        "~/.cache/jax2tf-bridge, which is made by uv or pip when it is first needed",
    )
    parser.add_argument("--json", action="store_true", help="all of it as JSON")


COMMAND = Command("serve-check", DESCRIPTION, EXAMPLES, add_options, run)
