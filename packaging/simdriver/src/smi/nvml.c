// The NVML library, loaded at run time like NVIDIA's nvidia-smi does it: a
// missing library is a sentence, not a failure to start.
#include "smi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static struct {
  __typeof__(&nvmlInit_v2) init;
  __typeof__(&nvmlErrorString) error_string;
  __typeof__(&nvmlSystemGetDriverVersion) driver_version;
  __typeof__(&nvmlSystemGetCudaDriverVersion_v2) cuda_version;
  __typeof__(&nvmlSystemGetProcessName) process_name;
  __typeof__(&nvmlDeviceGetCount_v2) count;
  __typeof__(&nvmlDeviceGetHandleByIndex_v2) by_index;
  __typeof__(&nvmlDeviceGetName) name;
  __typeof__(&nvmlDeviceGetUUID) uuid;
  __typeof__(&nvmlDeviceGetPciInfo_v3) pci;
  __typeof__(&nvmlDeviceGetCudaComputeCapability) compute_capability;
  __typeof__(&nvmlDeviceGetUtilizationRates) utilization;
  __typeof__(&nvmlDeviceGetMemoryInfo) memory;
  __typeof__(&nvmlDeviceGetTemperature) temperature;
  __typeof__(&nvmlDeviceGetPowerUsage) power;
  __typeof__(&nvmlDeviceGetEnforcedPowerLimit) power_limit;
  __typeof__(&nvmlDeviceGetPerformanceState) pstate;
  __typeof__(&nvmlDeviceGetClockInfo) clock;
  __typeof__(&nvmlDeviceGetMaxClockInfo) max_clock;
  __typeof__(&nvmlDeviceGetComputeRunningProcesses_v3) processes;
  __typeof__(&nvmlDeviceGetFanSpeed) fan;
  __typeof__(&nvmlDeviceGetFieldValues) fields;
  __typeof__(&nvmlDeviceGetTotalEccErrors) ecc_errors;
  __typeof__(&nvmlDeviceGetCurrPcieLinkGeneration) pcie_generation;
  __typeof__(&nvmlDeviceGetCurrPcieLinkWidth) pcie_width;
  __typeof__(&nvmlDeviceGetPersistenceMode) persistence;
  __typeof__(&nvmlDeviceGetMigMode) mig;
} nvml;

// find stores the address of a symbol; ISO C has no cast from void * to a
// function pointer, so it is copied.
static bool find(void *library, const char *symbol, void *slot) {
  void *address = dlsym(library, symbol);
  memcpy(slot, &address, sizeof address);
  return address != NULL;
}

static bool find_all(void *l) {
  return find(l, "nvmlInit_v2", &nvml.init) && find(l, "nvmlErrorString", &nvml.error_string) &&
         find(l, "nvmlSystemGetDriverVersion", &nvml.driver_version) &&
         find(l, "nvmlSystemGetCudaDriverVersion_v2", &nvml.cuda_version) &&
         find(l, "nvmlSystemGetProcessName", &nvml.process_name) &&
         find(l, "nvmlDeviceGetCount_v2", &nvml.count) &&
         find(l, "nvmlDeviceGetHandleByIndex_v2", &nvml.by_index) && find(l, "nvmlDeviceGetName", &nvml.name) &&
         find(l, "nvmlDeviceGetUUID", &nvml.uuid) && find(l, "nvmlDeviceGetPciInfo_v3", &nvml.pci) &&
         find(l, "nvmlDeviceGetCudaComputeCapability", &nvml.compute_capability) &&
         find(l, "nvmlDeviceGetUtilizationRates", &nvml.utilization) &&
         find(l, "nvmlDeviceGetMemoryInfo", &nvml.memory) &&
         find(l, "nvmlDeviceGetTemperature", &nvml.temperature) &&
         find(l, "nvmlDeviceGetPowerUsage", &nvml.power) &&
         find(l, "nvmlDeviceGetEnforcedPowerLimit", &nvml.power_limit) &&
         find(l, "nvmlDeviceGetPerformanceState", &nvml.pstate) && find(l, "nvmlDeviceGetClockInfo", &nvml.clock) &&
         find(l, "nvmlDeviceGetMaxClockInfo", &nvml.max_clock) &&
         find(l, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes) &&
         find(l, "nvmlDeviceGetFanSpeed", &nvml.fan) && find(l, "nvmlDeviceGetFieldValues", &nvml.fields) &&
         find(l, "nvmlDeviceGetTotalEccErrors", &nvml.ecc_errors) &&
         find(l, "nvmlDeviceGetCurrPcieLinkGeneration", &nvml.pcie_generation) &&
         find(l, "nvmlDeviceGetCurrPcieLinkWidth", &nvml.pcie_width) &&
         find(l, "nvmlDeviceGetPersistenceMode", &nvml.persistence) && find(l, "nvmlDeviceGetMigMode", &nvml.mig);
}

// smi_connect loads and initialises NVML. It returns an exit code, after
// telling what is wrong.
int smi_connect(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
  if (!library || !find_all(library)) {
    printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. "
           "Please make sure that the NVIDIA Display Driver is properly installed and present in your system.\n");
    return EXIT_NO_LIBRARY;
  }
  if (!dlsym(library, "gpulab_simulated_driver")) {
    printf("This nvidia-smi belongs to the simulated driver, but the libnvidia-ml.so.1 found here is another one.\n");
    return EXIT_NO_LIBRARY;
  }
  const nvmlReturn_t result = nvml.init();
  if (result == NVML_SUCCESS) return EXIT_OK;
  if (result == NVML_ERROR_DRIVER_NOT_LOADED)
    printf("NVIDIA-SMI has failed because it couldn't communicate with the (simulated) NVIDIA driver.\n");
  else
    printf("Failed to initialize NVML: %s\n", nvml.error_string(result));
  return (int)result;
}

