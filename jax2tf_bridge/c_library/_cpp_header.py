"""Writes NAME.hpp, the header for C++ around the C header of a library."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.c_library._interface import (
    CAlgebra,
    Interface,
    LibraryArray,
    LibrarySignature,
    make_identifier,
)
from jax2tf_bridge.saved_model import SERVING_DEFAULT
from shape_poly import Dim, DimExpr

_OWN_NAMES = frozenset(
    {"Error", "Inputs", "Library", "Outputs", "Results", "Shapes", "Sizes", "Span", "count"}
    | {"detail", "shapes"}
)
"""Names of the namespace, which no signature's namespace can have."""

_ALGEBRA = CAlgebra("detail::")
"""Arithmetic with the functions of the header."""


def write_cpp_header(interface: Interface) -> str:
    """Returns NAME.hpp."""
    name, big = interface.name, interface.name.upper()
    return f"""\
// {name} for C++17: frees handles, and checks the sizes of arrays. Written by jax2tf-bridge.
#ifndef {big}_HPP_
#define {big}_HPP_

#include <array>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <type_traits>
#include <utility>
#if defined(__cpp_exceptions)
#include <stdexcept>
#include <vector>
#endif

#include "{name}.h"

namespace {name}_lib {{

// Elements that belong to somebody else. Arrays and containers such as std::array, std::vector and
// std::span become one.
template <typename T>
class Span {{
 public:
  constexpr Span() = default;
  constexpr Span(T *data, std::size_t size) : data_(data), size_(size) {{}}
  template <typename Container,
            typename Element = std::remove_pointer_t<decltype(std::data(
                std::declval<Container &>()))>,
            typename = std::enable_if_t<std::is_convertible_v<Element (*)[], T (*)[]>>>
  constexpr Span(Container &container)
      : data_(std::data(container)), size_(std::size(container)) {{}}

  constexpr T *data() const {{ return data_; }}
  constexpr std::size_t size() const {{ return size_; }}

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
}};

// The number of elements of an array.
template <std::size_t rank>
constexpr std::size_t count(const std::array<std::int64_t, rank> &shape) {{
  std::size_t elements = 1;
  for (const std::int64_t size : shape) elements *= static_cast<std::size_t>(size);
  return elements;
}}

namespace detail {{

constexpr std::int64_t floor_div(std::int64_t left, std::int64_t right) {{
  if (right == 0) return 0;
  return left / right - ((left % right != 0) && ((left < 0) != (right < 0)));
}}
constexpr std::int64_t floor_mod(std::int64_t left, std::int64_t right) {{
  return left - right * floor_div(left, right);
}}
constexpr std::int64_t maximum(std::int64_t left, std::int64_t right) {{
  return left < right ? right : left;
}}
constexpr std::int64_t minimum(std::int64_t left, std::int64_t right) {{
  return left < right ? left : right;
}}

}}  // namespace detail
{"".join(map(_write_types, interface.signatures))}
#if defined(__cpp_exceptions)
class Error : public std::runtime_error {{
 public:
  Error({name}_status status, const char *message)
      : std::runtime_error(message), status_(status) {{}}
  {name}_status status() const noexcept {{ return status_; }}

 private:
  {name}_status status_;
}};
#endif

// A handle with the buffers of calls. Use it in one thread at a time; each thread can have its own.
class Library {{
 public:
  // weights_file is null if the weights are in the program.
  explicit Library(const char *weights_file = nullptr) noexcept
      : status_({name}_new(&handle_, weights_file)) {{}}
  Library(Library &&other) noexcept : status_(other.status_) {{
    std::swap(handle_, other.handle_);
    std::swap(message_, other.message_);
  }}
  Library &operator=(Library &&other) noexcept {{
    std::swap(handle_, other.handle_);
    std::swap(status_, other.status_);
    std::swap(message_, other.message_);
    return *this;
  }}
  ~Library() {{ {name}_free(handle_); }}

  // {big}_OK if the library can be called.
  {name}_status status() const noexcept {{ return status_; }}
  // A sentence about the last error; valid until the next call.
  const char *message() const noexcept {{
    return message_[0] != 0 ? message_ : {name}_message(handle_);
  }}
{"".join(_write_calls(interface, signature) for signature in interface.signatures)}
 private:
  template <typename T, std::size_t rank>
  bool fits(const char *name, const Span<T> &array,
            const std::array<std::int64_t, rank> &shape) noexcept {{
    const std::size_t expected = count(shape);
    if (array.size() == expected) return true;
    std::snprintf(message_, sizeof(message_), "%.80s: expected %llu elements, got %llu.", name,
                  static_cast<unsigned long long>(expected),
                  static_cast<unsigned long long>(array.size()));
    return false;
  }}

  {name}_handle *handle_ = nullptr;
  {name}_status status_;
  char message_[160] = "";
}};

}}  // namespace {name}_lib

#endif  // {big}_HPP_
"""


def _name_scope(signature: LibrarySignature) -> str:
    """Returns the namespace of a signature's types, with "::"; "" for "serving_default"."""
    if signature.name == SERVING_DEFAULT:
        return ""
    identifier = make_identifier(signature.name)
    return f"{identifier}_::" if identifier in _OWN_NAMES else f"{identifier}::"


def _format_title(signature: LibrarySignature) -> str:
    """Returns the name of a signature for a comment of one line."""
    return " ".join(signature.name.split())


