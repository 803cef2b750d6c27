"""Model handler for Apache Beam's RunInference. Never imports jax.

It needs Apache Beam, and TensorFlow where the pipeline runs.
"""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import apache_beam as _beam  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "apache_beam":
        raise
    raise MissingDependencyError("Apache Beam", "beam", "A model handler for RunInference") from e

from jax2tf_bridge.beam._model_handler import ModelHandler

__all__ = ["ModelHandler"]
