#include "jaxfn_file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#define HEADER_SIZE 32
#define NEWEST_VERSION 3
#define ARRAY_ALIGNMENT 64
#define KEY_INDEX_FLAG 0x80000000u

/* Slots of the fields that are read, from serialization/jaxfn/schema/jaxfn.fbs. */
enum {
  FILE_TEXT = 0,
  FILE_TEXT_SIZES = 1,
  FILE_FUNCTIONS = 3,
  FILE_LOWERINGS = 5,
  FILE_AVALS = 6,
  FILE_TREES = 7,
  FILE_ARRAY_DIGESTS = 12,
  FILE_ARRAY_SIZES = 13,
  FUNCTION_IN_AVALS = 1,
  FUNCTION_OUT_AVALS = 2,
  FUNCTION_ARGUMENT_NAMES = 3,
  FUNCTION_LOWERING = 4,
  FUNCTION_ORDERED_EFFECTS = 6,
  FUNCTION_UNORDERED_EFFECTS = 7,
  FUNCTION_MODULE_KEPT_VAR_IDX = 8,
  FUNCTION_LIFTED_AVALS = 12,
  FUNCTION_LIFTED_DIGESTS = 13,
  FUNCTION_MODULE_SIZE = 15,
  FUNCTION_MODULE_CRC32 = 16,
  FUNCTION_GRAPH_FUNCTIONS = 17,
  LOWERING_CALLING_CONVENTION_VERSION = 1,
  LOWERING_PLATFORMS = 2,
  LOWERING_DISABLED_CHECKS = 5,
  LOWERING_NR_DEVICES = 6,
  LOWERING_TARGET_XLA = 14,
  AVALS_DTYPES = 0,
  AVALS_RANKS = 1,
  AVALS_ELEMENT_RANKS = 2,
  AVALS_SIZES = 4,
  AVALS_DIMENSIONS = 5,
  TREES_KINDS = 0,
  TREES_COUNTS = 1,
  TREES_KEYS = 2
};

/* Kinds of nodes. */
enum { LEAF, NONE, TUPLE, LIST, DICT, NAMEDTUPLE, CUSTOM, NAMED_CUSTOM };

static const struct {
  const char *name;
  int number;
  size_t size;
} DTYPES[] = {
    {"bool", 10, 1},    {"int8", 6, 1},     {"int16", 5, 2},    {"int32", 3, 4},
    {"int64", 9, 8},    {"uint8", 4, 1},    {"uint16", 17, 2},  {"uint32", 22, 4},
    {"uint64", 23, 8},  {"float16", 19, 2}, {"bfloat16", 14, 2}, {"float32", 1, 4},
    {"float64", 2, 8},  {"complex64", 8, 8}, {"complex128", 18, 16},
};

typedef struct {
  const uint8_t *bytes;
  size_t size; /* of the structure */
  int failed, no_memory;
  char *message;
  const char *path;
} reader;

typedef struct {
  size_t start, count;
} vector;

typedef struct {
  size_t position, vtable;
  uint32_t fields, size;
} table;

static void fail(reader *r, const char *format, ...) {
  if (r->failed) return; /* the first problem is the cause of the others */
  r->failed = 1;
  int used = snprintf(r->message, JAXFN_MESSAGE_SIZE, "%.400s ", r->path);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(r->message + used, JAXFN_MESSAGE_SIZE - (size_t)used, format, arguments);
  va_end(arguments);
}

static void fail_damaged(reader *r, const char *problem) {
  fail(r,
       "cannot be read as a .jaxfn file: %s. The bytes are cut short or damaged: copy them anew, or "
       "write the file again.",
       problem);
}

static void *allocate(reader *r, size_t count, size_t size) {
  /* One element more, so that the result is never NULL for an empty array. */
  void *memory = r->failed || count > SIZE_MAX / size - 1 ? NULL : calloc(count + 1, size);
  if (memory == NULL && !r->failed) {
    r->no_memory = 1;
    fail(r, "cannot be read: there is not enough memory.");
  }
  return memory;
}

static uint64_t load(const uint8_t *bytes, int width) {
  uint64_t value = 0;
  for (int i = width; i-- > 0;) value = value << 8 | bytes[i];
  return value;
}

static uint64_t read_number(reader *r, size_t position, int width) {
  if (r->failed) return 0;
  if (position > r->size || r->size - position < (size_t)width) {
    fail_damaged(r, "an offset points outside of it");
    return 0;
  }
  return load(r->bytes + position, width);
}

