// Products of matrices and convolutions on one thread. XLA's own files need Eigen, whose code is
// many times the size of a small program.
#ifndef JAX2TF_BRIDGE_PRODUCTS_H_
#define JAX2TF_BRIDGE_PRODUCTS_H_

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "bridge_abseil.h"

namespace Eigen {
struct ThreadPoolDevice;
using Index = std::ptrdiff_t;
}  // namespace Eigen

namespace xla::cpu::internal {

using DoneCallback = absl::AnyInvocable<void()>;

// Terms of a sum that are added before the next columns, so that they stay in the cache.
constexpr int64_t kTerms = 256;
// Columns of the result that are computed together, each in two vectors: as many as registers hold.
#if defined(__AVX512F__)
constexpr int64_t kVectorBytes = 64, kColumns = 12;
#elif defined(__AVX__)
constexpr int64_t kVectorBytes = 32, kColumns = 6;
#elif defined(__aarch64__)
constexpr int64_t kVectorBytes = 16, kColumns = 12;
#else
constexpr int64_t kVectorBytes = 16, kColumns = 4;
#endif

template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

template <typename T>
T Load(const void* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

// Adds a * b to `columns` columns of two vectors: a [terms, rows] with the stride lda, b [columns,
// terms] with the strides ldb and step.
template <typename T, int64_t columns>
void AddTile(T* out, int64_t ldc, const T* a, int64_t lda, const T* b, int64_t ldb, int64_t step,
             int64_t terms) {
  using V = typename Vector<T>::type;
  constexpr int64_t lanes = kVectorBytes / sizeof(T);
  V sums[columns][2];
#pragma GCC unroll 16
  for (int64_t j = 0; j < columns; ++j) {
    sums[j][0] = Load<V>(out + j * ldc);
    sums[j][1] = Load<V>(out + j * ldc + lanes);
  }
  for (int64_t p = 0; p < terms; ++p) {
    const V low = Load<V>(a + p * lda), high = Load<V>(a + p * lda + lanes);
#pragma GCC unroll 16
    for (int64_t j = 0; j < columns; ++j) {
      const T factor = b[j * ldb + p * step];
      sums[j][0] += low * factor;
      sums[j][1] += high * factor;
    }
  }
#pragma GCC unroll 16
  for (int64_t j = 0; j < columns; ++j) {
    std::memcpy(out + j * ldc, &sums[j][0], kVectorBytes);
    std::memcpy(out + j * ldc + lanes, &sums[j][1], kVectorBytes);
  }
}

// Adds a * b to out [columns, rows]: a [terms, rows], b [columns, terms].
template <typename T>
void AddProduct(T* out, int64_t ldc, const T* a, int64_t lda, const T* b, int64_t ldb,
                int64_t step, int64_t rows, int64_t columns, int64_t terms) {
  for (int64_t first = 0; first < terms; first += kTerms) {
    const int64_t count = std::min(kTerms, terms - first);
    const T* a_part = a + first * lda;
    const T* b_part = b + first * step;
    int64_t row = 0;
    if constexpr (std::is_arithmetic_v<T>) {
      constexpr int64_t tile = 2 * kVectorBytes / sizeof(T);
      for (; row + tile <= rows; row += tile) {
        int64_t j = 0;
        for (; j + kColumns <= columns; j += kColumns)
          AddTile<T, kColumns>(out + j * ldc + row, ldc, a_part + row, lda, b_part + j * ldb, ldb,
                               step, count);
        for (; j < columns; ++j)
          AddTile<T, 1>(out + j * ldc + row, ldc, a_part + row, lda, b_part + j * ldb, ldb, step,
                        count);
      }
    }
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t p = 0; p < count; ++p) {
        const T factor = b_part[j * ldb + p * step];
        for (int64_t i = row; i < rows; ++i) out[j * ldc + i] += a_part[p * lda + i] * factor;
      }
  }
}

// Computes out [n, m] = rhs * lhs in row-major order: lhs [k, m] and rhs [n, k], or transposes.
template <typename LhsType, typename RhsType, typename OutType>
void TypedMatMul(const Eigen::ThreadPoolDevice*, void* out, void* lhs, void* rhs, int64_t m,
                 int64_t n, int64_t k, bool transpose_lhs, bool transpose_rhs, DoneCallback done) {
  auto* result = static_cast<OutType*>(out);
  const auto* left = static_cast<const LhsType*>(lhs);
  const auto* right = static_cast<const RhsType*>(rhs);
  std::fill(result, result + m * n, OutType(0));
  // A product of other types than the result's, or of a transposed matrix, takes a copy.
  std::vector<OutType> copied_left, copied_right;
  const OutType* a;
  if (std::is_same_v<LhsType, OutType> && !transpose_lhs) {
    a = reinterpret_cast<const OutType*>(left);
  } else {
    copied_left.resize(m * k);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t p = 0; p < k; ++p)
        copied_left[p * m + i] = OutType(transpose_lhs ? left[i * k + p] : left[p * m + i]);
    a = copied_left.data();
  }
  const OutType* b;
  if (std::is_same_v<RhsType, OutType>) {
    b = reinterpret_cast<const OutType*>(right);
  } else {
    copied_right.assign(right, right + n * k);
    b = copied_right.data();
  }
  AddProduct<OutType>(result, m, a, m, b, transpose_rhs ? 1 : k, transpose_rhs ? n : 1, m, n, k);
  done();
}

