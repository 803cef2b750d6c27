"""Prepares functions to be saved: reads portable functions, and checks JAX functions."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from jax2tf_bridge._utils import join_names
from jax2tf_bridge.errors import Argument, BridgeError, Message, SavingError
from jax2tf_bridge.portable import PortableFunction, apply_target, unwrap_portable
from jax2tf_bridge.serialization import read_function
from jax2tf_bridge.signatures._inputs import SignatureInputs
from jax2tf_bridge.signatures._params import PathWeights
from jax2tf_bridge.signatures._signature import Padding, Processing, Signature
from jax2tf_bridge.storage import as_path, on_disk
from jax2tf_bridge.targets import Target

if TYPE_CHECKING:
    from jax2tf_bridge.from_jax import PreparedExport

Signatures: TypeAlias = Any
"""A Signature, or a function that a Signature may hold; or a mapping of these by name."""

SERVING_DEFAULT = "serving_default"
"""Name of a single signature."""


def prepare_signatures(
    signatures: Signatures,
    params: Any,
    platforms: Sequence[str] | None,
    target: Target | None,
) -> dict[str, PreparedSignature]:
    """Checks the `signatures` argument, and returns the signatures by name; exports nothing yet.

    Raises:
      SavingError: it is neither a signature nor a mapping of signatures; or a signature
        contradicts itself.
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


@contextlib.contextmanager
def open_model(signatures: Signatures, params: Any) -> Iterator[Path | None]:
    """Yields the folder of a SavedModel that is passed in place of functions, on disk; else None.

    Raises:
      SavingError: there are params for a SavedModel.
    """
    if not isinstance(signatures, (str, os.PathLike)) or not as_path(signatures).is_dir():
        yield None
        return
    if params is not None:
        raise SavingError(
            Message(
                Argument("params"),
                " are the weights of functions, and a SavedModel has weights of its own. Leave "
                "them out.",
            )
        )
    with on_disk(as_path(signatures)) as folder:
        yield folder


_SERVING_OPTIONS = ("buckets", "mask", "pad_values", "unchecked_padding")


def list_serving_options(signature: Signature) -> list[str]:
    """Lists the options of a signature that only SavedModels have: padding and defaults."""
    options = [option for option in _SERVING_OPTIONS if getattr(signature.padding, option)]
    return [*options, "defaults"] if signature.defaults else options


def export_signatures(
    signatures: Signatures,
    params: Any,
    platforms: Sequence[str] | None,
    target: Target,
    because: str,
    *,
    list_refused: Callable[[Signature], Sequence[str]] = list_serving_options,
) -> dict[str, Signature]:
    """Exports functions for a runtime that is not TensorFlow.

    Args:
      signatures: the user's functions.
      params: the weights, as `open_params` yields them.
      platforms: the platforms of JAX functions.
      target: the target of all functions, also of those that were exported for another one.
      because: the reason why the runtime has no such options, for messages.
      list_refused: lists the options of a signature that the runtime does not have.

    Raises:
      SavingError: as for `prepare_signatures`, or a signature has an option of `list_refused`.
      ExportError: an export fails.
    """
    prepared = prepare_signatures(signatures, params, platforms, target)
    for name, each in prepared.items():
        options = list_refused(each.signature)
        if options:
            raise SavingError(
                f"The signature {name} has {' and '.join(options)}, and {because}. Leave them out."
            )
    exported = {name: each.with_function() for name, each in prepared.items()}
    return {
        name: replace(each, function=replace(each.function, target=target))
        for name, each in exported.items()
    }


@dataclass(frozen=True)
class PreparedSignature:
    """Signature whose function is a portable function, or can be exported as one.

    Attributes:
      name: the signature's name.
      signature: the user's Signature.
      takes_params: whether the function's first argument is the weights.
      function: the portable function, or the export to run.
    """

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
        return replace(self.signature, function=function, takes_params=self.takes_params)


@contextlib.contextmanager
def _note_call(
    name: str, signature: Signature, *, takes: bool, prepared: PreparedExport | None = None
) -> Iterator[None]:
    """Adds a note with the call of the function to errors of JAX or of the function.

    If an error is about a missing name, another note lists the weights.
    """
    try:
        yield
    except Exception as e:
        if not isinstance(e, BridgeError):
            call = _format_call(signature, takes)
            e.add_note(f"The signature {name} calls it as {call}.")
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
    return f"The weights in params are {join_names(weights, _MAX_LISTED)}."


def _prepare_signature(
    name: str,
    value: Any,
    params: Any,
    platforms: Sequence[str] | None,
    target: Target | None,
) -> PreparedSignature:
    signature = value if isinstance(value, Signature) else Signature(value)
    for option, kind in (("padding", Padding), ("processing", Processing)):
        group = getattr(signature, option)
        if not isinstance(group, kind):
            raise SavingError(
                f"{option} of the signature {name} must be a {kind.__name__}, as "
                f"{kind.__name__}(...). Got: {type(group).__name__}."
            )
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
    from jax2tf_bridge.from_jax import PreparedExport, call_text, make_export_options
    from jax2tf_bridge.from_jax.arguments import JaxCallable
    from jax2tf_bridge.from_jax.shapes import symbolic_specs

    weights = params.tree() if isinstance(params, PathWeights) else params
    with _note_call(name, signature, takes=takes):
        jax_callable = JaxCallable.of(function, caller=f"The signature {name}")
        start = f"Signature({jax_callable.code_name}, args=[...]"
        options = make_export_options(
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
    args, kwargs = signature.args, signature.kwargs
    if not isinstance(args, (list, tuple)):
        raise SavingError(
            f"args of the signature {name} must be a list with an example of each argument: write "
            f"args=[x]. Got: {type(args).__name__}."
        )
    if not isinstance(kwargs, Mapping):
        raise SavingError(
            f"kwargs of the signature {name} must be a mapping with an example of each keyword "
            f"argument. Got: {type(kwargs).__name__}."
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
            f"The function of the signature {name} takes {shown}, and would be called as "
            f"{_format_call(signature, takes)}: {e}. Pass examples of its arguments as args=[...] "
            "and kwargs={...}, without the weights: `params` is the first argument unless "
            "takes_params=False."
        ) from e


def _format_call(signature: Signature, takes: bool) -> str:
    """Formats the call of the function, as "f(params, <array>, train=<bool>)"."""
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
    for option in _EXPORT_OPTIONS:
        value = getattr(signature, option)
        is_empty = isinstance(value, (str, list, tuple, Mapping)) and not value
        if value is not None and not is_empty:
            raise SavingError(
                f"The signature {name} has {option}, but its function was already exported, with "
                f"arguments and options of its own. Leave {option} out."
            )


def _complete_shapes(signature: Signature, *, takes: bool) -> Any:
    """Returns polymorphic_shapes for all arguments, with None for the weights."""
    from jax2tf_bridge.from_jax.shapes import is_entry

    shapes = signature.polymorphic_shapes
    if not takes or shapes is None:
        return shapes
    if is_entry(shapes):
        return [None, *([shapes] * len(signature.args))]
    if not isinstance(shapes, (list, tuple)):
        return shapes  # a mapping by argument; or a value that the export refuses
    if len(shapes) == len(signature.args) + 1 and shapes[0] is None:
        return shapes  # it has an entry for the weights, as in convert
    return [None, *shapes]
