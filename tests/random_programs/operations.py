"""The operations that a random program is made of: each adds a step to a Builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.random_programs.building import Builder, RejectedStepError, Value, shape_text
from tests.random_programs.values import kind_of

Operation = Callable[[Builder], Any]

UNARY: dict[str, str] = {
    "jnp.abs": "iufc",
    "jnp.negative": "iufc",
    "jnp.sign": "iufc",
    "jnp.square": "iufc",
    "jnp.sqrt": "fc",
    "lax.rsqrt": "fc",
    "lax.cbrt": "f",
    "jnp.exp": "fc",
    "jnp.exp2": "f",
    "jnp.expm1": "fc",
    "jnp.log": "fc",
    "jnp.log1p": "fc",
    "jnp.log2": "f",
    "jnp.sin": "fc",
    "jnp.cos": "fc",
    "jnp.tan": "fc",
    "jnp.tanh": "fc",
    "jnp.sinh": "fc",
    "jnp.cosh": "fc",
    "jnp.arcsin": "f",
    "jnp.arccos": "f",
    "jnp.arctan": "f",
    "jnp.arcsinh": "f",
    "jnp.arccosh": "f",
    "jnp.arctanh": "f",
    "jnp.floor": "f",
    "jnp.ceil": "f",
    "jnp.round": "fc",
    "jnp.rint": "f",
    "jnp.trunc": "f",
    "lax.erf": "f",
    "lax.erfc": "f",
    "lax.erf_inv": "f",
    "lax.lgamma": "f",
    "lax.digamma": "f",
    "lax.logistic": "fc",
    "jax.nn.relu": "iuf",
    "jax.nn.gelu": "f",
    "jax.nn.softplus": "f",
    "jax.nn.silu": "f",
    "jax.nn.elu": "f",
    "jax.nn.hard_swish": "f",
    "jax.nn.log_sigmoid": "f",
    "jax.nn.relu6": "f",
    "jnp.isnan": "fc",
    "jnp.isinf": "f",
    "jnp.isfinite": "fc",
    "jnp.signbit": "f",
    "jnp.reciprocal": "f",
    "jnp.conj": "iufc",
    "jnp.real": "fc",
    "jnp.imag": "fc",
    "jnp.angle": "fc",
    "jnp.logical_not": "biuf",
    "jnp.invert": "biu",
    "lax.population_count": "iu",
    "lax.clz": "iu",
    "jnp.nan_to_num": "f",
    "jnp.sinc": "f",
    "jnp.deg2rad": "f",
    "jnp.frexp": "f",
    "jnp.modf": "f",
    "lax.is_finite": "f",
    "lax.bessel_i0e": "f",
    "lax.bessel_i1e": "f",
    "jax.scipy.special.logit": "f",
    "jax.scipy.special.entr": "f",
    "jax.scipy.special.ndtr": "f",
    "jax.scipy.special.log_ndtr": "f",
}

BINARY: dict[str, str] = {
    "jnp.add": "biufc",
    "jnp.subtract": "iufc",
    "jnp.multiply": "biufc",
    "jnp.divide": "biufc",
    "jnp.floor_divide": "iuf",
    "jnp.remainder": "iuf",
    "jnp.fmod": "iuf",
    "jnp.divmod": "iuf",
    "lax.div": "iufc",
    "lax.rem": "iuf",
    "jnp.power": "iufc",
    "jnp.float_power": "if",
    "jnp.maximum": "biuf",
    "jnp.minimum": "biuf",
    "jnp.fmax": "iuf",
    "jnp.fmin": "iuf",
    "jnp.arctan2": "f",
    "jnp.hypot": "f",
    "jnp.copysign": "f",
    "jnp.nextafter": "f",
    "jnp.logaddexp": "f",
    "jnp.logaddexp2": "f",
    "jnp.heaviside": "f",
    "jnp.equal": "biufc",
    "jnp.not_equal": "biufc",
    "jnp.less": "biuf",
    "jnp.less_equal": "biuf",
    "jnp.greater": "biuf",
    "jnp.greater_equal": "biuf",
    "jnp.logical_and": "biuf",
    "jnp.logical_or": "biuf",
    "jnp.logical_xor": "biuf",
    "jnp.bitwise_and": "biu",
    "jnp.bitwise_or": "biu",
    "jnp.bitwise_xor": "biu",
    "jnp.left_shift": "iu",
    "jnp.right_shift": "iu",
    "lax.shift_left": "iu",
    "lax.shift_right_logical": "iu",
    "lax.shift_right_arithmetic": "iu",
    "jax.scipy.special.xlogy": "f",
    "jax.scipy.special.xlog1py": "f",
    "lax.igamma": "f",
    "lax.igammac": "f",
    "lax.complex": "f",
    "lax.atan2": "f",
    "jnp.isclose": "f",
}

REDUCTIONS: dict[str, str] = {
    "jnp.sum": "biufc",
    "jnp.prod": "biufc",
    "jnp.max": "biuf",
    "jnp.min": "biuf",
    "jnp.mean": "biufc",
    "jnp.var": "fc",
    "jnp.std": "f",
    "jnp.any": "biuf",
    "jnp.all": "biuf",
    "jnp.ptp": "iuf",
    "jnp.count_nonzero": "biuf",
    "jnp.nansum": "f",
    "jnp.nanmax": "f",
    "jnp.nanmean": "f",
    "jnp.median": "f",
    "jnp.linalg.norm": "f",
    "jax.nn.logsumexp": "f",
}

ALONG_AXIS: dict[str, str] = {
    "jnp.argmax": "biuf",
    "jnp.argmin": "biuf",
    "jnp.nanargmax": "f",
    "jnp.cumsum": "biufc",
    "jnp.cumprod": "iufc",
    "lax.cummax": "iuf",
    "lax.cummin": "iuf",
    "lax.cumlogsumexp": "f",
    "lax.cumsum": "iufc",
    "jnp.sort": "biuf",
    "jnp.argsort": "biuf",
    "jax.nn.softmax": "f",
    "jax.nn.log_softmax": "f",
    "jax.nn.standardize": "f",
    "jnp.diff": "iuf",
    "jnp.flip": "biufc",
    "jnp.nancumsum": "f",
}

SEGMENTS = ("jax.ops.segment_sum", "jax.ops.segment_max", "jax.ops.segment_min")


def unary(b: Builder) -> Any:
    """Adds f(x)."""
    name = b.choose([n for n, kinds in UNARY.items() if kinds])
    b.add(f"{name}({b.value(UNARY[name]).name})", name)


def integer_power(b: Builder) -> Any:
    """Adds a power with a known exponent."""
    v = b.value("iufc")
    exponents = ["0", "1", "2", "3", "7"] + ([] if v.kind in "iu" else ["-1", "-2", "0.5", "-0.5"])
    b.add(f"{v.name} ** {b.choose(exponents)}", "**")


def binary(b: Builder) -> Any:
    """Adds f(x, y), also of two dtypes and of shapes that are broadcast."""
    name = b.choose([n for n, kinds in BINARY.items() if kinds])
    kinds = BINARY[name]
    x = b.value(kinds)
    y = b.like(x)
    if name.startswith("jnp.") and b.flag(3):
        y = b.value(kinds, where=lambda v: _broadcasts(v, x))
    elif b.flag(6):
        constant = _constant(b, x.dtype)
        names = b.choose([(x.name, constant), (constant, x.name)])
        return b.add(f"{name}({names[0]}, {names[1]})", name)
    return b.add(f"{name}({x.name}, {y.name})", name)


def _broadcasts(v: Value, x: Value) -> bool:
    pairs = zip(v.shape[::-1], x.shape[::-1], strict=False)
    return all(a == c or 1 in (a, c) for a, c in pairs)


def _constant(b: Builder, dtype: str) -> str:
    kind = kind_of(dtype)
    if kind == "b":
        number = b.choose(["True", "False"])
    elif kind in "iu":
        number = b.choose(["0", "1", "2", "3", "7"] + (["-1", "-2"] if kind == "i" else []))
    else:
        number = b.choose(["0.", "1.", "-0.", "2.", "-1.5", "0.5"])
        if b.flag(4):
            number = b.choose(["jnp.nan", "jnp.inf", "-jnp.inf"])
    return f"jnp.asarray({number}, '{dtype}')"


def convert(b: Builder) -> Any:
    """Adds a conversion between dtypes."""
    v = b.value()
    to = b.dtype()
    if v.kind == "c" and kind_of(to) != "c":
        return b.add(f"jnp.real({v.name}).astype('{to}')", f"{v.dtype}->{to}")
    return b.add(f"{v.name}.astype('{to}')", f"{v.dtype}->{to}")


def bitcast(b: Builder) -> Any:
    """Adds a conversion of bits, between floats and integers."""
    v = b.value("iuf")
    to = b.dtype("iuf")
    b.add(f"lax.bitcast_convert_type({v.name}, '{to}')", f"bitcast {v.dtype}->{to}")


def where(b: Builder) -> Any:
    """Adds a select."""
    x = b.value()
    y = b.like(x)
    c = b.like(x, dtype="bool")
    y_text = _constant(b, x.dtype) if b.flag(4) else y.name
    b.add(f"jnp.where({c.name}, {x.name}, {y_text})", "jnp.where")


def select_n(b: Builder) -> Any:
    """Adds a select between three."""
    x = b.value()
    y, z = b.like(x), b.like(x)
    w = b.value("i", rank=(x.rank, x.rank), where=lambda v: v.shape == x.shape)
    if w.dtype != "int32":
        raise RejectedStepError("select_n takes int32")
    index = f"jnp.clip({w.name}, 0, 2)"
    b.add(f"lax.select_n({index}, {x.name}, {y.name}, {z.name})", "lax.select_n")


def clamp(b: Builder) -> Any:
    """Adds a clip between values."""
    x = b.value("iuf")
    if b.flag():
        low, high = b.like(x), b.like(x)
        b.add(f"lax.clamp({low.name}, {x.name}, {high.name})", "lax.clamp")
    else:
        low_text, high_text = _constant(b, x.dtype), _constant(b, x.dtype)
        b.add(f"jnp.clip({x.name}, {low_text}, {high_text})", "jnp.clip")


def reduction(b: Builder) -> Any:
    """Adds a reduction over some axes."""
    name = b.choose(list(REDUCTIONS))
    v = b.value(REDUCTIONS[name], rank=(1, 4))
    axes = sorted({b.axis(v) for _ in range(b.integer(1, 2))})
    if name in ("jnp.median",):
        axes = axes[:1]
    text = "None" if b.flag(5) and name != "jnp.linalg.norm" else str(tuple(axes))
    if name == "jnp.median":
        text = str(axes[0])
    extra = ""
    if b.flag(4) and name not in ("jnp.ptp", "jnp.count_nonzero"):
        extra = ", keepdims=True"
    elif b.flag(4) and name in ("jnp.sum", "jnp.prod", "jnp.any"):
        mask = b.like(v, dtype="bool")
        extra = f", where={mask.name}"
    b.add(f"{name}({v.name}, axis={text}{extra})", name)


def along_axis(b: Builder) -> Any:
    """Adds an operation along an axis: sorts, cumulative ones, arg-reductions, softmax."""
    name = b.choose(list(ALONG_AXIS))
    v = b.value(ALONG_AXIS[name], rank=(1, 4))
    extra = ", reverse=True" if name.startswith("lax.cum") and b.flag() else ""
    if name in ("jnp.sort", "jnp.argsort") and b.flag(3):
        extra = ", descending=True"
    b.add(f"{name}({v.name}, axis={b.axis(v)}{extra})", name)


def top_k(b: Builder) -> Any:
    """Adds a top-k."""
    v = b.value("iuf", rank=(1, 3), where=lambda v: bool(v.fixed_axes()))
    axis = b.axis(v, fixed=True)
    size = v.shape[axis]
    k = b.integer(min(1, size), size)
    b.add(f"lax.top_k(jnp.moveaxis({v.name}, {axis}, -1), {k})", "lax.top_k")


def sort_pairs(b: Builder) -> Any:
    """Adds a sort of several arrays."""
    v = b.value("biuf", rank=(1, 3))
    w = b.like(v)
    axis, keys = b.axis(v), b.integer(1, 2)
    arguments = f"({v.name}, {w.name}), dimension={axis}, num_keys={keys}"
    b.add(f"lax.sort({arguments})", "lax.sort")


def searchsorted(b: Builder) -> Any:
    """Adds a search in sorted values."""
    v = b.value("iuf", rank=(1, 1))
    w = b.value("iuf", rank=(0, 2), where=lambda w: w.dtype == v.dtype)
    side = b.choose(["left", "right"])
    b.add(f"jnp.searchsorted(jnp.sort({v.name}), {w.name}, side='{side}')", "jnp.searchsorted")


# Shapes.


def reshape(b: Builder) -> Any:
    """Adds a reshape: axes joined, split or added."""
    v = b.value(rank=(1, 4))
    kind = b.choose(["ravel", "join", "add", "squeeze"])
    sizes = [str(s) for s in v.shape]
    if kind == "ravel":
        return b.add(f"{v.name}.reshape(-1)", "reshape")
    if kind == "join" and v.rank > 1:
        axis = b.integer(0, v.rank - 2)
        sizes[axis : axis + 2] = [f"({sizes[axis]})*({sizes[axis + 1]})"]
        return b.add(f"{v.name}.reshape(({', '.join(sizes)},))", "reshape")
    if kind == "add":
        return b.add(f"jnp.expand_dims({v.name}, {b.integer(0, v.rank)})", "expand_dims")
    ones = [axis for axis, size in enumerate(v.shape) if isinstance(size, int) and size == 1]
    return b.add(f"jnp.squeeze({v.name}, {b.choose(ones)})", "squeeze")


def transpose(b: Builder) -> Any:
    """Adds a transposition."""
    v = b.value(rank=(2, 4))
    order = list(range(v.rank))
    for i in range(v.rank - 1):
        j = b.integer(i, v.rank - 1)
        order[i], order[j] = order[j], order[i]
    b.add(f"jnp.transpose({v.name}, {tuple(order)})", "transpose")


def broadcast(b: Builder) -> Any:
    """Adds a broadcast, a repetition or a tile."""
    v = b.value(rank=(0, 3))
    kind = b.choose(["broadcast_to", "tile", "repeat", "stack", "roll"])
    if kind == "broadcast_to":
        shape = (*b.shape(1), *v.shape)
        return b.add(f"jnp.broadcast_to({v.name}, {shape_text(shape)})", kind)
    if kind == "stack":
        return b.add(f"jnp.stack([{v.name}, {b.like(v).name}], {b.integer(0, v.rank)})", kind)
    if v.rank == 0:
        raise RejectedStepError("needs an axis")
    axis = b.axis(v)
    if kind == "tile":
        reps = tuple(2 if a == axis else 1 for a in range(v.rank))
        return b.add(f"jnp.tile({v.name}, {reps})", kind)
    if kind == "repeat":
        return b.add(f"jnp.repeat({v.name}, 2, axis={axis})", kind)
    return b.add(f"jnp.roll({v.name}, {b.integer(-2, 2)}, axis={axis})", kind)


def concatenate(b: Builder) -> Any:
    """Adds a concatenation."""
    v = b.value(rank=(1, 4))
    axis = b.axis(v)
    fitting = [
        w
        for w in b.values
        if w.dtype == v.dtype
        and w.rank == v.rank
        and all(s == t for a, (s, t) in enumerate(zip(v.shape, w.shape, strict=True)) if a != axis)
    ]
    w = b.choose(fitting)
    b.add(f"jnp.concatenate([{v.name}, {w.name}], axis={axis})", "concatenate")


def pad(b: Builder) -> Any:
    """Adds a padding: negative and interior as well, or by a mode of NumPy."""
    v = b.value(rank=(1, 3))
    if b.flag(3):
        widths = tuple((b.integer(0, 1), b.integer(0, 1)) for _ in v.shape)
        mode = b.choose(["edge", "wrap", "reflect", "symmetric", "constant"])
        return b.add(f"jnp.pad({v.name}, {widths}, mode='{mode}')", f"jnp.pad {mode}")
    widths3 = tuple((b.integer(-1, 2), b.integer(-1, 2), b.integer(0, 1)) for _ in v.shape)
    return b.add(f"lax.pad({v.name}, {_constant(b, v.dtype)}, {widths3})", "lax.pad")


def slices(b: Builder) -> Any:
    """Adds a slice: with steps, backwards, with a dynamic start."""
    v = b.value(rank=(1, 4))
    axis = b.axis(v)
    kind = b.choose(["slice", "backwards", "dynamic", "update", "index", "in_dim"])
    before = ":, " * axis
    if kind == "slice":
        start, step = b.integer(0, 1), b.integer(1, 3)
        return b.add(f"{v.name}[{before}{start}::{step}]", "slice")
    if kind == "backwards":
        return b.add(f"{v.name}[{before}::-{b.integer(1, 2)}]", "slice backwards")
    if kind == "index":
        return b.add(f"{v.name}[{before}{b.integer(-1, 0)}]", "index")
    start_text = _index(b)
    if kind == "dynamic":
        size = b.integer(1, 2)
        arguments = f"{v.name}, {start_text}, {size}, axis={axis}"
        return b.add(f"lax.dynamic_slice_in_dim({arguments})", "dynamic_slice")
    if kind == "in_dim":
        return b.add(f"lax.dynamic_index_in_dim({v.name}, {start_text}, {axis})", "dynamic_index")
    w = f"lax.slice_in_dim({b.like(v).name}, 0, 1, axis={axis})"
    return b.add(
        f"lax.dynamic_update_slice_in_dim({v.name}, {w}, {start_text}, {axis})",
        "dynamic_update_slice",
    )


def _index(b: Builder) -> str:
    """An index that may be out of range: a scalar of the pool, or a number."""
    scalars = [v for v in b.values if v.kind in "iu" and v.rank == 0]
    if scalars and b.flag():
        return b.choose(scalars).name
    vectors = [v for v in b.values if v.kind in "iu" and v.rank == 1 and v.shape[0] != 0]
    if vectors and b.flag():
        return f"jnp.sum({b.choose(vectors).name}, dtype='int32')"
    return f"jnp.asarray({b.integer(-3, 5)}, 'int32')"


# Gathers and scatters.

_MODES = ("fill", "clip", "promise_in_bounds", "wrap")


def _indices(b: Builder, mode: str, size: Any) -> str:
    v = b.value("iu", rank=(0, 2))
    if mode == "promise_in_bounds":
        return f"jnp.clip({v.name}, 0, {size} - 1)"
    return v.name


def gather(b: Builder) -> Any:
    """Adds a gather, in each mode for indices out of range."""
    v = b.value(rank=(1, 3))
    axis = b.axis(v)
    kind = b.choose(["at", "take", "take_along_axis", "pairs"])
    before = ":, " * axis
    mode = b.choose(_MODES)
    if kind == "at":
        index = _indices(b, mode, v.shape[axis])
        if mode == "wrap":
            index = f"({index}).astype('int32')"
            return b.add(f"jnp.take({v.name}, {index}, axis={axis}, mode='wrap')", "take wrap")
        fill = f", fill_value={_constant(b, v.dtype)}" if mode == "fill" and b.flag() else ""
        return b.add(f"{v.name}.at[{before}{index}].get(mode='{mode}'{fill})", f"gather {mode}")
    if kind == "take":
        mode = b.choose(["fill", "clip", "wrap"])
        index = _indices(b, mode, v.shape[axis])
        return b.add(f"jnp.take({v.name}, {index}, axis={axis}, mode='{mode}')", f"take {mode}")
    if kind == "pairs" and v.rank > 1:
        i = b.value("iu", rank=(1, 1))
        return b.add(f"{v.name}[{i.name}, {i.name}]", "gather pairs")
    i = b.like(v, dtype=b.dtype("iu"))
    mode = b.choose(["fill", "clip"])
    arguments = f"{v.name}, {i.name}, axis={axis}, mode='{mode}'"
    return b.add(f"jnp.take_along_axis({arguments})", f"take_along_axis {mode}")


def scatter(b: Builder) -> Any:
    """Adds a scatter. What is set is set once: the order of others is nobody's promise."""
    v = b.value(rank=(1, 3))
    axis = b.axis(v)
    how = b.choose(["set", "add", "multiply", "min", "max", "apply"])
    if v.kind in "bc" and how in ("min", "max"):
        raise RejectedStepError("no order")
    mode = b.choose(["drop", "clip", "promise_in_bounds", None])
    before = ":, " * axis
    size = v.shape[axis]
    if how == "set" or how == "apply":
        index = b.choose(["jnp.arange(0, 6, 2)", "jnp.array([1, 0])", "jnp.arange(-1, 1)"])
        if mode in ("promise_in_bounds", "clip"):
            index = "jnp.asarray(0)" if mode == "promise_in_bounds" else _index(b)
        index = index if b.flag(3) else _index(b)
        if mode == "promise_in_bounds":
            index = f"jnp.clip({index}, 0, {size} - 1)"
            if "arange" in index or "array(" in index:
                index = "0"
    else:
        index = _indices(b, mode or "drop", size)
    keyword = f"mode='{mode}'" if mode else ""
    if how == "apply":
        return b.add(f"{v.name}.at[{before}{index}].apply(jnp.square)", "scatter apply")
    scalar = [w for w in b.values if w.dtype == v.dtype and w.rank == 0]
    update = b.choose(scalar).name if scalar and b.flag() else _constant(b, v.dtype)
    if b.flag(3):
        update = f"lax.slice_in_dim({b.like(v).name}, 0, 1, axis={axis})"
        if index.startswith(("jnp.asarray", "jnp.sum")):
            update = f"jnp.squeeze({update}, {axis})"
    extra = f", {keyword}" if keyword else ""
    return b.add(f"{v.name}.at[{before}{index}].{how}({update}{extra})", f"scatter {how} {mode}")


