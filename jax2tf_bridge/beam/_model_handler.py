"""ModelHandler: scores the elements of a PCollection with a SavedModel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from apache_beam.ml.inference import base

from jax2tf_bridge.scoring import RowScorer

_DEFAULT_BATCH_SIZE = 1024
"""Default number of elements that Beam collects, to fill the buckets of several lengths."""


class ModelHandler(base.ModelHandler[Any, base.PredictionResult, RowScorer]):  # type: ignore[misc]
    """Model handler of RunInference for a SavedModel with signatures.

    An element is a row: a mapping from inputs to values, or the value where there is one input.
    Beam collects elements to batches; `RowScorer` runs those of similar length together, padded to
    the buckets of the model. The result of an element is a `PredictionResult` whose `inference`
    maps outputs to arrays. For elements with keys, wrap it in Beam's `KeyedModelHandler`.

    Args:
      path: the folder of the SavedModel, which the workers must be able to read. For a served
        model, pass the folder of one version (`latest_version`).
      signature: the name of the signature.
      shared_inputs: values of the inputs that all rows share. `RunInference(...,
        inference_args={...})` replaces them.
      key: the field that identifies a row in error messages, as "id".
      min_batch_size, max_batch_size: the number of elements that Beam collects; the last batch of a
        bundle may have fewer. By default the maximum is 1024, and the minimum equals the maximum.
      options: other options of Beam's model handlers, as `large_model` and `model_copies`.

    Raises:
      FileNotFoundError: there is no such folder.
      FileFormatError: it is not a SavedModel, or it is damaged.
      BridgeError: it has no such signature.
      ShapeError, DTypeError, StructureError: as for `RowScorer`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        signature: str = "serving_default",
        shared_inputs: Mapping[str, Any] | None = None,
        key: str | None = None,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._scorer = RowScorer(path, signature=signature, shared_inputs=shared_inputs, key=key)
        max_size = max_batch_size or max(_DEFAULT_BATCH_SIZE, min_batch_size or 0)
        # Without a minimum, Beam tries sizes from 1 up, and counts compilations as their cost.
        min_size = max_size if min_batch_size is None else min_batch_size
        self._batching = {"min_batch_size": min_size, "max_batch_size": max_size}

    def load_model(self) -> RowScorer:
        """Loads the model; Beam calls this once for each process of a worker."""
        return self._scorer.load()

    def run_inference(
        self,
        batch: Sequence[Any],
        model: RowScorer,
        inference_args: Mapping[str, Any] | None = None,
    ) -> Iterable[base.PredictionResult]:
        """Scores a batch, and returns a result for each element in the same order."""
        results = model.score(batch, shared_inputs=inference_args)
        return [
            base.PredictionResult(row, scores, self._scorer.path)
            for row, scores in zip(batch, results, strict=True)
        ]

    def update_model_path(self, model_path: str | None = None) -> None:
        """Scores with another SavedModel from now on, for Beam's automatic model refresh."""
        if model_path is not None:
            old = self._scorer
            self._scorer = RowScorer(
                model_path,
                signature=old.signature,
                shared_inputs=old.shared_inputs,
                key=old.key,
            )

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Returns the options of `beam.BatchElements`."""
        return {**super().batch_elements_kwargs(), **self._batching}

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Returns the size of the inputs, for Beam's metrics."""
        values = [v for row in batch for v in (row.values() if isinstance(row, Mapping) else [row])]
        return sum(v.nbytes if isinstance(v, np.ndarray) else sys.getsizeof(v) for v in values)

    def get_metrics_namespace(self) -> str:
        """Returns the namespace of Beam's metrics."""
        return "BeamML_Jax2TfBridge"
