"""Outcome of a comparison: its differences and tolerances, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge.comparing import Distance, measure_distance, tolerance_of
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.verifying._locating import Location

Sizes: TypeAlias = dict[str, int]

SMALL_GRADIENT = 0.1
"""Minimum scale of a gradient, as a fraction of the function's largest gradient.

Where large terms cancel, as for the key biases of an attention, only rounding errors remain. They
differ between programs in every digit.
"""


@dataclass(frozen=True)
class Scale:
    """Minimum scale of an array.

    Attributes:
      number: the scale.
      text: what has this scale, for people.
      cancels: whether terms of this size cancel in the array.
    """

    number: float = 0.0
    text: str = "its largest number"
    cancels: bool = False


@dataclass
class Difference:
    """Largest difference of an output or a gradient.

    Attributes:
      what: "output" or "gradient".
      name: the name of the output, input or weight.
      dtype: its dtype.
      tolerance: the maximum of `relative` that is allowed.
      absolute: the largest difference of two numbers.
      relative: the largest ratio of the difference to the scale of the array. The scale is the
        array's largest number; for a small gradient, SMALL_GRADIENT of the function's largest;
        where terms cancel, about the size of the terms.
      sizes: the sizes with the largest `relative`.
      scale: the scale at these sizes, for people.
      cancels: whether it is 0 but for rounding errors at any sizes, because terms cancel.
      nan_at: sizes at which JAX and the SavedModel both have NaN in the same place. These count
        as equal.
    """

    what: str
    name: str
    dtype: str
    tolerance: float
    absolute: float = 0.0
    relative: float = 0.0
    sizes: Sizes = field(default_factory=dict)
    scale: str = "its largest number"
    cancels: bool = False
    nan_at: list[Sizes] = field(default_factory=list)

    @property
    def within(self) -> bool:
        """Returns whether it is within the tolerance."""
        return self.relative <= self.tolerance

    def measure(self, expected: Any, actual: Any, sizes: Sizes) -> Distance:
        """Measures the distance of a pair of arrays.

        Raises:
          BridgeError: the arrays have different shapes.
        """
        if np.shape(expected) != np.shape(actual):
            raise BridgeError(
                f"The {self.what} {self.name} has the shape {np.shape(actual)} in the model, but "
                f"{np.shape(expected)} in JAX, at {format_sample_sizes(sizes)}."
            )
        return measure_distance(expected, actual)

    def add(self, distance: Distance, scale: Scale, sizes: Sizes) -> None:
        """Adds the distance of a pair of arrays, of these sizes."""
        if distance.shares_nan:
            self.nan_at.append(dict(sizes))
        relative = distance.relative(scale.number)
        self.absolute = max(self.absolute, distance.absolute)
        self.cancels = self.cancels or scale.cancels
        if relative > self.relative:
            self.relative, self.sizes = relative, dict(sizes)
            self.scale = (scale if scale.number > distance.scale else Scale()).text


def make_difference(what: str, name: str, dtype: str, tolerance: float | None) -> Difference:
    """Makes the difference of an array that was not compared yet."""
    allowed = tolerance_of(dtype)
    if tolerance is not None and allowed:  # integers stay equal
        allowed = tolerance
    return Difference(what, name, dtype, allowed)


def format_sample_sizes(sizes: Sizes) -> str:
    """Formats sizes for people."""
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "its fixed sizes"


def _drop_infinity(number: float) -> float | None:
    return number if math.isfinite(number) else None  # JSON has no infinite numbers


@dataclass(frozen=True)
class Latency:
    """Median time of a call, in milliseconds.

    Attributes:
      size: the size of the open variable; None if no size is open.
      jax_ms: the time of the jitted JAX function.
      saved_model_ms: the time of the SavedModel's signature, called from Python.
    """

    size: int | None
    jax_ms: float
    saved_model_ms: float


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
      location: the first line whose value differs; None unless requested, or if no output differs.
      runtime: what ran the model.
      model: path of the model that the runtime ran; None for the SavedModel.
      title: name and version of the runtime.
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
    location: Location | None = None
    runtime: str = "tensorflow"
    model: str | None = None
    title: str = ""

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
        more = f"; {len(beyond) - 1} more differ" if len(beyond) > 1 else ""
        sizes = format_sample_sizes(worst.sizes)
        return (
            f"{self.model or self.saved_model} differs from {self.against}: the {worst.what} "
            f"{worst.name} is off by {worst.relative:.2g} of {worst.scale} at {sizes}, beyond the "
            f"tolerance of {worst.tolerance:.0e}{more}"
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
                    "absolute": _drop_infinity(d.absolute),
                    "relative": _drop_infinity(d.relative),
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
            "runtime": self.runtime,
            "runtime_version": self.title.rpartition(" ")[2] or self.tensorflow,
            "model": self.model,
            "location": None if self.location is None else self.location.as_json(),
        }

    def __str__(self) -> str:
        return "\n".join(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield (
            f"{self.model or self.saved_model}: {self.signature} in "
            f"{self.title or f'TensorFlow {self.tensorflow}'} against {self.against} in JAX "
            f"{self.jax}"
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
        for label, d in zip(labels, self.differences, strict=True):
            if d.cancels and d.within:
                yield (
                    f"{label} is what rounding leaves where terms cancel; its relative difference "
                    "is to the terms"
                )
        if not self.has_gradients:
            yield "(it has no gradients)"
        elif self.runtime != "tensorflow":
            yield "(gradients are compared in TensorFlow only)"
        if self.location is not None:
            yield ""
            yield from self.location.format_lines(self.title)
        if self.latencies:
            yield ""
            yield f"latency, median, ms{'':>6}{'JAX':>10}{'SavedModel':>14}"
            for point in self.latencies:
                size = "" if point.size is None else f"{self.latency_over} = {point.size}"
                yield f"{size:>25}{point.jax_ms:10.3f}{point.saved_model_ms:14.3f}"
