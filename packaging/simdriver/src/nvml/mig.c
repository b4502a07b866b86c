// GPUs that are split into MIG instances. Only some cards can be: ours can when
// a script has said so.
#include "sim.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
  READ_GPU(device, g, current && pending);
  if (!g.mig_capable) return NVML_ERROR_NOT_SUPPORTED;
  *current = *pending = g.mig ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
  READ_PART(device, g, part, is_mig);
  *is_mig = part != NULL;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
  READ_GPU(device, g, count);
  *count = g.mig_capable ? MAX_INSTANCES : 0;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
  READ_GPU(device, g, mig);
  if (!g.mig_capable) return NVML_ERROR_NOT_SUPPORTED;
  if (!g.mig || index >= g.instance_count) return NVML_ERROR_NOT_FOUND;
  *mig = sim_instance_handle(device->gpu, index);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device) {
  READ_PART(mig, g, part, device);
  if (!part) return NVML_ERROR_INVALID_ARGUMENT;
  *device = sim_handle(mig->gpu);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
  READ_PART(device, g, part, id);
  if (!part) return NVML_ERROR_NOT_SUPPORTED;
  *id = part_id(device->instance);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
  READ_PART(device, g, part, id);
  if (!part) return NVML_ERROR_NOT_SUPPORTED;
  *id = 0;
  return NVML_SUCCESS;
}
