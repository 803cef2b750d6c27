"""Converts JAX's pytrees to stored structures and back; registers tf.Module's wrappers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge._utils import join_names
from jax2tf_bridge.errors import StructureError, format_bullets
from jax2tf_bridge.portable import LEAF, Aval, NodeCodec, PortableFunction, TreeSpec
from jax2tf_bridge.serialization import (
    add_codecs,
    find_from_children,
    find_jax_export_name,
    find_serialized_name,
    format_registration_call,
    has_any_from_children,
    make_treedef,
    prefer_from_children,
    shortest_public_name,
)

_LEAF_DEF = jax.tree_util.tree_structure(0)


def tree_spec(tree: Any) -> TreeSpec:
    """Describes a pytree, including how to rebuild its types."""
    node, children = _describe_node(tree)
    return replace(node, children=tuple(map(tree_spec, children))) if children else node


def _describe_node(tree: Any) -> tuple[TreeSpec, list[Any]]:
    """Describes one node, with leaves as its children; also returns the children."""
    if tree is None:
        return TreeSpec("none"), []
    # Everything below the root counts as a leaf.
    one_level: tuple[list[tuple[Any, Any]], Any] = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree
    )
    keyed, treedef = one_level
    if treedef == _LEAF_DEF:  # treedef_is_leaf also holds for an empty container
        return LEAF, []
    children, leaves = [child for _, child in keyed], (LEAF,) * len(keyed)
    node_type = type(tree)
    if node_type in (tuple, list):
        return TreeSpec("tuple" if node_type is tuple else "list", children=leaves), children
    keys = tuple(_read_key(path[0]) for path, _ in keyed)
    if node_type is dict:
        return TreeSpec("dict", keys=keys, children=leaves), children
    codec = _make_codec(node_type, treedef)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        fields = tuple(tree._fields)
        return TreeSpec("namedtuple", node_type.__name__, fields, leaves, codec), children
    named = keys if all(isinstance(k, str) for k in keys) else ()
    return TreeSpec("custom", node_type.__name__, named, leaves, codec), children


def check_dict_keys(tree: Any, subject: str, owner: str = "") -> None:
    """Checks that JAX can sort the keys of all dicts in a tree that it refused to flatten.

    Args:
      tree: the tree.
      subject: the tree in messages, as "The argument x"; the path within the tree follows.
      owner: the text after the path, as " of f".

    Raises:
      StructureError: keys of a dict have types that cannot be compared, such as int and str.

    >>> check_dict_keys([{1: 0.0, "a": 0.0}], "The argument x", " of f")
    Traceback (most recent call last):
        ...
    jax2tf_bridge.errors.StructureError: The argument x[0] of f is a dict with keys that JAX \
