// The link between card and board.
#include "sim.h"

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = g.pcie_generation;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = g.pcie_generation_max;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *out) {
  return nvmlDeviceGetMaxPcieLinkGeneration(device, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *out) {
  READ_GPU(device, g, out);
  *out = g.pcie_width;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *out) {
  return nvmlDeviceGetCurrPcieLinkWidth(device, out);
}

// nvmlDeviceGetPcieThroughput takes as long as NVIDIA's, which counts for 20 ms.
EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned int *out) {
  READ_GPU(device, g, out);
  sim_sleep_ms(20);
  *out = counter == NVML_PCIE_UTIL_TX_BYTES ? g.pcie_sent : g.pcie_received;
  return NVML_SUCCESS;
}
