"""save_functions(): portable functions as the signatures of one SavedModel."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import number_text
from jax2tf_bridge._version import __version__
from jax2tf_bridge.errors import Argument, Blank, GradientError, Message, SavingError
from jax2tf_bridge.portable import PortableFunction, as_portable_function
from jax2tf_bridge.publishing import (
    list_program_names,
    published_versions,
    remove_unused_programs,
    share_programs,
)
from jax2tf_bridge.saved_model import (
    GRAPH_FILE,
    SERVING_DEFAULT,
    VARIABLES_FOLDER,
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
    VariableEntry,
    check_place,
    write_sidecar,
)
from jax2tf_bridge.saving._bucket_options import add_buckets
from jax2tf_bridge.saving._options import SaveOptions, check_signatures
from jax2tf_bridge.saving._report import (
    SavedModel,
    SavedSignature,
    describe_variable,
    iterate_notes,
)
from jax2tf_bridge.saving._variables import (
    LITERT_VARIABLES,
    ConstantVariables,
    SavedVariable,
    Weights,
    hold_values,
    write_values,
)
from jax2tf_bridge.saving._weight_signatures import INITIAL, WeightSignatures
from jax2tf_bridge.saving.buckets import BUCKETS
from jax2tf_bridge.saving.serving import (
    Batching,
    WarmUpRequest,
    check_joinable,
    join_requests,
    make_warm_up_requests,
    precompile,
    write_warm_up,
)
from jax2tf_bridge.saving.signatures import (
    Endpoint,
    UpdateLock,
    WeightedFunction,
    WeightLock,
    choose_order,
    describe_arrays,
    list_optional_subsets,
    list_resources,
    wrap_call,
)
from jax2tf_bridge.signatures import NamedPort, Sides, Signature, open_params
from jax2tf_bridge.storage import AnyPath, as_path, whole_directory
from jax2tf_bridge.to_tensorflow import check_function, tf_compat
from shape_poly import shape_text

_EXAMPLE = Argument("example", Blank("{...}"), code="Signature(..., example={...})")

_MAX_GRAPH_BYTES = 2**31 - 1 - (1 << 20)
"""Maximum size of the modules in bytes: that of saved_model.pb, less room for the rest."""


def save_functions(
    path: str | os.PathLike[str],
    signatures: Mapping[str, Signature],
    params: Any = None,
    options: SaveOptions | None = None,
) -> SavedModel:
    """Writes a SavedModel of portable functions; neither JAX nor the bridge is needed to load it.

    This is `save` for signatures with portable functions; it raises the same errors, apart from
    those of exports.

    Args:
      path: the directory, on disk or behind a scheme, which appears complete or not at all.
      signatures: the signatures by name.
      params: the weights: the first argument of each function that takes them. A pytree, a state
        dict, or a file of msgpack or safetensors.
      options: the options.
    """
    options = options or SaveOptions()
    check_signatures(signatures)
    path = as_path(path)
    check_place(path)
    with (
        open_params(params) as weights,
        # First, so that an obstacle at `path` is reported before the long work.
        whole_directory(path, overwrite=options.overwrite, has=GRAPH_FILE) as folder,
    ):
        model = _make_model(signatures, weights, options)
        sides = _write_model(model, folder)
        graph_bytes = (folder / GRAPH_FILE).stat().st_size
        variable_bytes = sum(f.stat().st_size for f in (folder / VARIABLES_FOLDER).iterdir())
        old_programs = set[str]()
        if path.name.isdecimal():  # a version
            old_programs = list_program_names(path)
            share_programs(folder, path.parent)
    if old_programs:
        remove_unused_programs(path.parent, published_versions(path.parent).values())
    return _describe_model(model, path, sides, graph_bytes, variable_bytes)


@dataclass(frozen=True)
class _Model:
    """Contents of a SavedModel.

    Attributes:
      options: the options of `save`.
      endpoints: the signatures.
      weight_signatures: the further signatures for weights.
      weights: the weights.
      constants: the lifted constants.
      requests: the warm-up requests.
      request_notes: notes on what the requests leave out.
    """

    options: SaveOptions
    endpoints: Sequence[Endpoint]
    weight_signatures: WeightSignatures
    weights: Sequence[SavedVariable]
    constants: ConstantVariables
    requests: Sequence[WarmUpRequest]
    request_notes: Sequence[str]

    @property
    def variables(self) -> list[SavedVariable]:
        initial, constants = self.weight_signatures.initial, self.constants.variables
        return [*self.weights, *initial.values(), *constants.values()]

    @property
    def compiled_requests(self) -> list[WarmUpRequest]:
        """Requests for signatures that XLA compiles ahead."""
        names = _list_compiled(self.endpoints)
        return [request for request in self.requests if request.signature in names]


def _make_model(signatures: Mapping[str, Signature], params: Any, options: SaveOptions) -> _Model:
    is_updating = any(each.updates_params for each in signatures.values())
    weights = Weights(
        params,
        options.trainable,
        variable_dtypes=LITERT_VARIABLES if is_updating and options.for_litert else {},
    )
    constants = ConstantVariables()
    lock = UpdateLock() if is_updating and not options.for_litert else WeightLock()
    endpoints = [
        _make_endpoint(name, signature, weights, constants, options.vjp_order, lock)
        for name, signature in signatures.items()
    ]
    # `save` checked them before the export; AUTO may have added variables since.
    options.check([e.signature_inputs() for e in endpoints])
    _check_size({e.name: _iterate_orders(e.portable, e.function.order) for e in endpoints})
    saved_weights = weights.weights()
    _check_updated_paths(endpoints, saved_weights)
    weight_signatures = WeightSignatures.of(
        options.weight_signatures,
        endpoints,
        saved_weights,
        lock,
        needs_inputs=options.needs_inputs,
    )
    model = _Model(options, endpoints, weight_signatures, saved_weights, constants, (), ())
    endpoints = add_buckets(
        endpoints, options.buckets, before_trials=lambda: hold_values(model.variables)
    )
    model = replace(model, endpoints=endpoints)
    if options.batching is not None:
        check_joinable(endpoints)
    if options.precompile:
        _check_compilable(endpoints)
    if options.warm_up or options.precompile:
        requests, notes = make_warm_up_requests([e for e in endpoints if not e.function.updates])
        model = replace(model, requests=requests, request_notes=notes)
    if options.precompile and not model.compiled_requests:
        raise _make_no_requests_error(model.request_notes)
    return model


def _describe_model(
    model: _Model, path: AnyPath, sides: Mapping[str, Sides], graph_bytes: int, variable_bytes: int
) -> SavedModel:
    options, endpoints = model.options, model.endpoints
    joins_requests = options.batching is not None
    trainable = tuple(w.name for w in model.weights if w.variable.trainable)
    notes = iterate_notes(endpoints, trainable, is_chosen=options.trainable is not True)
    constants = model.constants.variables
    return SavedModel(
        path,
        {
            e.name: SavedSignature.of(e, *sides[e.name], joins_requests=joins_requests)
            for e in endpoints
        }
        | {name: SavedSignature(*s, 0) for name, s in model.weight_signatures.sides().items()},
        {w.name: describe_variable(w.variable) for w in model.weights},
        trainable,
        {name: describe_variable(constant.variable) for name, constant in constants.items()},
        graph_bytes,
        variable_bytes,
        (*notes, *model.request_notes),
    )


def _check_compilable(endpoints: Sequence[Endpoint]) -> None:
    if _list_compiled(endpoints):
        return
    reason = "TensorFlow runs its own operations as they are"
    if any(e.portable.target.xla for e in endpoints):
        reason = "running a signature that changes weights would change them"
    problem = f" has nothing to compile: {reason}. Leave it out."
    raise SavingError(Message(Argument("precompile", True), problem))


def _list_compiled(endpoints: Sequence[Endpoint]) -> set[str]:
    """Lists the signatures that XLA can compile ahead."""
    return {e.name for e in endpoints if e.portable.target.xla and not e.function.updates}


def _make_no_requests_error(notes: Sequence[Message | str]) -> SavingError:
    """Makes the error for `precompile` without requests; `notes` say why there are none."""
    open_sizes = "each signature has open sizes, and neither buckets nor an example"
    reason = notes[0] if notes else open_sizes
    hint = () if notes else (" Give ", BUCKETS, ", or ", _EXAMPLE, ", or leave it out.")
    start = (Argument("precompile", True), " has nothing to compile: ", reason, ".")
    return SavingError(Message(*start, *hint))


def _make_endpoint(
    name: str,
    signature: Signature,
    weights: Weights,
    constants: ConstantVariables,
    vjp_order: int | None,
    lock: WeightLock,
) -> Endpoint:
    portable = as_portable_function(signature.function, f"The signature {name} of save")
    check_function(portable)
    takes = weights.exist if signature.takes_params is None else signature.takes_params
    _check_params(name, portable, takes=takes, exist=weights.exist)
    if signature.updates_params:
        _check_updates(name, portable, takes=takes)
        vjp_order = vjp_order or 0
    variables = weights.for_function(portable) if takes else []
    order = choose_order(portable, vjp_order)
    try:
        for function in _iterate_orders(portable, order or 0):
            constants.add(function)
    except GradientError as e:
        raise GradientError(
            Message(
                f"The signature {name} cannot be saved with ",
                Argument("vjp_order", order),
                ": ",
                e,
                f" Where the function was exported, store more with it: write_function(..., "
                f"vjp_order={order}), or jax2tf-bridge export --vjp-order {order}.",
            )
        ) from e
    signature = replace(signature, takes_params=takes)
    weighted = WeightedFunction(name, signature, variables, constants, order, lock)
    return Endpoint(name, signature, weighted)


def _check_updated_paths(endpoints: Sequence[Endpoint], weights: Sequence[SavedVariable]) -> None:
    """Raises if a function changes a weight that another function has in other containers."""
    paths = {weight.leaf.path for weight in weights}
    for endpoint in endpoints:
        for path in endpoint.function.updated_paths.values():
            if path not in paths:
                raise SavingError(
                    f"The signature {endpoint.name} changes {path}, which another signature has at "
                    "another path: the functions were exported with weights in different "
                    "containers. Export all of them with the same."
                )


def _check_params(name: str, portable: PortableFunction, *, takes: bool, exist: bool) -> None:
    if takes and not exist:
        raise SavingError(
            f"The signature {name} has takes_params=True, but save got no params. "
            "Pass params=..., or leave out takes_params."
        )
    if takes and not portable.argument_names:
        raise SavingError(
            f"save got params, and {portable.name} of the signature {name} has no positional "
            "argument to take them. Give its Signature takes_params=False."
        )


def _check_updates(name: str, portable: PortableFunction, *, takes: bool) -> None:
    if not takes:
        raise SavingError(
            f"The signature {name} has updates_params=True, but its function takes no params. "
            "Pass params=... to save, or leave out updates_params."
        )
    if portable.target.for_converters:
        raise SavingError(
            f"The signature {name} has updates_params=True, and its target is that of ONNX and "
            "OpenVINO, whose models cannot change their weights. Leave out the target, or return "
            "the new weights as outputs."
        )


def _check_size(portables: Mapping[str, Iterable[PortableFunction]]) -> None:
    sizes = {name: sum(len(r.module.data) for r in each) for name, each in portables.items()}
    if sum(sizes.values()) > _MAX_GRAPH_BYTES:
        each = ", ".join(f"{name}: {size / 1e9:.2f} GB" for name, size in sizes.items())
        raise SavingError(
            f"The modules take {sum(sizes.values()) / 1e9:.2f} GB ({each}), and a SavedModel's "
            "graph holds less than 2.15 GB. Arrays that the function computes with NumPy, or "
            "captures in a form that is not lifted, are the usual reason: pass them as params."
        )


def _iterate_orders(portable: PortableFunction, order: int) -> Iterator[PortableFunction]:
    yield portable
    for _ in range(order):
        portable = portable.vjp()
        check_function(portable)
        yield portable


class _SavedObject(tf.Module):  # type: ignore[misc]
    # The properties of tf.Module exist in Python only; TensorFlow saves attributes.
    variables: Any = None
    trainable_variables: Any = None


def _make_root(model: _Model) -> _SavedObject:
    root = _SavedObject()
    variables = model.variables
    # Checkpoints name variables by the alphabetically first of the shortest paths.
    root.params, root.constants = (
        {v.name: v.variable for v in variables if v.collection == collection}
        for collection in ("params", "constants")
    )
    if initial := {v.name: v.variable for v in variables if v.collection == INITIAL}:
        root.initial = initial
    root.trainable_variables = [v.variable for v in variables if v.variable.trainable]
    root.variables = [v.variable for v in variables]
    root.resources = [r for e in model.endpoints for r in list_resources(e.signature)]
    return root


def _write_model(model: _Model, folder: Path) -> dict[str, Sides]:
    """Writes the SavedModel, and returns the inputs and outputs of its signatures."""
    options, endpoints = model.options, model.endpoints
    sides = _write_graph(model, folder)
    for endpoint in endpoints:
        if endpoint.portable.target.for_converters and not options.shares_names:
            _check_output_names(endpoint.name, *sides[endpoint.name])
    write_values(folder, model.variables)
    _write_defaults(folder, {e.name: e.defaults() for e in endpoints})
    _write_sidecar(folder, model)
    if options.warm_up and model.requests:
        write_warm_up(folder, model.requests)
    if options.precompile:
        precompile(folder, model.compiled_requests)
    return sides


def _write_graph(model: _Model, folder: Path) -> dict[str, Sides]:
    """Lets TensorFlow write the model; returns the inputs and outputs of its signatures."""
    root, endpoints, batching = _make_root(model), model.endpoints, model.options.batching
    signatures, sides = {}, {}
    # `verify` compares these with JAX.
    root.unprocessed = {e.name: e.trace_unprocessed() for e in endpoints if e.is_processed}
    if batching is not None:
        root.without_batching = {}
    for endpoint in endpoints:
        name = endpoint.name
        named, method, signatures[name] = _trace(endpoint)
        if batching is not None:
            plain = root.unprocessed[name] if endpoint.is_processed else named
            root.without_batching[name] = plain
            alone = plain.get_concrete_function(**endpoint.specs())
            joined, specs = _name_inputs(join_requests(endpoint, batching, alone))
            signatures[name] = joined.get_concrete_function(**specs)
        sides[name] = describe_arrays(endpoint, signatures[name].structured_outputs)
        setattr(root, name, method)
    default = endpoints[0].name if len(endpoints) == 1 else SERVING_DEFAULT
    if default in signatures:
        # TF Hub and Keras call a loaded model itself: tf.saved_model.load(path)(...).
        setattr(root, "__call__", getattr(root, default))  # noqa: B010
    for name, function in model.weight_signatures.concrete_functions().items():
        signatures[name] = function
        setattr(root, name, function)
    root.gradients = {e.name: e.gradient_functions() for e in endpoints}
    try:
        with _without_log_of_folder():
            tf.saved_model.save(
                root,
                str(folder),
                signatures=signatures,
                options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
            )
    except AssertionError as e:
        if "untracked" not in str(e):
            raise
        raise SavingError(
            "preprocess or postprocess uses a table or variable that TensorFlow does not find, so "
            "it cannot save it. Name it: Processing(..., resources=[table])."
        ) from e
    return sides


@contextlib.contextmanager
def _without_log_of_folder() -> Iterator[None]:
    """Hides TensorFlow's line "Assets written to", which names a temporary folder."""

    def is_shown(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Assets written to")

    logger = logging.getLogger("tensorflow")
    logger.addFilter(is_shown)
    try:
        yield
    finally:
        logger.removeFilter(is_shown)


def _check_output_names(name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Raises if an output has an input's name: tf2onnx fails on it, and OpenVINO drops it."""
    shared = [output for output in outputs if output in inputs]
    if shared:
        raise SavingError(
            f"The signature {name} has outputs with names of inputs: "
            f"{', '.join(map(repr, shared))}. tf2onnx and OpenVINO need different names. Rename "
            f"the outputs, for example to '{shared[0]}_out'."
        )


def _name_inputs(endpoint: Endpoint) -> tuple[Any, dict[str, tf.TensorSpec]]:
    """Makes a tf.function of the endpoint's inputs by name, and returns it with their specs."""
    call, specs = wrap_call(endpoint)
    defaults = endpoint.defaults()

    def by_name(**tensors: Any) -> dict[str, Any]:
        inputs = {**defaults, **tensors}
        if not endpoint.portable.target.for_converters:
            # A session, such as TensorFlow Serving's, does not check shapes against the signature.
            # Operations would accept other shapes, buckets would hide them, and the error of a
            # module does not name the input. TF.js and Core ML refuse EnsureShape.
            inputs = {
                name: tf.ensure_shape(tensor, specs[name].shape, name=name)
                for name, tensor in inputs.items()
            }
        return dict(call(inputs))

    return tf.function(by_name, autograph=False), specs


def _trace(endpoint: Endpoint) -> tuple[Any, Any, Any]:
    """Traces the endpoint as a tf.function by name, as a method and as a signature."""
    named, specs = _name_inputs(endpoint)
    signature = named.get_concrete_function(**specs)
    if endpoint.is_processed:
        for left_out in list_optional_subsets(list(endpoint.defaults())):
            named.get_concrete_function(**{k: s for k, s in specs.items() if k not in left_out})
        return named, named, signature
    method, calls = endpoint.method(signature)
    for args, kwargs in calls:
        method.get_concrete_function(*args, **kwargs)
    return named, method, signature


def _write_sidecar(folder: Path, model: _Model) -> None:
    """Writes the sidecar, with which the SavedModel can be read back and published again."""
    constants, batching = model.constants, model.options.batching
    sidecar = Sidecar(
        bridge=__version__,
        tensorflow=str(tf.__version__),
        signatures={e.name: _make_signature_entry(e, batching) for e in model.endpoints},
        variables=tuple(
            VariableEntry(
                weight.leaf.path,
                weight.name,
                weight.key,
                weight.variable.dtype.name,
                tuple(weight.variable.shape.as_list()),
                bool(weight.variable.trainable),
            )
            for weight in model.weights
        ),
        constants=tuple(
            ConstantEntry(
                constant.digest,
                constant.aval.dtype,
                tuple(int(str(size)) for size in constant.aval.shape),
                constants.variables[name].key,
            )
            for name, constant in constants.lifted.items()
        ),
    )
    write_sidecar(folder, sidecar, {e.name: e.portable for e in model.endpoints})


def _make_signature_entry(endpoint: Endpoint, batching: Batching | None) -> SignatureEntry:
    sides = (endpoint.inputs, endpoint.outputs, endpoint.masks)
    inputs, outputs, masks = map(_make_array_entries, sides)
    entry = SignatureEntry(
        inputs,
        outputs,
        endpoint.takes_params,
        endpoint.function.order,
        updates=endpoint.function.updated_paths,
    )
    bucketing = endpoint.bucketing
    if bucketing is None:
        return entry
    return replace(
        entry,
        buckets=dict(bucketing.sizes),
        masks=masks,
        unchecked_padding=bucketing.unchecked,
        pad_values={name: number_text(value) for name, value in bucketing.pad_values.items()},
        any_padding=bucketing.any_padding,
        batching=None if batching is None else batching.numbers(),
    )


def _make_array_entries(ports: Iterable[NamedPort]) -> dict[str, ArrayEntry]:
    return {p.name: ArrayEntry(p.path, p.aval.dtype, shape_text(p.aval.shape)) for p in ports}


def _write_defaults(folder: Path, defaults: Mapping[str, Mapping[str, tf.Tensor]]) -> None:
    """Writes defaults into the signatures of a SavedModel.

    tf.saved_model.save would take the defaults of a Python function, but fails on tensors.

    Raises:
      SavingError: this TensorFlow has no defaults for inputs.
    """
    if not any(defaults.values()):
        return
    message = tf_compat.saved_model_message()
    if message is None:
        raise SavingError(
            f"TensorFlow {tf.__version__} has no defaults for inputs: leave out `defaults`."
        )
    file = folder / GRAPH_FILE
    model = message.FromString(file.read_bytes())
    for graph in model.meta_graphs:
        for name, values in defaults.items():
            for key, value in values.items():
                graph.signature_def[name].defaults[key].CopyFrom(
                    tf.make_tensor_proto(value.numpy())
                )
    file.write_bytes(model.SerializeToString(deterministic=True))
    # The fingerprint holds a checksum of the previous graph.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