cannot sort: 1 (int), 'a' (str). Write them as strings: '1', 'a'.
    """
    try:
        children, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)
    except (TypeError, ValueError) as e:
        if not isinstance(tree, Mapping):
            raise
        keys = [f"{key!r:.80} ({type(key).__name__})" for key in tree]
        texts = list(dict.fromkeys(map(str, tree)))
        is_plain = len(texts) == len(keys) and all(isinstance(key, (int, str)) for key in tree)
        as_strings = f": {join_names([*map(repr, texts)])}" if is_plain else ""
        raise StructureError(
            f"{subject}{owner} is a dict with keys that JAX cannot sort: {join_names(keys)}. "
            f"Write them as strings{as_strings}."
        ) from e
    for path, child in children:
        if child is not tree:
            check_dict_keys(child, subject + jax.tree_util.keystr(path), owner)


def describe_structure(treedef: Any, leaves: Iterable[Any]) -> TreeSpec:
    """Describes JAX's structure of a tree that does not exist as an object.

    The leaves are arrays or abstract values. Objects of registered types are made with them, to
    find the names of their children; without an object, the children have no names.
    """
    return _describe_and_rebuild(treedef, iter(leaves))[0]


def _describe_and_rebuild(treedef: Any, leaves: Iterator[Any]) -> tuple[TreeSpec, Any]:
    if treedef == _LEAF_DEF:
        return LEAF, next(leaves)
    parts = [_describe_and_rebuild(child, leaves) for child in treedef.children()]
    children, objects = tuple(spec for spec, _ in parts), [value for _, value in parts]
    one_level = _cut_to_one_level(treedef)
    try:
        value = _make_object(one_level, objects)
        node, actual = _describe_node(value)
    except StructureError:
        pass
    else:
        if len(actual) == len(children):
            return replace(node, children=children), value
    node_type = treedef.node_data()[0]
    codec = _make_codec(node_type, one_level)
    return TreeSpec("custom", node_type.__name__, (), children, codec), None


def rebuild_tree(treedef: Any, leaves: Iterable[Any]) -> Any:
    """Makes a tree of JAX's structure with other leaves, which may be abstract.

    This is treedef.unflatten, but with the types' registered from_children.

    Raises:
      StructureError: the constructor of a type refuses its children.
    """
    leaf_list = list(leaves)
    if not has_any_from_children():
        try:
            return treedef.unflatten(leaf_list)
        except Exception:
            pass  # the code below finds the constructor that failed
    return _rebuild(treedef, iter(leaf_list))


def _rebuild(treedef: Any, leaves: Iterator[Any]) -> Any:
    if treedef == _LEAF_DEF:
        return next(leaves)
    children = [_rebuild(child, leaves) for child in treedef.children()]
    return _make_object(_cut_to_one_level(treedef), children)


def _cut_to_one_level(treedef: Any) -> Any:
    node_type, static = treedef.node_data()
    return make_treedef(node_type, static, [_LEAF_DEF] * len(treedef.children()))


def _make_object(one_level: Any, children: Sequence[Any]) -> Any:
    node_type, static = one_level.node_data()
    from_children = find_from_children(node_type)
    try:
        if from_children is not None:
            return from_children(static, children)
        return one_level.unflatten(children)
    except Exception as e:
        how = "from_children refuses" if from_children is not None else "its constructor refuses"
        raise StructureError(
            f"A {shortest_public_name(node_type)} cannot be made of abstract arrays, which have a "
            f"shape and dtype but no values: {how} them with {type(e).__name__}: {e}. "
            f"{_advise_from_children(one_level, children)}"
        ) from e


def _make_codec(node_type: type, treedef: Any) -> NodeCodec:
    static = treedef.node_data()[1]

    def flatten(value: Any) -> Sequence[Any] | None:
        children, own_treedef = jax.tree_util.tree_flatten(value, is_leaf=lambda x: x is not value)
        return children if own_treedef == treedef else None

    return prefer_from_children(NodeCodec(node_type, flatten, treedef.unflatten, static))


def _read_key(entry: Any) -> Any:
    match entry:
        case jax.tree_util.DictKey(key=key):
            return key
        case jax.tree_util.GetAttrKey(name=name):
            return name
        case jax.tree_util.SequenceKey(idx=index):
            return index
    return getattr(entry, "key", str(entry))


_IMPORTING = threading.Lock()


@functools.cache
def register_wrappers(
    list_type: type | None, tuple_type: type | None, dict_type: type | None
) -> None:
    """Registers tf.Module's wrappers of lists, tuples and dicts as pytrees.

    The types are None in a TensorFlow that lacks them. As in jax2tf, lists and tuples are rebuilt
    as plain objects, and dicts as the wrapper.

    jax2tf registers these types when it is imported, and fails if they are registered already. So
    it is imported here first, if this JAX has it.
    """
    can_import_jax2tf()
    if list_type is not None:
        _register(list_type, lambda xs: (tuple(xs), None), lambda _, xs: list(xs))
    if tuple_type is not None:
        _register(tuple_type, lambda xs: (tuple(xs), None), lambda _, xs: tuple(xs))
    if dict_type is not None:
        _register(
            dict_type,
            lambda xs: (tuple(xs.values()), tuple(xs)),
            lambda keys, xs: dict_type(zip(keys, xs, strict=True)),
        )


def _register(
    kind: type, flatten: Callable[[Any], tuple[Any, Any]], unflatten: Callable[[Any, Any], Any]
) -> None:
    with contextlib.suppress(ValueError):  # it is already registered
        jax.tree_util.register_pytree_node(kind, flatten, unflatten)


def can_import_jax2tf() -> bool:
    """Imports jax2tf without its warning; returns whether this JAX has a working jax2tf."""
    with _IMPORTING, warnings.catch_warnings():  # all threads share the filters
        warnings.simplefilter("ignore", DeprecationWarning)
        before = set(sys.modules)
        try:
            importlib.import_module("jax.experimental.jax2tf")
        except Exception:  # of any type, because it may use removed parts of JAX or TensorFlow
            # Python keeps the modules that were imported before the failure.
            for name in {*sys.modules} - before:
                if name.startswith("jax.experimental.jax2tf."):
                    del sys.modules[name]
            return False
    return True


_UNKNOWN = object()


def make_jax_structures(portable: PortableFunction) -> tuple[Any, Any]:
    """Makes JAX's structures of (args, kwargs) and of the result.

    Raises:
      StructureError: a type is unknown in this process, or its children have another order here.
      FileFormatError: a registered type does not fit the stored node.
    """
    known = _find_types(portable)
    return (
        _make_structure(portable, known.in_tree, portable.in_avals, "arguments"),
        _make_structure(portable, known.out_tree, portable.out_avals, "results"),
    )


def _find_types(portable: PortableFunction) -> PortableFunction:
    """Sets the types of tree nodes that have been registered since the file was read.

    Raises:
      StructureError: a type is not registered.
      FileFormatError: a type does not fit the stored node.
    """
    in_tree, out_tree = add_codecs(portable.in_tree), add_codecs(portable.out_tree)
    unknown = [*_iter_unknown(in_tree), *_iter_unknown(out_tree)]
    if unknown:
        names = dict.fromkeys(node.serialized_name or node.name for node in unknown)
        calls = list(dict.fromkeys(map(format_registration_call, unknown)))
        raise StructureError(
            f"The arguments or results of {portable.name} hold types that are not known here: "
            f"{', '.join(names)}. Register them before the call:{format_bullets(calls)}"
        )
    return replace(portable, in_tree=in_tree, out_tree=out_tree)


def _make_structure(
    portable: PortableFunction, spec: TreeSpec, avals: Sequence[Aval], what: str
) -> Any:
    structure = _make_jax_structure(spec, portable.name)
    # Copies, because equal leaves may be one object, and leaves are compared by identity.
    if not _keeps_order(spec, iter([replace(aval) for aval in avals]))[0]:
        raise StructureError(
            f"The {what} of {portable.name} are flattened in another order here than when it was "
            "exported: the fields of a named tuple or the children of a registered type have "
            "another order, or the keys of a dict in the file are not sorted. "
            "Use the definitions of the types that it was exported with."
        )
    return structure


def _make_jax_structure(spec: TreeSpec, name: str) -> Any:
    """Makes JAX's structure without making objects, because constructors may check values."""
    children = [_make_jax_structure(child, name) for child in spec.children]
    match spec.kind:
        case "leaf":
            return _LEAF_DEF
        case "none":
            return jax.tree_util.tree_structure(None)
        case "tuple" | "list":
            return make_treedef(tuple if spec.kind == "tuple" else list, None, children)
        case "dict":
            return make_treedef(dict, list(spec.keys), children)
    codec = spec.codec
    assert codec is not None  # _find_types rejects others
    try:
        return make_treedef(codec.node_type, codec.static, children)
    except RuntimeError as e:
        raise StructureError(
            f"{name} has a {spec.name}, which JAX does not know as a pytree here: register "
            f"{codec.node_type.__qualname__} with jax.tree_util.register_pytree_node before the "
            "call."
        ) from e


