// Computes products of matrices with the kernels of each processor that this machine can run, and
// prints the names of those that agree with a plain loop.
#include <cmath>
#include <cstdio>
#include <vector>

#include "bridge_products.h"

namespace {

namespace products = xla::cpu::internal;

template <typename T, typename Compute>
bool Agrees(Compute compute) {
  for (int64_t rows : {1, 7, 16, 33, 70})
    for (int64_t columns : {1, 5, 12, 27})
      for (int64_t terms : {0, 1, 40, 800}) {
        std::vector<T> a(terms * rows), b(columns * terms), out(columns * rows, T(-1));
        for (size_t i = 0; i < a.size(); ++i) a[i] = T(int64_t(i * 7 % 13) - 6);
        for (size_t i = 0; i < b.size(); ++i) b[i] = T(int64_t(i * 5 % 11) - 5);
        compute(out.data(), rows, a.data(), rows, b.data(), terms, 1, rows, columns, terms);
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t i = 0; i < rows; ++i) {
            T sum(0);
            for (int64_t p = 0; p < terms; ++p) sum += a[p * rows + i] * b[j * terms + p];
            // Small whole numbers have exact sums in every order.
            if (out[j * rows + i] != sum) return false;
          }
      }
  return true;
}

#define CHECK_PROCESSOR(name)                                                       \
  if (Agrees<float>(products::name::ComputeProduct<float>) &&                       \
      Agrees<double>(products::name::ComputeProduct<double>) &&                     \
      Agrees<int32_t>(products::name::ComputeProduct<int32_t>))                     \
  std::puts(#name)

}  // namespace

int main() {
  CHECK_PROCESSOR(compiled_for);
#ifdef JAX2TF_BRIDGE_CHOOSES_PROCESSOR
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) CHECK_PROCESSOR(avx2);
  if (__builtin_cpu_supports("avx512f")) CHECK_PROCESSOR(avx512);
  std::printf("chosen: %d columns\n", int(products::FindProduct<float>().columns));
#endif
}
