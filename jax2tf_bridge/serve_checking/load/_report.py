"""The report of a load test, as text and as JSON."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from jax2tf_bridge._utils import PlotLine, format_bytes, plot_latency
from jax2tf_bridge.serve_checking.load._requests import LoadPlan
from jax2tf_bridge.serve_checking.load._servers import BatchCount, ServerMetrics

_Numbers: TypeAlias = npt.NDArray[np.float64]

_MAX_BUCKETS = 8
"""Maximum number of suggested buckets of a variable without buckets."""
_MAX_ERRORS = 5
"""Maximum number of different errors that the text shows."""
_PLOTTED_PERCENTILES = (0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999)
_MARKED_PERCENTILES = (50.0, 90.0, 99.0)
_MAX_POINTS = 400
"""Maximum number of points of a plot."""
_MIN_GAIN = 0.02
"""Minimum part of the computed elements that other buckets must save to be suggested."""


@dataclass(frozen=True, eq=False)
class MeasuredAnswers:
    """Answered and failed requests of all callers.

    Attributes:
      requests: the number of the request, for each answer.
      begins, seconds: the time of each request, and how long its answer took.
      failures: the number of failed requests by error.
    """

    requests: _Numbers
    begins: _Numbers
    seconds: _Numbers
    failures: Mapping[str, int]


@dataclass(frozen=True)
class MeasuredRuntime:
    """Server or process that ran the model, and its counts.

    Attributes:
      name: "TensorFlow Serving", or TensorFlow with its release.
      program: the path of the server, or of the interpreter.
      protocol: "gRPC" or "REST"; None if there was no server.
      at_load: compiles while the model was loaded, with the warm-up requests.
      metrics: compiles and batches during the load.
      peak_bytes: the largest resident memory; None if it is not known.
      joins_requests: whether the server joins requests to batches.
    """

    name: str
    program: str
    protocol: str | None
    at_load: ServerMetrics
    metrics: ServerMetrics
    peak_bytes: int | None
    joins_requests: bool = False


@dataclass(frozen=True)
class BucketLoad:
    """Requests that were padded to the same buckets.

    Attributes:
      bucket: the bucket of each variable; a variable above its largest bucket is missing.
      requests: the number of answered requests.
      padding: the part of the computed elements that is padding, from 0 to 1; None if a size is
        above the largest bucket.
      p50_ms, p99_ms: percentiles of the latency.
    """

    bucket: Mapping[str, int]
    requests: int
    padding: float | None
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class LoadReport:
    """Measurements of `measure_load`; its text is what `jax2tf-bridge serve-check --load` prints.

    Attributes:
      saved_model: the folder of the model.
      signature: the name of the signature.
      runtime: "TensorFlow Serving", or TensorFlow with its release, as "TensorFlow 2.21.0".
      program: the path of the server, or of the interpreter.
      protocol: "gRPC" or "REST"; None if TensorFlow ran the model without a server.
      callers: the number of callers.
      seconds: the time from the first request to the last answer.
      requests: the number of answered requests.
      failures: the number of failed requests by error.
      throughput: answered requests per second.
      p50_ms, p90_ms, p99_ms, max_ms: latency in milliseconds; NaN if nothing was answered.
      compiles_at_load: the number of programs that XLA compiled while the model was loaded, with
        its warm-up requests.
      compiles: the number of programs that XLA compiled during the load.
      compile_seconds: the time that compiling took during the load.
      programs_read: the number of programs that were read from the model's compile cache.
      peak_bytes: the largest resident memory of the server or of TensorFlow's process; None where
        the system has no such number.
      sizes: the smallest and the largest size that was sent, by variable.
      buckets: the buckets of the signature, by variable.
      by_bucket: the requests by bucket.
      padding: the part of the computed elements that is padding if requests are not joined, from 0
        to 1; None if there are no buckets, or a size is above the largest.
      joins_requests: whether the server joined requests to batches.
      batches: the batches that the server ran, by number of rows.
      suggested_buckets: buckets with less padding for the sizes that were sent; empty if there are
        none.
      suggested_padding: the part of the computed elements that would be padding with these.
      latencies_ms: all latencies, increasing.
    """

    saved_model: str
    signature: str
    runtime: str
    program: str
    protocol: str | None
    callers: int
    seconds: float
    requests: int
    failures: Mapping[str, int]
    throughput: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    compiles_at_load: int
    compiles: int
    compile_seconds: float
    programs_read: int
    peak_bytes: int | None
    sizes: Mapping[str, tuple[int, int]]
    buckets: Mapping[str, tuple[int, ...]]
    by_bucket: tuple[BucketLoad, ...]
    padding: float | None
    joins_requests: bool
    batches: tuple[BatchCount, ...]
    suggested_buckets: Mapping[str, tuple[int, ...]]
    suggested_padding: float | None
    latencies_ms: _Numbers = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """True if every request was answered."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Sentence about failed requests; None if every request was answered."""
        if not self.failures:
            return None if self.requests else f"{self.saved_model}: no request was answered in time"
        count = sum(self.failures.values())
        text = next(iter(self.failures))
        return f"{self.saved_model}: {count} of {count + self.requests} requests failed: {text}"

    def as_json(self) -> dict[str, Any]:
        """Returns what `jax2tf-bridge serve-check --load --json` prints: all but each latency."""
        facts = asdict(self)
        del facts["latencies_ms"]
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in facts.items()}

    def plot(self) -> str:
        """Draws the latency over the percentiles of the requests; returns the text of an SVG."""
        place = f"{self.runtime}, {self.protocol}" if self.protocol else self.runtime
        return plot_percentiles(
            f"Latency of {self.signature}, {_format_callers(self.callers)}",
            f"{self.requests:,} answered requests, {place}",
            self.latencies_ms,
        )

    def __str__(self) -> str:
        return "\n".join(_format_lines(self))