def _keeps_order(spec: TreeSpec, leaves: Iterator[Aval]) -> tuple[bool, Any]:
    """Checks that objects flatten to the order of the stored leaves; also returns an object.

    The object is _UNKNOWN if a type rejects abstract values; the order of a custom node is then not
    checked.
    """
    if spec.kind == "leaf":
        return True, next(leaves)
    parts = [_keeps_order(child, leaves) for child in spec.children]
    children = [value for _, value in parts]
    if not all(is_kept for is_kept, _ in parts):
        return False, _UNKNOWN
    if spec.kind == "dict":
        structure: Any = jax.tree_util.tree_structure(dict.fromkeys(spec.keys, 0))
        if structure.node_data()[1] != list(spec.keys):
            return False, _UNKNOWN
    node_type = spec.codec and spec.codec.node_type
    if spec.kind == "namedtuple" and spec.keys != getattr(node_type, "_fields", ()):
        return False, _UNKNOWN
    if any(child is _UNKNOWN for child in children):
        return True, _UNKNOWN
    try:
        value = replace(spec, children=(LEAF,) * len(children)).unflatten(children)
    except Exception:  # the type's own code may fail with abstract values
        return True, _UNKNOWN
    leaves_here, expected = jax.tree_util.tree_leaves(value), jax.tree_util.tree_leaves(children)
    are_same = [a is b for a, b in zip(leaves_here, expected, strict=False)]
    return spec.kind != "custom" or (len(leaves_here) == len(expected) and all(are_same)), value


