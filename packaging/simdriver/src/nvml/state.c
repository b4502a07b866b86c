// Parsing of the state file. Its writer is state.go.
#include "sim.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned int fnv1a(const char *text, size_t size) {
  unsigned int hash = 2166136261u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
  return hash;
}

// whole cuts text at its last line "end <checksum>" and says whether the
// checksum is right. The file is rewritten in place, because pods hold it by
// its inode, so a reader can meet a mixture of two states.
static bool whole(char *text) {
  char *end = strstr(text, "\nend ");
  if (!end || !strchr(end + 1, '\n')) return false;
  const unsigned long sum = strtoul(end + 5, NULL, 16);
  end[1] = 0;
  return sum == fnv1a(text, strlen(text));
}

static void copy(char *out, size_t size, const char *value) { snprintf(out, size, "%s", value); }

static unsigned int number(const char *value) { return (unsigned int)strtoul(value, NULL, 10); }

static void parse_header(struct state *s, const char *key, const char *value) {
  if (!strcmp(key, "written")) copy(s->written, sizeof s->written, value);
  else if (!strcmp(key, "driver")) copy(s->driver, sizeof s->driver, value);
  else if (!strcmp(key, "pid_namespace")) copy(s->pid_namespace, sizeof s->pid_namespace, value);
  else if (!strcmp(key, "cuda")) s->cuda = (int)number(value);
  else if (!strcmp(key, "init")) s->init_error = (nvmlReturn_t)number(value);
  else if (!strcmp(key, "event")) {
    struct xid_event e;
    if (s->event_count < MAX_EVENTS &&
        sscanf(value, "%llu count=%llu gpu=%u xid=%llu", &e.sequence, &e.count, &e.gpu, &e.xid) == 4)
      s->events[s->event_count++] = e;
  }
}

static void parse_process(struct gpu *g, const char *value) {
  struct gpu_process p;
  if (g->process_count < MAX_PROCESSES &&
      sscanf(value, "%u memory=%llu sm=%u graphics=%u part=%u", &p.pid, &p.memory, &p.sm, &p.graphics, &p.part) == 5)
    g->processes[g->process_count++] = p;
}

static void parse_instance(struct gpu *g, const char *value) {
  struct instance i;
  if (g->instance_count < MAX_INSTANCES &&
      sscanf(value, "%63s profile=%23s memory=%llu used=%llu", i.uuid, i.profile, &i.memory_total, &i.memory_used) == 4)
    g->instances[g->instance_count++] = i;
}

// field says where a line's value goes.
static const struct field {
  const char *key;
  enum { TEXT, NUMBER, COUNTER } kind;
  size_t offset, size;
} fields[] = {
#define FIELD(key, kind, member) {key, kind, offsetof(struct gpu, member), sizeof((struct gpu *)0)->member}
    FIELD("name", TEXT, name),
    FIELD("uuid", TEXT, uuid),
    FIELD("bus", TEXT, bus_id),
    FIELD("minor", NUMBER, minor),
    FIELD("cores", NUMBER, cores),
    FIELD("memory", COUNTER, memory_total),
    FIELD("power_limit_mw", NUMBER, power_limit),
    FIELD("sm_max_mhz", NUMBER, sm_clock_max),
    FIELD("memory_max_mhz", NUMBER, memory_clock_max),
    FIELD("pcie_generation_max", NUMBER, pcie_generation_max),
    FIELD("pcie_width", NUMBER, pcie_width),
    FIELD("utilization", NUMBER, utilization),
    FIELD("memory_utilization", NUMBER, memory_utilization),
    FIELD("temperature", NUMBER, temperature),
    FIELD("memory_temperature", NUMBER, memory_temperature),
    FIELD("fan", NUMBER, fan),
    FIELD("power_mw", NUMBER, power),
    FIELD("memory_used", COUNTER, memory_used),
    FIELD("sm_mhz", NUMBER, sm_clock),
    FIELD("memory_mhz", NUMBER, memory_clock),
    FIELD("energy_mj", COUNTER, energy),
    FIELD("throttle", COUNTER, throttle),
    FIELD("pcie_generation", NUMBER, pcie_generation),
    FIELD("pcie_received_kb", NUMBER, pcie_received),
    FIELD("pcie_sent_kb", NUMBER, pcie_sent),
    FIELD("unlisted", NUMBER, unlisted),
    FIELD("lost", NUMBER, lost),
    FIELD("hang", NUMBER, hang),
    FIELD("removed", NUMBER, removed),
    FIELD("fail", NUMBER, fail),
    FIELD("persistence", NUMBER, persistence),
    FIELD("recovery", NUMBER, recovery),
    FIELD("ecc_corrected", COUNTER, ecc_corrected),
    FIELD("ecc_uncorrected", COUNTER, ecc_uncorrected),
    FIELD("remaps_rows", NUMBER, remaps_rows),
    FIELD("remapped_correctable", NUMBER, remapped_correctable),
    FIELD("remapped_uncorrectable", NUMBER, remapped_uncorrectable),
    FIELD("remap_pending", NUMBER, remap_pending),
    FIELD("remap_failed", NUMBER, remap_failed),
    FIELD("retired", NUMBER, retired),
    FIELD("retire_pending", NUMBER, retire_pending),
    FIELD("mig_capable", NUMBER, mig_capable),
    FIELD("mig", NUMBER, mig),
    FIELD("limits", NUMBER, limits),
#undef FIELD
};

static void parse_gpu(struct gpu *g, const char *key, const char *value) {
  if (!strcmp(key, "process")) parse_process(g, value);
  else if (!strcmp(key, "instance")) parse_instance(g, value);
  else if (!strcmp(key, "compute")) sscanf(value, "%d.%d", &g->cc_major, &g->cc_minor);
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (strcmp(key, fields[i].key) != 0) continue;
    char *to = (char *)g + fields[i].offset;
    if (fields[i].kind == TEXT) copy(to, fields[i].size, value);
    else if (fields[i].kind == NUMBER) *(unsigned int *)(void *)to = number(value);
    else *(unsigned long long *)(void *)to = strtoull(value, NULL, 10);
    return;
  }
}

// sim_parse_state reads text, which it changes, into out. False: the text is
// not a whole state, and out is unspecified.
bool sim_parse_state(char *text, struct state *out) {
  if (!whole(text)) return false;
  memset(out, 0, sizeof *out);
  struct gpu *gpu = NULL;
  char *save = NULL;
  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    if (!strcmp(line, "[gpu]")) {
      if (out->gpu_count == MAX_GPUS) return false;
      gpu = &out->gpus[out->gpu_count++];
      continue;
    }
    char *value = strchr(line, '=');
    if (*line == '#' || !value) continue;
    *value++ = 0;
    if (gpu) parse_gpu(gpu, line, value);
    else parse_header(out, line, value);
  }
  return true;
}
