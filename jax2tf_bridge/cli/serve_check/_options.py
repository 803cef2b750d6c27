"""Options of `serve-check`, and the texts of its --help."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    parser.add_argument("directory", type=Path, metavar="DIR", help="the SavedModel")
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
