"""Model handler for Apache Beam's RunInference. Never imports jax.

It needs Apache Beam, and TensorFlow where the pipeline runs.
"""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("A model handler for RunInference"):
    import apache_beam as _beam  # noqa: F401

from jax2tf_bridge.beam._model_handler import ModelHandler

__all__ = ["ModelHandler"]
