/* Reads .jaxfn files. Every offset and checksum is checked, so a damaged file gives a message.
   Checksums do not stop an attacker: open only files whose source you trust, because XLA runs the
   program in them. */
#ifndef JAXFN_FILE_H_
#define JAXFN_FILE_H_

#include <stddef.h>
#include <stdint.h>

#define JAXFN_MESSAGE_SIZE 1024

typedef struct {
  int number;          /* of the dtype in TF_DataType */
  size_t element_size; /* in bytes */
  int rank;
  int64_t *sizes;      /* -1 for open sizes */
} jaxfn_type;

typedef struct {
  jaxfn_type type;
  const uint8_t *data; /* in jaxfn_file.bytes */
  size_t size;
} jaxfn_constant;

typedef struct {
  const char *start; /* not terminated by zero */
  size_t size;
} jaxfn_text;

typedef struct {
  uint8_t *bytes;  /* of the whole file */
  char *signature; /* names, structure and types of arguments and results */
  int calling_convention;
  const uint8_t *module; /* StableHLO */
  size_t module_size;
  size_t argument_count, kept_count, result_count, constant_count, platform_count, check_count;
  jaxfn_type *arguments, *results;
  uint32_t *kept; /* the arguments that the module takes; the constants follow them */
  jaxfn_constant *constants;
  jaxfn_text *platforms;
  jaxfn_text *checks; /* disabled checks */
} jaxfn_file;

/* Returns 1, or 0 and a message. After an error, call jaxfn_file_close as well.
   no_memory is set to 1 if there is not enough memory. */
int jaxfn_file_read(jaxfn_file *file, const char *path, char *message, int *no_memory);
void jaxfn_file_close(jaxfn_file *file);

#endif
