// Sorts arrays together. XLA's own file has code for each number of arrays and each width, which is
// most of the size of a small program.
#ifndef JAX2TF_BRIDGE_SORT_H_
#define JAX2TF_BRIDGE_SORT_H_

#include <algorithm>

#include "bridge_abseil.h"

namespace xla::cpu::internal {

struct SortDims {
  int64_t outer_dim_size;
  int64_t sort_dim_size;
  int64_t inner_dim_size;
};
using LessThan = absl::AnyInvocable<bool(const void** data)>;

// Sorts along the middle dimension. A stable order is right for every caller.
inline void SortInplace(const SortDims& dims, const std::vector<std::byte*>& arrays,
                        const std::vector<size_t>& widths, bool, LessThan* less_than) {
  const int64_t length = dims.sort_dim_size, inner = dims.inner_dim_size;
  std::vector<int64_t> order(length);
  std::vector<const void*> pair(2 * arrays.size());
  std::vector<std::byte> sorted;
  for (int64_t row = 0; row < dims.outer_dim_size * inner; ++row) {
    const int64_t first = row / inner * length * inner + row % inner;
    auto element = [&](size_t array, int64_t index) {
      return arrays[array] + (first + index * inner) * widths[array];
    };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
      for (size_t i = 0; i < arrays.size(); ++i) {
        pair[2 * i] = element(i, left);
        pair[2 * i + 1] = element(i, right);
      }
      return (*less_than)(pair.data());
    });
    for (size_t i = 0; i < arrays.size(); ++i) {
      sorted.resize(length * widths[i]);
      for (int64_t j = 0; j < length; ++j)
        std::memcpy(sorted.data() + j * widths[i], element(i, order[j]), widths[i]);
      for (int64_t j = 0; j < length; ++j)
        std::memcpy(element(i, j), sorted.data() + j * widths[i], widths[i]);
    }
  }
}

}  // namespace xla::cpu::internal

#endif  // JAX2TF_BRIDGE_SORT_H_
