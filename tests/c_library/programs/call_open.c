/* Calls the libraries attend and kinds; tests/c_library/test_open_sizes.py has the functions. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend.h"
#include "kinds.h"

static attend_handle *first;

static void print(const char *name, const float *values, int64_t count) {
  printf("%s", name);
  for (int64_t i = 0; i < count; i++) printf(" %.9g", (double)values[i]);
  printf("\n");
}

/* Returns the results of attend, out and then halves, or NULL. */
static float *call(attend_handle *handle, int64_t b, int64_t t) {
  int64_t count = b * t * 8, out = b * 8, halves = b * ((t + 1) / 2);
  /* One element in front, so that the array is not aligned as TensorFlow likes it. */
  float *memory = malloc((size_t)(count + 1) * sizeof(float)), *x = memory + 1;
  uint8_t *mask = malloc((size_t)(b * t));
  float *results = malloc((size_t)(out + halves) * sizeof(float));
  for (int64_t i = 0; i < count; i++) x[i] = (float)(i % 7) / 7;
  for (int64_t i = 0; i < b * t; i++) mask[i] = i % 3 != 1;
  attend_inputs inputs = {b, t, x, mask};
  attend_outputs outputs = {.out = results, .halves = results + out};
  attend_status status = attend_run(handle, &inputs, &outputs);
  free(memory);
  free(mask);
  if (status == ATTEND_OK) return results;
  printf("%d %s\n", status, attend_message(handle));
  free(results);
  return NULL;
}

static void show(int64_t b, int64_t t) {
  float *results = call(first, b, t);
  if (results) print("out", results, b * 8), print("halves", results + b * 8, b * ((t + 1) / 2));
  free(results);
}

static void *work(void *handle) {
  float *expected = call(handle, 2, 3);
  int differ = expected == NULL;
  for (int i = 0; i < 200; i++) {
    float *results = call(handle, 2, 3);
    differ |= results == NULL || memcmp(results, expected, (2 * 8 + 4) * sizeof(float));
    free(results);
  }
  free(expected);
  return differ ? "differ" : NULL;
}

static void show_threads(const char *file) {
  attend_handle *own = NULL, *shared = NULL;
  if (attend_open(&own, file) || attend_share(&shared, first)) printf("cannot open\n");
  pthread_t threads[2];
  pthread_create(&threads[0], NULL, work, own);
  pthread_create(&threads[1], NULL, work, shared);
  for (int i = 0; i < 2; i++) {
    void *problem = NULL;
    pthread_join(threads[i], &problem);
    printf("thread %s\n", problem ? (const char *)problem : "agrees");
  }
  /* The program outlives the handle that opened it. */
  attend_free(first);
  first = shared;
  show(2, 3);
  attend_free(own);
}

static void show_refusal(const char *file) {
  attend_handle *handle = NULL;
  attend_status status = attend_open(&handle, file);
  printf("%d %s\n", status, attend_message(handle));
  status = attend_run(handle, &(attend_inputs){2, 3, NULL, NULL}, &(attend_outputs){NULL, NULL});
  printf("%d %s\n", status, attend_message(handle));
  attend_free(handle);
}

static void show_kinds(const char *file) {
  kinds_handle *handle = NULL;
  int8_t small[] = {-3, 5};
  uint64_t large[] = {UINT64_MAX, 7};
  double precise[] = {0.1, 1e300};
  uint16_t halves[] = {0x3f80, 0xc000}, floats[] = {0x3c00, 0xc000};
  float complex_number[] = {1, 2, 3, 4};
  int32_t scalar = 40;
  kinds_inputs inputs = {.n = 2,
                         .small = small,
                         .large = large,
                         .precise = precise,
                         .more_halves = halves,
                         .more_floats = floats,
                         .more_complex = complex_number,
                         .number = &scalar};
  int8_t out_small[2];
  uint64_t out_large[2];
  double out_precise[2];
  uint16_t out_halves[2], out_floats[2];
  float out_complex[4];
  int32_t out_scalar;
  uint8_t out_flag[2];
  kinds_outputs outputs = {out_small, out_large,   out_precise, out_halves,
                           out_floats, out_complex, &out_scalar, out_flag};
  if (kinds_open(&handle, file) || kinds_run(handle, &inputs, &outputs))
    printf("%s\n", kinds_message(handle));
  printf("%d %d, %" PRIu64 " %" PRIu64 ", %.15g %.15g, ", out_small[0], out_small[1], out_large[0],
         out_large[1], out_precise[0], out_precise[1]);
  printf("%x %x, %x %x, %g %g %g %g, %d, %d %d\n", out_halves[0], out_halves[1], out_floats[0],
         out_floats[1], out_complex[0], out_complex[1], out_complex[2], out_complex[3], out_scalar, out_flag[0], out_flag[1]);
  kinds_free(handle);
}

int main(int arguments, char **files) {
  if (arguments != 4 || attend_open(&first, files[1])) {
    printf("%s\n", attend_message(first));
    return 1;
  }
  show(2, 3);
  show(4, 5);
  show(2, 3);
  show(0, 3);
  show(2, 1);
  for (int i = 0; i < 2; i++) {
    attend_inputs inputs = {i ? 2 : INT64_MAX / 4, i ? 3 : 16, NULL, NULL};
    attend_status status = attend_run(first, &inputs, &(attend_outputs){NULL, NULL});
    printf("%d %s\n", status, attend_message(first));
  }
  show_threads(files[1]);
  show_kinds(files[2]);
  show_refusal(files[2]);
  show_refusal(files[3]);
  attend_free(first);
  return 0;
}