def segments(b: Builder) -> Any:
    """Adds a reduction over segments."""
    v = b.value("iuf", rank=(1, 2))
    i = b.like(v, dtype="int32", shape=v.shape[:1])
    name = b.choose(SEGMENTS)
    b.add(f"{name}({v.name}, {i.name}, num_segments={b.integer(1, 4)})", name)


# Contractions and windows.


def matmul(b: Builder) -> Any:
    """Adds a matrix product."""
    v = b.value(rank=(1, 3))
    w = b.value(
        "biufc",
        rank=(1, 3),
        where=lambda w: w.dtype == v.dtype and w.shape[max(0, w.rank - 2)] == v.shape[-1],
    )
    b.add(f"jnp.matmul({v.name}, {w.name})", "matmul")


def dot_general(b: Builder) -> Any:
    """Adds a general contraction, with a batch and with a dtype of the result."""
    v = b.value(rank=(1, 4))
    batch = b.axis(v) if v.rank > 1 and b.flag() else None
    rest = [axis for axis in range(v.rank) if axis != batch]
    contracted = b.choose(rest)
    w = b.like(v)
    batches = ((batch,), (batch,)) if batch is not None else ((), ())
    dims = f"((({contracted},), ({contracted},)), {batches})"
    extra = ""
    if b.flag(3):
        extra = f", preferred_element_type='{b.dtype('c' if v.kind == 'c' else 'if')}'"
    b.add(f"lax.dot_general({v.name}, {w.name}, {dims}{extra})", "dot_general")


