"""The interface of a C library: its signatures, arrays, sizes and weights."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import Argument, Message, SavingError
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from shape_poly import Dim, evaluate_shape, shape_text, variables_of

ALIGNMENT = 64
"""Alignment of weights in their file, and size of the file's header, in bytes."""

_C_TYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"bool": "uint8_t", "float32": "float", "float64": "double"},
    **{"float16": "uint16_t", "bfloat16": "uint16_t", "complex64": "float", "complex128": "double"},
}
_KEYWORDS = frozenset(
    {
        *("auto", "bool", "break", "case", "catch", "char", "class", "const", "continue"),
        *("default", "delete", "do", "double", "else", "enum", "extern", "false", "float", "for"),
        *("goto", "if", "inline", "int", "long", "new", "operator", "private", "protected"),
        *("public", "register", "restrict", "return", "short", "signed", "sizeof", "static"),
        *("struct", "switch", "template", "this", "throw", "true", "try", "typedef", "union"),
        *("unsigned", "using", "virtual", "void", "volatile", "while", "and", "or", "not", "xor"),
        *("alignas", "alignof", "and_eq", "asm", "bitand", "bitor", "char16_t", "char32_t"),
        *("compl", "const_cast", "constexpr", "decltype", "dynamic_cast", "explicit", "export"),
        *("friend", "mutable", "namespace", "noexcept", "not_eq", "nullptr", "or_eq"),
        *("reinterpret_cast", "static_assert", "static_cast", "thread_local", "typeid"),
        *("typename", "wchar_t", "xor_eq", "concept", "requires", "co_await", "co_return"),
        *("co_yield", "consteval", "constinit", "char8_t"),
    }
)