static table read_table(reader *r, size_t position) {
  table t = {position, 0, 0, 0};
  int64_t vtable = (int64_t)position - (int32_t)(uint32_t)read_number(r, position, 4);
  if (!r->failed && vtable < 0) fail_damaged(r, "a table has no list of fields");
  if (r->failed) return t;
  t.vtable = (size_t)vtable;
  uint32_t vtable_size = (uint32_t)read_number(r, t.vtable, 2);
  t.size = (uint32_t)read_number(r, t.vtable + 2, 2);
  if (!r->failed && (vtable_size < 4 || vtable_size % 2 || t.size < 4 ||
                     t.size > r->size - position || vtable_size > r->size - t.vtable))
    fail_damaged(r, "a table is larger than the file");
  t.fields = r->failed ? 0 : (vtable_size - 4) / 2;
  return t;
}

/* Returns the position of a field's value; 0 if it was not written. */
static size_t find_field(reader *r, table t, uint32_t slot, uint32_t width) {
  if (r->failed || slot >= t.fields) return 0;
  uint32_t offset = (uint32_t)read_number(r, t.vtable + 4 + 2 * (size_t)slot, 2);
  if (offset == 0) return 0;
  if (offset < 4 || offset + width > t.size) {
    fail_damaged(r, "a field lies outside of its table");
    return 0;
  }
  return t.position + offset;
}

static uint64_t read_scalar(reader *r, table t, uint32_t slot, int width, uint64_t missing) {
  size_t position = find_field(r, t, slot, (uint32_t)width);
  return position ? read_number(r, position, width) : missing;
}

static size_t follow(reader *r, size_t position) {
  return position + (size_t)read_number(r, position, 4);
}

static vector read_vector(reader *r, table t, uint32_t slot, size_t width) {
  vector v = {0, 0};
  size_t position = find_field(r, t, slot, 4);
  if (position == 0) return v;
  position = follow(r, position);
  v.count = (size_t)read_number(r, position, 4);
  v.start = position + 4;
  if (!r->failed && v.count > (r->size - v.start) / width)
    fail_damaged(r, "a list is longer than the file");
  if (r->failed) v.count = 0;
  return v;
}

static table read_subtable(reader *r, table t, uint32_t slot) {
  size_t position = find_field(r, t, slot, 4);
  if (position == 0) fail_damaged(r, "a table is missing");
  return read_table(r, follow(r, position));
}

static table read_element(reader *r, vector v, size_t i) {
  if (i >= v.count) fail_damaged(r, "a function has no description");
  return read_table(r, follow(r, v.start + 4 * i));
}

static uint32_t read_u32(reader *r, vector v, size_t i) {
  if (i >= v.count) fail_damaged(r, "a list is too short");
  return (uint32_t)read_number(r, v.start + 4 * i, 4);
}

typedef struct {
  jaxfn_text *items;
  size_t count;
} texts;

static texts read_texts(reader *r, table root) {
  vector text = read_vector(r, root, FILE_TEXT, 1), sizes = read_vector(r, root, FILE_TEXT_SIZES, 4);
  texts all = {allocate(r, sizes.count, sizeof(jaxfn_text)), 0};
  size_t end = 0;
  for (size_t i = 0; i < sizes.count && !r->failed; i++) {
    size_t size = read_u32(r, sizes, i);
    if (size > text.count - end) {
      fail_damaged(r, "the texts are longer than their characters");
      break;
    }
    all.items[i].start = (const char *)r->bytes + text.start + end;
    all.items[i].size = size;
    end += size;
  }
  all.count = r->failed ? 0 : sizes.count;
  return all;
}

static jaxfn_text look_up(reader *r, texts all, uint32_t i) {
  jaxfn_text empty = {"", 0};
  if (!r->failed && i >= all.count) fail_damaged(r, "a text is missing");
  return r->failed ? empty : all.items[i];
}

static jaxfn_text *look_up_all(reader *r, texts all, table t, uint32_t slot, size_t *count) {
  vector indices = read_vector(r, t, slot, 4);
  jaxfn_text *items = allocate(r, indices.count, sizeof(jaxfn_text));
  for (size_t i = 0; i < indices.count && !r->failed; i++)
    items[i] = look_up(r, all, read_u32(r, indices, i));
  *count = r->failed ? 0 : indices.count;
  return items;
}

