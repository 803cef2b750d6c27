"""Description of a SavedModel: its signatures, modules and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jax2tf_bridge.bytecode import Version
from jax2tf_bridge.portable import DisabledSafetyCheck
from jax2tf_bridge.saved_model._meta_graph import ModelVariable, SignaturePort
from jax2tf_bridge.saved_model._tensors import TensorType


@dataclass(frozen=True)
class GradientOrders:
    """Stored orders of gradients, and the reason why there are no more.

    Attributes:
      orders: the number of stored orders.
      then: the file's reason for the missing next order; "" if it has none.
      is_left_out: the next order exists in Python and was not stored.
    """

    orders: int
    then: str
    is_left_out: bool = False


@dataclass(frozen=True)
class EntryPoint:
    """Signature, or method of the loaded object.

    Attributes:
      name: the name of the signature, or the path of the method.
      is_signature: whether it is a signature.
      inputs, outputs: the inputs and outputs of a signature; empty for a method.
      modules: maps the numbers of the modules that it runs to the order of differentiation.
      gradient: the stored gradients; None if it runs no module.
    """

    name: str
    is_signature: bool
    inputs: tuple[SignaturePort, ...]
    outputs: tuple[SignaturePort, ...]
    modules: Mapping[int, int]
    gradient: GradientOrders | None


@dataclass(frozen=True)
class CalledModule:
    """XlaCallModule node.

    Attributes:
      number: the number from 0, in the order of the file.
      function: the name of its function, "" for the main graph.
      node: the name of the node.
      module: the bytes of the module.
      calling_convention_version: the attribute `version`.
      platforms: JAX's names of the platforms.
      disabled_checks: the disabled safety checks.
      arguments: the dtypes of the op's arguments.
      results: the declared types of the op's results.
      functions: the TensorFlow functions that the module calls.
      has_tokens: whether tokens order its effects.
      uses_shardy: the attribute `use_shardy_partitioner` of TensorFlow 2.20 and newer.
      stablehlo_version: the StableHLO version of the module; None if unknown.
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
        """Names its location, for people."""
        return f"{self.function}/{self.node}" if self.function else self.node


@dataclass(frozen=True)
class GraphConstant:
    """Constant array in the graph: its node, and its size in the file in bytes."""

    function: str
    node: str
    type: TensorType
    size: int


@dataclass(frozen=True)
class WarmUp:
    """Requests that TensorFlow Serving replays when it loads the model.

    `problem` is the reason why they cannot be counted.
    """

    requests: int
    size: int
    problem: str | None = None


@dataclass(frozen=True)
class SavedModelContents:
    """Contents of a SavedModel.

    Attributes:
      path: the directory.
      graph_size: the size of saved_model.pb in bytes.
      variables_size: the size of the files in variables/ in bytes.
      tensorflow: the TensorFlow version that wrote it, "" if unknown.
      tags: the tags of its graphs.
      entries: the signatures, then the methods that run modules.
      more_entries: the number of others, which were not analysed.
      modules: all XlaCallModule nodes.
      constants: the largest constants of the graph, outside of modules, in descending order.
      constants_size: the size of all constants in bytes.
      variables: the variables of the model.
      assets: the names of the files in assets/.
      warm_up: the warm-up requests; None without such a file.
      sidecar: the contents of assets.extra/jax2tf_bridge.json; empty if it is missing.
      sidecar_problem: the reason why the sidecar cannot be read; None if it can.
      missing_functions: the names of called functions that are missing.
      missing_files: required files that are missing.
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
