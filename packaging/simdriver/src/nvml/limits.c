// How much of a GPU's memory a control group may take. The limits lie in files
// of the driver root, which only root on the host can write; the kernel's side,
// ../../limits.go, keeps processes within them.
#include "sim.h"

#include <stdio.h>
#include <string.h>

// is_control_group says whether path is the folder of a group of version 2.
static bool is_control_group(const char *path) {
  char file[PATH_SIZE];
  snprintf(file, sizeof file, "%s/cgroup.controllers", path);
  FILE *f = fopen(file, "re");
  if (f) fclose(f);
  return f != NULL;
}

EXPORT nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t *limits) {
  READ_GPU(device, g, limits && limits->nameSpace && !strchr(limits->nameSpace, '\n'));
  if (!g.limits) return NVML_ERROR_NOT_SUPPORTED;
  const bool clear = limits->hardLimit == NVML_DEVICE_MEMORY_LIMIT_MAX && limits->softLimit == 0;
  if (!clear && (limits->softLimit > limits->hardLimit || limits->hardLimit > g.memory_total)) return NVML_ERROR_INVALID_ARGUMENT;
  if (!is_control_group(limits->nameSpace)) return NVML_ERROR_OPERATING_SYSTEM;
  char text[PATH_SIZE];
  snprintf(text, sizeof text, "%llu %llu %s\n", limits->softLimit, limits->hardLimit, limits->nameSpace);
  return sim_write_limit(g.uuid, limits->nameSpace, clear ? NULL : text) ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits) {
  READ_GPU(device, g, limits && limits->nameSpace);
  if (!g.limits) return NVML_ERROR_NOT_SUPPORTED;
  if (!is_control_group(limits->nameSpace)) return NVML_ERROR_OPERATING_SYSTEM;
  char text[PATH_SIZE];
  if (!sim_read_limit(g.uuid, limits->nameSpace, text, sizeof text)) return NVML_ERROR_NOT_FOUND;
  limits->currentUsed = 0;  // only the kernel's side would know
  return sscanf(text, "%llu %llu", &limits->softLimit, &limits->hardLimit) == 2 ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}
