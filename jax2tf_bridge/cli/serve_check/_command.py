"""`jax2tf-bridge serve-check`: a SavedModel in another TensorFlow release, beside the one here."""

from __future__ import annotations

import argparse
import json

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import Command
from jax2tf_bridge.cli._console import Console
from jax2tf_bridge.cli.serve_check._options import DESCRIPTION, EXAMPLES, add_options
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.serve_checking import check


def run(options: argparse.Namespace) -> None:
    """Makes the calls there and here, prints how they went, and fails if one did not go well."""
    console = Console(verbose=options.verbose)
    outcome = check(options.directory, options.tensorflow, options.python, console.step)
    print(printable(json.dumps(outcome.as_json(), indent=2) if options.json else str(outcome)))
    if outcome.problem is not None:
        raise BridgeError(outcome.problem)


COMMAND = Command("serve-check", DESCRIPTION, EXAMPLES, add_options, run)