def einsum(b: Builder) -> Any:
    """Adds an einsum of a value with itself or with another."""
    v = b.value("iufc", rank=(2, 2))
    w = b.like(v)
    text = b.choose(["ij,ij->", "ij,ij->i", "ij,kj->ik", "ij,ik->jk", "ij,il->jil"])
    b.add(f"jnp.einsum('{text}', {v.name}, {w.name})", "einsum")


def outer(b: Builder) -> Any:
    """Adds an outer or Kronecker product."""
    v, w = b.value("iufc", rank=(1, 2)), b.value("iufc", rank=(1, 1))
    b.add(f"{b.choose(['jnp.outer', 'jnp.kron'])}({v.name}, {w.name})", "outer")


def convolution(b: Builder) -> Any:
    """Adds a convolution, with strides, dilations, groups and paddings."""
    rank = b.integer(1, 2)
    batch = b.choose([*b.symbols.values(), 1, 2])
    dtype = b.dtype("fi") if b.flag(4) else b.dtype("f")
    groups = b.choose([1, 1, 2])
    features = groups * b.integer(1, 2)
    spatial = tuple(b.integer(3, 5) for _ in range(rank))
    x = b.like(Value("", dtype, (batch, features, *spatial)))
    window = tuple(b.integer(1, 3) for _ in range(rank))
    k = b.like(Value("", dtype, (groups * b.integer(1, 2), features // groups, *window)))
    ones = (1,) * rank
    stride = tuple(b.integer(1, 2) for _ in range(rank))
    padding = b.choose(["'SAME'", "'VALID'", str([(b.integer(0, 2), b.integer(0, 2))] * rank)])
    lhs = rhs = ones
    if b.flag(3):
        lhs = tuple(b.integer(1, 2) for _ in range(rank))
        padding = str([(1, b.integer(0, 1))] * rank)
    if b.flag(3):
        rhs = tuple(b.integer(1, 2) for _ in range(rank))
    b.add(
        f"lax.conv_general_dilated({x.name}, {k.name}, {stride}, {padding}, "
        f"lhs_dilation={lhs}, rhs_dilation={rhs}, feature_group_count={groups})",
        "convolution",
    )


def window(b: Builder) -> Any:
    """Adds a reduction over windows."""
    v = b.value("iuf", rank=(1, 3))
    how = b.choose(["lax.add", "lax.max", "lax.min", "lax.mul"])
    axis = b.axis(v)
    sizes = tuple(b.integer(1, 2) if a == axis else 1 for a in range(v.rank))
    strides = tuple(b.integer(1, 2) if a == axis else 1 for a in range(v.rank))
    if how in ("lax.add", "lax.mul"):
        initial = f"jnp.asarray({0 if how == 'lax.add' else 1}, '{v.dtype}')"
    elif v.kind == "f":
        initial = f"jnp.asarray({'-' if how == 'lax.max' else ''}jnp.inf, '{v.dtype}')"
    else:
        extreme = "min" if how == "lax.max" else "max"
        initial = f"jnp.asarray(jnp.iinfo('{v.dtype}').{extreme}, '{v.dtype}')"
    padding = b.choose(["'SAME'", "'VALID'"])
    arguments = f"{v.name}, {initial}, {how}, {sizes}, {strides}, {padding}"
    b.add(f"lax.reduce_window({arguments})", f"reduce_window {how}")


# Control flow.

_BODIES: dict[str, tuple[str, ...]] = {
    "b": ("~c", "c ^ x", "c & x", "c | x"),
    "i": ("c + x", "c * x + c", "c - x", "jnp.maximum(c, x)", "c ^ x", "lax.rem(c, x)", "-c"),
    "u": ("c + x", "c * x + c", "c - x", "jnp.minimum(c, x)", "c ^ x", "c >> x"),
    "f": (
        "c + x",
        "c * x",
        "c * 0.5 + x",
        "jnp.tanh(c + x)",
        "jnp.where(x > 0, c, x)",
        "jnp.sin(c) - x",
        "jnp.abs(c - x)",
    ),
    "c": ("c + x", "c * x", "c - jnp.conj(x)"),
}


def scan(b: Builder) -> Any:
    """Adds a scan over an axis, forwards or backwards."""
    v = b.value(rank=(1, 3))
    body = b.choose(_BODIES[v.kind])
    result = b.choose(["c", "x", "c + x", "c * x"])
    reverse = b.flag(3)
    b.add(
        f"lax.scan(lambda c, x: (({body}).astype(c.dtype), {result}), {v.name}[-1], {v.name}, "
        f"reverse={reverse})",
        "scan",
    )


def while_loop(b: Builder) -> Any:
    """Adds a while loop whose number of turns may depend on values."""
    v = b.value()
    body = b.choose(_BODIES[v.kind])
    turns = b.choose(["i < 3", "i < 0", "(i < 4) & jnp.any(c == c)"])
    if v.kind in "iuf" and b.flag():
        turns = "(i < 5) & (jnp.sum(jnp.abs(c)) < 50)"
    b.add(
        f"lax.while_loop(lambda s: (lambda i, c: {turns})(*s), "
        f"lambda s: (lambda i, c, x: (i + 1, ({body}).astype(c.dtype)))(*s, {v.name}), "
        f"(0, {v.name}))",
        "while_loop",
    )


def fori_loop(b: Builder) -> Any:
    """Adds a loop over an open number of turns."""
    v = b.value(where=lambda v: v.kind in "iuf")
    body = b.choose(_BODIES[v.kind])
    turns = b.choose([*b.symbols, "2"])
    b.add(
        f"lax.fori_loop(0, {turns}, lambda i, c: (lambda x: ({body}).astype(c.dtype))({v.name}), "
        f"{v.name})",
        "fori_loop",
    )


def cond(b: Builder) -> Any:
    """Adds a choice between branches."""
    v = b.value()
    w = b.like(v)
    bodies = [f"lambda c, x: ({b.choose(_BODIES[v.kind])}).astype(c.dtype)" for _ in range(3)]
    scalars = [s for s in b.values if s.rank == 0 and s.kind in "bi"]
    if scalars and b.flag():
        predicate = b.choose(scalars)
        index = predicate.name + (" > 0" if predicate.kind == "i" else "")
    else:
        index = f"jnp.any({b.value('biuf').name} > 0)"
    if b.flag():
        b.add(
            f"lax.cond({index}, {bodies[0]}, {bodies[1]}, {v.name}, {w.name})",
            "cond",
        )
    else:
        number = f"jnp.asarray({index}, 'int32') * 2 - {b.integer(0, 1)}"
        b.add(
            f"lax.switch({number}, [{', '.join(bodies)}], {v.name}, {w.name})",
            "switch",
        )


def vmapped(b: Builder) -> Any:
    """Adds a vmap of a small function."""
    v = b.value("iufc", rank=(1, 3))
    w = b.like(v)
    body = b.choose(_BODIES[v.kind])
    inner = b.choose([body, f"lax.cond(jnp.sum(c) == jnp.sum(x), lambda: c, lambda: {body})"])
    b.add(
        f"jax.vmap(lambda c, x: ({inner}).astype(c.dtype))({v.name}, {w.name})",
        "vmap",
    )


def gradient(b: Builder) -> Any:
    """Adds a gradient of a sum."""
    v = b.value("f")
    name = b.choose(
        ["jnp.sin", "jnp.tanh", "jax.nn.gelu", "jax.nn.softplus", "jnp.square", "jnp.log1p"]
    )
    b.add(f"jax.grad(lambda c: jnp.sum({name}(c)))({v.name})", f"grad {name}")


def random_bits(b: Builder) -> Any:
    """Adds random numbers of a key that depends on a value."""
    shape = shape_text(b.shape(b.integer(0, 2)))
    seeds = [v for v in b.values if v.kind in "iu" and v.rank == 0]
    seed = f"{b.choose(seeds).name}" if seeds and b.flag() else str(b.integer(0, 9))
    key = f"jax.random.key({seed})"
    draws = {
        "bits": f"jax.random.bits({key}, {shape}, '{b.choose(['uint8', 'uint16', 'uint32'])}')",
        "uniform": f"jax.random.uniform({key}, {shape}, '{b.dtype('f')}')",
        "normal": f"jax.random.normal({key}, {shape}, '{b.dtype('f')}')",
        "randint": f"jax.random.randint({key}, {shape}, -5, 100)",
        "bernoulli": f"jax.random.bernoulli({key}, 0.3, {shape})",
        "permutation": f"jax.random.permutation({key}, 5)",
        "gumbel": f"jax.random.gumbel({key}, {shape})",
        "categorical": f"jax.random.categorical({key}, jnp.arange(4.), shape={shape})",
    }
    name = b.choose(list(draws))
    b.add(draws[name], f"random {name}")


def from_sizes(b: Builder) -> Any:
    """Adds values that follow from shapes: iota, sizes as numbers, masks, triangles."""
    v = b.value(rank=(1, 3))
    axis = b.axis(v)
    size = f"{v.name}.shape[{axis}]"
    kind = b.choose(["arange", "size", "eye", "tri", "iota", "mean", "linspace", "mask"])
    dtype = b.dtype("iuf")
    texts = {
        "arange": f"jnp.arange({size}, dtype='{dtype}')",
        "size": f"jnp.asarray({size}, '{dtype}') * 3",
        "eye": f"jnp.eye({size}, dtype='{dtype}')",
        "tri": f"jnp.tril(jnp.ones(({size}, {size}), '{dtype}'), {b.integer(-1, 1)})",
        "iota": f"lax.broadcasted_iota('{dtype}', {v.name}.shape, {axis})",
        "mean": f"jnp.sum({v.name}, {axis}) / {size}",
        "linspace": f"jnp.linspace(0., 1., {b.integer(1, 5)})",
        "mask": f"jnp.where(jnp.arange({size}) < {size} - 1, 1, 0)",
    }
    b.add(texts[kind], f"sizes {kind}")


OPERATIONS: tuple[tuple[int, Operation], ...] = (
    (8, unary),
    (8, binary),
    (1, integer_power),
    (5, convert),
    (1, bitcast),
    (3, where),
    (1, select_n),
    (2, clamp),
    (5, reduction),
    (5, along_axis),
    (1, top_k),
    (1, sort_pairs),
    (1, searchsorted),
    (3, reshape),
    (2, transpose),
    (3, broadcast),
    (2, concatenate),
    (3, pad),
    (4, slices),
    (3, gather),
    (3, scatter),
    (1, segments),
    (2, matmul),
    (2, dot_general),
    (1, einsum),
    (1, outer),
    (2, convolution),
    (2, window),
    (2, scan),
    (1, while_loop),
    (1, fori_loop),
    (2, cond),
    (1, vmapped),
    (1, gradient),
    (1, random_bits),
    (2, from_sizes),
)
"""Weights and operations."""
