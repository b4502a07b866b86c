// What each GPU is doing.
#include "sim.h"

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
  READ_GPU(device, g, out);
  if (g.mig) return NVML_ERROR_NOT_SUPPORTED;
  out->gpu = g.utilization;
  out->memory = g.memory_utilization;
  return NVML_SUCCESS;
}

static nvmlReturn_t idle_codec(nvmlDevice_t device, unsigned int *utilization, unsigned int *period_us) {
  READ_GPU(device, g, utilization && period_us);
  *utilization = 0;
  *period_us = 167000;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *us) {
  return idle_codec(device, utilization, us);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int *utilization, unsigned int *us) {
  return idle_codec(device, utilization, us);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
  READ_PART(device, g, part, out);
  out->total = part ? part->memory_total : g.memory_total;
  out->used = part ? part->memory_used : g.memory_used;
  out->free = out->total - out->used;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
  READ_PART(device, g, part, out);
  if (out->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  out->total = part ? part->memory_total : g.memory_total;
  out->reserved = 0;
  out->used = part ? part->memory_used : g.memory_used;
  out->free = out->total - out->used;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out) {
  READ_GPU(device, g, out);
  out->bar1Total = 256ull << 20;
  out->bar1Used = 1ull << 20;
  out->bar1Free = out->bar1Total - out->bar1Used;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int *out) {
  READ_GPU(device, g, out);
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  *out = g.temperature;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold,
                                                      unsigned int *out) {
  READ_GPU(device, g, out);
  *out = threshold == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? 92 : 87;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = g.power;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = g.power_limit;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *out) {
  return nvmlDeviceGetEnforcedPowerLimit(device, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out) {
  READ_GPU(device, g, out);
  *out = g.energy;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = type == NVML_CLOCK_MEM ? g.memory_clock : g.sm_clock;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = type == NVML_CLOCK_MEM ? g.memory_clock_max : g.sm_clock_max;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, nvmlPstates_t *out) {
  READ_GPU(device, g, out);
  *out = g.process_count ? NVML_PSTATE_2 : NVML_PSTATE_8;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *out) {
  READ_GPU(device, g, out);
  *out = g.throttle;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *out) {
  return nvmlDeviceGetCurrentClocksEventReasons(device, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = g.fan;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned int fan, unsigned int *out) {
  return fan == 0 ? nvmlDeviceGetFanSpeed(device, out) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = 1;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t *out) {
  READ_GPU(device, g, out);
  *out = NVML_COMPUTEMODE_DEFAULT;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t *out) {
  READ_GPU(device, g, out);
  *out = NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t *out) {
  return nvmlDeviceGetDisplayActive(device, out);
}
