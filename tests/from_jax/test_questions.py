"""Reading questions about sizes from the messages of JAX and of libraries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Private: JAX's messages of other releases can only be read here.
from jax2tf_bridge.from_jax.shapes._questions import Question, read_question

VARIABLES = frozenset("abcdhw")

# Messages of JAX 0.8 to 0.12, each with the options for an answer; an option is comparisons.
MESSAGES = [
    ("Symbolic dimension comparison 'b' < '5' is inconclusive.\nThis", [["b < 5"], ["b >= 5"]]),
    (
        "In slice with non-constant elements the start (- floordiv(b, 2)) must be resolved "
        "statically if it is >= 0.\nDetails: Symbolic dimension comparison '- floordiv(b, 2)' >= "
        "'0' is inconclusive.",
        [["- floordiv(b, 2) >= 0"], ["- floordiv(b, 2) < 0"]],
    ),
    (
        "Cannot divide evenly the sizes of shapes (b, 5, 7) and (2, -1). The remainder "
        "mod(35*b, - 2) should be 0.",
        [["mod(35*b, - 2) == 0"]],
    ),
    (
        "array split does not result in an equal division: rest is mod(b, 2)",
        [["mod(b, 2) == 0"]],
    ),
    (
        "Possible division by 0 in division by - 4*floordiv(h, 4)",
        [["- 4*floordiv(h, 4) >= 1"], ["- 4*floordiv(h, 4) <= -1"]],
    ),
    ("add got incompatible shapes for broadcasting: (a, 3), (b, 3).", [["a == b"]]),
    ("add got incompatible shapes for broadcasting: (a, 1, h), (b, 3, w).", [["h == w", "a == b"]]),
    ("Incompatible shapes for broadcasting: shapes=[(a, 3), (3,), (b, 3)]", [["a == b"]]),
    ("select cases must have the same shapes, got [(b, 3), (a, 3)].", [["b == a"]]),
    ("All input arrays must have the same shape. Got (a,), (b,), (c,).", [["a == b", "b == c"]]),
    (
        "dot_general requires contracting dimensions to have the same shape, got (b,) and (c,).",
        [["b == c"]],
    ),
    (
        "Incompatible types for matmul arguments: float32[a,5,8] and float32[b,8,7]",
        [["a == b"]],
    ),
    (
        "Cannot concatenate arrays with shapes that differ in dimensions other than the one being "
        "concatenated: concatenating along dimension 1 for shapes (a, c), (b, d).",
        [["a == b"]],
    ),
    (
        "cond branches must have equal output types but they differ.\n\ntrue_fun is f at x.py:21"
        "\n\n"
        "The output of true_fun has type float32[floordiv(b + 1, 2)] but the corresponding output "
        "of false_fun has type float32[floordiv(b, 2)], so the shapes do not match.",
        [["floordiv(b + 1, 2) == floordiv(b, 2)"]],
    ),
    ("scan got values with different leading axis sizes: a, b.", [["a == b"]]),
    (
        "vmap got inconsistent sizes for array axes to be mapped:\n  * one axis had size a: axis 0 "
        "of argument x of type float32[a,3];\n  * one axis had size b: axis 0 of argument y",
        [["a == b"]],
    ),
    (
        "vmap got inconsistent sizes for array axes to be mapped:\n  * most axes (2 of them) had "
        "size a, e.g. axis 0 of argument x;\n  * one axis had size 2*b: axis 0 of argument y",
        [["a == 2*b"]],
    ),
    (
        "Incompatible reduction dimensions: lhs.shape=(c, d) lhs_names=jk rhs.shape=(a, b) "
        "rhs_names=ij",
        [["c == b"]],
    ),
    (
        "Incompatible types for broadcasting: input type=float32[b] and requested "
        "type=float32[min(a, b)]",
        [["b == min(a, b)"]],
    ),
    ("Incompatible shapes for broadcasting: (a,) and requested shape (4,)", [["a == 4"]]),
    (
        "cannot select an axis to squeeze out which has size not equal to one, got shape=(b, 3) "
        "and dimensions=(0,)",
        [["b == 1"]],
    ),
    (
        "conv_general_dilated lhs feature dimension size divided by feature_group_count must equal "
        "the rhs input feature dimension size, but c // 1 != 3.",
        [["c == 3"]],
    ),
    (
        "conv_general_dilated feature_group_count must divide lhs feature dimension size, but 2 "
        "does not divide c.",
        [["mod(c, 2) == 0"]],
    ),
    (
        "One of pjit arguments with pytree key path x was given the sharding NamedSharding(mesh="
        "Mesh('x': 2)) implies that array axis 0 is partitioned 2 times, but the dimension size is "
        "b (full shape: (b, 8), per-dimension tiling factors: (2, 1) should evenly divide it)",
        [["mod(b, 2) == 0"]],
    ),
]


def shown(question: Question | None) -> list[list[str]] | None:
    return [[str(c) for c in option] for option in question.options] if question else None


@pytest.mark.parametrize(("message", "options"), MESSAGES, ids=[m[:40] for m, _ in MESSAGES])
def test_reads_what_jax_says(message: str, options: list[list[str]]) -> None:
    assert shown(read_question(ValueError(message), VARIABLES)) == options


def test_padding_that_must_be_a_number() -> None:
    message = (
        "padding argument to conv_general_dilated should be a string or a sequence of (low, high) "
        "pairs, got [(np.int64(2), - max(h - 2, 0) + h), (1, 1)]"
    )
    question = read_question(TypeError(message), VARIABLES)
    assert question is not None
    assert question.options == ()
    assert list(map(str, question.constants)) == ["h - max(h - 2, 0)"]


@pytest.mark.parametrize(
    "message",
    [
        "",
        "shapes (3, 4) and (5, 4) differ",
        # Not about our variables.
        "add got incompatible shapes for broadcasting: (x,), (y,).",
        "f(a, b) and g(b, a) are calls, not shapes",
        # Two numbers differ: the sizes are not the matter.
        "add got incompatible shapes for broadcasting: (a, 8), (b, 4).",
        "Number of groups (4) does not divide the number of channels (c).",
        "the one shape (a, b) alone",
        "unbalanced (a, b",
        "((((((" * 500,
    ],
)
def test_leaves_other_messages_alone(message: str) -> None:
    assert read_question(ValueError(message), VARIABLES) is None


def test_looks_at_causes() -> None:
    try:
        try:
            raise ValueError("Symbolic dimension comparison 'b' >= '4' is inconclusive.")
        except ValueError as e:
            raise RuntimeError("a library's words") from e
    except RuntimeError as e:
        question = read_question(e, VARIABLES)
    assert shown(question) == [["b >= 4"], ["b < 4"]]


@given(st.text(alphabet="(),[]ab13+-* float32'>=<!shapes\n", max_size=200))
def test_survives_any_text(text: str) -> None:
    for start in ("", "Symbolic dimension comparison '", "for matmul arguments: ", "got shape="):
        question = read_question(ValueError(start + text), VARIABLES)
        assert question is None or question.options or question.constants