_SYSTEM_HEADERS = frozenset(
    {
        *("assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "iso646", "limits"),
        *("locale", "math", "setjmp", "signal", "stdalign", "stdarg", "stdatomic", "stdbit"),
        *("stdbool", "stdckdint", "stddef", "stdint", "stdio", "stdlib", "stdnoreturn", "string"),
        *("tgmath", "threads", "time", "uchar", "wchar", "wctype"),
        # POSIX
        *("aio", "cpio", "dirent", "dlfcn", "fcntl", "fmtmsg", "fnmatch", "ftw", "glob", "grp"),
        *("iconv", "langinfo", "libgen", "monetary", "mqueue", "ndbm", "netdb", "nl_types"),
        *("poll", "pthread", "pwd", "regex", "sched", "search", "semaphore", "spawn", "strings"),
        *("stropts", "syslog", "tar", "termios", "trace", "ulimit", "unistd", "utime", "utmpx"),
        *("wait", "wordexp"),
        # Their headers include these.
        *("alloca", "byteswap", "endian", "features", "getopt", "malloc", "memory", "ucontext"),
    }
)
"""System headers that a header of the library with the same name would hide."""
_BUILD_NAMES = frozenset(
    {
        # Targets of CMake
        *("all", "clean", "depend", "edit_cache", "help", "install", "list_install_components"),
        *("package", "package_source", "rebuild_cache", "test"),
        # Libraries of the system, as linkers name them
        *("anl", "atomic", "c", "crypt", "dl", "gcc", "gcc_s", "gomp", "m", "pthread", "resolv"),
        *("rt", "stdc", "unwind", "util"),
    }
)
"""Names of targets and libraries that every build already has."""


@dataclass(frozen=True)
class LibraryArray:
    """An input, mask or output of a signature.

    Attributes:
      name: its name in the signature.
      identifier: its name in C.
      dtype: the dtype that the program takes.
      shape: its sizes, with variables.
      pad: the number with which it is padded; 1 for a mask.
    """

    name: str
    identifier: str
    dtype: str
    shape: tuple[Dim, ...]
    pad: complex = 0

    @property
    def c_type(self) -> str:
        """The C type of an element, or of the parts of a complex element."""
        return _C_TYPES.get(self.dtype, "uint8_t")

    @property
    def sizes_text(self) -> str:
        """Its sizes, as "[b, 8]"."""
        return "[" + shape_text(self.shape).removeprefix("(").removesuffix(")").rstrip(",") + "]"

    @property
    def is_complex(self) -> bool:
        """Returns whether an element is two numbers."""
        return self.dtype.startswith("complex")

    @property
    def element_size(self) -> int:
        """Bytes of an element."""
        row = find_dtype(self.dtype)
        return 1 if row is None or row.itemsize is None else row.itemsize


@dataclass(frozen=True)
class Weight:
    """A weight or captured array in the file of the weights.

    Attributes:
      name: its path, or the name of the captured array.
      dtype, shape: its type in the program.
      key: the key of its variable in the SavedModel.
      offset: its place in the file, in bytes.
      size: its size in bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    key: str
    offset: int
    size: int


@dataclass(frozen=True)
class LibrarySignature:
    """A function of the library.

    Attributes:
      name: its name in the SavedModel.
      prefix: the prefix of its C names.
      portable: the function.
      leaves: the flat arguments, then the captured arrays: names of inputs and masks, and weights.
      variables: the open sizes, in the order of the inputs.
      padded: the variables whose sizes are padded.
      inputs, masks, outputs: its arrays. Masks are filled in by the library.
      results: the position of each output among the flat results.
      sizes: the sizes that are compiled, by increasing work.
    """

    name: str
    prefix: str
    portable: PortableFunction
    leaves: tuple[str | Weight, ...]
    variables: tuple[str, ...]
    padded: frozenset[str]
    inputs: tuple[LibraryArray, ...]
    masks: tuple[LibraryArray, ...]
    outputs: tuple[LibraryArray, ...]
    results: tuple[int, ...]
    sizes: tuple[Mapping[str, int], ...]

    @property
    def arrays(self) -> tuple[LibraryArray, ...]:
        """All arrays, as the C library numbers them."""
        return (*self.inputs, *self.masks, *self.outputs)

    def program_name(self, index: int) -> str:
        """Names the program of one of the sizes; no other program of the library has the name."""
        return f"{self.prefix}_program_{index}"

    def format_sizes(self) -> str:
        """Lists the compiled sizes for people: "b=1 or b=32"."""
        return " or ".join(map(format_sizes, self.sizes))


def format_sizes(sizes: Mapping[str, int]) -> str:
    """Formats the values of variables: "b=1,t=8"."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


@dataclass(frozen=True)
class Interface:
    """The interface of a C library.

    Attributes:
      name: the prefix of all its C names.
      signatures: its signatures; "serving_default" has no prefix of its own.
      weights: the weights of all signatures.
    """

    name: str
    signatures: tuple[LibrarySignature, ...]
    weights: tuple[Weight, ...]

    @property
    def weights_size(self) -> int:
        """Bytes of the file of the weights, with its header; 0 without weights."""
        return max((w.offset + round_up(w.size) for w in self.weights), default=0)

    def weights_header(self) -> bytes:
        """Returns the first bytes of the file of the weights, which identify their types.

        A checksum of the values follows in the file; both have ALIGNMENT bytes together.
        """
        types = [(w.name, w.dtype, w.shape, w.offset) for w in self.weights]
        digest = hashlib.sha256(repr(types).encode()).digest()
        return b"JAX2TFBRIDGE\0W\0\1" + digest


class WeightsChecksum:
    """The checksum of the values in a file of weights, as bridge_program.h computes it.

    It has two sums of the 64-bit words, modulo 2**64; the second depends on the order of the words.
    Computing it takes no longer than reading the file.

    >>> checksum = WeightsChecksum()
    >>> checksum.add(bytes([1, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]))
    >>> checksum.digest().hex()
    '04000000000000000500000000000000'
    """

    def __init__(self) -> None:
        self._sum = self._sum_of_sums = 0

    def add(self, piece: bytes) -> None:
        """Adds the next bytes, of whole words."""
        words = np.frombuffer(piece, "<u8")
        repeats = np.arange(len(words), 0, -1, dtype=np.uint64)
        self._sum_of_sums += len(words) * self._sum + int(words @ repeats)
        self._sum += int(words.sum(dtype=np.uint64))
        self._sum %= 2**64
        self._sum_of_sums %= 2**64

    def digest(self) -> bytes:
        """Returns both sums, 16 bytes."""
        return b"".join(each.to_bytes(8, "little") for each in (self._sum, self._sum_of_sums))


def round_up(size: int) -> int:
    """Rounds a size up to a multiple of ALIGNMENT."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class CAlgebra:
    """Arithmetic on C expressions.

    Attributes:
      prefix: the prefix of the functions floor_div, floor_mod, maximum and minimum.
      is_checked: whether add and multiply are such functions too, which find overflows.

    >>> CAlgebra("").floordiv(CAlgebra("").add("a", "b"), "c")
    'floor_div((a + b), c)'
    """

    prefix: str
    is_checked: bool = False

    def constant(self, value: int) -> str:
        return f"INT64_C({value})"

    def add(self, left: str, right: str) -> str:
        return self._call("add", left, right) if self.is_checked else f"({left} + {right})"

    def multiply(self, left: str, right: str) -> str:
        return self._call("multiply", left, right) if self.is_checked else f"({left} * {right})"

    def floordiv(self, left: str, right: str) -> str:
        return self._call("floor_div", left, right)

    def mod(self, left: str, right: str) -> str:
        return self._call("floor_mod", left, right)

    def maximum(self, left: str, right: str) -> str:
        return self._call("maximum", left, right)

    def minimum(self, left: str, right: str) -> str:
        return self._call("minimum", left, right)

    def _call(self, function: str, left: str, right: str) -> str:
        return f"{self.prefix}{function}({left}, {right})"


def quote_c(text: str) -> str:
    """Returns a string literal of C; a question mark is escaped because of trigraphs."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def make_identifier(name: str) -> str:
    """Makes a C identifier of a name: "a.b" becomes "a_b"."""
    identifier = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    if identifier[0].isdigit() or identifier in _KEYWORDS:
        identifier = f"_{identifier}" if identifier[0].isdigit() else f"{identifier}_"
    return identifier


def check_library_name(name: str) -> None:
    """Raises if a library cannot be built under its name.

    Raises:
      SavingError: a header, a target or another library has the name.
    """
    if name.lower() in _SYSTEM_HEADERS:  # some file systems ignore case
        owner = f"The header {name.lower()}.h of the library would hide the system's."
    elif name in _BUILD_NAMES:
        owner = f"A build already has a target or a library named {name}."
    else:
        return
    raise SavingError(Message(f"{owner} Pass ", Argument("name", f"{name}_model"), "."))


def make_prefix(library: str, signature: str) -> str:
    """Returns the prefix of a signature's C names."""
    return library if signature == SERVING_DEFAULT else f"{library}_{make_identifier(signature)}"


def check_identifiers(where: str, names: Iterable[tuple[str, str]]) -> None:
    """Raises SavingError if two names, which are paired with their identifiers, have the same."""
    owners: dict[str, str] = {}
    for name, identifier in names:
        if owners.setdefault(identifier, name) != name:
            raise SavingError(
                f"{where}: {owners[identifier]!r} and {name!r} both become {identifier} in C. "
                "Rename one of them."
            )


def has_c_type(dtype: str) -> bool:
    """Returns whether an array of a dtype can be passed to the C library."""
    return dtype in _C_TYPES


def list_variables(avals: Iterable[Aval]) -> tuple[str, ...]:
    """Lists the variables in the order in which shapes have them."""
    names: dict[str, None] = {}
    for aval in avals:
        for dimension in aval.op_shape:
            names |= dict.fromkeys(sorted(variables_of(dimension)))
    return tuple(names)


def evaluate_shapes(
    arrays: Sequence[LibraryArray], sizes: Mapping[str, int]
) -> list[tuple[int, ...]]:
    """Evaluates the shapes of arrays."""
    return [
        tuple(size for size in evaluate_shape(array.shape, sizes) if size is not None)
        for array in arrays
    ]
