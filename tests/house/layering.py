"""Rules of the layout: who may import whom, who may use private names, where state may live."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.house.imports import Import, ImportVisitor, read

FLOORS: tuple[tuple[str, ...], ...] = (
    ("shape_poly", "_version", "_lazy_names", "_utils", "_dtypes", "_operations"),
    ("errors",),
    ("bytecode", "storage"),
    ("targets", "rewriting"),
    ("portable",),
    ("serialization", "comparing", "emitters"),
    ("weights", "saved_model", "from_jax", "to_tensorflow"),
    ("publishing", "signatures"),
    ("serving_requests",),
    ("colocated", "inspecting", "loading", "saving", "calling_tf", "jax_export", "stablehlo"),
    ("parallel", "verifying", "converting", "serve_checking", "scoring"),
    ("frozen_graphs",),
    ("keras", "litert", "to_onnx", "tfjs", "coreml", "compat", "beam", "c_library"),
    ("facade",),
    ("cli",),
)
"""The packages, from the lowest floor up: a package imports from lower floors only, and nothing
beside it. "facade" is jax2tf_bridge itself."""

JAX = frozenset({"jax", "jaxlib", "flax", "optax", "equinox"})
TENSORFLOW = frozenset({"tensorflow", "keras", "tf_keras"})
STANDS_ON: dict[str, frozenset[str]] = {
    **dict.fromkeys(("from_jax", "colocated", "loading", "jax_export"), JAX),
    "parallel": JAX,
    **dict.fromkeys(("to_tensorflow", "saving", "scoring", "beam"), TENSORFLOW),
    **dict.fromkeys(
        (
            "calling_tf",
            "converting",
            "coreml",
            "frozen_graphs",
            "keras",
            "litert",
            "tfjs",
            "verifying",
        ),
        JAX | TENSORFLOW,
    ),
}
"""Requirements of packages: each imports only third parties and packages that need no more."""

_AT_CALLS = frozenset(
    {
        "portable",
        "targets",
        "bytecode",
        "emitters",
        "comparing",
        "storage",
        "serialization",
        "weights",
        "stablehlo",
        "serve_checking",
        "signatures",
        "to_onnx",
        "c_library",
        "facade",
    }
    | {"compat", "cli"}
)
"""Those that import either within functions, so that they can be imported without."""

JAX_SEAM = re.compile(r"jax2tf_bridge\.(from_jax|calling_tf|colocated)\._jax_compat(_\w+)?")
TENSORFLOW_SEAM = re.compile(
    r"jax2tf_bridge\.(targets|to_tensorflow|calling_tf|c_library)\._tf_compat(_\w+)?"
)
JAX_PRIVATE = re.compile(r"(jax(\.\w+)*\._[a-z]\w*|jaxlib)(\.|$)")
TENSORFLOW_PRIVATE = re.compile(
    r"tensorflow\.(python|compiler|core|lite\.python)(\.|$)|tensorflow(\.\w+)*\._[a-z]"
)
# A module's name in a string is a way to import it.
STRING_PRIVATE = re.compile(r"(jax\._src|jaxlib|tensorflow\.(python|compiler))\.\w[\w.]*")


@dataclass(frozen=True)
class Violation:
    """A line that breaks a rule."""

    module: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.module}, line {self.line}: {self.rule}"


def package_of(module: str) -> str:
    """Names the package that a module of ours belongs to, as FLOORS has it."""
    top, *rest = module.split(".")
    if top == "shape_poly":
        return top
    return {"__main__": "cli"}.get(rest[0], rest[0]) if rest else "facade"


def floor_of(package: str) -> int | None:
    """Returns the index of a package's floor; None for what has none."""
    return next((i for i, floor in enumerate(FLOORS) if package in floor), None)


