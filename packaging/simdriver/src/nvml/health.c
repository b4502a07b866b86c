// What a card says about its own condition.
#include "sim.h"

#include <time.h>

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending) {
  READ_GPU(device, g, current && pending);
  *current = *pending = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                                nvmlEccCounterType_t counter, unsigned long long *out) {
  (void)counter;  // there is no life before the first script
  READ_GPU(device, g, out);
  *out = type == NVML_MEMORY_ERROR_TYPE_CORRECTED ? g.ecc_corrected : g.ecc_uncorrected;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *correctable,
                                              unsigned int *uncorrectable, unsigned int *pending, unsigned int *failed) {
  READ_GPU(device, g, correctable && uncorrectable && pending && failed);
  if (!g.remaps_rows) return NVML_ERROR_NOT_SUPPORTED;
  *correctable = g.remapped_correctable;
  *uncorrectable = g.remapped_uncorrectable;
  *pending = g.remap_pending;
  *failed = g.remap_failed;
  return NVML_SUCCESS;
}

// Pages retired after a double-bit error; the simulation knows no other cause.
EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int *count,
                                              unsigned long long *addresses) {
  READ_GPU(device, g, count);
  if (g.remaps_rows) return NVML_ERROR_NOT_SUPPORTED;
  const unsigned int room = *count;
  *count = cause == NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR ? g.retired : 0;
  if (*count > room || (*count && !addresses)) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < *count; i++) addresses[i] = 0x100000ull + i * 0x10000ull;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *out) {
  READ_GPU(device, g, out);
  if (g.remaps_rows) return NVML_ERROR_NOT_SUPPORTED;
  *out = g.retire_pending ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
  READ_GPU(device, g, count > 0 && values);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  for (int i = 0; i < count; i++) {
    nvmlFieldValue_t *v = &values[i];
    v->timestamp = (long long)now.tv_sec * 1000000ll + now.tv_nsec / 1000;
    v->latencyUsec = 0;
    v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    v->nvmlReturn = NVML_SUCCESS;
    switch (v->fieldId) {
      case NVML_FI_DEV_MEMORY_TEMP: v->value.uiVal = g.memory_temperature; break;
      case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: v->value.uiVal = g.recovery; break;
      default: v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
  }
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t *out) {
  READ_GPU(device, g, out);
  *out = g.persistence ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}
