// nvidia-smi for the simulated driver: the small part of NVIDIA's program that
// people and scripts use most, on top of libnvidia-ml loaded at run time.
#ifndef SMI_H
#define SMI_H

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "nvml.h"
#include <stdbool.h>
#include <stddef.h>

// Exit codes, as NVIDIA documents them for nvidia-smi. An error of NVML's own
// ends the program with NVML's number.
enum { EXIT_OK = 0, EXIT_INVALID = 2, EXIT_QUERY_FAILED = 6, EXIT_NO_LIBRARY = 12 };

enum { MAX_DEVICES = 32 };

// smi_options is the parsed command line.
struct smi_options {
  bool list;
  const char *query_gpu, *query_apps;  // comma-separated fields
  bool header, units;
  const char *only;  // index, UUID or PCI address, or null
  unsigned int repeat_seconds;  // 0: once
};

// smi_gpu is everything shown about one GPU. A negative number is unknown.
struct smi_gpu {
  nvmlDevice_t device;
  unsigned int index;
  nvmlReturn_t status;  // why the GPU cannot be read, or success
  char name[96], uuid[80], bus_id[32];
  int cc_major, cc_minor;
  double utilization, memory_utilization, temperature, power, power_limit;  // %, %, degrees C, W, W
  double memory_total, memory_used, memory_free;  // MiB
  int pstate, sm_clock, memory_clock, sm_clock_max, memory_clock_max;  // MHz
  double fan, memory_temperature, ecc_uncorrected;  // %, degrees C, errors since the driver was loaded
  int pcie_generation, pcie_width;
  int persistence, mig;  // 1 on, 0 off
};

// smi_system is what is shown about the driver.
struct smi_system {
  char driver[80];
  int cuda;
  unsigned int device_count;
};

// nvml.c
int smi_connect(void);
const char *smi_error(nvmlReturn_t result);
nvmlReturn_t smi_read_system(struct smi_system *out);
void smi_read_gpu(unsigned int index, struct smi_gpu *out);
unsigned int smi_processes(const struct smi_gpu *gpu, nvmlProcessInfo_t *out, unsigned int room);
void smi_process_name(unsigned int pid, char *out, unsigned int size);

// table.c, query.c
void smi_print_list(const struct smi_gpu *gpus, unsigned int count);
void smi_print_table(const struct smi_system *system, const struct smi_gpu *gpus, unsigned int count);
int smi_print_gpu_query(const struct smi_options *o, const struct smi_system *system, const struct smi_gpu *gpus,
                        unsigned int count);
int smi_print_app_query(const struct smi_options *o, const struct smi_gpu *gpus, unsigned int count);

#endif
