// Where the driver's files lie: the state, the device nodes, this library.
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char root[1024];
static char state_path[PATH_SIZE];

// own_path finds the file this code was loaded from in /proc/self/maps.
// dladdr would do, but asks for glibc 2.34.
static bool own_path(char *out, size_t size) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[1400];
  const unsigned long here = (unsigned long)own_path;
  bool found = false;
  while (!found && fgets(line, sizeof line, maps)) {
    char *rest;
    const unsigned long begin = strtoul(line, &rest, 16);
    if (*rest != '-') continue;
    const unsigned long end = strtoul(rest + 1, &rest, 16);
    const char *path = strchr(rest, '/');
    if (path && here >= begin && here < end) {
      line[strcspn(line, "\n")] = 0;
      snprintf(out, size, "%s", path);
      found = true;
    }
  }
  fclose(maps);
  return found;
}

// locate derives the driver root from the library's own path, so that one file
// works on the host, below a container's /driver-root and in a pod, where the
// root is "/". It runs when the library is loaded: pthread_once would ask for
// glibc 2.34.
__attribute__((constructor)) static void locate(void) {
  char path[1024] = "";
  if (own_path(path, sizeof path)) {
    char *cut = NULL;
    for (char *p = path; (p = strstr(p, "/lib")); p++)
      if (!strncmp(p, "/lib/", 5) || !strncmp(p, "/lib64/", 7)) cut = p;
    if (cut) {
      *cut = 0;
      const size_t length = strlen(path);
      if (length >= 4 && !strcmp(path + length - 4, "/usr")) path[length - 4] = 0;
      snprintf(root, sizeof root, "%s", path);
    }
  }
  snprintf(state_path, sizeof state_path, "%s/run/simgpu/gpus.conf", root);
  // In a pod only what NVIDIA's tools carry is there: the firmware files.
  if (access(state_path, R_OK) != 0)
    snprintf(state_path, sizeof state_path, "%s/lib/firmware/nvidia/" DRIVER_VERSION "/gsp_simgpu.bin", root);
}

bool sim_state_file_exists(void) { return access(state_path, F_OK) == 0; }

// read_up_to fills buffer from the file's present place, as a string.
static bool read_up_to(int fd, char *buffer, size_t size) {
  size_t used = 0;
  ssize_t n = 0;
  while (used < size - 1 && (n = read(fd, buffer + used, size - 1 - used)) > 0) used += (size_t)n;
  buffer[used] = 0;
  return n >= 0;
}

// is_state says whether text begins as the state that was written then does.
static bool is_state(const char *text, const char *written) {
  static const char key[] = "written=";
  const size_t length = strlen(written);
  return length && !strncmp(text, key, sizeof key - 1) && !strncmp(text + sizeof key - 1, written, length) &&
         text[sizeof key - 1 + length] == '\n';
}

// sim_read_state_file reads the state into buffer, as a string. The file is
// rewritten in place every second, so it is looked at afresh at most every
// 20 ms, and only its first line unless that differs from the state written
// at known; *changed says whether there is a new text in buffer. The caller
// holds the session's lock.
bool sim_read_state_file(char *buffer, size_t size, const char *known, bool *changed) {
  enum { HEAD = 64 };
  static struct timespec last;
  static bool have_last;
  struct timespec now;
  *changed = false;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const long since_ms = (now.tv_sec - last.tv_sec) * 1000 + (now.tv_nsec - last.tv_nsec) / 1000000;
  if (have_last && since_ms >= 0 && since_ms < 20) return true;

  const int fd = open(state_path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool done = read_up_to(fd, buffer, HEAD);
  if (done && !is_state(buffer, known)) {
    const size_t head = strlen(buffer);
    done = read_up_to(fd, buffer + head, size - head);
    *changed = done;
  }
  close(fd);
  if (!done) return false;
  last = now;
  have_last = true;
  return true;
}

// open_node opens a device node and returns 0 or errno.
static int open_node(const char *name) {
  char path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/dev/%s", root, name);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return errno;
  // Whatever opened is not our node: no driver answers behind those.
  close(fd);
  return ENODEV;
}

// usable says whether the device cgroup let an open through. No driver stands
// behind the nodes, so an allowed open ends in ENXIO; a forbidden one in EPERM.
static bool usable(int error) { return error == ENXIO; }

nvmlReturn_t sim_open_control_node(void) {
  const int error = open_node("nvidiactl");
  if (usable(error)) return NVML_SUCCESS;
  return error == EPERM || error == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
}

bool sim_gpu_node_usable(unsigned int minor) {
  char name[32];
  snprintf(name, sizeof name, "nvidia%u", minor);
  return usable(open_node(name));
}

// sim_in_pid_namespace says whether this process counts processes as the
// namespace called name ("pid:[4026531836]") does. A process never changes its
// own namespace; a fork may be in another one. The caller holds the session's
// lock.
bool sim_in_pid_namespace(const char *name) {
  static char own[64];
  static pid_t asked_by;
  const pid_t self = getpid();
  if (asked_by != self) {
    const ssize_t n = readlink("/proc/self/ns/pid", own, sizeof own - 1);
    own[n > 0 ? n : 0] = 0;
    asked_by = self;
  }
  return *own && !strcmp(own, name);
}

// limit_path names the file of a GPU's limit for a control group. It is there
// only on the host.
static void limit_path(char *out, size_t size, const char *uuid, const char *group) {
  unsigned int hash = 2166136261u;
  for (const char *p = group; *p; p++) hash = (hash ^ (unsigned char)*p) * 16777619u;
  snprintf(out, size, "%s/run/simgpu/limits/%s-%08x", root, uuid, hash);
}

// sim_write_limit writes down a limit in one piece, or with no text removes it.
bool sim_write_limit(const char *uuid, const char *group, const char *text) {
  char path[PATH_SIZE], beside[PATH_SIZE + 32];
  limit_path(path, sizeof path, uuid, group);
  if (!text) return unlink(path) == 0 || errno == ENOENT;
  snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
  FILE *f = fopen(beside, "we");
  if (!f) return false;
  const bool written = fputs(text, f) >= 0;
  if (fclose(f) == 0 && written && rename(beside, path) == 0) return true;
  unlink(beside);
  return false;
}

bool sim_read_limit(const char *uuid, const char *group, char *text, size_t size) {
  char path[PATH_SIZE];
  limit_path(path, sizeof path, uuid, group);
  FILE *f = fopen(path, "re");
  if (!f) return false;
  const bool read = fgets(text, (int)size, f) != NULL;
  fclose(f);
  return read;
}