def make_report(
    saved_model: str,
    plan: LoadPlan,
    callers: int,
    runtime: MeasuredRuntime,
    answers: MeasuredAnswers,
) -> LoadReport:
    """Makes the report of a load test."""
    milliseconds = answers.seconds * 1e3
    seconds = 0.0
    if len(milliseconds):
        seconds = float((answers.begins + answers.seconds).max() - answers.begins.min())
    p50, p90, p99, largest = _find_percentiles(milliseconds, 50, 90, 99, 100)
    sizes = [request.sizes for request in plan.requests]
    padding = _find_padding(sizes, plan.buckets)
    suggested, suggested_padding = _suggest_buckets(plan, padding)
    return LoadReport(
        saved_model=saved_model,
        signature=plan.signature,
        runtime=runtime.name,
        program=runtime.program,
        protocol=runtime.protocol,
        callers=callers,
        seconds=seconds,
        requests=len(milliseconds),
        failures=answers.failures,
        throughput=len(milliseconds) / seconds if seconds else 0.0,
        p50_ms=p50,
        p90_ms=p90,
        p99_ms=p99,
        max_ms=largest,
        compiles_at_load=runtime.at_load.compiles,
        compiles=runtime.metrics.compiles,
        compile_seconds=runtime.metrics.compile_seconds,
        programs_read=runtime.at_load.programs_read + runtime.metrics.programs_read,
        peak_bytes=runtime.peak_bytes,
        sizes=_find_ranges(sizes),
        buckets=plan.buckets,
        by_bucket=tuple(_list_by_bucket(plan, answers)) if plan.buckets else (),
        padding=padding,
        joins_requests=runtime.joins_requests,
        batches=runtime.metrics.batches,
        suggested_buckets=suggested,
        suggested_padding=suggested_padding,
        latencies_ms=np.sort(milliseconds),
    )


def plot_percentiles(title: str, subtitle: str, milliseconds: _Numbers) -> str:
    """Plots latencies over percentiles on a logarithmic axis: 90 %, 99 %, 99.9 % ...

    Args:
      title: the line above the plot.
      subtitle: the smaller line below the title.
      milliseconds: the latencies, increasing.

    Returns:
      The text of an SVG.
    """
    count = len(milliseconds)
    # The axis ends at the percentile above which only the slowest request is.
    last = max(1.0, min(math.log10(max(1, count)), _place_percentile(_PLOTTED_PERCENTILES[-1])))

    def latency_at(place: float) -> float:
        index = math.ceil((1 - 10**-place) * count - 1e-6) - 1
        return float(milliseconds[min(max(index, 0), count - 1)])

    lines = []
    if count:
        points = [(place, latency_at(place)) for place in np.linspace(0, last, _MAX_POINTS)]
        # The slowest request is where the axis ends.
        points[-1] = (last, float(milliseconds[-1]))
        marked = [p for p in map(_place_percentile, _MARKED_PERCENTILES) if p <= last]
        marks = [(p, latency_at(p), f"{latency_at(p):.3g} ms") for p in marked]
        lines.append(PlotLine(points, marks=marks))
    ticks = [(_place_percentile(p), f"{p:g} %") for p in _PLOTTED_PERCENTILES]
    return plot_latency(
        title,
        lines,
        [(place, label) for place, label in ticks if place <= last + 1e-6],
        across="percentage of requests that were answered at least as fast",
        up="latency in milliseconds",
        subtitle=subtitle,
    )


