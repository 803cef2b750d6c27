/* Runs .jaxfn files with TensorFlow's C API. The generated library uses it; call that instead. */
#ifndef JAXFN_H_
#define JAXFN_H_

#include <stddef.h>
#include <stdint.h>

/* Values as in NAME_status. */
typedef enum {
  JAXFN_OK,
  JAXFN_NO_MEMORY,
  JAXFN_NO_WEIGHTS,
  JAXFN_NO_SIZE,
  JAXFN_FAILED
} jaxfn_status;

typedef struct jaxfn_handle jaxfn_handle;

/* An input or output of a call. */
typedef struct {
  const char *name;
  const void *data; /* of an output: memory that is written */
  const int64_t *sizes;
} jaxfn_array;

/* Opens a file. Sets *handle unless there is no memory at all; free it in any case. */
jaxfn_status jaxfn_open(jaxfn_handle **handle, const char *path, const char *signature);

/* Makes another handle of the same program, weights and compiled sizes, for another thread. */
jaxfn_status jaxfn_share(jaxfn_handle **handle, jaxfn_handle *other);

/* Calls the function with one array for each argument and result. */
jaxfn_status jaxfn_run(jaxfn_handle *handle, const jaxfn_array *inputs, const jaxfn_array *outputs);

/* Sets the message. Returns status. */
jaxfn_status jaxfn_fail(jaxfn_handle *handle, jaxfn_status status, const char *format, ...);

const char *jaxfn_message(const jaxfn_handle *handle);
void jaxfn_free(jaxfn_handle *handle);

/* Arithmetic with sizes. JAXFN_INVALID stands for overflow and division by zero. */
#define JAXFN_INVALID INT64_MIN
int64_t jaxfn_add(int64_t left, int64_t right);
int64_t jaxfn_multiply(int64_t left, int64_t right);
int64_t jaxfn_floor_div(int64_t left, int64_t right);
int64_t jaxfn_floor_mod(int64_t left, int64_t right);
int64_t jaxfn_maximum(int64_t left, int64_t right);
int64_t jaxfn_minimum(int64_t left, int64_t right);

/* Returns whether both sizes are valid and the comparison holds; "!=" and the like. */
int jaxfn_compare(int64_t left, const char *comparison, int64_t right);

#endif