/* Text that grows. */
typedef struct {
  char *start;
  size_t size, capacity;
} builder;

static void append(reader *r, builder *b, const char *text, size_t size) {
  if (r->failed) return;
  if (b->capacity - b->size <= size) {
    size_t capacity = 2 * (b->size + size) + 64;
    char *start = realloc(b->start, capacity);
    if (start == NULL) {
      r->no_memory = 1;
      fail(r, "cannot be read: there is not enough memory.");
      return;
    }
    b->start = start;
    b->capacity = capacity;
  }
  memcpy(b->start + b->size, text, size);
  b->size += size;
  b->start[b->size] = 0;
}

static void append_text(reader *r, builder *b, const char *text) {
  append(r, b, text, strlen(text));
}

static void append_number(reader *r, builder *b, uint64_t number) {
  char digits[24];
  append(r, b, digits, (size_t)snprintf(digits, sizeof digits, "%" PRIu64, number));
}

typedef struct {
  vector dtypes, ranks, element_ranks, sizes, dimensions;
  size_t *starts; /* of each abstract value in sizes */
} avals;

static avals read_avals(reader *r, table root) {
  avals all = {{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, NULL};
  if (r->failed || find_field(r, root, FILE_AVALS, 4) == 0) return all;
  table t = read_subtable(r, root, FILE_AVALS);
  all.dtypes = read_vector(r, t, AVALS_DTYPES, 4);
  all.ranks = read_vector(r, t, AVALS_RANKS, 4);
  all.element_ranks = read_vector(r, t, AVALS_ELEMENT_RANKS, 4);
  all.sizes = read_vector(r, t, AVALS_SIZES, 8);
  all.dimensions = read_vector(r, t, AVALS_DIMENSIONS, 4);
  if (all.ranks.count != all.dtypes.count ||
      (all.element_ranks.count && all.element_ranks.count != all.dtypes.count))
    fail_damaged(r, "a type has no shape");
  all.starts = allocate(r, all.dtypes.count, sizeof(size_t));
  size_t end = 0;
  for (size_t i = 0; i < all.dtypes.count && !r->failed; i++) {
    size_t rank = read_u32(r, all.ranks, i);
    all.starts[i] = end;
    end += rank + (all.element_ranks.count ? read_u32(r, all.element_ranks, i) : 0);
    if (end > all.sizes.count) fail_damaged(r, "a shape is missing");
  }
  return all;
}

/* Reads a type, and appends "float32[b,28]" to the text unless it is NULL. */
static void read_type(reader *r, const avals *all, texts names, uint32_t index, jaxfn_type *type,
                      builder *text) {
  if (!r->failed && index >= all->dtypes.count) fail_damaged(r, "a type is missing");
  jaxfn_text dtype = look_up(r, names, read_u32(r, all->dtypes, index));
  type->rank = (int)read_u32(r, all->ranks, index);
  type->sizes = allocate(r, r->failed ? 0 : (size_t)type->rank, sizeof(int64_t));
  if (r->failed) return;
  for (size_t i = 0; i < sizeof DTYPES / sizeof *DTYPES; i++)
    if (strlen(DTYPES[i].name) == dtype.size && !memcmp(DTYPES[i].name, dtype.start, dtype.size)) {
      type->number = DTYPES[i].number;
      type->element_size = DTYPES[i].size;
    }
  if (type->element_size == 0)
    fail(r, "has an array of %.*s, which C libraries do not support.",
         (int)(dtype.size < 40 ? dtype.size : 40), dtype.start);
  if (text) append(r, text, dtype.start, dtype.size), append_text(r, text, "[");
  for (int i = 0; i < type->rank && !r->failed; i++) {
    int64_t size =
        (int64_t)read_number(r, all->sizes.start + 8 * (all->starts[index] + (size_t)i), 8);
    if (text && i) append_text(r, text, ",");
    type->sizes[i] = size < 0 ? -1 : size;
    if (size >= 0) {
      if (text) append_number(r, text, (uint64_t)size);
      continue;
    }
    uint64_t dimension = (uint64_t)(-1 - size);
    if (dimension >= all->dimensions.count) fail_damaged(r, "a dimension is missing");
    jaxfn_text name = look_up(r, names, read_u32(r, all->dimensions, (size_t)dimension));
    if (text) append(r, text, name.start, name.size);
  }
  if (text) append_text(r, text, "]");
}

static jaxfn_type *read_types(reader *r, const avals *all, texts names, table t, uint32_t slot,
                              size_t *count, builder *text) {
  vector indices = read_vector(r, t, slot, 4);
  jaxfn_type *types = allocate(r, indices.count, sizeof(jaxfn_type));
  *count = types ? indices.count : 0;
  append_text(r, text, "(");
  for (size_t i = 0; i < *count && !r->failed; i++) {
    if (i) append_text(r, text, ", ");
    read_type(r, all, names, read_u32(r, indices, i), &types[i], text);
  }
  append_text(r, text, ")");
  return types;
}

/* Appends the argument names, and the structures of the arguments and of the result. */
static void append_structure(reader *r, texts names, table root, table function, builder *text) {
  vector arguments = read_vector(r, function, FUNCTION_ARGUMENT_NAMES, 4);
  for (size_t i = 0; i < arguments.count && !r->failed; i++) {
    jaxfn_text name = look_up(r, names, read_u32(r, arguments, i));
    append_text(r, text, i ? "," : "");
    append(r, text, name.start, name.size);
  }
  table trees = read_subtable(r, root, FILE_TREES);
  vector kinds = read_vector(r, trees, TREES_KINDS, 1);
  vector counts = read_vector(r, trees, TREES_COUNTS, 4);
  vector keys = read_vector(r, trees, TREES_KEYS, 4);
  size_t node = 0, container = 0, key = 0;
  for (int tree = 0; tree < 2; tree++) {
    append_text(r, text, tree ? " -> " : " ");
    for (uint64_t open = 1; open > 0 && !r->failed; open--) {
      if (node >= kinds.count) {
        fail_damaged(r, "a structure is cut short");
        return;
      }
      uint64_t kind = read_number(r, kinds.start + node++, 1);
      append_text(r, text, ".");
      append_number(r, text, kind);
      if (kind == LEAF || kind == NONE) continue;
      uint32_t count = read_u32(r, counts, container++);
      open += count;
      append_text(r, text, ":");
      append_number(r, text, count);
      if (kind != DICT && kind != NAMEDTUPLE && kind != NAMED_CUSTOM) continue;
      for (uint32_t i = 0; i < count && !r->failed; i++) {
        uint32_t index = read_u32(r, keys, key++);
        jaxfn_text other = {"?", 1}, name = other;
        if (!(index & KEY_INDEX_FLAG)) name = look_up(r, names, index);
        append_text(r, text, "/");
        append(r, text, name.start, name.size);
      }
    }
  }
}

static uint32_t crc32(uint32_t crc, const uint8_t *bytes, size_t size) {
  uint32_t row[256];
  for (uint32_t i = 0; i < 256; i++) {
    row[i] = i;
    for (int bit = 0; bit < 8; bit++) row[i] = row[i] >> 1 ^ (row[i] & 1 ? 0xedb88320u : 0);
  }
  crc = ~crc;
  for (size_t i = 0; i < size; i++) crc = crc >> 8 ^ row[(crc ^ bytes[i]) & 255];
  return ~crc;
}

static const uint32_t SHA256_CONSTANTS[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

#define ROTATE(x, n) ((x) >> (n) | (x) << (32 - (n)))

/* One round; the caller renames the variables instead of moving their values. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                    \
  do {                                                                                      \
    uint32_t first = h + (ROTATE(e, 6) ^ ROTATE(e, 11) ^ ROTATE(e, 25)) + (g ^ (e & (f ^ g))) + \
                     SHA256_CONSTANTS[i] + w[i];                                            \
    d += first;                                                                             \
    h = first + (ROTATE(a, 2) ^ ROTATE(a, 13) ^ ROTATE(a, 22)) + ((a & b) | (c & (a | b))); \
  } while (0)

static void sha256_blocks(uint32_t state[8], const uint8_t *bytes, size_t blocks) {
  for (; blocks > 0; blocks--, bytes += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
      w[i] = (uint32_t)bytes[4 * i] << 24 | (uint32_t)bytes[4 * i + 1] << 16 |
             (uint32_t)bytes[4 * i + 2] << 8 | bytes[4 * i + 3];
    for (int i = 16; i < 64; i++)
      w[i] = w[i - 16] + w[i - 7] +
             (ROTATE(w[i - 15], 7) ^ ROTATE(w[i - 15], 18) ^ w[i - 15] >> 3) +
             (ROTATE(w[i - 2], 17) ^ ROTATE(w[i - 2], 19) ^ w[i - 2] >> 10);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int i = 0; i < 64; i += 8) {
      ROUND(a, b, c, d, e, f, g, h, i);
      ROUND(h, a, b, c, d, e, f, g, i + 1);
      ROUND(g, h, a, b, c, d, e, f, i + 2);
      ROUND(f, g, h, a, b, c, d, e, i + 3);
      ROUND(e, f, g, h, a, b, c, d, i + 4);
      ROUND(d, e, f, g, h, a, b, c, i + 5);
      ROUND(c, d, e, f, g, h, a, b, i + 6);
      ROUND(b, c, d, e, f, g, h, a, i + 7);
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_SHA256_INSTRUCTIONS 1

static int have_sha256_instructions(void) {
  unsigned int a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_SSE4_1 && c & bit_SSSE3 &&
         __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_SHA;
}

/* The same with the instructions of newer processors, which keep the state as ABEF and CDGH. */
__attribute__((target("sha,sse4.1,ssse3"))) static void sha256_blocks_by_instructions(
    uint32_t state[8], const uint8_t *bytes, size_t blocks) {
  const __m128i swap = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
  __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
  for (; blocks > 0; blocks--, bytes += 64) {
    __m128i w[16], old_abef = abef, old_cdgh = cdgh;
    for (int i = 0; i < 16; i++) { /* four rounds each */
      if (i < 4)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)bytes + i), swap);
      else
        w[i] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]),
                                                  _mm_alignr_epi8(w[i - 1], w[i - 2], 4)),
                                    w[i - 1]);
      __m128i sums = _mm_add_epi32(
          w[i], _mm_loadu_si128((const __m128i *)(const void *)(SHA256_CONSTANTS + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sums);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_unpackhi_epi64(sums, sums));
    }
    abef = _mm_add_epi32(abef, old_abef);
    cdgh = _mm_add_epi32(cdgh, old_cdgh);
  }
  uint32_t first[4], second[4];
  _mm_storeu_si128((__m128i *)(void *)first, abef);
  _mm_storeu_si128((__m128i *)(void *)second, cdgh);
  for (int i = 0; i < 2; i++) {
    state[i] = first[3 - i], state[4 + i] = first[1 - i];
    state[2 + i] = second[3 - i], state[6 + i] = second[1 - i];
  }
}
#endif