def _place_percentile(percentile: float) -> float:
    return -math.log10(1 - percentile / 100)


def _find_percentiles(numbers: _Numbers, *percentiles: float) -> list[float]:
    if not len(numbers):
        return [math.nan] * len(percentiles)
    return [float(number) for number in np.percentile(numbers, percentiles)]


def _find_ranges(sizes: Iterable[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    ranges: dict[str, tuple[int, int]] = {}
    for each in sizes:
        for variable, size in each.items():
            low, high = ranges.get(variable, (size, size))
            ranges[variable] = min(low, size), max(high, size)
    return ranges


def _find_bucket(sizes: Mapping[str, int], buckets: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Returns the bucket of each variable, without those above their largest bucket."""
    bucket = {}
    for variable, each in buckets.items():
        index = bisect.bisect_left(each, sizes[variable])
        if index < len(each):
            bucket[variable] = each[index]
    return bucket


def _find_padding(
    sizes: Iterable[Mapping[str, int]], buckets: Mapping[str, Sequence[int]]
) -> float | None:
    """Returns the part of the computed elements that is padding.

    Returns None without buckets, and if a size is above the largest bucket.

    >>> _find_padding([{"b": 3}, {"b": 8}], {"b": (4, 8)})
    0.08333333333333337
    """
    real = computed = 0
    for each in sizes:
        bucket = _find_bucket(each, buckets)
        if len(bucket) < len(buckets):
            return None
        real += math.prod(each[variable] for variable in buckets)
        computed += math.prod(bucket.values())
    return 1 - real / computed if buckets and computed else None


def _list_by_bucket(plan: LoadPlan, answers: MeasuredAnswers) -> Iterator[BucketLoad]:
    by_bucket: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for number, request in enumerate(plan.requests):
        bucket = _find_bucket(request.sizes, plan.buckets)
        by_bucket.setdefault(tuple(bucket.items()), []).append(number)
    # Sizes above the largest bucket come last.
    for key in sorted(by_bucket, key=lambda each: (-len(each), each)):
        members = by_bucket[key]
        milliseconds = answers.seconds[np.isin(answers.requests, members)] * 1e3
        if len(milliseconds):
            padding = _find_padding([plan.requests[n].sizes for n in members], plan.buckets)
            p50, p99 = _find_percentiles(milliseconds, 50, 99)
            yield BucketLoad(dict(key), len(milliseconds), padding, p50, p99)


def _suggest_buckets(
    plan: LoadPlan, padding: float | None
) -> tuple[dict[str, tuple[int, ...]], float | None]:
    """Suggests as many buckets as there are, if they save work.

    Suggests buckets for the rows of a signature without buckets.
    """
    from jax2tf_bridge.saving import choose_buckets

    counts = {variable: len(each) for variable, each in plan.buckets.items()}
    if not counts and plan.batch is not None:
        counts = {plan.batch: _MAX_BUCKETS}
    sizes = [request.sizes for request in plan.requests]
    suggested = {
        variable: choose_buckets((each[variable] for each in sizes), at_most=count)
        for variable, count in counts.items()
    }
    part = _find_padding(sizes, suggested)
    if padding is not None and part is not None and padding - part < _MIN_GAIN:
        return {}, None
    return suggested, part


def _format_lines(report: LoadReport) -> Iterator[str]:
    how = f"called by {report.protocol}" if report.protocol else "called in a session, no server"
    yield f"{report.saved_model}: {report.signature} in {report.runtime}, {how}"
    yield f"({report.program})"
    yield ""
    callers, sizes = _format_callers(report.callers), _format_sizes(report.sizes)
    yield _format_row("load", f"{callers} for {report.seconds:.1f} s{sizes}")
    failed = sum(report.failures.values())
    yield _format_row("requests", f"{report.requests:,} answered, {failed:,} failed")
    for text, count in list(report.failures.items())[:_MAX_ERRORS]:
        yield _format_row("", f"{count:,} failed: {text}")
    if report.requests:
        yield _format_row("throughput", f"{_format_number(report.throughput)} requests per second")
        percentiles = (("p50", report.p50_ms), ("p90", report.p90_ms), ("p99", report.p99_ms))
        texts = [f"{name} {_format_number(value)} ms" for name, value in percentiles]
        longest = f"longest {_format_number(report.max_ms)} ms"
        yield _format_row("latency", ", ".join([*texts, longest]))
    took = f", which took {report.compile_seconds:.1f} s" if report.compiles else ""
    yield _format_row(
        "compiles",
        f"{report.compiles_at_load} while loading, {report.compiles} during the load{took}",
    )
    if report.programs_read:
        yield _format_row("", f"{report.programs_read} programs were read from the compile cache")
    if report.peak_bytes is not None:
        yield _format_row("memory", f"{format_bytes(report.peak_bytes)} at the peak")
    if report.joins_requests:
        yield from _format_batches(report.batches)
    elif report.by_bucket:
        yield from _format_buckets(report)
    yield from _format_suggestion(report)


def _format_row(name: str, text: str) -> str:
    return f"{name:12}{text}"


def _format_callers(count: int) -> str:
    return f"{count} caller{'s' if count > 1 else ''}"


def _format_sizes(sizes: Mapping[str, tuple[int, int]]) -> str:
    texts = (
        f"{name}={low}" if low == high else f"{name}={low} to {high}"
        for name, (low, high) in sizes.items()
    )
    return "".join(f", {text}" for text in texts)


def _format_number(number: float) -> str:
    """Formats with three digits, or all of a larger number.

    >>> _format_number(1.234), _format_number(12345.6), _format_number(0.0456)
    ('1.23', '12,346', '0.0456')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _format_batches(batches: Sequence[BatchCount]) -> Iterator[str]:
    yield ""
    yield "The server joined requests to these batches:"
    rows = sum(each.size * each.batches for each in batches)
    parts = (each.padding / (each.size * each.batches) for each in batches)
    lines = [
        (f"{each.size}", f"{each.batches:,}", _format_part(part))
        for each, part in zip(batches, parts, strict=True)
    ]
    if rows:
        total = sum(each.padding for each in batches) / rows
        lines.append(("all", f"{sum(each.batches for each in batches):,}", _format_part(total)))
    yield from _format_table(("rows", "batches", "padding"), lines)


def _format_buckets(report: LoadReport) -> Iterator[str]:
    yield ""
    lines = [
        (
            ", ".join(f"{name}={each.bucket.get(name, 'larger')}" for name in report.buckets),
            f"{each.requests:,}",
            _format_part(each.padding),
            f"{_format_number(each.p50_ms)} ms",
            f"{_format_number(each.p99_ms)} ms",
        )
        for each in report.by_bucket
    ]
    lines.append(("all", f"{report.requests:,}", _format_part(report.padding), "", ""))
    yield from _format_table(("bucket", "requests", "padding", "p50", "p99"), lines)


def _format_part(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f} %"


def _format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        first, *numbers = (
            f"{text:<{width}}" if i == 0 else f"{text:>{width}}"
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(["", first, *numbers]).rstrip()


def _format_suggestion(report: LoadReport) -> Iterator[str]:
    if not report.suggested_buckets:
        return
    options = " ".join(
        f"--buckets {name}={','.join(map(str, sizes))}"
        for name, sizes in report.suggested_buckets.items()
    )
    yield ""
    if not report.buckets:
        yield f"The signature has no buckets, so XLA compiles each size. For these sizes: {options}"
    else:
        yield f"Better buckets for requests of these sizes: {options}"
    start = "If requests were not joined" if report.joins_requests else "With them"
    comparison = "" if report.padding is None else f" instead of {_format_part(report.padding)}"
    part = _format_part(report.suggested_padding)
    yield f"{start}, {part} of the computed elements would be padding{comparison}."
