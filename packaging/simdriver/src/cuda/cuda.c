// The simulated driver's libcuda: it can be loaded, and says honestly that it
// computes nothing. A program that has loaded it counts as using the GPU (see
// ../../processes.go).
#include <stddef.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

// gpulab_simulated_driver lets a program tell this library from NVIDIA's.
EXPORT const char gpulab_simulated_driver[] = "simulated";

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, NOT_FOUND = 500 };

EXPORT int cuInit(unsigned int flags) {
  (void)flags;
  return NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version) {
  if (!version) return INVALID_VALUE;
  *version = 13000;
  return SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count) {
  if (count) *count = 0;
  return NO_DEVICE;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
  (void)device, (void)ordinal;
  return NO_DEVICE;
}

EXPORT int cuGetErrorName(int error, const char **name) {
  if (!name) return INVALID_VALUE;
  *name = error == SUCCESS ? "CUDA_SUCCESS" : error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_UNKNOWN";
  return SUCCESS;
}

EXPORT int cuGetErrorString(int error, const char **text) {
  if (!text) return INVALID_VALUE;
  *text = error == SUCCESS ? "no error" : "this GPU is simulated: it can be watched and shared, but runs no CUDA code";
  return SUCCESS;
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, unsigned long long flags,
                               int *status);

// The CUDA runtime asks for every entry point through cuGetProcAddress.
static void *lookup(const char *symbol) {
  static const struct {
    const char *name;
    void *function;
  } table[] = {
      {"cuInit", (void *)cuInit},
      {"cuDriverGetVersion", (void *)cuDriverGetVersion},
      {"cuDeviceGetCount", (void *)cuDeviceGetCount},
      {"cuDeviceGet", (void *)cuDeviceGet},
      {"cuGetErrorName", (void *)cuGetErrorName},
      {"cuGetErrorString", (void *)cuGetErrorString},
      {"cuGetProcAddress", (void *)cuGetProcAddress_v2},
  };
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strcmp(symbol, table[i].name)) return table[i].function;
  return NULL;
}

EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, unsigned long long flags,
                               int *status) {
  (void)cuda_version, (void)flags;
  if (!symbol || !function) return INVALID_VALUE;
  *function = lookup(symbol);
  if (status) *status = *function ? 0 : 1;  // found, or symbol not found
  return *function ? SUCCESS : NOT_FOUND;
}

EXPORT int cuGetProcAddress(const char *symbol, void **function, int cuda_version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, function, cuda_version, flags, NULL);
}
