/* Calls one kernel of a library that TVM compiled, as TVM's runtime would (tvm_ffi/c_api.h, dlpack.h), without it.
   Arguments: library, symbol, then per tensor: file, rows, columns. All but the last are read; the last is written. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct { int32_t type_index, padding; void *value; } Any;
typedef struct {
  void *data; int32_t device_type, device_id, ndim; uint8_t code, bits; uint16_t lanes;
  int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;

enum { TENSOR_POINTER = 7, CPU = 1, FLOAT = 2, MOST = 8 };

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int i = 0; i < count; i++) fputs(parts[i] ? parts[i] : "", stderr);
}

int main(int argc, char **argv) {
  void *library = dlopen(argv[1], RTLD_LAZY);
  if (!library) { fputs(dlerror(), stderr); return 2; }
  int (*kernel)(void *, const Any *, int32_t, Any *) = (int (*)(void *, const Any *, int32_t, Any *))dlsym(library, argv[2]);
  if (!kernel) return 3;
  Tensor tensors[MOST]; Any any[MOST], result = {0}; int64_t shapes[MOST][2]; int n = (argc - 3) / 3;
  for (int i = 0; i < n; i++) {
    shapes[i][0] = atoi(argv[4 + 3 * i]); shapes[i][1] = atoi(argv[5 + 3 * i]);
    size_t count = (size_t)(shapes[i][0] * shapes[i][1]);
    void *data = aligned_alloc(64, (count * 4 + 63) / 64 * 64);
    if (i < n - 1) {
      FILE *file = fopen(argv[3 + 3 * i], "rb");
      if (!file || fread(data, 4, count, file) != count) return 4;
      fclose(file);
    }
    tensors[i] = (Tensor){data, CPU, 0, 2, FLOAT, 32, 1, shapes[i], 0, 0};
    any[i] = (Any){TENSOR_POINTER, 0, &tensors[i]};
  }
  int code = kernel(0, any, n, &result);
  if (code) return 5;
  FILE *file = fopen(argv[3 + 3 * (n - 1)], "wb");
  fwrite(tensors[n - 1].data, 4, (size_t)(shapes[n - 1][0] * shapes[n - 1][1]), file);
  return fclose(file);
}
