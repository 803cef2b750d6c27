// Products of matrices and convolutions. XLA's own files need Eigen, whose code is many times the
// size of a small program.
#ifndef JAX2TF_BRIDGE_PRODUCTS_H_
#define JAX2TF_BRIDGE_PRODUCTS_H_

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "bridge_abseil.h"
#ifdef JAX2TF_BRIDGE_THREADS
#include "bridge_threads.h"
#endif

// The processor that this library is compiled for.
#define BRIDGE_PROCESSOR compiled_for
#define BRIDGE_TARGET
#if defined(__AVX512F__)
#define BRIDGE_VECTOR_BYTES 64
#define BRIDGE_COLUMNS 12
#elif defined(__AVX__)
#define BRIDGE_VECTOR_BYTES 32
#define BRIDGE_COLUMNS 6
#elif defined(__aarch64__)
#define BRIDGE_VECTOR_BYTES 16
#define BRIDGE_COLUMNS 12
#else
#define BRIDGE_VECTOR_BYTES 16
#define BRIDGE_COLUMNS 4
#endif
#include "bridge_kernels.h"

// A library for all processors of this kind looks at run time which vectors the processor has.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__AVX__)
#define JAX2TF_BRIDGE_CHOOSES_PROCESSOR
#define BRIDGE_PROCESSOR avx2
#define BRIDGE_TARGET __attribute__((target("avx2,fma")))
#define BRIDGE_VECTOR_BYTES 32
#define BRIDGE_COLUMNS 6
#include "bridge_kernels.h"
#define BRIDGE_PROCESSOR avx512
#define BRIDGE_TARGET __attribute__((target("avx512f")))
#define BRIDGE_VECTOR_BYTES 64
#define BRIDGE_COLUMNS 12
#include "bridge_kernels.h"
#endif

namespace Eigen {
class ThreadPoolDevice;
using Index = std::ptrdiff_t;
}  // namespace Eigen

