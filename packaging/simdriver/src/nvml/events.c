// XID errors as NVML events.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

struct nvmlEventSet_st {
  unsigned long long seen;  // sequence number of the newest event told
  unsigned long long mask[MAX_GPUS];
};

// next returns the oldest event the set has asked for and not been told of,
// and its sequence number.
static const struct xid_event *next(const struct xid_event *events, unsigned int count, nvmlEventSet_t set,
                                    unsigned long long *sequence) {
  const struct xid_event *found = NULL;
  for (unsigned int i = 0; i < count; i++) {
    const struct xid_event *e = &events[i];
    if (e->sequence <= set->seen || !(set->mask[e->gpu] & nvmlEventTypeXidCriticalError)) continue;
    const unsigned long long first = e->sequence - e->count + 1;
    const unsigned long long own = first > set->seen ? first : set->seen + 1;
    if (found && own >= *sequence) continue;
    found = e;
    *sequence = own;
  }
  return found;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  struct xid_event events[MAX_EVENTS];
  unsigned int count;
  if (!set) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = sim_events(events, &count);
  if (result != NVML_SUCCESS) return result;
  *set = calloc(1, sizeof **set);
  if (!*set) return NVML_ERROR_MEMORY;
  for (unsigned int i = 0; i < count; i++)  // what happened before is not told
    if (events[i].sequence > (*set)->seen) (*set)->seen = events[i].sequence;
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
  const unsigned int step_ms = timeout_ms < 250 ? timeout_ms : 250;  // the state changes once a second
  if (!set || !data) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned int waited = 0;; waited += step_ms) {
    struct xid_event events[MAX_EVENTS];
    unsigned int count;
    unsigned long long sequence = 0;
    const nvmlReturn_t result = sim_events(events, &count);
    if (result != NVML_SUCCESS) return result;
    const struct xid_event *e = next(events, count, set, &sequence);
    if (e) {
      memset(data, 0, sizeof *data);
      data->device = sim_handle(e->gpu);
      data->eventType = nvmlEventTypeXidCriticalError;
      data->eventData = e->xid;
      data->gpuInstanceId = data->computeInstanceId = ~0u;
      set->seen = sequence;
      return NVML_SUCCESS;
    }
    if (waited >= timeout_ms) return NVML_ERROR_TIMEOUT;
    sim_sleep_ms(step_ms);
  }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms) {
  return nvmlEventSetWait_v2(set, data, timeout_ms);
}
