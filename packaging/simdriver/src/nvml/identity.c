// Which GPUs there are, and what each one is.
#include "sim.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { return sim_visible_count(count); }

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count) { return sim_visible_count(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
  struct gpu g;
  return sim_visible_at(index, device, &g);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static bool same_uuid(const struct gpu *g, const char *uuid) { return !strcmp(g->uuid, uuid); }

// same_bus_id compares PCI addresses, whose domain may have four or eight digits.
static bool same_bus_id(const struct gpu *g, const char *id) {
  unsigned int a[4], b[4];
  return sscanf(g->bus_id, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3]) == 4 &&
         sscanf(id, "%x:%x:%x.%x", &b[0], &b[1], &b[2], &b[3]) == 4 && !memcmp(a, b, sizeof a);
}

// find returns the visible GPU for which matches says yes. A lost or hanging
// GPU keeps its identity, so the search reads the whole state.
static nvmlReturn_t find(bool (*matches)(const struct gpu *, const char *), const char *key, nvmlDevice_t *device) {
  struct state s;
  if (!key || !device) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = sim_snapshot(&s);
  if (result != NVML_SUCCESS) return result;
  for (unsigned int i = 0; i < s.gpu_count; i++) {
    if (!matches(&s.gpus[i], key) || !sim_gpu_node_usable(s.gpus[i].minor)) continue;
    *device = sim_handle(i);
    struct gpu g;
    return sim_read_gpu(*device, &g);
  }
  return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  return find(same_uuid, uuid, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
  return find(same_bus_id, id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
  return find(same_bus_id, id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
  READ_PART(device, g, part, name);
  char full[sizeof g.name + sizeof part->profile + 8];
  snprintf(full, sizeof full, part ? "%s MIG %s" : "%s", g.name, part ? part->profile : "");
  return sim_copy_string(name, length, full);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  READ_PART(device, g, part, uuid);
  return sim_copy_string(uuid, length, part ? part->uuid : g.uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
  READ_GPU(device, g, brand);
  *brand = NVML_BRAND_NVIDIA;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
  READ_GPU(device, g, minor);
  *minor = g.minor;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
  READ_GPU(device, g, index);
  unsigned int count;
  const nvmlReturn_t result = sim_visible_count(&count);
  if (result != NVML_SUCCESS) return result;
  for (unsigned int i = 0; i < count; i++) {
    nvmlDevice_t at;
    if (sim_visible_at(i, &at, &g) == NVML_SUCCESS && at == device) {
      *index = i;
      return NVML_SUCCESS;
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

static void fill_pci_info(const struct gpu *g, nvmlPciInfo_t *out) {
  unsigned int function = 0;
  memset(out, 0, sizeof *out);
  sscanf(g->bus_id, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function);
  snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus & 0xff, out->device & 0xff);
  snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff,
           out->device & 0xff);
  out->pciDeviceId = 0x000010de;  // NVIDIA's vendor number, no product's device number
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  READ_GPU(device, g, pci);
  fill_pci_info(&g, pci);
  return NVML_SUCCESS;
}

// The older structure ends before busId.
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  READ_GPU(device, g, pci);
  nvmlPciInfo_t full;
  fill_pci_info(&g, &full);
  memcpy(pci, &full, sizeof full - sizeof full.busId);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
  READ_GPU(device, g, major && minor);
  *major = g.cc_major;
  *minor = g.cc_minor;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture) {
  READ_GPU(device, g, architecture);
  const int capability = g.cc_major * 10 + g.cc_minor;
  *architecture = capability >= 100  ? NVML_DEVICE_ARCH_BLACKWELL
                  : capability >= 90 ? NVML_DEVICE_ARCH_HOPPER
                  : capability == 89 ? NVML_DEVICE_ARCH_ADA
                  : capability >= 80 ? NVML_DEVICE_ARCH_AMPERE
                                     : NVML_DEVICE_ARCH_TURING;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores) {
  READ_GPU(device, g, cores);
  *cores = g.cores;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetVirtualizationMode(nvmlDevice_t device, nvmlGpuVirtualizationMode_t *mode) {
  READ_GPU(device, g, mode);
  *mode = NVML_GPU_VIRTUALIZATION_MODE_NONE;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level) {
  const nvmlReturn_t result = sim_ready();
  if (result != NVML_SUCCESS) return result;
  if (!level) return NVML_ERROR_INVALID_ARGUMENT;
  *level = a == b ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
  return NVML_SUCCESS;
}
