/* Reads a .jaxfn file, and damaged copies of it: COUNT of each kind, from a seed.
   Prints how many copies of each kind were accepted. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jaxfn_file.h"

static uint32_t add_crc(uint32_t crc, const uint8_t *bytes, size_t size) {
  crc = ~crc;
  for (size_t i = 0; i < size; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

static int is_read(const char *path, const uint8_t *bytes, size_t size) {
  FILE *stream = fopen(path, "wb");
  fwrite(bytes, 1, size, stream);
  fclose(stream);
  jaxfn_file file;
  char message[JAXFN_MESSAGE_SIZE] = "";
  int no_memory;
  int accepted = jaxfn_file_read(&file, path, message, &no_memory);
  if (!accepted && strlen(message) < 20) abort();
  if (!accepted && !strchr(message, '.')) abort();
  jaxfn_file_close(&file);
  return accepted;
}

int main(int arguments, char **values) {
  if (arguments != 5) return 2;
  const char *copy = values[2];
  int count = atoi(values[3]);
  srand((unsigned)atoi(values[4]));
  FILE *stream = fopen(values[1], "rb");
  static uint8_t bytes[1 << 20], changed[1 << 20];
  size_t size = fread(bytes, 1, sizeof bytes, stream);
  fclose(stream);
  uint32_t structure;
  memcpy(&structure, bytes + 16, 4);
  int cut = 0, flipped = 0, sealed = 0;
  for (int i = 0; i < count; i++) cut += is_read(copy, bytes, (size_t)rand() % size);
  for (int i = 0; i < count; i++) {
    memcpy(changed, bytes, size);
    changed[(size_t)rand() % size] ^= (uint8_t)(1 << rand() % 8);
    flipped += is_read(copy, changed, size);
  }
  for (int i = 0; i < count; i++) {
    /* Changes in the structure, with its checksum made right again. */
    memcpy(changed, bytes, size);
    for (int n = 1 + rand() % 4; n-- > 0;) {
      uint8_t *byte = &changed[32 + (size_t)rand() % (structure - 32)];
      *byte = rand() % 2 ? (uint8_t)rand() : (uint8_t)(*byte ^ 1 << rand() % 8);
    }
    uint32_t crc = add_crc(add_crc(0, changed, 12), changed + 16, structure - 16);
    memcpy(changed + 12, &crc, 4);
    sealed += is_read(copy, changed, size);
  }
  printf("%d %d %d %d\n", is_read(copy, bytes, size), cut, flipped, sealed);
  return 0;
}