namespace xla::cpu::internal {

using DoneCallback = absl::AnyInvocable<void()>;

// Memory for the patches of a block of pixels, so that they stay in the cache.
constexpr int64_t kPatchBytes = 128 << 10;

// Multiplications below which one thread is faster than waking others.
constexpr int64_t kMinThreadedWork = 1 << 18;

using Pool = const Eigen::ThreadPoolDevice;

// Calls work(first, count) for parts of `size` elements, of `cost` multiplications each. All but
// the last part have `part` elements, or fewer so that each thread has some, in multiples of `unit`.
template <typename Work>
ABSL_ATTRIBUTE_ALWAYS_INLINE void SplitWork([[maybe_unused]] Pool* pool, int64_t size,
                                            [[maybe_unused]] int64_t cost, int64_t part,
                                            [[maybe_unused]] int64_t unit, Work work) {
#ifdef JAX2TF_BRIDGE_THREADS
  if (pool != nullptr && size * cost >= kMinThreadedWork) {
    const int64_t fair = (size + pool->size() - 1) / pool->size();
    part = std::min(part, (fair + unit - 1) / unit * unit);
    const_cast<Eigen::ThreadPoolDevice*>(pool)->Run(
        (size + part - 1) / part,
        [&](int64_t i) { work(i * part, std::min(part, size - i * part)); });
    return;
  }
#endif
  for (int64_t first = 0; first < size; first += part) work(first, std::min(part, size - first));
}

// Product of matrices for a processor: columns and rows of the result are computed in these units.
template <typename T>
struct Product {
  decltype(&compiled_for::ComputeProduct<T>) compute;
  int64_t columns, rows;
};

// Returns the product for the processor that runs this.
template <typename T>
Product<T> FindProduct() {
#ifdef JAX2TF_BRIDGE_CHOOSES_PROCESSOR
  if (__builtin_cpu_supports("avx512f"))
    return {avx512::ComputeProduct<T>, avx512::kColumns, avx512::kRows<T>};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {avx2::ComputeProduct<T>, avx2::kColumns, avx2::kRows<T>};
#endif
  return {compiled_for::ComputeProduct<T>, compiled_for::kColumns, compiled_for::kRows<T>};
}

// Computes out [n, m] = rhs * lhs in row-major order: lhs [k, m] and rhs [n, k], or transposes.
template <typename LhsType, typename RhsType, typename OutType>
void TypedMatMul(Pool* pool, void* out, void* lhs, void* rhs, int64_t m,
                 int64_t n, int64_t k, bool transpose_lhs, bool transpose_rhs, DoneCallback done) {
  auto* result = static_cast<OutType*>(out);
  const auto* left = static_cast<const LhsType*>(lhs);
  const auto* right = static_cast<const RhsType*>(rhs);
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
  const int64_t ldb = transpose_rhs ? 1 : k, step = transpose_rhs ? n : 1;
  const auto product = FindProduct<OutType>();
  if (n >= m) {
    SplitWork(pool, n, m * k, n, product.columns, [&](int64_t first, int64_t count) {
      product.compute(result + first * m, m, a, m, b + first * ldb, ldb, step, m, count, k);
    });
  } else {
    SplitWork(pool, m, n * k, m, product.rows, [&](int64_t first, int64_t count) {
      product.compute(result + first, m, a + first, m, b, ldb, step, count, n, k);
    });
  }
  done();
}

struct ConvolutionAxis {
  int64_t input, kernel, output, stride, padding, input_dilation, kernel_dilation;
};

// Returns the place in the input of an element of the kernel, or -1 in the padding.
inline int64_t FindInput(const ConvolutionAxis& axis, int64_t output, int64_t kernel) {
  const int64_t place = output * axis.stride - axis.padding + kernel * axis.kernel_dilation;
  if (axis.input_dilation == 1 || place < 0) return place < axis.input ? place : -1;
  if (place % axis.input_dilation != 0) return -1;
  return place / axis.input_dilation < axis.input ? place / axis.input_dilation : -1;
}

// Copies elements; for a few of them, a call of memcpy takes longer than the copy.
template <typename T>
void CopyRun(T* to, const T* from, int64_t count) {
  if (count > 16) {
    std::memcpy(to, from, count * sizeof(T));
    return;
  }
  for (; count >= 4; count -= 4, to += 4, from += 4) std::memcpy(to, from, 4 * sizeof(T));
  for (; count > 0; --count) *to++ = *from++;
}

// Copies the patches of some pixels of the result, from the channels that begin at `channel`. It is
// inline because the sizes of a program are constants, which makes it both smaller and faster.
template <typename T>
ABSL_ATTRIBUTE_ALWAYS_INLINE void CopyPatches(T* patch, const T* images, const T* zeros,
                                              int64_t channel, int64_t channels,
                                              int64_t kernel_channels, const ConvolutionAxis& y,
                                              const ConvolutionAxis& x, int64_t first,
                                              int64_t count) {
  const bool is_dense =
      kernel_channels == channels && x.kernel_dilation == 1 && x.input_dilation == 1;
  int64_t column = first % x.output, row = first / x.output % y.output;
  const T* image = images + first / (x.output * y.output) * y.input * x.input * channels;
  for (; count > 0; --count) {
    for (int64_t i = 0; i < y.kernel; ++i) {
      const int64_t at_y = FindInput(y, row, i);
      const int64_t line = at_y * x.input * channels + channel;
      // Neighbours in the kernel are neighbours in the image, except for the padding.
      const int64_t start = column * x.stride - x.padding;
      if (is_dense && at_y >= 0 && start >= 0 && start + x.kernel <= x.input) {
        CopyRun(patch, image + line + start * channels, x.kernel * channels);
        patch += x.kernel * channels;
        continue;
      }
      for (int64_t j = 0; j < x.kernel; ++j, patch += kernel_channels) {
        const int64_t at_x = at_y < 0 ? -1 : FindInput(x, column, j);
        const T* pixel = at_x < 0 ? zeros : image + line + at_x * channels;
        CopyRun(patch, pixel, kernel_channels);
      }
    }
    if (++column < x.output) continue;
    column = 0;
    if (++row < y.output) continue;
    row = 0;
    image += y.input * x.input * channels;
  }
}

// Convolves images [batch, y, x, channels] with a kernel [y, x, channels / groups, filters].
template <typename T>
ABSL_ATTRIBUTE_ALWAYS_INLINE void Convolve(Pool* pool, T* out, const T* images, const T* kernel,
                                           int64_t batch, int64_t channels,
                                           int64_t kernel_channels, int64_t filters,
                                           int64_t groups, const ConvolutionAxis& y,
                                           const ConvolutionAxis& x) {
  const int64_t terms = y.kernel * x.kernel * kernel_channels;
  const int64_t group_filters = filters / groups;
  const int64_t pixels = batch * y.output * x.output;
  const int64_t fitting = kPatchBytes / std::max<int64_t>(1, terms * sizeof(T));
  const auto product = FindProduct<T>();
  const int64_t block = std::max<int64_t>(1, fitting / product.columns) * product.columns;
  const std::vector<T> zeros(kernel_channels);
  const auto convolve_pixels = [&](int64_t first, int64_t count) __attribute__((always_inline)) {
    const std::unique_ptr<T[]> patches(new T[count * terms]);  // without zeros
    for (int64_t group = 0; group < groups; ++group) {
      CopyPatches(patches.get(), images, zeros.data(), group * kernel_channels, channels,
                  kernel_channels, y, x, first, count);
      product.compute(out + first * filters + group * group_filters, filters,
                      kernel + group * group_filters, filters, patches.get(), terms, 1,
                      group_filters, count, terms);
    }
  };
  SplitWork(pool, pixels, terms * filters, block, product.columns, convolve_pixels);
}

// x is the first axis of an image, as in XLA.
template <typename T>
ABSL_ATTRIBUTE_ALWAYS_INLINE void EigenConv2D(
    Pool* pool, T* out, const T* images, const T* kernel, int64_t batch, int64_t input_x,
    int64_t input_y, int64_t channels, int64_t kernel_x, int64_t kernel_y, int64_t kernel_channels,
    int64_t filters, int64_t output_x, int64_t output_y, int64_t x_stride, int64_t y_stride,
    int64_t x_padding, int64_t, int64_t y_padding, int64_t, int64_t x_dilation, int64_t y_dilation,
    int64_t kernel_x_dilation, int64_t kernel_y_dilation, int64_t groups, DoneCallback done) {
  Convolve<T>(pool, out, images, kernel, batch, channels, kernel_channels, filters, groups,
              {input_x, kernel_x, output_x, x_stride, x_padding, x_dilation, kernel_x_dilation},
              {input_y, kernel_y, output_y, y_stride, y_padding, y_dilation, kernel_y_dilation});
  done();
}

}  // namespace xla::cpu::internal

#endif  // JAX2TF_BRIDGE_PRODUCTS_H_
