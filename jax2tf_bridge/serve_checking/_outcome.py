"""Outcome of running a SavedModel in another TensorFlow, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServeCheck:
    """Outcome of `serve_check`; its text is what `jax2tf-bridge serve-check` prints.

    Attributes:
      facts: what `--json` prints: every call, and every difference.
    """

    facts: Mapping[str, Any] = field(repr=False)

    @property
    def tensorflow(self) -> str:
        """The release that ran the model, as "2.17.1"."""
        return str(self.facts["tensorflow"])

    @property
    def ok(self) -> bool:
        """True if every call ran with the same results as in the TensorFlow here."""
        return self.problem is None

    @property
    def problem(self) -> str | None:
        """Sentence about the first failure and its remedy; None if every call succeeded."""
        facts = self.facts
        release = f"TensorFlow {facts['tensorflow']}"
        failed = [(s["name"], c) for s in facts["signatures"] for c in s["calls"] if not c["ok"]]
        if not failed:
            return None
        name, call = failed[0]
        remedy = next((c["remedy"] for _, c in failed if c["remedy"]), None)
        more = f"; it {remedy}" if remedy else ""
        model = facts["saved_model"]
        if facts["load_error"]:
            return f"{model} cannot be loaded by {release}: {facts['load_error']}{more}"
        others = f" ({len(failed) - 1} more)" if len(failed) > 1 else ""
        if not call["ran"]:
            text = f"{name} fails in {release} at {call['inputs']}: {call['error']}"
        else:
            worst = _find_worst(call)
            assert worst is not None  # a call without differences is ok
            difference = _format_difference(worst)
            text = f"{name} gives other results in {release} at {call['inputs']}: {difference}"
        return f"{model}: {text}{others}{more}"

    def as_json(self) -> dict[str, Any]:
        """Returns what `jax2tf-bridge serve-check --json` prints."""
        return dict(self.facts)

    def __str__(self) -> str:
        return "\n".join(_format_lines(self.facts))


def _format_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    there = f"TensorFlow {facts['tensorflow']}, Python {facts['python']}"
    if facts["compared_with"]:
        yield f"{facts['saved_model']} in {there}, beside TensorFlow {facts['compared_with']} here"
    else:
        yield f"{facts['saved_model']} in {there}"
        why = facts["load_error_here"]
        yield f"(not compared: {f'here, {why}' if why else 'there is no TensorFlow here'})"
    if facts["load_error"]:
        yield f"it cannot be loaded: {facts['load_error']}"
    for signature in facts["signatures"]:
        calls = signature["calls"]
        yield ""
        gradients = ", with gradients" if any(call["gradients"] for call in calls) else ""
        yield f"signature {signature['name']}{gradients}"
        width = max(len(_format_label(call)) for call in calls)
        for call in calls:
            yield f"  {_format_label(call):{width}}  {_format_verdict(call)}"
        for remedy in dict.fromkeys(call["remedy"] for call in calls if call["remedy"]):
            yield f"  it {remedy}"


def _format_label(call: Mapping[str, Any]) -> str:
    return f"{call['inputs']}{' (warm-up)' if call['kind'] == 'warm-up' else ''}"


def _format_verdict(call: Mapping[str, Any]) -> str:
    if not call["ran"]:
        if call["ok"]:
            return f"refuses this size: {call['error']}"
        return f"failed: {call['error']}"
    if not call["ran_here"]:
        return f"ran; here it fails: {call['error_here']}" if call["error_here"] else "ran"
    worst = _find_worst(call)
    if worst is None:
        return "ran"
    return f"ran, {_format_difference(worst)}"


def _find_worst(call: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the largest difference; those beyond their tolerance come first."""
    differences: Sequence[Mapping[str, Any]] = call["differences"]
    return max(differences, key=lambda d: (not d["within"], d["relative"] or 0.0), default=None)


def _format_difference(difference: Mapping[str, Any]) -> str:
    name = f"{difference['what']} {difference['name']}"
    if difference["problem"]:
        return f"{name} {difference['problem']}"
    if not difference["relative"]:
        return "the same"
    beyond = "" if difference["within"] else f" BEYOND {difference['tolerance']:.0e}"
    return f"differs by {difference['relative']:.1e} of the largest number in {name}{beyond}"
