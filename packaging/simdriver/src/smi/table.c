// The table and the list that nvidia-smi prints without a query.
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

void smi_print_list(const struct smi_gpu *gpus, unsigned int count) {
  for (unsigned int i = 0; i < count; i++) {
    if (gpus[i].status == NVML_SUCCESS)
      printf("GPU %u: %s (UUID: %s)\n", gpus[i].index, gpus[i].name, gpus[i].uuid);
    else
      printf("Unable to determine the device handle for GPU %u: %s\n", gpus[i].index, smi_error(gpus[i].status));
  }
}

// quantity prints "12W", or "N/A" when the value is unknown.
static void quantity(char *out, size_t size, double value, const char *unit) {
  if (value < 0) snprintf(out, size, "N/A");
  else snprintf(out, size, "%.0f%s", value, unit);
}

static const char rule[] = "+-----------------------------------------+------------------------+----------------------+";
static const char wide_rule[] =
    "+-----------------------------------------------------------------------------------------+";

static void print_head(const struct smi_system *system) {
  char date[64] = "", cuda[16];
  const time_t now = time(NULL);
  struct tm local;
  if (localtime_r(&now, &local)) strftime(date, sizeof date, "%a %b %e %H:%M:%S %Y", &local);
  snprintf(cuda, sizeof cuda, "%d.%d", system->cuda / 1000, system->cuda % 1000 / 10);
  printf("%s\n%s\n", date, wide_rule);
  printf("| NVIDIA-SMI (simulated)    Driver Version: %-15s CUDA Version: %-5s simulated |\n", system->driver, cuda);
  printf("%s\n", rule);
  printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n");
  printf("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n");
  printf("|=========================================+========================+======================|\n");
}

static void print_gpu(const struct smi_gpu *g) {
  if (g->status != NVML_SUCCESS) {
    printf("| %3u  %-34s | %-22s | %20.20s |\n", g->index, "ERR!", "ERR!", smi_error(g->status));
    printf("%s\n", rule);
    return;
  }
  char temperature[16], power[16], limit[16], used[16], total[16], load[16], perf[8] = "N/A", draw[40], memory[40];
  char fan[16], ecc[24];
  quantity(fan, sizeof fan, g->fan, "%");
  quantity(ecc, sizeof ecc, g->ecc_uncorrected, "");
  quantity(temperature, sizeof temperature, g->temperature, "C");
  quantity(power, sizeof power, g->power, "W");
  quantity(limit, sizeof limit, g->power_limit, "W");
  quantity(used, sizeof used, g->memory_used, "MiB");
  quantity(total, sizeof total, g->memory_total, "MiB");
  quantity(load, sizeof load, g->utilization, "%");
  if (g->pstate >= 0) snprintf(perf, sizeof perf, "P%d", g->pstate % 16);
  snprintf(draw, sizeof draw, "%s / %s", power, limit);
  snprintf(memory, sizeof memory, "%s / %s", used, total);
  const char *persistence = g->persistence < 0 ? "N/A" : g->persistence ? "On" : "Off";
  printf("| %3u  %-30.30s %3s | %-16s   Off | %20s |\n", g->index, g->name, persistence, g->bus_id, ecc);
  printf("| %4s %4s   %-4s   %20s | %22s | %8s %11s |\n", fan, temperature, perf, draw, memory, load, "Default");
  printf("%s\n", rule);
}

static void print_processes(const struct smi_gpu *gpus, unsigned int count) {
  enum { ROOM = 64 };
  unsigned int shown = 0;
  printf("\n%s\n", wide_rule);
  printf("| %-87s |\n", "Processes:");
  printf("| %4s %10s %6s   %-47s %14s |\n", "GPU", "PID", "Type", "Process name", "GPU Memory");
  printf("|=========================================================================================|\n");
  for (unsigned int i = 0; i < count; i++) {
    nvmlProcessInfo_t processes[ROOM];
    const unsigned int found = smi_processes(&gpus[i], processes, ROOM);
    for (unsigned int p = 0; p < found; p++, shown++) {
      char name[256], memory[16];
      smi_process_name(processes[p].pid, name, sizeof name);
      quantity(memory, sizeof memory, (double)(processes[p].usedGpuMemory >> 20), "MiB");
      printf("| %4u %10u %6s   %-47.47s %14s |\n", gpus[i].index, processes[p].pid, "C", name, memory);
    }
  }
  if (shown == 0) printf("| %-87s |\n", " No running processes found");
  printf("%s\n", wide_rule);
}

void smi_print_table(const struct smi_system *system, const struct smi_gpu *gpus, unsigned int count) {
  print_head(system);
  for (unsigned int i = 0; i < count; i++) print_gpu(&gpus[i]);
  print_processes(gpus, count);
}
