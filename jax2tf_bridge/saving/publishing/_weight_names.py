"""The weights of a model that was saved already, by the names of their variables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jax2tf_bridge.errors import Argument, FileFormatError, Message, SavingError
from jax2tf_bridge.saved_model._sidecar import read_sidecar
from jax2tf_bridge.saving.weights._params import leaves_for
from jax2tf_bridge.saving.weights._variables import PARAMS, as_saved, leaf_names


def weights_by_name(folder: Path, params: Any) -> dict[str, Any]:
    """The leaves of `params` by the names that `save` gave to their variables.

    Args:
      folder: of the SavedModel.
      params: what `leaves_for` takes: of the structure that was saved, or by paths; containers
        that stand for custom nodes are dicts and tuples where their types are not registered.

    Raises:
      FileFormatError: `save` has not written the model, or it is damaged.
      SavingError: it has no weights.
      StructureError: `params` have another structure; each difference is listed.
    """
    found = read_sidecar(folder)
    if found is None:
        raise FileFormatError(
            f"{folder} was not written by save: it has no sidecar, which says where its weights "
            "are. Publish it with its signatures.",
            file=str(folder),
        )
    sidecar, records = found
    names: dict[str, Any] = {}
    for name, entry in sidecar.signatures.items():
        if entry.takes_params:
            tree = records[name].in_tree.children[0].children[0]
            leaves = leaves_for(tree, params, f"the weights of {folder}", PARAMS)
            names |= dict(zip(leaf_names(tree), leaves, strict=True))
    if not names:
        raise SavingError(
            Message(
                f"{folder} has no weights: none of its signatures takes ",
                Argument("params"),
                ". Publish it once with ",
                Argument("signatures"),
                " and ",
                Argument("params"),
                ", and weights alone from then on.",
            )
        )
    return names


def as_variables(folder: Path, named: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves in the dtypes of their variables, where `save` takes the one for the other.

    Args:
      folder: of the SavedModel.
      named: leaves by the names of their variables; what fits none is left as it is.

    Raises:
      FileFormatError: the model's sidecar is damaged.
    """
    found = read_sidecar(folder)
    variables = () if found is None else found[0].variables
    dtypes = {variable.name: variable.dtype for variable in variables}
    return {n: as_saved(leaf, dtypes[n]) if n in dtypes else leaf for n, leaf in named.items()}
