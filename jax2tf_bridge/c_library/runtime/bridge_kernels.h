// Products of matrices for one kind of processor, in the namespace BRIDGE_PROCESSOR. Its vectors have
// BRIDGE_VECTOR_BYTES; BRIDGE_COLUMNS columns of the result are computed together, each in two
// vectors: as many as registers hold. Functions have the attribute BRIDGE_TARGET.
// bridge_products.h includes this file once for each kind of processor, so it has no guard.
namespace xla::cpu::internal::BRIDGE_PROCESSOR {

constexpr int64_t kVectorBytes = BRIDGE_VECTOR_BYTES, kColumns = BRIDGE_COLUMNS;
// Columns that are computed together when fewer than kColumns are left.
constexpr int64_t kFewColumns = 4;
// Terms of a sum that are added before the next columns, so that they stay in the cache.
constexpr int64_t kTerms = 12288 / kVectorBytes;
// Rows that are computed together, in two vectors.
template <typename T>
constexpr int64_t kRows = 2 * kVectorBytes / sizeof(T);

template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

template <typename T>
BRIDGE_TARGET T Load(const void* source) {
  T value;
  std::memcpy(&value, source, sizeof value);
  return value;
}

// Computes a * b in `columns` columns of two vectors, or adds it to them: a [terms, rows] with the
// stride lda, b [columns, terms] with the strides ldb and step. There is at least one term.
template <typename T, int64_t columns>
BRIDGE_TARGET void ComputeTile(T* out, int64_t ldc, const T* a, int64_t lda, const T* b, int64_t ldb,
                 int64_t step, int64_t terms, bool adds) {
  using V = typename Vector<T>::type;
  constexpr int64_t lanes = kVectorBytes / sizeof(T);
  V sums[columns][2] = {};
#pragma GCC unroll 16
  for (int64_t j = 0; adds && j < columns; ++j) {
    sums[j][0] = Load<V>(out + j * ldc);
    sums[j][1] = Load<V>(out + j * ldc + lanes);
  }
  do {
    const V low = Load<V>(a), high = Load<V>(a + lanes);
#pragma GCC unroll 16
    for (int64_t j = 0; j < columns; ++j) {
      const T factor = b[j * ldb];
      sums[j][0] += low * factor;
      sums[j][1] += high * factor;
    }
    a += lda;
    b += step;
  } while (--terms > 0);
#pragma GCC unroll 16
  for (int64_t j = 0; j < columns; ++j) {
    std::memcpy(out + j * ldc, &sums[j][0], kVectorBytes);
    std::memcpy(out + j * ldc + lanes, &sums[j][1], kVectorBytes);
  }
}

// Computes rows of two vectors in all columns, or adds to them.
template <typename T>
BRIDGE_TARGET void ComputeRows(T* out, int64_t ldc, const T* a, int64_t lda, const T* b, int64_t ldb,
                 int64_t step, int64_t columns, int64_t terms, bool adds) {
  for (int64_t j = 0; j < columns;) {
    const int64_t rest = columns - j;
    const int64_t width = rest >= kColumns ? kColumns : rest >= kFewColumns ? kFewColumns : 1;
    const auto compute = width == kColumns      ? ComputeTile<T, kColumns>
                         : width == kFewColumns ? ComputeTile<T, kFewColumns>
                                                : ComputeTile<T, 1>;
    compute(out + j * ldc, ldc, a, lda, b + j * ldb, ldb, step, terms, adds);
    j += width;
  }
}

// Computes out [columns, rows] = a * b: a [terms, rows], b [columns, terms].
template <typename T>
BRIDGE_TARGET void ComputeProduct(T* out, int64_t ldc, const T* a, int64_t lda, const T* b, int64_t ldb,
                    int64_t step, int64_t rows, int64_t columns, int64_t terms) {
  if (terms == 0 || !std::is_arithmetic_v<T>) {
    for (int64_t j = 0; j < columns; ++j) {
      std::fill_n(out + j * ldc, rows, T(0));
      for (int64_t p = 0; p < terms; ++p)
        for (int64_t i = 0; i < rows; ++i)
          out[j * ldc + i] += a[p * lda + i] * b[j * ldb + p * step];
    }
    return;
  }
  if constexpr (std::is_arithmetic_v<T>) {
    constexpr int64_t tile = kRows<T>;
    const int64_t whole = rows / tile * tile, rest = rows - whole;
    // The last rows are computed in a copy, which has zeros below them.
    std::vector<T> last_a(rest > 0 ? kTerms * tile : 0), last(rest > 0 ? columns * tile : 0);
    for (int64_t first = 0; first < terms; first += kTerms) {
      const int64_t count = std::min(kTerms, terms - first);
      const T* a_part = a + first * lda;
      const T* b_part = b + first * step;
      for (int64_t row = 0; row < whole; row += tile)
        ComputeRows(out + row, ldc, a_part + row, lda, b_part, ldb, step, columns, count,
                    first > 0);
      if (rest == 0) continue;
      for (int64_t p = 0; p < count; ++p)
        std::copy_n(a_part + p * lda + whole, rest, &last_a[p * tile]);
      ComputeRows(last.data(), tile, last_a.data(), tile, b_part, ldb, step, columns, count,
                  first > 0);
    }
    for (int64_t j = 0; j < columns && rest > 0; ++j)
      std::copy_n(&last[j * tile], rest, out + j * ldc + whole);
  }
}

}  // namespace xla::cpu::internal::BRIDGE_PROCESSOR

#undef BRIDGE_PROCESSOR
#undef BRIDGE_TARGET
#undef BRIDGE_VECTOR_BYTES
#undef BRIDGE_COLUMNS
