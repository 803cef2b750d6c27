"""Records the outcome of a comparison, and writes it as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge.verifying._comparison import Latency
from jax2tf_bridge.verifying._differences import Difference, format_sample_sizes
from jax2tf_bridge.verifying._samples import Sizes


@dataclass(frozen=True)
class Verification:
    """Outcome of `verify`; its text is the report of `jax2tf-bridge verify`.

    Attributes:
      saved_model: path of the SavedModel.
      signature: its signature.
      against: name of the JAX function.
      jax: version of JAX.
      tensorflow: version of TensorFlow.
      samples: sizes at which outputs were compared.
      samples_with_gradients: the samples at which gradients were compared, too.
      differences: largest difference of each output and gradient.
      has_gradients: whether the signature has gradients.
      is_processed: whether the signature has a preprocess or postprocess. They are left out of the
        comparison.
      only_buckets: variables along which only buckets were compared, since `save` was told not to
        check their padding.
      latency_over: variable whose sizes latency was measured at; None if no size is open.
      latencies: measured latencies; empty unless requested.
    """

    saved_model: str
    signature: str
    against: str
    jax: str
    tensorflow: str
    samples: tuple[Sizes, ...]
    samples_with_gradients: tuple[Sizes, ...]
    differences: tuple[Difference, ...]
    has_gradients: bool
    is_processed: bool
    only_buckets: tuple[str, ...]
    latency_over: str | None
    latencies: tuple[Latency, ...]

    @property
    def ok(self) -> bool:
        """True if every difference is within its tolerance."""
        return all(d.within for d in self.differences)

    @property
    def problem(self) -> str | None:
        """Sentence about the largest difference beyond its tolerance; None if there is none."""
        beyond = [d for d in self.differences if not d.within]
        if not beyond:
            return None
        worst = max(beyond, key=lambda d: d.relative)
        more = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        scale = "a tenth of the largest gradient" if worst.is_small else "its largest number"
        return (
            f"{self.saved_model} is not {self.against}: the {worst.what} {worst.name} differs "
            f"by {worst.relative:.2g} of {scale} at {format_sample_sizes(worst.sizes)}, and "
            f"{worst.tolerance:.0e} are allowed{more}"
        )

    def as_json(self) -> dict[str, Any]:
        """Returns what `jax2tf-bridge verify --json` prints."""
        return {
            "saved_model": self.saved_model,
            "signature": self.signature,
            "against": self.against,
            "jax": self.jax,
            "tensorflow": self.tensorflow,
            "samples": [dict(sizes) for sizes in self.samples],
            "gradients_compared": len(self.samples_with_gradients) > 0,
            "samples_with_gradients": [dict(sizes) for sizes in self.samples_with_gradients],
            "differences": [
                {
                    "what": d.what,
                    "name": d.name,
                    "dtype": d.dtype,
                    "absolute": d.absolute,
                    "relative": d.relative,
                    "tolerance": d.tolerance,
                    "within": d.within,
                    "worst_at": d.sizes,
                    "nan_at": d.nan_at,
                }
                for d in self.differences
            ],
            "latency_over": self.latency_over,
            "latency_ms": [
                {"size": p.size, "jax": p.jax_ms, "saved_model": p.saved_model_ms}
                for p in self.latencies
            ],
            "has_gradients": self.has_gradients,
            "is_processed": self.is_processed,
            "only_buckets": list(self.only_buckets),
        }

    def __str__(self) -> str:
        return "\n".join(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield (
            f"{self.saved_model}: {self.signature} in TensorFlow {self.tensorflow} against "
            f"{self.against} in JAX {self.jax}"
        )
        shown = [
            (", ".join(f"{k} = {v}" for k, v in sizes.items()) or "one, of fixed sizes")
            + (" (with gradients)" if sizes in self.samples_with_gradients else "")
            for sizes in self.samples
        ]
        yield f"samples: {'; '.join(shown)}"
        if self.only_buckets:
            yield (
                f"(only buckets of {', '.join(self.only_buckets)} are compared, since save was "
                "told not to check padding along it)"
            )
        if self.is_processed:
            yield "(compared without preprocess and postprocess, which are TensorFlow's)"
        yield ""
        labels = [f"{d.what} {d.name}" for d in self.differences]
        width = max([20, *map(len, labels)])
        yield f"{'largest difference':{width}}  absolute  relative  tolerance"
        for label, d in zip(labels, self.differences, strict=True):
            verdict = "" if d.within else "  BEYOND IT"
            numbers = f"{d.absolute:8.1e}  {d.relative:8.1e}  {d.tolerance:9.0e}{verdict}"
            yield f"{label:{width}}  {numbers}"
        for label, d in zip(labels, self.differences, strict=True):
            if d.nan_at:
                places = "; ".join(map(format_sample_sizes, d.nan_at))
                yield (
                    f"{label} has NaN in JAX and in the SavedModel, which counts as equal: {places}"
                )
        if not self.has_gradients:
            yield "(it has no gradients)"
        if self.latencies:
            yield ""
            yield f"latency, median, ms{'':>6}{'JAX':>10}{'SavedModel':>14}"
            for point in self.latencies:
                size = "" if point.size is None else f"{self.latency_over} = {point.size}"
                yield f"{size:>25}{point.jax_ms:10.3f}{point.saved_model_ms:14.3f}"
