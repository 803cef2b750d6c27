"""`jax2tf-bridge verify`: a SavedModel in TensorFlow against the JAX function that it came from."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.cli._commands import Command, UsageError, check_output
from jax2tf_bridge.cli._console import Console, first_line, printable
from jax2tf_bridge.cli._packages import loading, quiet_tensorflow
from jax2tf_bridge.cli._references import UserCodeError, current_folder_first, import_reference
from jax2tf_bridge.cli.verify._options import DESCRIPTION, EXAMPLES, add_options
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable._dtypes import NEED_X64
from jax2tf_bridge.saved_model._sidecar import SIDECAR, Sidecar, read_sidecar
from jax2tf_bridge.storage._paths import AnyPath

if TYPE_CHECKING:
    from jax2tf_bridge.verifying import Difference, Latency, Pair

_ROUNDS = 20
_POWERS = tuple(2**i for i in range(8))


def run(options: argparse.Namespace) -> None:
    """Compares values and gradients, prints them, and fails if they differ; latency on demand."""
    quiet_tensorflow(debug=options.debug, is_timed=_rounds(options) > 0)
    console = Console(verbose=options.verbose)
    if options.plot is not None:
        check_output(options.plot, "--plot")
        if options.plot.suffix != ".svg":
            raise UsageError(
                f"--plot: {options.plot} is to be written as SVG, which needs no other package: "
                f"name it {options.plot.with_suffix('.svg').name}"
            )
    if not _rounds(options):
        _compile_quickly()
    with loading("JAX", "verify", console):
        from jax2tf_bridge.loading import LoadedFunction, load
    import jax

    sidecar, wide = _sidecar(options.directory)
    if wide:
        jax.config.update("jax_enable_x64", True)
    name = _signature(options, sidecar)
    with loading("TensorFlow", "verify", console):
        from jax2tf_bridge.verifying import KnownTypes, Pair
    with current_folder_first():
        with console.step(f"importing {options.against}"):
            function = import_reference(options.against, "--against")
            if not callable(function):
                raise UsageError(
                    f"--against: {options.against} is no function, but of type "
                    f"{type(function).__name__}"
                )
            types = KnownTypes(function, options.against, _params_like(options))
        # Behind the user's imports, which may register types for files.
        with console.step(f"reading {options.directory}"):
            model = load(options.directory)
        entry = sidecar.signatures[name]
        by_path = {v.path: v.name for v in sidecar.variables}
        loaded = model.functions[name]
        assert isinstance(loaded, LoadedFunction)  # what save() wrote is
        weights: Sequence[str] = ()
        if loaded.takes_params:
            tree = loaded.portable.in_tree.children[0].children[0]
            weights = [by_path[path] for path in tree.leaf_paths("params")]
        with console.step("loading the SavedModel"):
            pair = Pair(
                options.directory,
                model.params,
                loaded,
                entry,
                function,
                weights,
                options.seed,
                types,
            )
        samples = pair.sampler.sizes(options.samples)
        # Rather not the smallest sizes, at which many gradients are zero.
        with_gradients = [*samples[1:], samples[0]][: options.gradients if entry.vjp_order else 0]
        try:
            with console.step(f"comparing {len(samples)} samples"):
                differences = pair.compare(
                    samples, options.tolerance, with_gradients=with_gradients
                )
            variable: str | None = None
            latencies: list[Latency] = []
            if _rounds(options):
                with console.step("measuring latency"):
                    variable, latencies = _latencies(pair, options)
        except (BridgeError, UsageError):
            raise
        except Exception as e:
            if _is_of_tensorflow(e):
                raise
            _refuse_unknown_types(options, pair, e)
            raise UserCodeError(f"running {options.against} or {options.directory}", e) from e
    if options.plot is not None:
        from jax2tf_bridge.cli.verify._plot import latency_plot

        title = f"{options.directory.absolute().name}: latency of {name}"
        options.plot.write_text(latency_plot(title, variable or "size", latencies))
    facts = _facts(options, name, samples, differences, variable, latencies, with_gradients)
    facts["has_gradients"] = entry.vjp_order > 0
    facts["is_processed"] = pair.is_processed
    facts["only_buckets"] = list(entry.only_buckets())
    text = json.dumps(facts, indent=2) if options.json else "\n".join(_lines(facts, differences))
    print(printable(text))
    _refuse(options, differences)


def _compile_quickly() -> None:
    """Has XLA spend little time on programs that run once; JAX and TensorFlow read it first."""
    if not sys.modules.keys().isdisjoint(("jax", "tensorflow")):
        return
    flags = os.environ.get("XLA_FLAGS", "")
    for flag in ("--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"):
        if flag.partition("=")[0] not in flags:
            flags = f"{flags} {flag}".strip()
    os.environ["XLA_FLAGS"] = flags


def _rounds(options: argparse.Namespace) -> int:
    """Returns how many calls are measured at each size: 0 unless latency is asked for."""
    asked = options.latency or options.batch_sizes is not None or options.plot is not None
    if options.rounds == 0 and asked:
        raise UsageError(
            "--rounds 0 measures nothing: leave it out, or --latency, --plot and --batch-sizes"
        )
    if options.rounds is not None:
        return int(options.rounds)
    return _ROUNDS if asked else 0


def _sidecar(folder: AnyPath) -> tuple[Sidecar, bool]:
    """Reads the sidecar of `save`, and whether there are values of 64 bits.

    Raises:
      BridgeError: the SavedModel is not of save().
    """
    from jax2tf_bridge.saved_model._reading import read_serving_graph

    # Says what is wrong with something else, and with a damaged graph before TensorFlow meets it.
    for _, node in read_serving_graph(folder).graph.every_node():
        _ = node.calls
    found = read_sidecar(folder)
    if found is None:
        raise BridgeError(
            f"{folder} has no {SIDECAR}, from which verify knows the arguments of the JAX "
            "function: save() writes it. For a SavedModel of another tool, compare "
            "jax2tf_bridge.load(...) with the function."
        )
    sidecar, portables = found
    avals = [a for r in portables.values() for a in (*r.in_avals, *r.out_avals)]
    return sidecar, any(a.dtype in NEED_X64 for a in avals)


def _signature(options: argparse.Namespace, sidecar: Sidecar) -> str:
    names = list(sidecar.signatures)
    if options.signature is None:
        if "serving_default" in names or len(names) == 1:
            return "serving_default" if "serving_default" in names else names[0]
        raise UsageError(f"--signature: name one of {', '.join(names)}")
    if options.signature not in names:
        near = did_you_mean(options.signature, names) or f": there are {', '.join(names)}"
        raise UsageError(f"--signature: no signature {options.signature}{near}")
    return str(options.signature)


def _latencies(pair: Pair, options: argparse.Namespace) -> tuple[str | None, list[Latency]]:
    """Measures along the first open size, or once if nothing is open."""
    rounds = _rounds(options)
    sampler = pair.sampler
    if not sampler.variables:
        return None, [pair.latency(None, {}, rounds)]
    variable = sampler.variables[0]
    found = []
    for size in options.batch_sizes or _POWERS:
        try:
            sizes = sampler.with_sizes({variable: size})
        except BridgeError:
            if options.batch_sizes:
                raise
            continue  # this power of two is not allowed
        found.append(pair.latency(size, sizes, rounds))
    return variable, found


def _facts(
    options: argparse.Namespace,
    name: str,
    samples: Sequence[dict[str, int]],
    differences: Sequence[Difference],
    variable: str | None,
    latencies: Sequence[Latency],
    with_gradients: Sequence[dict[str, int]],
) -> dict[str, Any]:
    import jax
    import tensorflow as tf

    return {
        "saved_model": str(options.directory),
        "signature": name,
        "against": options.against,
        "jax": jax.__version__,
        "tensorflow": tf.__version__,
        "samples": [dict(sizes) for sizes in samples],
        "gradients_compared": len(with_gradients) > 0,
        "samples_with_gradients": [dict(sizes) for sizes in with_gradients],
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
            for d in differences
        ],
        "latency_over": variable,
        "latency_ms": [
            {"size": p.size, "jax": p.jax_ms, "saved_model": p.saved_model_ms} for p in latencies
        ],
    }


def _lines(facts: dict[str, Any], differences: Sequence[Difference]) -> Iterator[str]:
    from jax2tf_bridge.verifying import sizes_text

    yield (
        f"{facts['saved_model']}: {facts['signature']} in TensorFlow {facts['tensorflow']} against "
        f"{facts['against']} in JAX {facts['jax']}"
    )
    shown = [
        (", ".join(f"{k} = {v}" for k, v in s.items()) or "one, of fixed sizes")
        + (" (with gradients)" if s in facts["samples_with_gradients"] else "")
        for s in facts["samples"]
    ]
    yield f"samples: {'; '.join(shown)}"
    if facts["only_buckets"]:
        names = ", ".join(facts["only_buckets"])
        yield (
            f"(of {names} only buckets are compared: save left padding along it unchecked, as it "
            "was told)"
        )
    if facts["is_processed"]:
        yield "(compared without preprocess and postprocess, which are TensorFlow's)"
    yield ""
    labels = [f"{d.what} {d.name}" for d in differences]
    width = max([20, *map(len, labels)])
    yield f"{'largest difference':{width}}  absolute  relative  tolerance"
    for label, d in zip(labels, differences, strict=True):
        verdict = "" if d.within else "  BEYOND IT"
        numbers = f"{d.absolute:8.1e}  {d.relative:8.1e}  {d.tolerance:9.0e}{verdict}"
        yield f"{label:{width}}  {numbers}"
    for label, d in zip(labels, differences, strict=True):
        if d.nan_at:
            places = "; ".join(map(sizes_text, d.nan_at))
            yield f"{label} has NaN in JAX and in the SavedModel, which counts as equal: {places}"
    if not facts["has_gradients"]:
        yield "(it has no gradients)"
    if facts["latency_ms"]:
        yield ""
        yield f"latency, median, ms{'':>6}{'JAX':>10}{'SavedModel':>14}"
        for point in facts["latency_ms"]:
            size = "" if point["size"] is None else f"{facts['latency_over']} = {point['size']}"
            yield f"{size:>25}{point['jax']:10.3f}{point['saved_model']:14.3f}"


def _params_like(options: argparse.Namespace) -> Any:
    """Imports what --params-like names; None without it."""
    if options.params_like is None:
        return None
    import jax

    found = import_reference(options.params_like, "--params-like")
    if callable(found) and jax.tree_util.all_leaves([found]):
        try:
            found = found()
        except Exception as e:
            raise UserCodeError(f"calling {options.params_like}", e) from e
    return found


def _refuse_unknown_types(options: argparse.Namespace, pair: Pair, error: Exception) -> None:
    """Raises if the function failed on a dict where it was saved with an object."""
    if not pair.unknown_types:
        return
    raise BridgeError(
        f"{options.against} was saved with objects of type {', '.join(pair.unknown_types[:3])}, "
        f"which verify finds neither in {options.against.partition(':')[0]} nor in --params-like, "
        f"and fails with dicts in their place: {type(error).__name__}: {first_line(error)}. Give "
        "--params-like module:object, an object of the same structure (its values do not matter)."
    ) from error


def _refuse(options: argparse.Namespace, differences: Sequence[Difference]) -> None:
    """Raises if something differs by more than is allowed."""
    from jax2tf_bridge.verifying import sizes_text

    beyond = [d for d in differences if not d.within]
    if beyond:
        worst = max(beyond, key=lambda d: d.relative)
        others = f", and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        scale = "a tenth of the largest gradient" if worst.is_small else "its largest number"
        raise BridgeError(
            f"{options.directory} is not {options.against}: the {worst.what} {worst.name} differs "
            f"by {worst.relative:.2g} of {scale} at {sizes_text(worst.sizes)}, and "
            f"{worst.tolerance:.0e} are allowed{others}"
        )


def _is_of_tensorflow(error: Exception) -> bool:
    return type(error).__module__.startswith("tensorflow")


COMMAND = Command("verify", DESCRIPTION, EXAMPLES, add_options, run)
