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

// NVIDIA's driver looks five times a second to see who is at work, and counts all
// of that fifth for the one it sees (an H100 with driver 580). So of two programs
// each has a multiple of 20 % in any second, sometimes nothing, and its true
// share over some seconds only.
enum { PERIOD = 200000 /* µs */, CYCLE = 20 /* periods, after which it begins again */, KEPT = 100 /* periods */ };

// turns_of deals CYCLE periods out to the processes, by what each takes: the first
// turns[0] are the first one's, and so on. Whoever works is seen at some time, if
// there is a period for each. It returns what they take together.
static unsigned int turns_of(const struct gpu *g, unsigned int *turns) {
  unsigned int total = 0, before = 0;
  for (unsigned int i = 0; i < g->process_count; i++) total += g->processes[i].sm;
  for (unsigned int i = 0, sum = 0; i < g->process_count; i++) {
    sum += g->processes[i].sm;
    turns[i] = total ? (sum * CYCLE + total / 2) / total - before : 0;
    before += turns[i];
  }
  for (unsigned int i = 0; i < g->process_count; i++) {
    if (turns[i] || !g->processes[i].sm) continue;
    unsigned int most = 0;
    for (unsigned int j = 1; j < g->process_count; j++)
      if (turns[j] > turns[most]) most = j;
    if (turns[most] > 1) turns[most]--, turns[i]++;
  }
  return total > 100 ? 100 : total;
}

// owner is the process that is seen at work in a period. Two periods that follow
// each other mostly belong to the same, as they do in reality.
static unsigned int owner(const unsigned int *turns, unsigned int processes, unsigned long long period) {
  const unsigned int turn = (unsigned int)(period * 3 % CYCLE);
  unsigned int i = 0;
  for (unsigned int sum = turns[0]; turn >= sum && i + 1 < processes; sum += turns[i]) i++;
  return i;
}

// nvmlDeviceGetProcessUtilization lists the processes that have worked since
// last, each with its share of the time since then; none of them is "not found",
// as with NVIDIA's library.
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                    unsigned int *count, unsigned long long last) {
  READ_GPU(device, g, count);
  if (g.mig) return NVML_ERROR_NOT_SUPPORTED;
  if (g.unlisted) return NVML_ERROR_NO_PERMISSION;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const unsigned long long stamp = (unsigned long long)now.tv_sec * 1000000ull + (unsigned long long)now.tv_nsec / 1000ull;
  const unsigned int room = *count;
  unsigned int turns[MAX_PROCESSES] = {0}, seen[MAX_PROCESSES] = {0}, periods = 0, at_work = 0;
  unsigned long long newest[MAX_PROCESSES] = {0};
  for (unsigned int i = 0; i < g.process_count; i++) at_work += g.processes[i].sm > 0;
  if (stamp <= last || !sim_sees_processes()) return NVML_ERROR_NOT_FOUND;
  const unsigned int all = turns_of(&g, turns);
  if (at_work > 1) {
    // As many as fit into the time, wherever in a period that begins and ends.
    const unsigned long long fit = (stamp - last + PERIOD / 2) / PERIOD;
    for (unsigned long long k = stamp / PERIOD; periods < KEPT && periods < fit; k--, periods++) {
      const unsigned int i = owner(turns, g.process_count, k);
      if (!seen[i]++) newest[i] = k * PERIOD;
    }
  } else // nobody else is seen: it is what it takes, at any time
    for (unsigned int i = 0; i < g.process_count; i++)
      if (g.processes[i].sm > 0) seen[i] = periods = 1, newest[i] = stamp;

  unsigned int n = 0;
  for (unsigned int i = 0; i < g.process_count; i++) n += seen[i] > 0;
  if (n == 0) return NVML_ERROR_NOT_FOUND;
  *count = n;
  if (!out || n > room) return NVML_ERROR_INSUFFICIENT_SIZE;

  n = 0;
  for (unsigned int i = 0; i < g.process_count; i++)
    if (seen[i])
      out[n++] = (nvmlProcessUtilizationSample_t){
          .pid = g.processes[i].pid, .timeStamp = newest[i], .smUtil = (all * seen[i] + periods / 2) / periods};
  return NVML_SUCCESS;
}