def _iter_unknown(spec: TreeSpec) -> Iterator[TreeSpec]:
    if spec.kind in ("namedtuple", "custom") and spec.codec is None:
        yield spec
    for child in spec.children:
        yield from _iter_unknown(child)


_MAX_EXAMPLE_BYTES = 2**20


def _advise_from_children(one_level: Any, children: Sequence[Any]) -> str:
    """Returns advice with code to register a type whose objects are made without its constructor.

    `one_level` is JAX's structure of a node of the type, with leaves as children. The constructor
    rejected the `children`.
    """
    node_type, static = one_level.node_data()
    name = shortest_public_name(node_type)
    type_name = _format_name(name)
    function_name = f"make_{node_type.__name__.lower()}"
    values = _find_attributes(one_level, children)
    imports = _format_import(node_type, name)
    code = "" if values is None else _format_function(function_name, type_name, values)
    if find_from_children(node_type) is not None:
        advice = "Let the from_children of its registration check nothing"
        return f"{advice}:\n{imports}{code.rstrip()}" if code else f"{advice}."
    registered, in_jax = (
        find_serialized_name(node_type),
        find_jax_export_name(node_type, static, children),
    )
    for_jax_export = ""
    if registered is None and in_jax is not None:
        for_jax_export = " serialize_auxdata=..., deserialize_auxdata=...,"
    call = (
        f"register_pytree_node_serialization({type_name}, "
        f"serialized_name={registered or in_jax or name!r},{for_jax_export} from_children="
    )
    advice = "Register the type with a from_children that checks nothing"
    if registered or in_jax:
        advice = "Add a from_children that checks nothing to its registration for files"
    if not code:
        return f"{advice}: {call}...)."
    imports += "from jax2tf_bridge import register_pytree_node_serialization\n"
    return f"{advice}:\n{imports}{code}{call}{function_name})"


def _format_name(name: str) -> str:
    """Returns the name of a type in code; only the last part for a local class."""
    shown = name.removeprefix("__main__.").rpartition("<locals>.")[2]
    return shown if all(part.isidentifier() for part in shown.split(".")) else "..."


def _format_import(node_type: type, name: str) -> str:
    module = name.removesuffix(f".{node_type.__qualname__}")
    cannot_import = module == "__main__" or "<locals>" in name or _format_name(name) == "..."
    return "" if cannot_import else f"import {module}\n"


