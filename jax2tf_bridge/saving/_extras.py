"""What a SavedModel has beside its graph: the sidecar, warm-up requests, compiled programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import tensorflow as tf

from jax2tf_bridge._utils._number_texts import number_text
from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import Message
from jax2tf_bridge.portable._portable_function import Aval
from jax2tf_bridge.saved_model._sidecar import (
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
    VariableEntry,
    write_sidecar,
)
from jax2tf_bridge.saving._endpoint import Endpoint
from jax2tf_bridge.saving._served import ServedArray, Sides
from jax2tf_bridge.saving.buckets._bucket_names import BUCKETS
from jax2tf_bridge.saving.serving._example_requests import example_requests
from jax2tf_bridge.saving.serving._precompile import CACHE_FOLDER, CompileCache
from jax2tf_bridge.saving.serving._serving import ServingInstructions, serving_instructions
from jax2tf_bridge.saving.serving._warm_up import (
    WarmUpRequest,
    request_without_buckets,
    requests_of,
)
from jax2tf_bridge.saving.weights._variables import ConstantVariables, Weight, checkpoint_key
from shape_poly import is_symbolic_dim, parse_comparison, shape_text


def write_metadata(
    folder: Path,
    endpoints: Sequence[Endpoint],
    weights: Sequence[Weight],
    constants: ConstantVariables,
) -> None:
    """Writes the sidecar, with which the SavedModel can be read back and published again."""
    sidecar = Sidecar(
        bridge=__version__,
        tensorflow=str(tf.__version__),
        signatures={e.name: _signature(e) for e in endpoints},
        variables=tuple(
            VariableEntry(
                weight.path,
                weight.name,
                checkpoint_key("params", weight.name),
                weight.variable.dtype.name,
                tuple(weight.variable.shape.as_list()),
                bool(weight.variable.trainable),
            )
            for weight in weights
        ),
        constants=tuple(
            ConstantEntry(
                constant.digest,
                constant.aval.dtype,
                tuple(int(str(size)) for size in constant.aval.shape),
                checkpoint_key("constants", name),
            )
            for name, constant in constants.lifted.items()
        ),
    )
    write_sidecar(folder, sidecar, {e.name: e.record for e in endpoints})


def _signature(endpoint: Endpoint) -> SignatureEntry:
    inputs = {
        name: _array(path, aval)
        for path, (name, aval) in zip(endpoint.paths, endpoint.inputs.items(), strict=True)
    }
    paths = endpoint.record.out_tree.leaf_paths()
    outputs = {
        name: _array(path, aval)
        for path, (name, aval) in zip(paths, endpoint.outputs.items(), strict=True)
    }
    entry = SignatureEntry(inputs, outputs, endpoint.takes_params, endpoint.order)
    bucketing = endpoint.bucketing
    if bucketing is None:
        return entry
    masks = {
        name: _array(path, bucketing.inputs[name])
        for name, path in zip(bucketing.masks, endpoint.masks, strict=True)
    }
    return replace(
        entry,
        buckets=dict(bucketing.sizes),
        masks=masks,
        unchecked_padding=bucketing.unchecked,
        pad_values={name: number_text(value) for name, value in bucketing.pad_values.items()},
    )


def _array(path: str, aval: Aval) -> ArrayEntry:
    return ArrayEntry(path, aval.dtype, shape_text(aval.shape))


def warm_up_requests(
    endpoints: Iterable[Endpoint],
) -> tuple[tuple[WarmUpRequest, ...], tuple[str, ...]]:
    """The requests that compile all that will be needed; and, for people, what is left out.

    A signature with open sizes and no buckets is left out: no request stands for the others. One
    with a preprocess has those that its examples give.

    Raises:
      ShapeError: an example does not fit its input.
      SavingError: it does not fit the preprocess, or is no mapping.
    """
    requests: list[WarmUpRequest] = []
    notes: list[str] = []
    for endpoint in endpoints:
        if endpoint.signature.preprocess is not None:
            own, own_notes = example_requests(endpoint)
            requests += own
            notes += own_notes
            continue
        example = endpoint.example()
        if endpoint.bucketing is not None:
            requests += requests_of(endpoint.bucketing, example)
        elif not any(is_symbolic_dim(d) for a in endpoint.inputs.values() for d in a.shape):
            record = endpoint.record
            constraints = tuple(map(parse_comparison, (*record.constraints, *record.requirements)))
            requests.append(
                request_without_buckets(endpoint.name, endpoint.inputs, constraints, example)
            )
        elif example:
            notes.append(
                Message(
                    f"no warm-up requests for {endpoint.name}: its sizes are open and it has no "
                    "buckets, so that no request stands for the others; give ",
                    BUCKETS,
                )
            )
    return tuple(requests), tuple(notes)


def instructions(
    path: Path,
    endpoints: Sequence[Endpoint],
    served: Mapping[str, Sides],
    *,
    programs: int | None,
) -> ServingInstructions:
    """How to serve what is saved at `path`, with so many compiled programs beside it.

    `served` are the inputs and outputs of each signature, with what stands around the function.
    """
    joined = {e.name for e in endpoints if _rows_can_be_joined(e, *served[e.name])}
    whole = path.absolute()
    cache = None if programs is None else CompileCache(whole / CACHE_FOLDER, programs)
    # TensorFlow Serving wants a folder of versions.
    root = whole.parent if whole.name.isdecimal() else whole
    platforms = sorted({p for e in endpoints for p in e.record.platforms})
    return serving_instructions(
        root,
        root.name,
        [e.bucketing for e in endpoints if e.bucketing is not None],
        signatures_that_stay_apart=[e.name for e in endpoints if e.name not in joined],
        preprocessed=[e.name for e in endpoints if e.signature.preprocess is not None],
        platforms=platforms,
        environment=None if cache is None else cache.environment(),
    )


def _rows_can_be_joined(
    endpoint: Endpoint, inputs: Mapping[str, ServedArray], outputs: Mapping[str, ServedArray]
) -> bool:
    """Whether requests for a signature may be one, as far as the user's own functions go."""
    if endpoint.bucketing is None:
        return False
    if not endpoint.is_processed:
        return True
    return all(array.has_open_rows for array in (*inputs.values(), *outputs.values()))