def violations(source: str, module: str, *, is_package: bool = False) -> list[Violation]:
    """Every line of a module's source text that breaks a rule."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    found = read(source, module, is_package=is_package, tree=tree)
    return [
        *_third_parties(found, module),
        *_floors(found, module),
        *_private_modules(found, module),
        *_rooms_of_emitters(found, module),
        *_private_names(nodes, found, module),
        *_private_attributes(nodes, module),
        *_computed_imports(found, module),
        *_state(nodes, tree.body, module),
    ]


def _third_parties(found: ImportVisitor, module: str) -> Iterator[Violation]:
    package = package_of(module)
    for entry in found.imports:
        top = entry.module.split(".")[0]
        if top not in (JAX | TENSORFLOW) - STANDS_ON.get(package, frozenset()):
            continue
        if package not in _AT_CALLS:
            yield Violation(module, entry.line, f"{package} must never import {top}")
        elif not (entry.is_lazy or entry.is_for_types):
            rule = f"{package} must not import {top} at module level"
            yield Violation(module, entry.line, rule)


def _ours(entry: Import) -> bool:
    return entry.module.split(".")[0] in {"jax2tf_bridge", "shape_poly"}


def _imported_package(entry: Import) -> str:
    package = package_of(entry.module)
    if package == "facade" and entry.name is not None and floor_of(entry.name) is not None:
        return entry.name  # from jax2tf_bridge import to_tensorflow: the package, or its function
    return package


def _floors(found: ImportVisitor, module: str) -> Iterator[Violation]:
    own = package_of(module)
    floor = floor_of(own)
    if floor is None:
        yield Violation(module, 1, f"{own} has no floor: give it one in FLOORS")
        return
    for entry in filter(_ours, found.imports):
        other = _imported_package(entry)
        lower = floor_of(other)
        if other == own:
            continue
        if lower is None or lower >= floor:
            rule = f"{own} must not import {other}, which is not on a lower floor"
            yield Violation(module, entry.line, rule)
        elif own not in _AT_CALLS:
            more = STANDS_ON.get(other, frozenset()) - STANDS_ON.get(own, frozenset())
            if more:
                needed = " and ".join(sorted(more & {"jax", "tensorflow"}))
                rule = f"{own} must not import {other}, which needs {needed}"
                yield Violation(module, entry.line, rule)


def _private_modules(found: ImportVisitor, module: str) -> Iterator[Violation]:
    """Yields imports of private modules and names from outside the package that has them."""
    for entry in filter(_ours, found.imports):
        parts = entry.target.split(".")
        owners = [
            ".".join(parts[:i])
            for i, part in enumerate(parts)
            if part.startswith("_") and not part.startswith("__")
        ]
        for owner in owners:
            if module != owner and not module.startswith(f"{owner}."):
                rule = f"{entry.target} is private to {owner}: import from {owner}"
                yield Violation(module, entry.line, rule)


_OPERATIONS = re.compile(r"jax2tf_bridge\.emitters\.operations\b")
_FORMULAS = re.compile(r"jax2tf_bridge\.emitters\.formulas\b")
_BELOW_FORMULAS = re.compile(r"jax2tf_bridge\.emitters\.(_array|_ops|formulas)\b")


def _rooms_of_emitters(found: ImportVisitor, module: str) -> Iterator[Violation]:
    """Operations import the machinery and the formulas; the machinery imports no operation."""
    if package_of(module) != "emitters" or _OPERATIONS.match(module):
        return
    for entry in found.imports:
        target = entry.target
        if _OPERATIONS.match(target) and module != "jax2tf_bridge.emitters._call_operations":
            yield Violation(module, entry.line, f"the machinery must not import {target}")
        is_of_emitters = package_of(target) == "emitters"
        if _FORMULAS.match(module) and is_of_emitters and not _BELOW_FORMULAS.match(target):
            yield Violation(module, entry.line, f"a formula must not import {target}")


def _chain(node: ast.expr, aliases: dict[str, str]) -> str | None:
    """Returns the dotted name of an attribute chain that begins at an imported name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _chain(node.value, aliases)
        return base and f"{base}.{node.attr}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) >= 2:
        name = node.args[1]
        if node.func.id in {"getattr", "hasattr"} and isinstance(name, ast.Constant):
            base = _chain(node.args[0], aliases)
            return base and f"{base}.{name.value!s}"
    return None


