"""Command line `jax2tf-bridge`: exports where JAX is installed, saves where TensorFlow is."""

from __future__ import annotations

from collections.abc import Sequence

INTERRUPTED = 130
"""Exit code after Ctrl-C; shells use it for SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command `jax2tf-bridge` and returns its exit code.

    Args:
      argv: the arguments after the command's name; by default those of this process.

    Returns:
      0 if all is well, 1 if the bridge refused, 2 if the command line is wrong, 130 after Ctrl-C,
      141 if the reader of the output closed the pipe.
    """
    try:
        # Imported late: Ctrl-C may come while modules are loaded.
        from jax2tf_bridge.cli._main import run

        return run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED


__all__ = ["main"]