/* Writes the SHA-256 in hexadecimal. */
static void sha256(const uint8_t *bytes, size_t size, char digest[65]) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  size_t rest = size % 64;
  void (*add_blocks)(uint32_t *, const uint8_t *, size_t) = sha256_blocks;
#ifdef HAS_SHA256_INSTRUCTIONS
  if (have_sha256_instructions()) add_blocks = sha256_blocks_by_instructions;
#endif
  add_blocks(state, bytes, size / 64);
  uint8_t last[128] = {0};
  if (rest) memcpy(last, bytes + size - rest, rest);
  last[rest] = 0x80;
  size_t end = rest < 56 ? 64 : 128;
  for (int i = 0; i < 8; i++) last[end - 1 - (size_t)i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
  add_blocks(state, last, end / 64);
  for (int i = 0; i < 8; i++) snprintf(digest + 8 * i, 9, "%08" PRIx32, state[i]);
}

static void read_constants(reader *r, jaxfn_file *file, const avals *all, texts names, table root,
                           table function, size_t position, size_t file_size) {
  vector types = read_vector(r, function, FUNCTION_LIFTED_AVALS, 4);
  vector digests = read_vector(r, function, FUNCTION_LIFTED_DIGESTS, 4);
  vector stored = read_vector(r, root, FILE_ARRAY_DIGESTS, 4);
  vector sizes = read_vector(r, root, FILE_ARRAY_SIZES, 8);
  if (types.count != digests.count || stored.count != sizes.count)
    fail_damaged(r, "an array has no type or size");
  file->constants = allocate(r, types.count, sizeof(jaxfn_constant));
  if (r->failed) return;
  file->constant_count = types.count;
  for (size_t i = 0; i < types.count && !r->failed; i++) {
    jaxfn_constant *constant = &file->constants[i];
    read_type(r, all, names, read_u32(r, types, i), &constant->type, NULL);
    constant->size = constant->type.element_size;
    for (int axis = 0; axis < constant->type.rank && !r->failed; axis++) {
      int64_t size = constant->type.sizes[axis];
      if (size < 0 || (size && constant->size > SIZE_MAX / (size_t)size))
        fail_damaged(r, "an array has no size");
      else
        constant->size *= (size_t)size;
    }
  }
  size_t found = 0;
  for (size_t j = 0; j < stored.count && !r->failed; j++) {
    size_t padding = (ARRAY_ALIGNMENT - position % ARRAY_ALIGNMENT) % ARRAY_ALIGNMENT;
    uint64_t size = read_number(r, sizes.start + 8 * j, 8);
    if (padding > file_size - position || size > file_size - position - padding) {
      fail_damaged(r, "an array lies outside of it");
      return;
    }
    for (; padding > 0; padding--)
      if (file->bytes[position++]) fail_damaged(r, "the bytes before an array are not zero");
    jaxfn_text expected = look_up(r, names, read_u32(r, stored, j));
    char digest[65] = "";
    for (size_t i = 0; i < digests.count && !r->failed; i++) {
      jaxfn_text own = look_up(r, names, read_u32(r, digests, i));
      if (own.size != expected.size || memcmp(own.start, expected.start, own.size)) continue;
      jaxfn_constant *constant = &file->constants[i];
      if (constant->size != size) {
        fail_damaged(r, "an array does not have the size of its type");
        return;
      }
      if (!*digest) sha256(file->bytes + position, (size_t)size, digest);
      if (expected.size != 64 || memcmp(expected.start, digest, 64)) {
        fail_damaged(r, "the SHA-256 of an array is not the one in its description");
        return;
      }
      found += constant->data == NULL;
      constant->data = file->bytes + position;
    }
    position += (size_t)size;
  }
  if (!r->failed && position != file_size) fail_damaged(r, "it does not end after its last array");
  if (!r->failed && found != types.count)
    fail(r,
         "lacks %zu of %zu captured arrays: it was written without them. Write it with "
         "write_function(path, function).",
         types.count - found, types.count);
}

