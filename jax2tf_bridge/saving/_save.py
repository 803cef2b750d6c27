"""save_functions(): portable functions as the signatures of one SavedModel."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    SERVING_DEFAULT,
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
    VariableEntry,
    check_place,
    write_sidecar,
)
from jax2tf_bridge.saving._bucket_options import BucketOptions, add_buckets, check_bucket_options
from jax2tf_bridge.saving._report import (
    SavedModel,
    SavedSignature,
    describe_variable,
    forgotten_update_notes,
    key_notes,
    missing_gradient_notes,
    statistics_notes,
    unused_key_notes,
)
from jax2tf_bridge.saving._weight_signatures import (
    INITIAL,
    WeightSignature,
    WeightSignatures,
    check_weight_signatures,
)
from jax2tf_bridge.saving.buckets import BUCKETS
from jax2tf_bridge.saving.serving import (
    Batching,
    check_batching,
    check_joinable,
    join_requests,
    make_no_buckets_error,
    make_warm_up_requests,
    precompile,
    write_instructions,
    write_warm_up,
)
from jax2tf_bridge.saving.signatures import (
    Endpoint,
    UpdateLock,
    WeightedFunction,
    WeightLock,
    check_preprocess,
    check_signature_names,
    check_size,
    check_takes_params,
    check_vjp_order,
    choose_order,
    describe_arrays,
    list_optional_subsets,
    list_resources,
    wrap_call,
)
from jax2tf_bridge.saving.weights import (
    LITERT_VARIABLES,
    ConstantVariables,
    SavedVariable,
    Weights,
    hold_values,
    write_values,
)
from jax2tf_bridge.signatures import NamedPort, Sides, Signature, SignatureInputs, open_params
from jax2tf_bridge.storage import as_path, whole_directory
from jax2tf_bridge.to_tensorflow import check_function, tf_compat
from shape_poly import shape_text

_EXAMPLE = Argument("example", Blank("{...}"), code="Signature(..., example={...})")


@dataclass(frozen=True)
class SaveOptions:
    """Options of `save` that do not concern an export; `save` explains them.

    Attributes:
      trainable: whether floating-point weights are trainable; or prefixes of the trainable weights'
        names, as "dense".
      vjp_order: the number of orders of gradients to save; by default those that a function holds,
        and at least one.
      buckets: the sizes that the functions run at.
      warm_up: whether to write requests that TensorFlow Serving replays when it loads the model.
      precompile: whether to store the programs that XLA compiles for these requests.
      batching: how the signatures join concurrent requests; None keeps them apart.
      overwrite: whether to replace an existing SavedModel, on disk; nothing else is replaced.
      weight_signatures: further signatures for the weights that signatures change.
      for_litert: whether LiteRT runs the signatures that change weights. It has no locks, and
        variables of few dtypes.
      needs_inputs: whether further signatures without inputs get one, as LiteRT's calibrator needs.
      shares_names: whether outputs may have the names of inputs in a graph for converters, as in
        TensorFlow.js.
    """

    trainable: bool | str | Sequence[str] = True
    vjp_order: int | None = None
    buckets: BucketOptions = field(default_factory=BucketOptions)
    warm_up: bool = True
    precompile: bool = False
    batching: Batching | None = None
    overwrite: bool = False
    weight_signatures: Sequence[WeightSignature] = ()
    for_litert: bool = False
    needs_inputs: bool = False
    shares_names: bool = False

    def check(self, signatures: Sequence[SignatureInputs]) -> None:
        """Checks the options against the signatures' inputs, before exports that take minutes.

        Raises:
          SavingError, ShapeError: an option names an unknown signature, input or dimension
            variable, or contradicts another.
          GradientError: `vjp_order` is negative.
        """
        check_vjp_order(self.vjp_order)
        check_batching(self.batching)
        names = check_signature_names({each.name: each.signature for each in signatures})
        check_weight_signatures(self.weight_signatures, names)
        for each in signatures:
            check_preprocess(each.name, each.signature)
            each.check_value_names()
        check_bucket_options(signatures, self.buckets)
        if self.batching is None or self.buckets.chosen:
            return
        for each in signatures:
            if not each.signature.padding.buckets:
                raise make_no_buckets_error(each.name)


def save_functions(
    path: str | os.PathLike[str],
    signatures: Mapping[str, Signature],
    params: Any = None,
    options: SaveOptions = SaveOptions(),
) -> SavedModel:
    """Writes a SavedModel of portable functions; neither JAX nor the bridge is needed to load it.

    This is `save` for signatures whose functions are portable functions already; it raises what
    `save` raises, apart from errors of exports.

    Args:
      path: the directory, on disk or behind a scheme, which appears complete or not at all.
      signatures: the signatures by name.
      params: the weights: the first argument of each function that takes them. A pytree, a state
        dict, or a file of msgpack or safetensors.
      options: the options.
    """
    names = check_signature_names(signatures)
    path = as_path(path)
    check_place(path)
    with (
        open_params(params) as tree,
        # First, so that an obstacle at `path` is reported before the long work.
        whole_directory(path, overwrite=options.overwrite, has="saved_model.pb") as folder,
    ):
        is_updating = any(each.updates_params for each in signatures.values())
        weights = Weights(
            tree,
            options.trainable,
            variable_dtypes=LITERT_VARIABLES if is_updating and options.for_litert else {},
        )
        constants = ConstantVariables()
        lock = UpdateLock() if is_updating and not options.for_litert else WeightLock()
        plain = [
            _make_endpoint(
                name,
                signatures[name],
                weights,
                constants,
                options.vjp_order,
                lock,
                tree is not None,
            )
            for name in names
        ]
        # `save` checked them before the export; AUTO may have added variables since.
        options.check([e.signature_inputs() for e in plain])
        check_size({e.name: _iterate_orders(e.portable, e.function.order) for e in plain})
        saved_weights = weights.weights()
        _check_updated_paths(plain, saved_weights)
        extra = WeightSignatures.of(
            options.weight_signatures,
            plain,
            saved_weights,
            lock,
            needs_inputs=options.needs_inputs,
        )
        variables = [
            *saved_weights,
            *extra.initial.values(),
            *constants.variables.values(),
        ]
        endpoints = add_buckets(
            plain, options.buckets, before_trials=lambda: hold_values(variables)
        )
        if options.batching is not None:
            check_joinable(endpoints)
        if options.precompile:
            _check_compilable(endpoints)
        requests, request_notes = (
            make_warm_up_requests([e for e in endpoints if not e.function.updates])
            if options.warm_up or options.precompile
            else ((), ())
        )
        root = _make_root(endpoints, variables)
        served = _write_model(root, endpoints, extra, folder, options.batching)
        if not options.shares_names:
            for endpoint in endpoints:
                if endpoint.portable.target.for_converters:
                    _check_output_names(endpoint.name, *served[endpoint.name])
        write_values(folder, variables)
        _write_defaults(folder, {e.name: e.defaults() for e in endpoints})
        _write_sidecar(folder, endpoints, saved_weights, constants, options.batching)
        compiled = [r for r in requests if r.signature in _list_compiled(endpoints)]
        if options.precompile and not compiled:
            raise _make_no_requests_error(request_notes)
        if options.warm_up and requests:
            write_warm_up(folder, requests)
        if options.precompile:
            precompile(folder, compiled)
        sizes = _file_sizes(folder)
        replaced = list_program_names(path) if path.name.isdecimal() else set()
        if path.name.isdecimal():
            share_programs(folder, path.parent)
    if replaced:
        remove_unused_programs(path.parent, published_versions(path.parent).values())
    trained = tuple(w.name for w in saved_weights if w.variable.trainable)
    return SavedModel(
        path,
        {
            e.name: SavedSignature.of(
                e, *served[e.name], joins_requests=options.batching is not None
            )
            for e in endpoints
        }
        | {name: SavedSignature(*sides, 0) for name, sides in extra.sides().items()},
        {w.name: describe_variable(w.variable) for w in saved_weights},
        trained,
        {name: describe_variable(c.variable) for name, c in constants.variables.items()},
        *sizes,
        (
            *(statistics_notes(trained) if options.trainable is True else ()),
            *forgotten_update_notes(endpoints),
            *missing_gradient_notes(endpoints),
            *key_notes(endpoints),
            *unused_key_notes(endpoints),
            *(note for e in endpoints if e.padded for note in e.padded.notes),
            *request_notes,
        ),
        serving_from=lambda place: write_instructions(
            place,
            endpoints,
            served,
            requests,
            has_programs=options.precompile,
            joins_requests=options.batching is not None,
        ),
    )


def _check_compilable(endpoints: Sequence[Endpoint]) -> None:
    if not _list_compiled(endpoints):
        reason = "TensorFlow runs its own operations as they are"
        if any(e.portable.target.xla for e in endpoints):
            reason = "running a signature that changes weights would change them"
        raise SavingError(
            Message(
                Argument("precompile", True),
                f" has nothing to compile: {reason}. Leave it out.",
            )
        )


def _list_compiled(endpoints: Sequence[Endpoint]) -> set[str]:
    """Lists the signatures that XLA can compile before requests come."""
    return {e.name for e in endpoints if e.portable.target.xla and not e.function.updates}


def _make_no_requests_error(notes: Sequence[Message | str]) -> SavingError:
    """Makes the error for a model to precompile without requests; `notes` say why it has none."""
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
    has_params: bool,
) -> Endpoint:
    portable = as_portable_function(signature.function, f"The signature {name} of save")
    check_function(portable)
    takes = has_params if signature.takes_params is None else signature.takes_params
    check_takes_params(name, portable, takes=takes, has_params=has_params)
    if signature.updates_params:
        _check_updates(name, portable, takes=takes)
        vjp_order = vjp_order or 0
    own = weights.for_function(portable) if takes else []
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
    weighted = WeightedFunction(name, signature, own, constants, order, lock)
    return Endpoint(name, signature, weighted)


def _check_updated_paths(endpoints: Sequence[Endpoint], weights: Sequence[SavedVariable]) -> None:
    """Raises if a function that changes weights has them in other containers than another one."""
    known = {weight.leaf.path for weight in weights}
    for endpoint in endpoints:
        for path in endpoint.function.updated_paths.values():
            if path not in known:
                raise SavingError(
                    f"The signature {endpoint.name} changes {path}, which another signature has at "
                    "another path: the functions were exported with weights in different "
                    "containers. Export all of them with the same."
                )


def _check_updates(name: str, portable: PortableFunction, *, takes: bool) -> None:
    """Raises unless a signature can change weights."""
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


def _iterate_orders(portable: PortableFunction, order: int) -> Iterator[PortableFunction]:
    yield portable
    for _ in range(order):
        portable = portable.vjp()
        check_function(portable)
        yield portable


class _SavedObject(tf.Module):  # type: ignore[misc]
    # tf.Module collects these for Python only; as attributes they are saved.
    variables: Any = None
    trainable_variables: Any = None


def _make_root(endpoints: Sequence[Endpoint], variables: Sequence[SavedVariable]) -> _SavedObject:
    root = _SavedObject()
    # Checkpoints name variables by the alphabetically first of the shortest paths.
    root.params, root.constants = (
        {v.name: v.variable for v in variables if v.collection == collection}
        for collection in ("params", "constants")
    )
    if initial := {v.name: v.variable for v in variables if v.collection == INITIAL}:
        root.initial = initial
    root.trainable_variables = [v.variable for v in variables if v.variable.trainable]
    root.variables = [v.variable for v in variables]
    root.resources = [resource for e in endpoints for resource in list_resources(e.signature)]
    return root


def _write_model(
    root: _SavedObject,
    endpoints: Sequence[Endpoint],
    extra: WeightSignatures,
    folder: Path,
    batching: Batching | None,
) -> dict[str, Sides]:
    """Writes the SavedModel, and returns the inputs and outputs of its signatures."""
    concrete, served = {}, {}
    # `verify` compares these with JAX.
    root.unprocessed = {e.name: e.trace_unprocessed() for e in endpoints if e.is_processed}
    if batching is not None:
        root.without_batching = {}
    for endpoint in endpoints:
        named, method, concrete[endpoint.name] = _trace(endpoint)
        if batching is not None:
            plain = root.unprocessed[endpoint.name] if endpoint.is_processed else named
            root.without_batching[endpoint.name] = plain
            alone = plain.get_concrete_function(**endpoint.specs())
            joined, specs = _name_inputs(join_requests(endpoint, batching, alone))
            concrete[endpoint.name] = joined.get_concrete_function(**specs)
        served[endpoint.name] = describe_arrays(
            endpoint, concrete[endpoint.name].structured_outputs
        )
        setattr(root, endpoint.name, method)
    default = endpoints[0].name if len(endpoints) == 1 else SERVING_DEFAULT
    if default in concrete:
        # TF Hub and Keras call a loaded model itself: tf.saved_model.load(path)(...).
        setattr(root, "__call__", getattr(root, default))  # noqa: B010
    for name, function in extra.concrete_functions().items():
        concrete[name] = function
        setattr(root, name, function)
    root.gradients = {e.name: e.gradient_functions() for e in endpoints}
    try:
        with _without_log_of_folder():
            tf.saved_model.save(
                root,
                str(folder),
                signatures=concrete,
                options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
            )
    except AssertionError as e:
        if "untracked" not in str(e):
            raise
        raise SavingError(
            "preprocess or postprocess uses a table or variable that TensorFlow does not find, so "
            "it cannot save it. Name it: Processing(..., resources=[table])."
        ) from e
    return served


@contextlib.contextmanager
def _without_log_of_folder() -> Iterator[None]:
    """Hides the line "Assets written to", which notebooks show: the folder is a temporary one."""

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
    both = [repr(output) for output in outputs if output in inputs]
    if both:
        example = f"{both[0][:-1]}_out'"
        raise SavingError(
            f"The signature {name} has outputs with names of inputs: {', '.join(both)}. tf2onnx "
            f"and OpenVINO need different names. Rename the outputs, for example to {example}."
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


def _file_sizes(folder: Path) -> tuple[int, int]:
    graph = (folder / "saved_model.pb").stat().st_size
    return graph, sum(f.stat().st_size for f in (folder / "variables").iterdir())


def _write_sidecar(
    folder: Path,
    endpoints: Sequence[Endpoint],
    weights: Sequence[SavedVariable],
    constants: ConstantVariables,
    batching: Batching | None,
) -> None:
    """Writes the sidecar, with which the SavedModel can be read back and published again."""
    sidecar = Sidecar(
        bridge=__version__,
        tensorflow=str(tf.__version__),
        signatures={e.name: _make_signature_entry(e, batching) for e in endpoints},
        variables=tuple(
            VariableEntry(
                weight.leaf.path,
                weight.name,
                weight.key,
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
                constants.variables[name].key,
            )
            for name, constant in constants.lifted.items()
        ),
    )
    write_sidecar(folder, sidecar, {e.name: e.portable for e in endpoints})


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

    tf.saved_model.save would take them from a function's own defaults, but fails on tensors.

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
    file = folder / "saved_model.pb"
    model = message.FromString(file.read_bytes())
    for graph in model.meta_graphs:
        for name, values in defaults.items():
            for key, value in values.items():
                graph.signature_def[name].defaults[key].CopyFrom(
                    tf.make_tensor_proto(value.numpy())
                )
    file.write_bytes(model.SerializeToString(deterministic=True))
    # It holds a checksum of the previous graph.
    (folder / "fingerprint.pb").unlink(missing_ok=True)
