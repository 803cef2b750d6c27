"""Describes a SavedModel whose file was read: its signatures, modules and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jax2tf_bridge.bytecode import Version
from jax2tf_bridge.portable import DisabledSafetyCheck
from jax2tf_bridge.saved_model._meta_graph import ModelVariable, SignaturePort
from jax2tf_bridge.saved_model._tensors import TensorType


@dataclass(frozen=True)
class GradientOrders:
    """Orders of gradients that the file has, and the reason why they end.

    Attributes:
      orders: how many orders of gradients are stored.
      then: why there is none above, as the file says it; "" if it does not.
      is_left_out: the next order exists in Python and was not stored.
    """

    orders: int
    then: str
    is_left_out: bool = False


@dataclass(frozen=True)
class EntryPoint:
    """A signature, or a method of the loaded object.

    Attributes:
      name: of the signature; of a method the path to it.
      is_signature: whether it is one.
      inputs, outputs: of a signature.
      modules: the modules that it runs, by their numbers, and at which order of differentiation.
      gradient: None if it runs no module.
    """

    name: str
    is_signature: bool
    inputs: tuple[SignaturePort, ...]
    outputs: tuple[SignaturePort, ...]
    modules: Mapping[int, int]
    gradient: GradientOrders | None


@dataclass(frozen=True)
class CalledModule:
    """An XlaCallModule node.

    Attributes:
      number: from 0 on, in the order of the file.
      function: the function that it is in, "" for the graph itself; node: its name there.
      module: the bytes of its module.
      calling_convention_version: the attribute `version`.
      platforms: by JAX's names.
      disabled_checks: the safety checks that are off.
      arguments: the dtypes that the op is given.
      results: the types that the op is said to give.
      functions: TensorFlow functions that the module calls.
      has_tokens: whether tokens order its effects.
      uses_shardy: the attribute `use_shardy_partitioner`, which TensorFlow has from 2.20 on.
      stablehlo_version: the version that the module is written at; None if it does not say.
    """

    number: int
    function: str
    node: str
    module: memoryview = field(repr=False)
    calling_convention_version: int
    platforms: tuple[str, ...]
    disabled_checks: tuple[DisabledSafetyCheck, ...]
    arguments: tuple[str, ...]
    results: tuple[TensorType, ...]
    functions: tuple[str, ...]
    has_tokens: bool
    uses_shardy: bool
    stablehlo_version: Version | None

    @property
    def place(self) -> str:
        """Names where it is, for people."""
        return f"{self.function}/{self.node}" if self.function else self.node


@dataclass(frozen=True)
class GraphConstant:
    """An array in the graph: the node that holds it, and how many bytes it takes in the file."""

    function: str
    node: str
    type: TensorType
    size: int


@dataclass(frozen=True)
class WarmUp:
    """Requests that TensorFlow Serving replays when it loads the model.

    `problem` says why they cannot be counted.
    """

    requests: int
    size: int
    problem: str | None = None


@dataclass(frozen=True)
class SavedModelContents:
    """All that was read of a SavedModel.

    Attributes:
      path: its directory.
      graph_size: the bytes of saved_model.pb.
      variables_size: the bytes of the files in variables/.
      tensorflow: the version that wrote it, "" if it does not say.
      tags: of its graphs.
      entries: signatures first, then methods that run modules.
      more_entries: how many others there are, which were not looked into.
      modules: every XlaCallModule.
      constants: the largest arrays in the graph, apart from those in modules, the largest first.
      constants_size: the bytes of all of them.
      variables: of the model.
      assets: the names of the files in assets/.
      warm_up: None without such a file.
      sidecar: what assets.extra/jax2tf_bridge.json says; empty if it is not there.
      sidecar_problem: why it cannot be read; None if it can.
      missing_functions: names of functions that are called and are not there.
      missing_files: files that the model has to have and that are not there.
    """

    path: str
    graph_size: int
    variables_size: int
    tensorflow: str
    tags: tuple[str, ...]
    entries: tuple[EntryPoint, ...]
    more_entries: int
    modules: tuple[CalledModule, ...]
    constants: tuple[GraphConstant, ...]
    constants_size: int
    variables: tuple[ModelVariable, ...]
    assets: tuple[str, ...]
    warm_up: WarmUp | None
    sidecar: Mapping[str, object]
    sidecar_problem: str | None
    missing_functions: tuple[str, ...]
    missing_files: tuple[str, ...]