static void read_structure(reader *r, jaxfn_file *file, size_t file_size) {
  table root = read_table(r, (size_t)read_number(r, 0, 4));
  texts names = read_texts(r, root);
  avals all = read_avals(r, root);
  vector functions = read_vector(r, root, FILE_FUNCTIONS, 4);
  table function = read_element(r, functions, 0);
  builder signature = {NULL, 0, 0};
  file->arguments = read_types(r, &all, names, function, FUNCTION_IN_AVALS, &file->argument_count,
                               &signature);
  append_text(r, &signature, " -> ");
  file->results = read_types(r, &all, names, function, FUNCTION_OUT_AVALS, &file->result_count,
                             &signature);
  append_text(r, &signature, ", with the structure ");
  append_structure(r, names, root, function, &signature);
  file->signature = signature.start;

  vector kept = read_vector(r, function, FUNCTION_MODULE_KEPT_VAR_IDX, 4);
  file->kept = allocate(r, kept.count, sizeof(uint32_t));
  for (size_t i = 0; i < kept.count && !r->failed; i++) {
    file->kept[i] = read_u32(r, kept, i);
    if (file->kept[i] >= file->argument_count) fail_damaged(r, "an argument is missing");
  }
  file->kept_count = kept.count;

  vector lowerings = read_vector(r, root, FILE_LOWERINGS, 4);
  table lowering =
      read_element(r, lowerings, (size_t)read_scalar(r, function, FUNCTION_LOWERING, 4, 0));
  file->calling_convention =
      (int)read_scalar(r, lowering, LOWERING_CALLING_CONVENTION_VERSION, 4, 0);
  file->platforms = look_up_all(r, names, lowering, LOWERING_PLATFORMS, &file->platform_count);
  file->checks = look_up_all(r, names, lowering, LOWERING_DISABLED_CHECKS, &file->check_count);
  if (!r->failed && (!read_scalar(r, lowering, LOWERING_TARGET_XLA, 1, 1) ||
                     read_scalar(r, lowering, LOWERING_NR_DEVICES, 4, 1) != 1 ||
                     read_vector(r, function, FUNCTION_ORDERED_EFFECTS, 4).count ||
                     read_vector(r, function, FUNCTION_UNORDERED_EFFECTS, 4).count ||
                     read_vector(r, function, FUNCTION_GRAPH_FUNCTIONS, 4).count))
    fail(r,
         "holds a function that XLA cannot run alone on one device. Write the library for this file "
         "with write_open_library, which says why.");

  size_t position = r->size;
  for (size_t i = 0; i < functions.count && !r->failed; i++) {
    table each = read_element(r, functions, i);
    uint64_t size = read_scalar(r, each, FUNCTION_MODULE_SIZE, 8, 0);
    if (size > file_size - position) {
      fail_damaged(r, "a module lies outside of it");
      break;
    }
    if (i == 0) {
      file->module = file->bytes + position;
      file->module_size = (size_t)size;
      uint32_t expected = (uint32_t)read_scalar(r, each, FUNCTION_MODULE_CRC32, 4, 0);
      if (!r->failed && crc32(0, file->module, file->module_size) != expected)
        fail_damaged(r, "the checksum of its module is wrong");
    }
    position += (size_t)size;
  }
  read_constants(r, file, &all, names, root, function, position, file_size);
  free(names.items);
  free(all.starts);
}

