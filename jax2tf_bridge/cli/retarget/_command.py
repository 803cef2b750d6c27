"""`jax2tf-bridge retarget`: a function or a SavedModel for another TensorFlow release."""

from __future__ import annotations

import argparse
from pathlib import Path

from jax2tf_bridge.cli._console import Console, printable
from jax2tf_bridge.cli._function_text import stored_functions, summary
from jax2tf_bridge.cli._packages import loading
from jax2tf_bridge.cli._usage_errors import UsageError, check_output
from jax2tf_bridge.cli.retarget._directory import retarget_directory
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.serialization import read_function, write_function


def run(options: argparse.Namespace) -> None:
    """Reads the file or directory, retargets its functions and gradients, and writes the other."""
    if options.file.is_dir():
        retarget_directory(options)
        return
    if options.overwrite:
        raise UsageError(
            f"--overwrite: {options.file} is a file, and the one to write is replaced anyway"
        )
    console = Console(verbose=options.verbose)
    target = Target.tensorflow(options.tensorflow)
    output = options.output or _beside(options.file, options.tensorflow)
    check_output(output)
    record = read_function(options.file)
    with loading("JAX", "retarget", console):
        from jax2tf_bridge.from_jax.stablehlo._retarget_function import retarget_record
    with console.step(f"retargeting {record.name}"):
        retargeted = retarget_record(record, target)
        # The gradients that were there, which may be retargeted only now.
        write_function(output, retargeted, vjp_order=len(stored_functions(record)) - 1)
    print(printable(f"{output}: {summary(retargeted)}"))


def _beside(file: Path, release: str) -> Path:
    """The name for a file written for a release, in the folder of the file that it is made of."""
    return file.with_name(f"{file.name.removesuffix('.jaxfn')}-tf{release}.jaxfn")
