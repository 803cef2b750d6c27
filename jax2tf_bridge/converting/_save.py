"""save(): writes JAX functions, portable functions or files as a SavedModel."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax2tf_bridge._utils import reraise_interrupts
from jax2tf_bridge.saved_model import GRAPH_FILE
from jax2tf_bridge.saving import (
    Batching,
    BucketOptions,
    Buckets,
    ExpectedSizes,
    Oversize,
    SavedModel,
    SaveOptions,
    WeightSignature,
    save_functions,
)
from jax2tf_bridge.signatures import Signatures, keys_as_words, open_params, prepare_signatures
from jax2tf_bridge.storage import StoragePath, as_path, check_free
from jax2tf_bridge.targets import Target


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
    ("dense/kernel") to its variable; `trainable_variables`; and `constants`. A call of the model
    itself is a call of "serving_default", or of the only signature.

    Args:
      path: the directory, on disk or behind a scheme ("gs://bucket/model"). It appears complete or
        not at all.
      signatures: a function, which becomes "serving_default", or a mapping from signature names to
        functions. Each function is a Signature, a JAX function, a PortableFunction, or the path of
        a .jaxfn file. Only JAX functions need JAX.
      params: the weights: the first argument of each function, unless its Signature has
        takes_params=False. All signatures share one tf.Variable per weight. They are a pytree of
        arrays; a state dict; the path of a msgpack or safetensors file (see `write_weights`), which
        JAX functions get as nested dicts; or the path of an Orbax checkpoint. For portable
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
        that everything is compiled before the first real request. For a Signature with a
        preprocess they are its `example`. Without XLA, open sizes without buckets have requests of
        the sizes of the `example`, or of small sizes.
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
    >>> from jax2tf_bridge import Signature
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
        prepared = prepare_signatures(signatures, weights, platforms, target)
        options.check([each.inputs() for each in prepared.values()])
        portables = {}
        for name, each in prepared.items():
            portables[name] = each.with_function()
            check_interrupts()
        return save_functions(path, portables, keys_as_words(weights), options)