/* Reads all bytes, aligned like the arrays, so that TensorFlow can use these without a copy. */
static size_t read_bytes(reader *r, jaxfn_file *file, const char *path) {
  FILE *stream = fopen(path, "rb");
  if (stream == NULL) {
    fail(r, "cannot be opened. Pass the path of an existing .jaxfn file.");
    return 0;
  }
  long size = -1;
  if (fseek(stream, 0, SEEK_END) == 0) size = ftell(stream);
  if (size < 0 || size == INT64_MAX || fseek(stream, 0, SEEK_SET) != 0) {
    fail(r, "cannot be read. Pass the path of a .jaxfn file.");
  } else {
    size_t rounded = ((size_t)size / ARRAY_ALIGNMENT + 1) * ARRAY_ALIGNMENT;
    file->bytes = aligned_alloc(ARRAY_ALIGNMENT, rounded);
    if (file->bytes == NULL) {
      r->no_memory = 1;
      fail(r, "cannot be read: there is not enough memory for its %ld bytes.", size);
    } else if (fread(file->bytes, 1, (size_t)size, stream) != (size_t)size) {
      fail_damaged(r, "it became shorter while it was read");
    }
  }
  fclose(stream);
  return r->failed ? 0 : (size_t)size;
}

int jaxfn_file_read(jaxfn_file *file, const char *path, char *message, int *no_memory) {
  memset(file, 0, sizeof *file);
  reader r = {NULL, 0, 0, 0, message, path};
  size_t size = read_bytes(&r, file, path);
  if (!r.failed && (size < HEADER_SIZE || memcmp(file->bytes + 4, "JXFN", 4)))
    fail(&r, "is not a .jaxfn file. Write one with: jax2tf-bridge export FUNCTION -o FILE.jaxfn");
  if (!r.failed) {
    uint64_t version = load(file->bytes + 8, 4), structure = load(file->bytes + 16, 8);
    if (version > NEWEST_VERSION)
      fail(&r,
           "has version %" PRIu64 " of the format, and this library reads up to %d. Write the "
           "library again with the jax2tf-bridge that wrote the file.",
           version, NEWEST_VERSION);
    else if (load(file->bytes + 24, 8) != size)
      fail_damaged(&r, "its size is not the one in its header");
    else if (version < 1 || structure < HEADER_SIZE || structure > size || structure > INT32_MAX)
      fail_damaged(&r, "its header is wrong");
    r.bytes = file->bytes;
    r.size = (size_t)structure;
  }
  if (!r.failed) {
    uint32_t crc = crc32(crc32(0, r.bytes, 12), r.bytes + 16, r.size - 16);
    if (crc != load(r.bytes + 12, 4)) fail_damaged(&r, "the checksum of its structure is wrong");
  }
  if (!r.failed) read_structure(&r, file, size);
  *no_memory = r.no_memory;
  return !r.failed;
}

void jaxfn_file_close(jaxfn_file *file) {
  for (size_t i = 0; file->arguments && i < file->argument_count; i++)
    free(file->arguments[i].sizes);
  for (size_t i = 0; file->results && i < file->result_count; i++) free(file->results[i].sizes);
  for (size_t i = 0; file->constants && i < file->constant_count; i++)
    free(file->constants[i].type.sizes);
  free(file->arguments);
  free(file->results);
  free(file->constants);
  free(file->kept);
  free(file->platforms);
  free(file->checks);
  free(file->signature);
  free(file->bytes);
  memset(file, 0, sizeof *file);
}