def _format_function(function_name: str, type_name: str, values: dict[str, str]) -> str:
    assigned = ", ".join(f"{name}={value}" for name, value in values.items())
    return (
        f"def {function_name}(static, children):\n"
        f"    instance = object.__new__({type_name})\n"
        f"    vars(instance).update({assigned})\n"
        "    return instance\n"
    )


def _find_attributes(one_level: Any, children: Sequence[Any]) -> dict[str, str] | None:
    """Finds expressions for the attributes of a type's objects from (static, children), by example.

    Returns:
      The expression of each attribute; None unless objects made this way flatten to the children.
    """
    for library in (np, jnp):
        try:
            values = _check_attributes(one_level, children, library)
        except Exception:  # the type's own code may fail with such values
            continue
        if values is not None:
            return values
    return None


def _check_attributes(
    one_level: Any, children: Sequence[Any], library: Any
) -> dict[str, str] | None:
    node_type, static = one_level.node_data()
    examples = [_make_example(library, child) for child in children]
    attributes = dict(vars(one_level.unflatten(examples)))
    values = _find_expressions(attributes, examples, static)
    by_expression = {f"children[{i}]": child for i, child in enumerate(children)}
    instance = object.__new__(node_type)
    vars(instance).update({n: by_expression.get(text, attributes[n]) for n, text in values.items()})
    flattened, structure = jax.tree_util.tree_flatten(instance, is_leaf=lambda x: x is not instance)
    are_same = [a is b for a, b in zip(flattened, children, strict=True)]
    are_names = all(name.isidentifier() for name in values)
    return values if are_names and all(are_same) and structure == one_level else None


def _find_expressions(
    attributes: Mapping[str, Any], children: Sequence[Any], static: Any
) -> dict[str, str]:
    """Expresses attributes by `children` and `static`.

    An example cannot distinguish constants from values that are computed from sizes or static data,
    nor equal static values from each other. So each attribute must have exactly one expression, and
    each static value at most one attribute. None is the only accepted constant.

    Raises:
      ValueError: an attribute has no expression, or several.
    """
    parts = dict(_iter_static_parts(static))
    expressions = {
        name: _find_expression(value, children, parts) for name, value in attributes.items()
    }
    times = Counter(expressions.values())
    ambiguous = [text for text in parts if times[text] > 1]
    if ambiguous:
        raise ValueError(f"{ambiguous[0]} may be one of several attributes")
    return expressions


def _find_expression(value: Any, children: Sequence[Any], parts: Mapping[str, Any]) -> str:
    for i, child in enumerate(children):
        if value is child:
            return f"children[{i}]"
    equal = [text for text, part in parts.items() if _may_be(value, part)]
    if len(equal) == 1 and value is parts[equal[0]]:
        return equal[0]
    if value is None and not equal:
        return "None"
    raise ValueError(f"{value!r} is made by the constructor, or one of {equal}")


def _iter_static_parts(static: Any, text: str = "static") -> Iterator[tuple[str, Any]]:
    """Yields the static data and its parts within containers, each with its expression."""
    yield text, static
    within: Mapping[Any, Any] = {}
    if isinstance(static, (tuple, list)):
        within = dict(enumerate(static))
    elif type(static) is dict:
        within = static
    for key, part in within.items():
        yield from _iter_static_parts(part, f"{text}[{key!r}]")


def _may_be(value: Any, part: Any) -> bool:
    # Equal flags, numbers and texts may be one object, or computed from each other.
    plain = (bool, int, float, str, bytes)
    return value is part or (type(value) in plain and type(part) in plain and value == part)


def _make_example(library: Any, child: Any) -> Any:
    """Makes an array like a child, with size 1 for symbolic dimensions."""
    shape = [d if isinstance(d, int) else 1 for d in getattr(child, "shape", ())]
    if np.prod(shape, dtype=float) > _MAX_EXAMPLE_BYTES:
        shape = [1] * len(shape)
    return library.zeros(shape, getattr(child, "dtype", "float32"))
