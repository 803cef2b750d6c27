"""`jax2tf-bridge export`: writes a JAX function as a .jaxfn file."""

from jax2tf_bridge.cli.export._command import COMMAND

__all__ = ["COMMAND"]
