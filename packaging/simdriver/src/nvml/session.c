// Initialisation, and the one way every function gets at the GPUs' state.
#include "sim.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;  // nvmlInit calls without their nvmlShutdown

// Two states: a new one is parsed beside the current one and takes its place
// only when it is whole.
static struct state states[2];
static struct state *current;

static struct nvmlDevice_st handles[MAX_GPUS];
static struct nvmlDevice_st instances[MAX_GPUS][MAX_INSTANCES];
static unsigned int visible[MAX_GPUS];
static unsigned int visible_count;

// gpulab_simulated_driver lets a program tell this library from NVIDIA's.
EXPORT const char gpulab_simulated_driver[] = DRIVER_VERSION;

// refresh reads the state file. The lock is held.
static bool refresh(void) {
  static char text[1 << 18];
  bool changed;
  if (!sim_read_state_file(text, sizeof text, current ? current->written : "", &changed)) return current != NULL;
  if (changed) {
    struct state *next = current == &states[0] ? &states[1] : &states[0];
    if (sim_parse_state(text, next)) current = next;
  }
  return current != NULL;
}

// find_visible notes the GPUs whose device nodes this process may open, as the
// real driver does: that is what isolates pods from each other. Lock held.
static nvmlReturn_t find_visible(void) {
  const nvmlReturn_t result = sim_open_control_node();
  if (result != NVML_SUCCESS) return result;
  visible_count = 0;
  for (unsigned int i = 0; i < current->gpu_count; i++) {
    handles[i] = (struct nvmlDevice_st){.gpu = i, .instance = WHOLE};
    for (int k = 0; k < MAX_INSTANCES; k++) instances[i][k] = (struct nvmlDevice_st){.gpu = i, .instance = k};
    if (sim_gpu_node_usable(current->gpus[i].minor)) visible[visible_count++] = i;
  }
  return NVML_SUCCESS;
}

// load reads the first state. The file may just be being rewritten, so a torn
// one is read again for a while; a missing one is not waited for.
static bool load(void) {
  for (int tries = 0; tries < 50; tries++) {
    if (refresh()) return true;
    if (!sim_state_file_exists()) return false;
    sim_sleep_ms(10);
  }
  return false;
}

static nvmlReturn_t start(void) {
  if (!load()) return NVML_ERROR_DRIVER_NOT_LOADED;
  if (current->init_error != NVML_SUCCESS) return current->init_error;
  if (users == 0) {
    const nvmlReturn_t result = find_visible();
    if (result != NVML_SUCCESS) return result;
  }
  users++;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  pthread_mutex_lock(&lock);
  const nvmlReturn_t result = start();
  pthread_mutex_unlock(&lock);
  return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) {
  pthread_mutex_lock(&lock);
  const nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  if (users) users--;
  pthread_mutex_unlock(&lock);
  return result;
}

nvmlReturn_t sim_ready(void) {
  pthread_mutex_lock(&lock);
  const nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  pthread_mutex_unlock(&lock);
  return result;
}

nvmlReturn_t sim_unsupported(void) {
  const nvmlReturn_t result = sim_ready();
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : result;
}

