"""Checks that the file format of jax.export can hold a function, before it is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jax2tf_bridge._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.bytecode import read_main_types
from jax2tf_bridge.errors import FileFormatError, SerializationError, format_bullets
from jax2tf_bridge.portable import (
    Comparisons,
    DisabledSafetyCheck,
    PortableFunction,
    TreeSpec,
    drop_own_checks,
    function_problem,
)
from jax2tf_bridge.serialization._flatbuffer import MAX_DEPTH
from jax2tf_bridge.serialization._stored_types import format_registration_call, serialize_node_type
from jax2tf_bridge.serialization.jax_exported._schema import DTYPES

# The ends of the types of tensors of narrow integers, as MLIR prints them.
_NARROW_TYPE_ENDS = tuple(f"{before}{ELEMENT_TYPES[name]}>" for name in WIDENED for before in "x<")
_MAX_USHORT = 2**16 - 1
_MAX_UINT = 2**32 - 1
_MIN_CONVENTION = 8
# The root table and its VJPs add to the depth of the file.
_MAX_TREE_DEPTH = MAX_DEPTH - 20


@dataclass(frozen=True)
class WritableFunction:
    """Portable function that the format can hold, with the serialized names of its nodes.

    Attributes:
      portable: the function.
      in_tree: the structure of its arguments, with serialized names.
      out_tree: the structure of its results, with serialized names.
      needs_jax: the reason why JAX must rewrite the module first; "" if that is not needed.
    """

    portable: PortableFunction
    in_tree: TreeSpec
    out_tree: TreeSpec
    needs_jax: str


def check_writable(portable: PortableFunction) -> WritableFunction:
    """Checks that the format can hold a function, and adds the serialized names of its types.

    Raises:
      SerializationError: the format cannot hold it; the message lists every reason.
    """
    problems: list[str] = []
    in_tree = _add_serialized_names(portable.in_tree, "the arguments", 1, problems)
    out_tree = _add_serialized_names(portable.out_tree, "the results", 1, problems)
    if any(_is_too_deep(tree, 1) for tree in (portable.in_tree, portable.out_tree)):
        raise _make_refusal_error(portable, problems)  # the other checks would recurse too deeply
    leaves = portable.in_tree.leaf_count, portable.out_tree.leaf_count
    problem = function_problem(portable, *leaves, Comparisons())
    if problem is not None:
        raise _make_refusal_error(portable, [*problems, f"its parts disagree: {problem}"])
    arrays = [(port.path, port.aval) for port in portable.inputs]
    arrays += [(f"result {i}", aval) for i, aval in enumerate(portable.out_avals)]
    problems += [
        f"{path} is {aval.dtype}, a dtype that JAX's format lacks: convert it inside the "
        "function, or write a .jaxfn file"
        for path, aval in arrays
        if aval.dtype not in DTYPES
    ]
    if portable.module.kept_arguments and portable.module.kept_arguments[-1] > _MAX_USHORT:
        problems.append(
            f"argument {portable.module.kept_arguments[-1]} is used, and the format counts "
            f"arguments in 16 bits, up to {_MAX_USHORT}: join arrays, or write a .jaxfn file"
        )
    problems += [
        f"the captured array {constant.name or constant.digest} ({constant.aval}) is missing: it "
        "was written with arrays=False. Read a file that has its arrays"
        for constant in portable.lifted_constants
        if constant.data is None
    ]
    if portable.graph_functions:
        names = ", ".join(dict.fromkeys(function.name for function in portable.graph_functions))
        problems.append(
            f"it calls TensorFlow graphs ({names}), which JAX cannot run: export it with call_tf "
            "without call_tf_graph, or write a .jaxfn file"
        )
    if portable.module.calling_convention_version < _MIN_CONVENTION:
        problems.append(
            f"its calling convention is {portable.module.calling_convention_version}, and JAX "
            f"supports {_MIN_CONVENTION} and later"
        )
    if portable.module.calling_convention_version > _MAX_USHORT:
        problems.append(
            f"its calling convention is {portable.module.calling_convention_version}, and the "
            f"format holds up to {_MAX_USHORT}"
        )
    problems += [
        f"the effect {name} has only the name of its class, and JAX needs that of its module, too"
        for name in (*portable.ordered_effects, *portable.unordered_effects)
        if name.isidentifier()
    ]
    problems += [
        f"the disabled safety check {str(check)!r} is unknown to the format"
        for check in drop_own_checks(portable.module.disabled_checks)
        if check != DisabledSafetyCheck.platform() and check.is_custom_call() is None
    ]
    shardings = dict.fromkeys((*portable.in_shardings, *portable.out_shardings))
    for mesh in dict.fromkeys(s.mesh for s in shardings if s is not None and s.mesh is not None):
        if any(not 0 < size <= _MAX_UINT for size in mesh.axis_sizes):
            problems.append(f"the mesh {mesh} has a size that is not from 1 to {_MAX_UINT}")
    if not 0 < portable.module.nr_devices <= _MAX_UINT:
        problems.append(f"{portable.module.nr_devices} devices are not from 1 to {_MAX_UINT}")
    if problems:
        raise _make_refusal_error(portable, problems)
    return WritableFunction(portable, in_tree, out_tree, _describe_needed_rewrites(portable))


def _make_refusal_error(portable: PortableFunction, problems: list[str]) -> SerializationError:
    return SerializationError(
        f"{portable.name} cannot be written as JAX's exported function:{format_bullets(problems)}"
    )


def _is_too_deep(spec: TreeSpec, depth: int) -> bool:
    return depth > _MAX_TREE_DEPTH or any(_is_too_deep(c, depth + 1) for c in spec.children)


def _is_widened(portable: PortableFunction) -> bool:
    """Returns whether the module takes 4-bit integers widened to 8 bits, as TensorFlow needs."""
    if not any(aval.dtype in WIDENED for aval in (*portable.in_avals, *portable.out_avals)):
        return False
    try:
        inputs, outputs = read_main_types(portable.module.data)
    except FileFormatError:
        # The bridge widens all functions that it exports, and knows the constraints of only these.
        return portable.constraints_known
    return not any(t.endswith(_NARROW_TYPE_ENDS) for t in (*inputs, *outputs))


def _describe_needed_rewrites(portable: PortableFunction) -> str:
    """Returns the reason why JAX must rewrite the module, as a clause; "" if it need not."""
    reasons = []
    if portable.lifted_constants:
        reasons.append(
            f"captured arrays ({len(portable.lifted_constants)}) are stored outside of its module"
        )
    if _is_widened(portable):
        reasons.append("its module takes 4-bit integers as 8-bit ones, for TensorFlow")
    if not portable.target.xla:
        reasons.append("its module has composites, for TensorFlow's own operations")
    return ", and ".join(reasons)


def _add_serialized_names(spec: TreeSpec, path: str, depth: int, problems: list[str]) -> TreeSpec:
    """Returns the structure with the serialized name of each node; appends to `problems`."""
    if spec.kind in ("leaf", "none"):
        return spec
    if depth == _MAX_TREE_DEPTH:
        problems.append(f"{path} are nested more than {_MAX_TREE_DEPTH} deep")
        return spec
    if spec.kind == "dict":
        problems += [
            f"{path} have the key {key!r} of type {type(key).__name__}, and the format has text "
            "as keys only: rename it, or write a .jaxfn file"
            for key in spec.keys
            if not isinstance(key, str)
        ]
    serialization: tuple[str, bytes] | None = None
    if spec.kind in ("namedtuple", "custom"):
        try:
            serialization = serialize_node_type(spec)
        except SerializationError as e:
            problems.append(f"{path}: {e}")
            serialization = spec.name, b""
        if serialization is None:
            problems.append(
                f"{path} have a {spec.name}, which is not registered for files. jax.export "
                f"needs that where they are written and where they are read: "
                f"{format_registration_call(spec)}"
            )
    children = tuple(
        _add_serialized_names(child, path, depth + 1, problems) for child in spec.children
    )
    name, auxdata = serialization or ("", None)
    return replace(spec, children=children, serialized_name=name, auxdata=auxdata)