def _private_names(
    nodes: Sequence[ast.AST], found: ImportVisitor, module: str
) -> Iterator[Violation]:
    used: list[tuple[str, int]] = [(entry.target, entry.line) for entry in found.imports]
    used += [(entry.prefix, entry.line) for entry in found.dynamic]
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Call):
            used.append((_chain(node, found.aliases) or "", node.lineno))
        if isinstance(node, ast.Constant) and STRING_PRIVATE.fullmatch(str(node.value)):
            used.append((str(node.value), node.lineno))
    seen = set()
    for name, line in used:
        for private, seam, owner in (
            (JAX_PRIVATE, JAX_SEAM, "JAX"),
            (TENSORFLOW_PRIVATE, TENSORFLOW_SEAM, "TensorFlow"),
        ):
            if private.match(name) and not seam.fullmatch(module) and (owner, line) not in seen:
                seen.add((owner, line))
                rule = f"{name} is private to {owner}: only {seam.pattern} may use it"
                yield Violation(module, line, rule)


# Python documents these, in spite of the underscore.
_PUBLIC_ATTRIBUTES = frozenset(
    {"_fields", "_replace", "_asdict", "_make", "_field_defaults", "_value_"}
)


def _private_attributes(nodes: Sequence[ast.AST], module: str) -> Iterator[Violation]:
    """A private attribute of an object may be JAX's or TensorFlow's, so it has to be our own.

    It is when it is spelt self._x, or when this very module gives something that name.
    """
    if JAX_SEAM.fullmatch(module) or TENSORFLOW_SEAM.fullmatch(module):
        return
    own = set(_PUBLIC_ATTRIBUTES)
    read: list[tuple[str, int]] = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute):
            by_self = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
            if isinstance(node.ctx, ast.Store) and by_self:
                own.add(node.attr)
            elif not by_self:
                read.append((node.attr, node.lineno))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_getattr = node.func.id in {"getattr", "hasattr", "setattr"} and len(node.args) > 1
            name = node.args[1] if is_getattr else None
            if isinstance(name, ast.Constant):
                read.append((str(name.value), node.lineno))
    for attribute, line in read:
        is_private = attribute.startswith("_") and not attribute.startswith("__")
        if is_private and attribute not in own:
            rule = f"{attribute} is a private attribute of another's object: use it in a seam"
            yield Violation(module, line, rule)


def _computed_imports(found: ImportVisitor, module: str) -> Iterator[Violation]:
    """Yields imports whose module is computed: the other rules can't see into them."""
    seam = JAX_SEAM.fullmatch(module) or TENSORFLOW_SEAM.fullmatch(module)
    # _private_names looks up what the two seams name to it.
    computed = ("jax2tf_bridge._lazy_names", "jax2tf_bridge._utils._private_names")
    if package_of(module) == "facade" or seam or module in computed:
        return
    for entry in found.dynamic:
        rule = "only the facade and the seams may import a module by a computed name"
        yield Violation(module, entry.line, rule)


_CONTAINERS = frozenset(
    {"dict", "list", "set", "defaultdict", "OrderedDict", "Counter", "deque", "local"}
    | {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet"}
)


def _state(nodes: Sequence[ast.AST], body: Sequence[ast.stmt], module: str) -> Iterator[Violation]:
    """Nothing travels between stages by a global: no container to fill, no name to rebind."""
    for node in nodes:
        if isinstance(node, ast.Global):
            names = ", ".join(node.names)
            yield Violation(module, node.lineno, f"module-level state: global {names}")
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            value = statement.value
            function = value.func if isinstance(value, ast.Call) else None
            name = getattr(function, "attr", getattr(function, "id", None))
            empty_call = name in _CONTAINERS and not getattr(value, "args", ())
            elements = getattr(value, "elts", getattr(value, "keys", None))
            empty_display = isinstance(value, ast.List | ast.Dict) and not elements
            if empty_call or empty_display:
                yield Violation(module, statement.lineno, "module-level state: a container to fill")