// sim_snapshot copies the whole state.
nvmlReturn_t sim_snapshot(struct state *out) {
  nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
  pthread_mutex_lock(&lock);
  if (users && refresh()) {
    *out = *current;
    result = NVML_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

// sim_events copies the XID events, room for MAX_EVENTS.
nvmlReturn_t sim_events(struct xid_event *out, unsigned int *count) {
  nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
  pthread_mutex_lock(&lock);
  if (users && refresh()) {
    *count = 0;
    for (unsigned int i = 0; i < current->event_count; i++)
      if (current->events[i].gpu < current->gpu_count) out[(*count)++] = current->events[i];
    result = NVML_SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

// sim_sees_processes says whether this process counts processes as the state does.
bool sim_sees_processes(void) {
  pthread_mutex_lock(&lock);
  const bool same = users && refresh() && sim_in_pid_namespace(current->pid_namespace);
  pthread_mutex_unlock(&lock);
  return same;
}

// copy_gpu copies one GPU's state without waiting for a hanging GPU.
static nvmlReturn_t copy_gpu(unsigned int index, struct gpu *out) {
  nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
  pthread_mutex_lock(&lock);
  if (users && refresh()) {
    result = NVML_ERROR_INVALID_ARGUMENT;
    if (index < current->gpu_count) {
      *out = current->gpus[index];
      result = out->lost || out->removed ? NVML_ERROR_GPU_IS_LOST : (nvmlReturn_t)out->fail;
    }
  }
  pthread_mutex_unlock(&lock);
  return result;
}

// read_gpu blocks while the GPU hangs, like the real driver, and holds no lock
// meanwhile.
static nvmlReturn_t read_gpu(unsigned int index, struct gpu *out) {
  nvmlReturn_t result;
  while ((result = copy_gpu(index, out)) == NVML_SUCCESS && out->hang) sim_sleep_ms(100);
  return result;
}

// sim_read_gpu copies the state of a whole GPU.
nvmlReturn_t sim_read_gpu(nvmlDevice_t device, struct gpu *out) {
  if (device < handles || device >= handles + MAX_GPUS) return NVML_ERROR_INVALID_ARGUMENT;
  return read_gpu(device->gpu, out);
}

// sim_read_part copies the state of a GPU; *part is the MIG instance that the
// handle stands for, null if it stands for the whole GPU.
nvmlReturn_t sim_read_part(nvmlDevice_t device, struct gpu *out, const struct instance **part) {
  *part = NULL;
  if (device < instances[0] || device >= instances[0] + MAX_GPUS * MAX_INSTANCES) return sim_read_gpu(device, out);
  const nvmlReturn_t result = read_gpu(device->gpu, out);
  if (result != NVML_SUCCESS) return result;
  if (!out->mig || (unsigned int)device->instance >= out->instance_count) return NVML_ERROR_NOT_FOUND;
  *part = &out->instances[device->instance];
  return NVML_SUCCESS;
}

// present counts the GPUs this process may use, without those that have been
// taken out of the machine, and returns the handle of the index-th. Lock held.
static nvmlDevice_t present(unsigned int index, unsigned int *count) {
  nvmlDevice_t found = NULL;
  *count = 0;
  refresh();
  for (unsigned int i = 0; i < visible_count; i++) {
    if (visible[i] >= current->gpu_count || current->gpus[visible[i]].removed) continue;
    if ((*count)++ == index) found = &handles[visible[i]];
  }
  return found;
}

nvmlReturn_t sim_visible_count(unsigned int *count) {
  if (!count) return NVML_ERROR_INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  const nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  if (users) present(~0u, count);
  pthread_mutex_unlock(&lock);
  return result;
}

// sim_visible_at finds the index-th GPU this process may use.
nvmlReturn_t sim_visible_at(unsigned int index, nvmlDevice_t *device, struct gpu *out) {
  if (!device) return NVML_ERROR_INVALID_ARGUMENT;
  pthread_mutex_lock(&lock);
  nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
  unsigned int count;
  if (users && !(*device = present(index, &count))) result = NVML_ERROR_INVALID_ARGUMENT;
  pthread_mutex_unlock(&lock);
  return result == NVML_SUCCESS ? sim_read_gpu(*device, out) : result;
}

nvmlDevice_t sim_handle(unsigned int gpu) { return &handles[gpu]; }

nvmlDevice_t sim_instance_handle(unsigned int gpu, unsigned int instance) { return &instances[gpu][instance]; }

nvmlReturn_t sim_copy_string(char *out, unsigned int size, const char *text) {
  if (!out) return NVML_ERROR_INVALID_ARGUMENT;
  if (strlen(text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
  strcpy(out, text);
  return NVML_SUCCESS;
}

void sim_sleep_ms(unsigned int milliseconds) {
  const struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = (long)(milliseconds % 1000) * 1000000L};
  nanosleep(&pause, NULL);
}
