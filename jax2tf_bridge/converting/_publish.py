"""publish(): writes the next version of a served model, from JAX functions or weights only."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.converting._save import save
from jax2tf_bridge.errors import Argument, Message, SavingError, make_path_error
from jax2tf_bridge.publishing import Origin, check_complete, latest_version, publish_version
from jax2tf_bridge.saved_model import read_sidecar
from jax2tf_bridge.saving import (
    Batching,
    Buckets,
    ExpectedSizes,
    Oversize,
    Published,
    SavedModel,
    WeightSignature,
    map_weights_by_name,
    publish_weights,
)
from jax2tf_bridge.signatures import (
    PathWeights,
    Signatures,
    keys_as_words,
    name_leaves,
    open_params,
)
from jax2tf_bridge.storage import AnyPath
from jax2tf_bridge.targets import Target
from jax2tf_bridge.weights import is_flat


class PublishOptions(TypedDict, total=False):
    """Options that `publish` passes on to `save`."""

    trainable: bool | str | Sequence[str]
    vjp_order: int | None
    buckets: Buckets | None
    oversize: Oversize | Mapping[str, Oversize] | None
    expected_sizes: ExpectedSizes | None
    warm_up: bool
    precompile: bool
    batching: Batching | None
    weight_signatures: Sequence[WeightSignature]
    platforms: Sequence[str] | None
    target: Target | None


def publish(
    root: str | os.PathLike[str],
    signatures: Signatures = None,
    *,
    params: Any = None,
    keep: int | None = None,
    label: str | None = None,
    note: str = "",
    **options: Unpack[PublishOptions],
) -> Published:
    """Writes the next version of a model, `root/N`, which a server that watches `root` picks up.

    The version appears complete or not at all, even if the process is killed, the disk is full, or
    several processes publish at the same time. A number is never used twice, even if its folder was
    removed: a server would keep the weights that it loaded under this number. Older versions are
    removed after the new one was read back.

    Args:
      root: the folder of all versions, on disk or behind a scheme ("gs://bucket/model").
      signatures: as in `save`; None publishes the newest version again with other weights. Then
        nothing is traced or compiled, and both versions share the files of the graph.
      params: the weights, as in `save`: a pytree, a state dict, or the path of a file.
      keep: the number of newest versions that stay; None keeps all. Keep 2 or more if a server may
        still load the version before. Versions with a label stay as well.
      label: a label that the version gets for TensorFlow Serving, as "canary", in the file
        models.config beside `root`. With the first label, the version before becomes "stable".
      note: a note for `list_versions`.
      **options: options of `save`.

    Returns:
      The number of the version and its path; also the report of `save` (`saved`) or, for new
      weights, the version whose graph it shares (`graph_of`). Print it.

    Raises:
      SavingError: `params` are missing, or there are options and no signatures.
      StructureError, ShapeError, DTypeError: the weights do not fit.
      FileFormatError: `params` is a file of another format, or is damaged; or the newest version,
        whose graph would be used, is damaged.
      FileNotFoundError: there is no version whose graph could be used.
      ValueError, TypeError: `keep` is not a number of versions.
      TypeError: there is no such option.
      OSError: `root` cannot be written.
      BridgeError: as for `save`.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature
    >>> root = tempfile.mkdtemp()
    >>> w = np.ones((3, 2), np.float32)
    >>> dense = Signature(lambda w, x: x @ w, args=[np.ones((4, 3), np.float32)])
    >>> publish(root, dense, params=w).version, publish(root, params=w * 2).version
    (1, 2)
    """
    unknown = [name for name in options if name not in PublishOptions.__annotations__]
    if unknown:
        names = ("signatures", "params", "keep", "label", "note")
        known = (*names, *PublishOptions.__annotations__)
        raise TypeError(
            f"publish() got an unexpected keyword argument {unknown[0]!r}"
            f"{did_you_mean(unknown[0], known, quoted=True)}"
        )
    if signatures is not None:

        def write(folder: Path) -> SavedModel:
            return save(folder, signatures, params=params, **options)

        new = publish_version(
            root, write, keep=keep, check=check_complete, origin=Origin(note=note), label=label
        )
        return Published.with_model(new)
    if options:
        raise SavingError(
            "publish without signatures only replaces the weights, so it does not take "
            f"{', '.join(options)}. Leave out the options, or pass signatures."
        )
    if params is None:
        raise SavingError(
            "publish needs signatures, or params: the new weights of the newest version."
        )
    newest = latest_version(root)
    if newest is None:
        text = Message(
            "has no version yet, and the first one needs ",
            Argument("signatures"),
            " beside ",
            Argument("params"),
        )
        raise make_path_error(errno.ENOENT, text, root)
    with open_params(params) as weights:
        named = _map_leaves_by_name(newest, keys_as_words(weights))
        return Published.with_weights(
            publish_weights(root, named, keep=keep, label=label, note=note)
        )


def _map_leaves_by_name(newest: AnyPath, params: Any) -> Mapping[str, Any]:
    is_by_path = isinstance(params, PathWeights) or (
        isinstance(params, Mapping) and is_flat(params)
    )
    if is_by_path or "jax" not in sys.modules:
        return map_weights_by_name(newest, params)
    # JAX knows the user's own node types; the files may not have them.
    import jax

    from jax2tf_bridge.from_jax.trees import check_dict_keys, tree_spec

    try:
        names = name_leaves(tree_spec(params))
    except ValueError:
        check_dict_keys(params, "params")
        raise
    if isinstance(params, Mapping) and not _has_weight_names(newest, names):
        # Boxes around single values add parts to the names, which a state dict may lack.
        return map_weights_by_name(newest, params)
    return dict(zip(names, jax.tree_util.tree_leaves(params), strict=True))


def _has_weight_names(newest: AnyPath, names: Sequence[str]) -> bool:
    sidecar = read_sidecar(newest)
    return sidecar is None or set(names) == {v.name for v in sidecar[0].variables}
