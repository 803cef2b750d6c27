"""`jax2tf-bridge verify`: compares a SavedModel with its JAX function."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

from jax2tf_bridge._utils import printable
from jax2tf_bridge.cli._commands import (
    NOT_NEGATIVE,
    POSITIVE,
    Command,
    UsageError,
    check_output,
    exported_path,
)
from jax2tf_bridge.cli._console import Console, for_command_line
from jax2tf_bridge.cli._packages import loading, quiet_tensorflow
from jax2tf_bridge.cli._references import UserCodeError, current_folder_first, import_reference
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.saved_model import needs_x64, read_sidecar
from jax2tf_bridge.storage import as_path

_ROUNDS = 20


def run(options: argparse.Namespace) -> None:
    """Compares values, gradients and, on demand, latency; prints them, and fails if they differ."""
    quiet_tensorflow(debug=options.debug, is_timed=_rounds(options) > 0)
    console = Console(verbose=options.verbose)
    if options.plot is not None:
        check_output(options.plot, "--plot")
        if options.plot.suffix != ".svg":
            raise UsageError(
                f"--plot: {options.plot} is to be written as SVG, which needs no other package: "
                f"name it {options.plot.with_suffix('.svg').name}"
            )
    if not _rounds(options):
        _compile_quickly()
    with loading("JAX", "verify", console):
        import jax2tf_bridge.loading  # noqa: F401
    import jax

    if not as_path(options.directory).exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(options.directory))
    contents = read_sidecar(options.directory)
    if contents is not None and needs_x64(contents[1]):
        jax.config.update("jax_enable_x64", True)
    with loading("TensorFlow", "verify", console):
        from jax2tf_bridge.verifying import choose_signature, verify
    if contents is not None:
        try:
            choose_signature(options.signature, list(contents[0].signatures))
        except BridgeError as e:
            raise UsageError(for_command_line(e.args[0], options)) from e
    with current_folder_first():
        with console.step(f"importing {options.against}"):
            function = import_reference(options.against, "--against")
            if not callable(function):
                raise UsageError(
                    f"--against: {options.against} is no function, but of type "
                    f"{type(function).__name__}"
                )
            params_like = _params_like(options)
        try:
            with console.step(f"comparing {options.directory} with {options.against}"):
                report = verify(
                    options.directory,
                    function,
                    signature=options.signature,
                    samples=options.samples,
                    gradients=options.gradients,
                    tolerance=options.tolerance,
                    seed=options.seed,
                    params_like=params_like,
                    rounds=_rounds(options),
                    batch_sizes=options.batch_sizes or (),
                    name=options.against,
                )
        except (BridgeError, OSError):
            raise
        except Exception as e:
            if type(e).__module__.startswith("tensorflow"):
                raise
            raise UserCodeError(f"running {options.against} or {options.directory}", e) from e
    if options.plot is not None:
        from jax2tf_bridge.cli.verify._plot import latency_plot

        title = f"{options.directory.absolute().name}: latency of {report.signature}"
        variable = report.latency_over or "size"
        options.plot.write_text(latency_plot(title, variable, report.latencies))
    print(printable(json.dumps(report.as_json(), indent=2) if options.json else str(report)))
    if report.problem is not None:
        raise BridgeError(report.problem)


def _compile_quickly() -> None:
    """Makes XLA compile quickly; JAX and TensorFlow read the setting when they start."""
    if not sys.modules.keys().isdisjoint(("jax", "tensorflow")):
        return
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"):
        if flag.partition("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags


def _rounds(options: argparse.Namespace) -> int:
    """Returns the number of calls to measure at each size: 0 without --latency."""
    asked = options.latency or options.batch_sizes is not None or options.plot is not None
    if options.rounds == 0 and asked:
        raise UsageError(
            "--rounds 0 measures nothing: leave it out, or --latency, --plot and --batch-sizes"
        )
    if options.rounds is not None:
        return int(options.rounds)
    return _ROUNDS if asked else 0


def _params_like(options: argparse.Namespace) -> Any:
    """Imports the object that --params-like names; None without the option."""
    if options.params_like is None:
        return None
    import jax

    params = import_reference(options.params_like, "--params-like")
    if callable(params) and jax.tree_util.all_leaves([params]):
        try:
            params = params()
        except Exception as e:
            raise UserCodeError(f"calling {options.params_like}", e) from e
    return params


DESCRIPTION = """\
Compares a SavedModel in TensorFlow with the JAX function that it came from: values and gradients,
at sizes drawn from its symbolic shapes; with --latency also how long calls take.
Needs JAX and TensorFlow."""

EXAMPLES = """\
exit code 1 if something differs by more than the tolerance

examples:
  jax2tf-bridge verify predict/1 --against model:predict
  jax2tf-bridge verify predict/1 --against model:predict --samples 20 --gradients 5
  jax2tf-bridge verify predict/1 --against model:predict --batch-sizes 1,4,16 --plot latency.svg"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `verify`."""
    parser.add_argument(
        "directory", type=exported_path, metavar="DIR", help="the SavedModel of save()"
    )
    parser.add_argument(
        "--against",
        required=True,
        metavar="module:function",
        help="the JAX function, imported from the current folder or what is installed, or the "
        "model that is called, if it was saved as the weights",
    )
    parser.add_argument(
        "--params-like",
        metavar="module:object",
        help="an object like the weights that the function was saved with, or a function that "
        "makes one; by default one is looked for beside the function",
    )
    parser.add_argument("--signature", metavar="NAME", help="by default serving_default")
    parser.add_argument(
        "--samples", type=POSITIVE, default=5, metavar="N", help="how many sizes (default 5)"
    )
    parser.add_argument(
        "--gradients",
        type=NOT_NEGATIVE,
        default=1,
        metavar="N",
        help="at how many of them gradients are compared, too (default 1); they take most of the "
        "time",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of sizes and values")
    parser.add_argument(
        "--tolerance",
        type=_tolerance,
        metavar="X",
        help="how much floats may differ, relative to the largest number of an array, or to a "
        "tenth of the largest gradient; by default 1e-4 for float32, 1e-12, 1e-2, 6e-2 for "
        "float64, float16, bfloat16",
    )
    parser.add_argument(
        "--latency", action="store_true", help="measure how long calls take, too, which takes time"
    )
    parser.add_argument(
        "--batch-sizes",
        type=_sizes,
        metavar="N,N",
        help="at which to measure latency; by default powers of 2 up to 128",
    )
    parser.add_argument(
        "--rounds",
        type=NOT_NEGATIVE,
        metavar="N",
        help="calls that are measured at each size (default 20)",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.svg", help="measure latency, and draw it over size"
    )
    parser.add_argument("--json", action="store_true", help="all of it as JSON")


def _tolerance(text: str) -> float:
    number = float(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no tolerance")
    return number


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({POSITIVE(part) for part in text.split(",")}))


COMMAND = Command("verify", DESCRIPTION, EXAMPLES, add_options, run)