const char *smi_error(nvmlReturn_t result) { return nvml.error_string(result); }

nvmlReturn_t smi_read_system(struct smi_system *out) {
  nvmlReturn_t result = nvml.driver_version(out->driver, sizeof out->driver);
  if (result == NVML_SUCCESS) result = nvml.cuda_version(&out->cuda);
  if (result == NVML_SUCCESS) result = nvml.count(&out->device_count);
  return result;
}

// read_load fills in what changes from second to second.
static void read_load(struct smi_gpu *g) {
  nvmlUtilization_t load;
  nvmlMemory_t memory;
  unsigned int value;
  if (nvml.utilization(g->device, &load) == NVML_SUCCESS) {
    g->utilization = load.gpu;
    g->memory_utilization = load.memory;
  }
  if (nvml.memory(g->device, &memory) == NVML_SUCCESS) {
    g->memory_total = (double)(memory.total >> 20);
    g->memory_used = (double)(memory.used >> 20);
    g->memory_free = (double)(memory.free >> 20);
  }
  if (nvml.temperature(g->device, NVML_TEMPERATURE_GPU, &value) == NVML_SUCCESS) g->temperature = value;
  if (nvml.power(g->device, &value) == NVML_SUCCESS) g->power = value / 1000.0;
  if (nvml.power_limit(g->device, &value) == NVML_SUCCESS) g->power_limit = value / 1000.0;
  if (nvml.clock(g->device, NVML_CLOCK_SM, &value) == NVML_SUCCESS) g->sm_clock = (int)value;
  if (nvml.clock(g->device, NVML_CLOCK_MEM, &value) == NVML_SUCCESS) g->memory_clock = (int)value;
  if (nvml.max_clock(g->device, NVML_CLOCK_SM, &value) == NVML_SUCCESS) g->sm_clock_max = (int)value;
  if (nvml.max_clock(g->device, NVML_CLOCK_MEM, &value) == NVML_SUCCESS) g->memory_clock_max = (int)value;
  nvmlPstates_t state;
  if (nvml.pstate(g->device, &state) == NVML_SUCCESS) g->pstate = (int)state;
}

// read_condition fills in what the card says about itself.
static void read_condition(struct smi_gpu *g) {
  unsigned int value, pending;
  unsigned long long errors;
  nvmlEnableState_t on;
  nvmlFieldValue_t memory = {.fieldId = NVML_FI_DEV_MEMORY_TEMP};
  if (nvml.fan(g->device, &value) == NVML_SUCCESS) g->fan = value;
  if (nvml.fields(g->device, 1, &memory) == NVML_SUCCESS && memory.nvmlReturn == NVML_SUCCESS)
    g->memory_temperature = memory.value.uiVal;
  if (nvml.ecc_errors(g->device, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors) == NVML_SUCCESS)
    g->ecc_uncorrected = (double)errors;
  if (nvml.pcie_generation(g->device, &value) == NVML_SUCCESS) g->pcie_generation = (int)value;
  if (nvml.pcie_width(g->device, &value) == NVML_SUCCESS) g->pcie_width = (int)value;
  if (nvml.persistence(g->device, &on) == NVML_SUCCESS) g->persistence = on == NVML_FEATURE_ENABLED;
  if (nvml.mig(g->device, &value, &pending) == NVML_SUCCESS) g->mig = value == NVML_DEVICE_MIG_ENABLE;
}

void smi_read_gpu(unsigned int index, struct smi_gpu *out) {
  *out = (struct smi_gpu){.index = index, .cc_major = -1, .utilization = -1, .memory_utilization = -1,
                          .temperature = -1, .power = -1, .power_limit = -1, .memory_total = -1, .memory_used = -1,
                          .memory_free = -1, .pstate = -1, .sm_clock = -1, .memory_clock = -1, .sm_clock_max = -1,
                          .memory_clock_max = -1, .fan = -1, .memory_temperature = -1, .ecc_uncorrected = -1,
                          .pcie_generation = -1, .pcie_width = -1, .persistence = -1, .mig = -1};
  out->status = nvml.by_index(index, &out->device);
  if (out->status != NVML_SUCCESS) return;
  nvmlPciInfo_t pci;
  out->status = nvml.name(out->device, out->name, sizeof out->name);
  if (out->status == NVML_SUCCESS) out->status = nvml.uuid(out->device, out->uuid, sizeof out->uuid);
  if (out->status == NVML_SUCCESS) out->status = nvml.pci(out->device, &pci);
  if (out->status != NVML_SUCCESS) return;
  snprintf(out->bus_id, sizeof out->bus_id, "%s", pci.busId);
  if (nvml.compute_capability(out->device, &out->cc_major, &out->cc_minor) != NVML_SUCCESS) out->cc_major = -1;
  read_load(out);
  read_condition(out);
}

unsigned int smi_processes(const struct smi_gpu *gpu, nvmlProcessInfo_t *out, unsigned int room) {
  if (gpu->status != NVML_SUCCESS || nvml.processes(gpu->device, &room, out) != NVML_SUCCESS) return 0;
  return room;
}

void smi_process_name(unsigned int pid, char *out, unsigned int size) {
  if (nvml.process_name(pid, out, size) != NVML_SUCCESS) snprintf(out, size, "[Not Found]");
}
