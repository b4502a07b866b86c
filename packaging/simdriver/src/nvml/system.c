// What NVML tells about the driver as a whole.
#include "sim.h"

#include <stdio.h>
#include <string.h>

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
  }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
  struct state s;
  const nvmlReturn_t result = sim_snapshot(&s);
  return result == NVML_SUCCESS ? sim_copy_string(version, length, s.driver) : result;
}

// NVML answers the next two without a driver as well.
EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
  return sim_copy_string(version, length, "13." DRIVER_VERSION);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  struct state s;
  const nvmlReturn_t result = sim_snapshot(&s);
  if (result == NVML_SUCCESS) *version = s.cuda;
  return result;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
  nvmlReturn_t result = sim_ready();
  if (result != NVML_SUCCESS) return result;
  char path[64], command[4096] = "";
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *f = fopen(path, "re");
  if (!f) return NVML_ERROR_NOT_FOUND;
  const size_t n = fread(command, 1, sizeof command - 1, f);
  fclose(f);
  command[n] = 0;  // the arguments after the first follow a zero byte
  if (length && strlen(command) >= length) command[length - 1] = 0;
  return sim_copy_string(name, length, command);
}