struct ConvolutionAxis {
  int64_t input, kernel, output, stride, padding, input_dilation, kernel_dilation;
};

// Returns the place in the input of an element of the kernel, or -1 in the padding.
inline int64_t FindInput(const ConvolutionAxis& axis, int64_t output, int64_t kernel) {
  const int64_t place = output * axis.stride - axis.padding + kernel * axis.kernel_dilation;
  if (place < 0 || place % axis.input_dilation != 0) return -1;
  return place / axis.input_dilation < axis.input ? place / axis.input_dilation : -1;
}

// Convolves images [batch, y, x, channels] with a kernel [y, x, channels / groups, filters].
template <typename T>
void Convolve(T* out, const T* images, const T* kernel, int64_t batch, int64_t channels,
              int64_t kernel_channels, int64_t filters, int64_t groups, const ConvolutionAxis& y,
              const ConvolutionAxis& x) {
  const int64_t terms = y.kernel * x.kernel * kernel_channels;
  const int64_t group_filters = filters / groups;
  std::fill(out, out + batch * y.output * x.output * filters, T(0));
  std::vector<T> patches(x.output * terms);
  for (int64_t row = 0; row < batch * y.output; ++row)
    for (int64_t group = 0; group < groups; ++group) {
      const T* image = images + row / y.output * y.input * x.input * channels;
      T* patch = patches.data();
      for (int64_t column = 0; column < x.output; ++column)
        for (int64_t i = 0; i < y.kernel; ++i)
          for (int64_t j = 0; j < x.kernel; ++j, patch += kernel_channels) {
            const int64_t at_y = FindInput(y, row % y.output, i), at_x = FindInput(x, column, j);
            if (at_y < 0 || at_x < 0) {
              std::fill(patch, patch + kernel_channels, T(0));
            } else {
              const T* pixel = image + (at_y * x.input + at_x) * channels;
              std::copy_n(pixel + group * kernel_channels, kernel_channels, patch);
            }
          }
      AddProduct<T>(out + row * x.output * filters + group * group_filters, filters,
                    kernel + group * group_filters, filters, patches.data(), terms, 1,
                    group_filters, x.output, terms);
    }
}

// x is the first axis of an image, as in XLA.
template <typename T>
void EigenConv2D(const Eigen::ThreadPoolDevice*, T* out, const T* images, const T* kernel,
                 int64_t batch, int64_t input_x, int64_t input_y, int64_t channels,
                 int64_t kernel_x, int64_t kernel_y, int64_t kernel_channels, int64_t filters,
                 int64_t output_x, int64_t output_y, int64_t x_stride, int64_t y_stride,
                 int64_t x_padding, int64_t, int64_t y_padding, int64_t, int64_t x_dilation,
                 int64_t y_dilation, int64_t kernel_x_dilation, int64_t kernel_y_dilation,
                 int64_t groups, DoneCallback done) {
  Convolve<T>(out, images, kernel, batch, channels, kernel_channels, filters, groups,
              {input_x, kernel_x, output_x, x_stride, x_padding, x_dilation, kernel_x_dilation},
              {input_y, kernel_y, output_y, y_stride, y_padding, y_dilation, kernel_y_dilation});
  done();
}

}  // namespace xla::cpu::internal

#endif  // JAX2TF_BRIDGE_PRODUCTS_H_
