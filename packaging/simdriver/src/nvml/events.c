// XID errors as NVML events.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct nvmlEventSet_st {
  unsigned long long seen;  // sequence number of the newest event told
  unsigned long long mask[MAX_GPUS];
};

static unsigned long long newest(const struct state *s) {
  unsigned long long sequence = 0;
  for (unsigned int i = 0; i < s->event_count; i++)
    if (s->events[i].sequence > sequence) sequence = s->events[i].sequence;
  return sequence;
}

// next returns the oldest event the set has asked for and not been told of.
static const struct xid_event *next(const struct state *s, nvmlEventSet_t set) {
  const struct xid_event *found = NULL;
  for (unsigned int i = 0; i < s->event_count; i++) {
    const struct xid_event *e = &s->events[i];
    if (e->sequence <= set->seen || e->gpu >= s->gpu_count) continue;
    if (!(set->mask[e->gpu] & nvmlEventTypeXidCriticalError)) continue;
    if (!found || e->sequence < found->sequence) found = e;
  }
  return found;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  struct state s;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = sim_snapshot(&s);
  if (result != NVML_SUCCESS) return result;
  *set = calloc(1, sizeof **set);
  if (!*set) return NVML_ERROR_MEMORY;
  (*set)->seen = newest(&s);  // what happened before is not told
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  free(set);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
  READ_GPU(device, g, types);
  *types = nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError |
           nvmlEventTypePState | nvmlEventTypeClock;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  READ_GPU(device, g, set);
  set->mask[device->gpu] |= types;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  enum { STEP_MS = 100 };
  if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned int waited = 0;; waited += STEP_MS) {
    struct state s;
    const nvmlReturn_t result = sim_snapshot(&s);
    if (result != NVML_SUCCESS) return result;
    const struct xid_event *e = next(&s, set);
    if (e) {
      memset(data, 0, sizeof *data);
      data->device = sim_handle(e->gpu);
      data->eventType = nvmlEventTypeXidCriticalError;
      data->eventData = e->xid;
      data->gpuInstanceId = data->computeInstanceId = ~0u;
      set->seen = e->sequence;
      return NVML_SUCCESS;
    }
    if (waited >= timeout_ms) return NVML_ERROR_TIMEOUT;
    sim_sleep_ms(STEP_MS);
  }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}
