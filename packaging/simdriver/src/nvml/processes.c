// Who uses each GPU. Process numbers are shown only to those who count
// processes as the host does: elsewhere they would name strangers.
#include "sim.h"

#include <string.h>
#include <time.h>

// list copies the processes of one kind into an array whose elements are size
// bytes long: the older versions of the structure are prefixes of the newest.
static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, void *out, size_t size, bool graphics) {
  READ_GPU(device, g, count);
  if (g.unlisted) return NVML_ERROR_NO_PERMISSION;
  const unsigned int room = *count;
  unsigned int n = 0;
  if (sim_sees_processes())
    for (unsigned int i = 0; i < g.process_count; i++) n += !g.processes[i].graphics == !graphics;
  *count = n;
  if (n > room || (n && !out)) return NVML_ERROR_INSUFFICIENT_SIZE;
  char *next = out;
  for (unsigned int i = 0; n && i < g.process_count; i++) {
    if (!g.processes[i].graphics != !graphics) continue;
    const bool in_part = g.mig && g.processes[i].part > 0;
    const nvmlProcessInfo_t info = {.pid = g.processes[i].pid,
                                    .usedGpuMemory = g.processes[i].memory,
                                    .gpuInstanceId = in_part ? part_id(g.processes[i].part - 1) : ~0u,
                                    .computeInstanceId = in_part ? 0 : ~0u};
    memcpy(next, &info, size);
    next += size;
  }
  return NVML_SUCCESS;
}

// none is the answer for kinds of process that are not simulated.
static nvmlReturn_t none(nvmlDevice_t device, unsigned int *count) {
  READ_GPU(device, g, count);
  *count = 0;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) {
  return list(d, n, out, sizeof *out, false);
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) {
  return list(d, n, out, sizeof *out, false);
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {
  return list(d, n, out, sizeof *out, false);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) {
  return list(d, n, out, sizeof *out, true);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) {
  return list(d, n, out, sizeof *out, true);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {
  return list(d, n, out, sizeof *out, true);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) {
  (void)out;
  return none(d, n);
}
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n,
                                                               nvmlProcessInfo_v2_t *out) {
  (void)out;
  return none(d, n);
}
EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {
  (void)out;
  return none(d, n);
}

// nvmlDeviceGetProcessUtilization lists the processes that have worked since
// last; none of them is "not found", as with NVIDIA's library.
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                    unsigned int *count, unsigned long long last) {
  READ_GPU(device, g, count);
  if (g.mig) return NVML_ERROR_NOT_SUPPORTED;
  if (g.unlisted) return NVML_ERROR_NO_PERMISSION;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const unsigned long long stamp = (unsigned long long)now.tv_sec * 1000000ull + (unsigned long long)now.tv_nsec / 1000ull;
  const unsigned int room = *count;
  unsigned int n = 0;
  if (stamp > last && sim_sees_processes())
    for (unsigned int i = 0; i < g.process_count; i++) n += g.processes[i].sm > 0;
  if (n == 0) return NVML_ERROR_NOT_FOUND;
  *count = n;
  if (!out || n > room) return NVML_ERROR_INSUFFICIENT_SIZE;

  n = 0;
  for (unsigned int i = 0; i < g.process_count; i++) {
    if (g.processes[i].sm == 0) continue;
    out[n++] = (nvmlProcessUtilizationSample_t){
        .pid = g.processes[i].pid, .timeStamp = stamp, .smUtil = g.processes[i].sm};
  }
  return NVML_SUCCESS;
}
