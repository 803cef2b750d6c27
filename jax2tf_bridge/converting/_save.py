"""save(): writes JAX functions, portable functions or files as a SavedModel."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from jax2tf_bridge._utils import reraise_interrupts, some
from jax2tf_bridge.errors import BridgeError, SavingError
from jax2tf_bridge.portable import AUTO, PortableFunction, apply_target, unwrap_portable
from jax2tf_bridge.saved_model import GRAPH_FILE, SERVING_DEFAULT
from jax2tf_bridge.saving import (
    Batching,
    BucketOptions,
    Buckets,
    ExpectedSizes,
    Oversize,
    PathWeights,
    SavedModel,
    SaveOptions,
    Signature,
    SignatureInputs,
    WeightSignature,
    open_params,
    save_functions,
)
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.storage import StoragePath, as_path, check_free
from jax2tf_bridge.targets import Target

if TYPE_CHECKING:
    from jax2tf_bridge.from_jax import PreparedExport

Signatures: TypeAlias = Any
"""A Signature, or a function that a Signature may hold; or a mapping of these by name."""


def save(
    path: str | os.PathLike[str],
    signatures: Signatures,
    *,
    params: Any = None,
    trainable: bool | str | Sequence[str] = True,
    vjp_order: int | None = None,
    buckets: Buckets | None = None,
    oversize: Oversize | Mapping[str, Oversize] | None = None,
    expected_sizes: ExpectedSizes | None = None,
    warm_up: bool = True,
    precompile: bool = False,
    batching: Batching | None = None,
    weight_signatures: Sequence[WeightSignature] = (),
    platforms: Sequence[str] | None = None,
    target: Target | None = None,
    overwrite: bool = False,
) -> SavedModel:
    """Writes a SavedModel that runs wherever TensorFlow runs; nothing else is needed to load it.

    Each signature has inputs and outputs by name. A loaded model also has a method for each
    signature, with the arguments of the JAX function; `params`, which maps each weight's name
    ("dense/kernel") to its variable; `trainable_variables`; and `constants`. The model itself can
    be called: it is "serving_default", or the only signature.

    Args:
      path: the directory, on disk or behind a scheme ("gs://bucket/model"). It appears complete or
        not at all.
      signatures: a function, which becomes "serving_default", or a mapping from signature names to
        functions. Each function is a Signature, a JAX function, a PortableFunction, or the path of
        a .jaxfn file. Only JAX functions need JAX.
      params: the weights: the first argument of each function, unless its Signature has
        takes_params=False. All signatures share one tf.Variable per weight. One of: a pytree of
        arrays; a state dict; the path of a msgpack or safetensors file (see `write_weights`), which
        JAX functions receive as nested dicts; the path of an Orbax checkpoint. For portable
        functions, files and state dicts must have exactly the paths of the function's weights.
      trainable: whether floating-point weights are trainable; or prefixes of the names of the
        trainable weights, as ["dense"].
      vjp_order: the number of orders of gradients to save, with respect to inputs and weights. The
        default is the number that a portable function holds, and at least one if a gradient exists.
      buckets: the sizes to compile the model for, by dimension variable, as {"b": [1, 8, 32]}.
        Requests of other sizes are padded and the results sliced. `save` checks with numbers that
        padding does not change results.
      oversize: how to run sizes above the largest bucket: "split" runs them in pieces, "as is"
        compiles each anew; for all variables, or by variable, as {"b": "split", "n": "as is"}. By
        default the batch dimension is split (the variable that comes first in every input that uses
        it), and other dimensions, such as a sequence length, run as they are.
      expected_sizes: the sizes of requests, from which `save` chooses buckets: a list with
        repetitions for the only variable, or such lists by variable.
      warm_up: whether to write requests that TensorFlow Serving replays when it loads the model, so
        that everything is compiled before the first real request. A Signature with a preprocess
        takes them from its `example`. Without XLA, open sizes without buckets have requests of the
        sizes of its `example`, or of small sizes.
      precompile: whether to run these requests now and store the programs that XLA compiles;
        `serving` of the result has the setting that makes TensorFlow use them. In a version folder
        (whose name is a number) the programs also go to `xla_cache` beside the versions.
      batching: how the signatures join the requests of concurrent callers, for callers in one
        process without TensorFlow Serving, as `Batching()`. The batch dimension needs buckets, and
        no other size may be open. Signatures then have no gradient; the methods of the loaded model
        keep theirs, and join nothing.
      weight_signatures: further signatures of a model with a Signature that has updates_params:
        "get_weights" returns the weights that such signatures change, "set_weights" replaces them,
        and "reset_weights" returns them to the saved values, of which it keeps a copy.
      platforms: the platforms of JAX functions, as in `export`.
      target: the target of JAX functions, as in `export`. A target without XLA also applies to
        portable functions: they become TensorFlow's own operations.
      overwrite: whether to replace an existing SavedModel on disk; nothing else is ever replaced.

    Returns:
      A description of the model: signatures as they are served, variables, captured arrays, sizes.
      Print it.

    Raises:
      SavingError: names clash, are forbidden by TensorFlow or do not exist; a Signature contradicts
        itself; or the graph is too large for a SavedModel.
      StructureError, ShapeError, DTypeError: the weights do not fit a function, or the buckets.
      FileFormatError: `params` is a file of another format, or is damaged.
      UnsoundBucketsError: padding would change results; the text shows how.
      GradientError, InconclusiveShapeError: a function has fewer orders of gradients. A function
        without any is saved without a gradient; `notes` of the result say why.
      FileExistsError, NotADirectoryError: there is something at `path`.
      OSError: no installed package knows the scheme of `path`, or the directory cannot be written.
      ModuleError: the installed TF cannot run a module, or a portable function does not match it.
      ExportError: an export fails, as in `export`.

    >>> import tempfile, numpy as np, tensorflow as tf
    >>> params = {"w": np.ones((3, 2), np.float32)}
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> print(save(folder, dense, params=params).signatures["serving_default"])
    (x: float32[b,3]) -> (output_0: float32[b,2])
    >>> model = tf.saved_model.load(folder)
    >>> model.serving_default(tf.ones([1, 3])).numpy().tolist()
    [[3.0, 3.0]]
    """
    options = SaveOptions(
        trainable=trainable,
        vjp_order=vjp_order,
        buckets=BucketOptions(buckets, oversize, expected_sizes),
        warm_up=warm_up,
        precompile=precompile,
        batching=batching,
        weight_signatures=weight_signatures,
        overwrite=overwrite,
    )
    with reraise_interrupts() as check_interrupts:
        return _save(path, signatures, params, platforms, target, options, check_interrupts)


# A function of its own, so that its locals are freed, and may swallow an interrupt, while
# reraise_interrupts still watches.
def _save(
    path: str | os.PathLike[str],
    signatures: Signatures,
    params: Any,
    platforms: Sequence[str] | None,
    target: Target | None,
    options: SaveOptions,
    check_interrupts: Callable[[], None],
) -> SavedModel:
    place = as_path(path)
    if not isinstance(place, StoragePath):  # storage may hold the rest of an interrupted upload
        check_free(place, overwrite=options.overwrite, has=GRAPH_FILE)
    with open_params(params) as weights:
        prepared = prepare(signatures, weights, platforms, target)
        options.check([each.inputs() for each in prepared.values()])
        portables = {}
        for name, each in prepared.items():
            portables[name] = each.with_function()
            check_interrupts()
        return save_functions(path, portables, keys_as_words(weights), options)


def prepare(
    signatures: Signatures,
    params: Any,
    platforms: Sequence[str] | None,
    target: Target | None,
) -> dict[str, PreparedSignature]:
    """Checks the `signatures` argument, and returns it by name; nothing is exported yet.

    Raises:
      SavingError: it is neither a signature nor a mapping of signatures; or one contradicts itself.
    """
    if isinstance(signatures, (list, tuple)):
        raise SavingError(
            "signatures must be one Signature or function, or a mapping of them by name, as "
            f"{{'serving_default': ...}}. Got: a {type(signatures).__name__}."
        )
    named = signatures if isinstance(signatures, Mapping) else {SERVING_DEFAULT: signatures}
    return {
        name: _prepare_signature(name, value, params, platforms, target)
        for name, value in named.items()
    }


def keys_as_words(params: Any) -> Any:
    """Replaces PRNG keys among the weights by their uint32 words."""
    if "jax" not in sys.modules:
        return params
    import jax

    def is_key(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(
            leaf.dtype, jax.dtypes.prng_key
        )

    if not any(map(is_key, jax.tree_util.tree_leaves(params))):
        return params
    return jax.tree_util.tree_map(
        lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, params
    )


@dataclass(frozen=True)
class PreparedSignature:
    """Signature whose function is a portable function, or can be exported as one."""

    name: str
    signature: Signature
    takes_params: bool
    function: PortableFunction | PreparedExport

    def inputs(self) -> SignatureInputs:
        """Returns its inputs by name.

        Raises:
          SavingError: names clash or do not exist.
        """
        function = self.function
        if isinstance(function, PortableFunction):
            signature = replace(self.signature, function=function)
            return SignatureInputs.of_function(self.name, signature, self.takes_params)
        paths, avals = function.inputs(int(self.takes_params))
        is_decided = function.specs.is_decided
        return SignatureInputs.of(self.name, self.signature, paths, avals, is_decided=is_decided)

    def with_function(self) -> Signature:
        """Returns the signature with its function exported as a portable function."""
        function = self.function
        if not isinstance(function, PortableFunction):
            with _note_call(self.name, self.signature, takes=self.takes_params, prepared=function):
                from jax2tf_bridge.from_jax.stablehlo import ConstantPool

                # The function stays internal, so its constants may alias the user's memory.
                function = function.run(ConstantPool(shares_memory=True))
        return replace(self.signature, function=function)


@contextlib.contextmanager
def _note_call(
    name: str, signature: Signature, *, takes: bool, prepared: PreparedExport | None = None
) -> Iterator[None]:
    """Adds a note with save's call of the function to errors of JAX or of the function.

    If the function may have looked for a weight that is not there, another note lists the weights.
    """
    try:
        yield
    except Exception as e:
        if not isinstance(e, BridgeError):
            call = _format_call(signature, takes)
            e.add_note(f"save called it for the signature {name} as {call}.")
            if takes and prepared is not None and _is_missing_name(e):
                e.add_note(_list_weights(prepared))
        raise


def _is_missing_name(error: Exception) -> bool:
    # The comparison by name avoids importing Flax.
    return isinstance(error, KeyError) or type(error).__module__ == "flax.errors"


_MAX_LISTED = 10
"""Maximum number of weights that a note lists."""


def _list_weights(prepared: PreparedExport) -> str:
    paths = prepared.specs.paths()
    inputs, _ = prepared.inputs(1)
    weights = paths[: len(paths) - len(inputs)]
    if not weights:
        return "There are no weights in params."
    return f"The weights in params are {some(weights, _MAX_LISTED)}."


def _prepare_signature(
    name: str,
    value: Any,
    params: Any,
    platforms: Sequence[str] | None,
    target: Target | None,
) -> PreparedSignature:
    signature = value if isinstance(value, Signature) else Signature(value)
    takes = params is not None if signature.takes_params is None else signature.takes_params
    function = signature.function
    if isinstance(function, (str, os.PathLike)):
        function = read_function(function)
    function = unwrap_portable(function)
    if isinstance(function, PortableFunction):
        _refuse_export_options(name, signature)
        return PreparedSignature(name, signature, takes, apply_target(function, target))
    if hasattr(function, "get_concrete_function") or hasattr(function, "captured_arrays"):
        raise SavingError(
            f"The function of the signature {name} is a TensorFlow function. Pass the JAX function "
            "itself, and TensorFlow code around it as preprocess and postprocess."
        )
    _check_call(name, signature, takes=takes)
    from jax2tf_bridge.from_jax import PreparedExport, call_text, export_options
    from jax2tf_bridge.from_jax.arguments import JaxCallable
    from jax2tf_bridge.from_jax.shapes import symbolic_specs

    weights = params.tree() if isinstance(params, PathWeights) else params
    with _note_call(name, signature, takes=takes):
        jax_callable = JaxCallable.of(function, caller="save")
        start = f"Signature({jax_callable.code_name}, args=[...]"
        options = export_options(
            platforms,
            signature.polymorphic_constraints,
            signature.disabled_checks,
            target,
            argument="platforms",
            call=call_text(start, signature.polymorphic_shapes),
            runtime_checks=signature.runtime_checks,
        )
        specs = symbolic_specs(
            jax_callable,
            (*((weights,) if takes else ()), *signature.args),
            dict(signature.kwargs),
            _complete_shapes(signature, takes=takes),
        )
        prepared = PreparedExport(jax_callable, specs, options)
    return PreparedSignature(name, signature, takes, prepared)


def _check_call(name: str, signature: Signature, *, takes: bool) -> None:
    """Raises if the function cannot be called with the arguments of its Signature."""
    args, kwargs = signature.args, signature.kwargs
    if not isinstance(args, (list, tuple)):
        raise SavingError(
            f"args of the signature {name} must be a list with an example of each argument: write "
            f"args=[x]. Got: {type(args).__name__}."
        )
    try:
        expected = inspect.signature(signature.function)
    except (TypeError, ValueError):
        return  # it has no signature
    try:
        expected.bind(*([None] if takes else []), *args, **dict(kwargs))
    except TypeError as e:
        plain = [p.replace(annotation=p.empty) for p in expected.parameters.values()]
        shown = expected.replace(parameters=plain, return_annotation=expected.empty)
        raise SavingError(
            f"The function of the signature {name} takes {shown}, and save would call it as "
            f"{_format_call(signature, takes)}: {e}. Pass examples of its arguments as args=[...] "
            "and kwargs={...}, without the weights: save passes its `params` as the first argument "
            "unless takes_params=False."
        ) from e


def _format_call(signature: Signature, takes: bool) -> str:
    """Formats save's call of the function, as "f(params, <array>, train=<bool>)"."""
    name = getattr(signature.function, "__name__", "f")
    texts = [*(["params"] if takes else []), *(f"<{type(a).__name__}>" for a in signature.args)]
    texts += [f"{key}=<{type(value).__name__}>" for key, value in signature.kwargs.items()]
    return f"{name}({', '.join(texts)})"


_EXPORT_OPTIONS = (
    "args",
    "kwargs",
    "polymorphic_shapes",
    "polymorphic_constraints",
    "disabled_checks",
    "runtime_checks",
)


def _refuse_export_options(name: str, signature: Signature) -> None:
    default = Signature(None)
    for option in _EXPORT_OPTIONS:
        value = getattr(signature, option)
        if value != getattr(default, option) and (value or value is AUTO):
            raise SavingError(
                f"The signature {name} has {option}, but its function was already exported, with "
                f"arguments and options of its own. Leave {option} out."
            )


def _complete_shapes(signature: Signature, *, takes: bool) -> Any:
    """Returns the specification of all arguments; it is None for the weights."""
    shapes = signature.polymorphic_shapes
    if not takes or shapes is None:
        return shapes
    if isinstance(shapes, str) or shapes is AUTO:
        return [None, *([shapes] * len(signature.args))]
    if isinstance(shapes, Mapping):
        return shapes
    if len(shapes) == len(signature.args) + 1 and shapes[0] is None:
        return shapes  # it has an entry for the weights, as in convert
    return [None, *shapes]
