// Who uses each GPU. Process numbers are shown only to those who count
// processes as the host does: elsewhere they would name strangers.
#include "sim.h"

#include <string.h>
#include <time.h>

// hidden says whether this process lives in another PID namespace than the
// one the state's process numbers come from.
static bool hidden(void) {
  struct state s;
  return sim_snapshot(&s) != NVML_SUCCESS || !sim_in_pid_namespace(s.pid_namespace);
}

// list copies the compute processes into an array whose elements are size
// bytes long: the older versions of the structure are prefixes of the newest.
static nvmlReturn_t list(nvmlDevice_t device, unsigned int *count, void *out, size_t size) {
  READ_GPU(device, g, count);
  const unsigned int n = hidden() ? 0 : g.process_count;
  const unsigned int room = *count;
  *count = n;
  if (n > room || (n && !out)) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < n; i++) {
    const nvmlProcessInfo_t info = {.pid = g.processes[i].pid,
                                    .usedGpuMemory = g.processes[i].memory,
                                    .gpuInstanceId = ~0u,
                                    .computeInstanceId = ~0u};
    memcpy((char *)out + i * size, &info, size);
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
  return list(d, n, out, sizeof *out);
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) {
  return list(d, n, out, sizeof *out);
}
EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {
  return list(d, n, out, sizeof *out);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v1_t *out) {
  (void)out;
  return none(d, n);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_v2_t *out) {
  (void)out;
  return none(d, n);
}
EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *out) {
  (void)out;
  return none(d, n);
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
  (void)last;
  READ_GPU(device, g, count);
  const unsigned int room = *count;
  unsigned int n = 0;
  if (!hidden())
    for (unsigned int i = 0; i < g.process_count; i++) n += g.processes[i].sm > 0;
  if (n == 0) return NVML_ERROR_NOT_FOUND;
  *count = n;
  if (!out || n > room) return NVML_ERROR_INSUFFICIENT_SIZE;

  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  n = 0;
  for (unsigned int i = 0; i < g.process_count; i++) {
    if (g.processes[i].sm == 0) continue;
    out[n++] = (nvmlProcessUtilizationSample_t){
        .pid = g.processes[i].pid,
        .timeStamp = (unsigned long long)now.tv_sec * 1000000ull + (unsigned long long)now.tv_nsec / 1000ull,
        .smUtil = g.processes[i].sm};
  }
  return NVML_SUCCESS;
}