def _write_types(signature: LibrarySignature) -> str:
    scope = _name_scope(signature).removesuffix("::")
    variables = [f"  std::int64_t {make_identifier(v)} = 0;" for v in signature.variables]
    inputs = [_declare(array, f"Span<const {_element_type(array)}>") for array in signature.inputs]
    outputs = [_declare(array, f"Span<{_element_type(array)}>") for array in signature.outputs]
    results = [
        _declare(array, f"std::vector<{_element_type(array)}>") for array in signature.outputs
    ]
    shapes = {
        side: _struct(
            "",
            [f"  std::array<std::int64_t, {len(a.shape)}> {a.identifier};" for a in arrays],
            indent="  ",
        )
        for side, arrays in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    values = [
        f"  result.{side}.{array.identifier} = {{{{{', '.join(map(_write_size, array.shape))}}}}};"
        for side, arrays in (("inputs", signature.inputs), ("outputs", signature.outputs))
        for array in arrays
        if array.shape
    ]
    compiled = f", compiled for {signature.format_sizes()}" if signature.variables else ""
    newline = "\n"
    text = f"""
// The open sizes and the arrays, in row-major order, of {_format_title(signature)}{compiled}.
{_struct("Sizes", variables)};
{_struct("Inputs", [*variables, *inputs])};
// An output without memory is left out.
{_struct("Outputs", outputs)};
#if defined(__cpp_exceptions)
{_struct("Results", results)};
#endif
struct Shapes {{
{shapes["inputs"]} inputs;
{shapes["outputs"]} outputs;
}};
// The sizes of the arrays.
constexpr Shapes shapes([[maybe_unused]] const Sizes &sizes = {{}}) {{
{newline.join(["  Shapes result{};", *values, "  return result;"])}
}}
"""
    return f"\nnamespace {scope} {{\n{text}\n}}  // namespace {scope}\n" if scope else text


def _struct(name: str, members: Sequence[str], indent: str = "") -> str:
    lines = [f"{indent}struct {name} {{".replace("  {", " {"), *(indent + m for m in members)]
    return "\n".join([*lines, f"{indent}}}"])


def _declare(array: LibraryArray, kind: str) -> str:
    return f"  {kind} {array.identifier};  // {array.sizes_text}"


def _element_type(array: LibraryArray) -> str:
    if array.is_complex:
        return f"std::complex<{array.c_type}>"
    return f"std::{array.c_type}" if array.c_type.endswith("_t") else array.c_type


def _write_size(dimension: Dim) -> str:
    if not isinstance(dimension, DimExpr):
        return str(dimension)
    values = {v: f"sizes.{make_identifier(v)}" for v in dimension.variables()}
    return f"detail::maximum(0, {dimension.evaluate_with(values, _ALGEBRA)})"


def _write_calls(interface: Interface, signature: LibrarySignature) -> str:
    name, scope, prefix = interface.name, _name_scope(signature), signature.prefix
    method = "" if not scope else f"{make_identifier(signature.name)}_"
    sizes = ", ".join(f"inputs.{make_identifier(v)}" for v in signature.variables)
    checks, lines = [], []
    for v in map(make_identifier, signature.variables):
        lines.append(f"    in.{v} = inputs.{v};")
    for side, arrays in (("inputs", signature.inputs), ("outputs", signature.outputs)):
        for array in arrays:
            place = f"{side}.{array.identifier}"
            condition = f"{place}.data() != nullptr && " if side == "outputs" else ""
            checks += [
                f'    if ({condition}!fits("{array.identifier}", {place}, expected.{place}))',
                f"      return {name.upper()}_FAILED;",
            ]
            pointer = f"{place}.data()"
            if array.is_complex:
                const = "const " if side == "inputs" else ""
                pointer = f"reinterpret_cast<{const}{array.c_type} *>({pointer})"
            lines.append(f"    {side.removesuffix('puts')}.{array.identifier} = {pointer};")
    resizes = [
        f"    results.{a.identifier}.resize(count(expected.outputs.{a.identifier}));"
        for a in signature.outputs
    ]
    results = ", ".join(f"results.{a.identifier}" for a in signature.outputs)
    newline = "\n"
    expected = f"[[maybe_unused]] const {scope}Shapes expected = {scope}shapes({{{sizes}}});"
    return f"""
  // Calls {_format_title(signature)}, as {prefix}_run; throws nothing.
  // If an array has more or fewer elements than its shape, it returns {name.upper()}_FAILED.
  [[nodiscard]] {name}_status {method}run([[maybe_unused]] const {scope}Inputs &inputs,
      [[maybe_unused]] const {scope}Outputs &outputs) noexcept {{
    {expected}
    message_[0] = 0;
{newline.join([*checks, f"    {prefix}_inputs in{{}};", f"    {prefix}_outputs out{{}};", *lines])}
    return {prefix}_run(handle_, &in, &out);
  }}
#if defined(__cpp_exceptions)
  // Calls {_format_title(signature)}, and returns its outputs in new arrays. Throws Error.
  {scope}Results {method}call(const {scope}Inputs &inputs) {{
    {expected}
{newline.join([f"    {scope}Results results;", *resizes])}
    const {name}_status status = {method}run(inputs, {scope}Outputs{{{results}}});
    if (status != {name.upper()}_OK) throw Error(status, message());
    return results;
  }}
#endif
"""
