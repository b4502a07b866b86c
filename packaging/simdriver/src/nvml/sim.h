// The simulated driver's inside: the state of the simulated GPUs and the
// rules every NVML function follows. See ../../doc.go for the whole picture.
#ifndef SIM_H
#define SIM_H

#ifndef NVML_NO_UNVERSIONED_FUNC_DEFS
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#endif
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "nvml.h"
#include <stdbool.h>
#include <stddef.h>

enum { MAX_GPUS = 32, MAX_PROCESSES = 64, MAX_INSTANCES = 7, MAX_EVENTS = 64, PATH_SIZE = 1200 };

struct gpu_process {
  unsigned int pid;
  unsigned int sm;  // share of the GPU's multiprocessors, percent
  unsigned long long memory;  // bytes
  unsigned int graphics;  // it draws instead of computing
  unsigned int part;  // the MIG instance it runs in, counted from 1; 0: none
};

// instance is a part of a GPU in MIG mode.
struct instance {
  char uuid[64];
  char profile[24];
  unsigned long long memory_total, memory_used;  // bytes
};

struct gpu {
  char name[96];
  char uuid[64];
  char bus_id[32];
  unsigned int minor;
  int cc_major, cc_minor;
  unsigned int cores;
  unsigned long long memory_total, memory_used;  // bytes
  unsigned int utilization, memory_utilization;  // percent
  unsigned int temperature, memory_temperature;  // degrees Celsius
  unsigned int fan;  // percent
  unsigned int power, power_limit;  // milliwatts
  unsigned int sm_clock, memory_clock, sm_clock_max, memory_clock_max;  // MHz
  unsigned long long energy;  // millijoules
  unsigned int pcie_generation, pcie_generation_max, pcie_width;  // width in lanes
  unsigned int pcie_received, pcie_sent;  // KB/s
  unsigned long long throttle;  // nvmlClocksEventReason bits
  unsigned int persistence, recovery;  // recovery as nvmlDeviceGpuRecoveryAction_t
  unsigned long long ecc_corrected, ecc_uncorrected;
  unsigned int remaps_rows;  // this card replaces rows of its memory, others retire pages
  unsigned int remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
  unsigned int retired, retire_pending;
  unsigned int mig_capable, mig;
  unsigned int limits;  // it can keep control groups within an amount of memory
  unsigned int unlisted;  // it does not say which processes are on it
  struct instance instances[MAX_INSTANCES];
  unsigned int instance_count;
  unsigned int lost, hang, removed;
  unsigned int fail;  // the nvmlReturn_t of every call on this GPU, if not success
  struct gpu_process processes[MAX_PROCESSES];
  unsigned int process_count;
};

// xid_event stands for count equal events that follow each other; sequence is
// the last one's.
struct xid_event {
  unsigned long long sequence, count;
  unsigned int gpu;
  unsigned long long xid;
};

struct state {
  char written[32];  // differs between any two states
  char driver[80];
  char pid_namespace[64];  // where the process numbers below mean something
  int cuda;  // 1000*major + 10*minor, as CUDA counts
  nvmlReturn_t init_error;
  struct gpu gpus[MAX_GPUS];
  unsigned int gpu_count;
  struct xid_event events[MAX_EVENTS];
  unsigned int event_count;
};

// A device handle is a fixed place; what it shows changes with the state.
struct nvmlDevice_st {
  unsigned int gpu;
  int instance;  // of the GPU in MIG mode, or WHOLE
};

enum { WHOLE = -1 };

// part_id is NVML's number of the GPU instance behind a MIG device. It is
// another than the device's index, as on real cards.
static inline unsigned int part_id(unsigned int index) { return index + 1; }

// files.c: where the driver's files lie, seen from this process.
bool sim_state_file_exists(void);
bool sim_read_state_file(char *buffer, size_t size, const char *known, bool *changed);
nvmlReturn_t sim_open_control_node(void);
bool sim_gpu_node_usable(unsigned int minor);
bool sim_in_pid_namespace(const char *name);
bool sim_write_limit(const char *uuid, const char *group, const char *text);
bool sim_read_limit(const char *uuid, const char *group, char *text, size_t size);

// state.c: parsing.
bool sim_parse_state(char *text, struct state *out);

// session.c: initialisation and access to the state.
nvmlReturn_t sim_ready(void);
nvmlReturn_t sim_unsupported(void);
nvmlReturn_t sim_snapshot(struct state *out);
nvmlReturn_t sim_events(struct xid_event *out, unsigned int *count);
nvmlReturn_t sim_read_gpu(nvmlDevice_t device, struct gpu *out);
nvmlReturn_t sim_read_part(nvmlDevice_t device, struct gpu *out, const struct instance **part);
nvmlReturn_t sim_visible_count(unsigned int *count);
nvmlReturn_t sim_visible_at(unsigned int index, nvmlDevice_t *device, struct gpu *out);
nvmlReturn_t sim_copy_string(char *out, unsigned int size, const char *text);
nvmlDevice_t sim_handle(unsigned int gpu);
nvmlDevice_t sim_instance_handle(unsigned int gpu, unsigned int instance);
bool sim_sees_processes(void);
void sim_sleep_ms(unsigned int milliseconds);

// READ_GPU declares struct gpu var, fills it with the device's state and returns from the
// calling function when that fails or the result pointer is null.
#define READ_GPU(device, var, result)                           \
  struct gpu var;                                               \
  do {                                                          \
    if (!(result)) return NVML_ERROR_INVALID_ARGUMENT;          \
    nvmlReturn_t read_result_ = sim_read_gpu((device), &var);   \
    if (read_result_ != NVML_SUCCESS) return read_result_;      \
  } while (0)

// READ_PART does the same, and takes the handle of a MIG instance too: part is
// the instance then, and null for a whole GPU.
#define READ_PART(device, var, part, result)                            \
  struct gpu var;                                                       \
  const struct instance *part;                                          \
  do {                                                                  \
    if (!(result)) return NVML_ERROR_INVALID_ARGUMENT;                  \
    nvmlReturn_t read_result_ = sim_read_part((device), &var, &part);   \
    if (read_result_ != NVML_SUCCESS) return read_result_;              \
  } while (0)

#define EXPORT __attribute__((visibility("default")))

#endif
