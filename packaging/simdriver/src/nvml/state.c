// Parsing of the state file. Its writer is state.go.
#include "sim.h"

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
  if (!strcmp(key, "driver")) copy(s->driver, sizeof s->driver, value);
  else if (!strcmp(key, "pid_namespace")) copy(s->pid_namespace, sizeof s->pid_namespace, value);
  else if (!strcmp(key, "cuda")) s->cuda = (int)number(value);
  else if (!strcmp(key, "init")) s->init_error = (nvmlReturn_t)number(value);
  else if (!strcmp(key, "event")) {
    struct xid_event e;
    if (s->event_count < MAX_EVENTS && sscanf(value, "%llu gpu=%u xid=%llu", &e.sequence, &e.gpu, &e.xid) == 3)
      s->events[s->event_count++] = e;
  }
}

static void parse_process(struct gpu *g, const char *value) {
  struct gpu_process p;
  if (g->process_count < MAX_PROCESSES && sscanf(value, "%u memory=%llu sm=%u", &p.pid, &p.memory, &p.sm) == 3)
    g->processes[g->process_count++] = p;
}

static void parse_gpu(struct gpu *g, const char *key, const char *value) {
  const struct { const char *key; char *out; size_t size; } texts[] = {
      {"name", g->name, sizeof g->name}, {"uuid", g->uuid, sizeof g->uuid}, {"bus", g->bus_id, sizeof g->bus_id}};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    if (!strcmp(key, texts[i].key)) copy(texts[i].out, texts[i].size, value);

  const struct { const char *key; unsigned int *out; } numbers[] = {
      {"minor", &g->minor}, {"cores", &g->cores}, {"utilization", &g->utilization},
      {"memory_utilization", &g->memory_utilization}, {"temperature", &g->temperature}, {"power_mw", &g->power},
      {"power_limit_mw", &g->power_limit}, {"sm_mhz", &g->sm_clock}, {"memory_mhz", &g->memory_clock},
      {"sm_max_mhz", &g->sm_clock_max}, {"memory_max_mhz", &g->memory_clock_max}};
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!strcmp(key, numbers[i].key)) *numbers[i].out = number(value);

  const struct { const char *key; unsigned long long *out; } counters[] = {
      {"memory", &g->memory_total}, {"memory_used", &g->memory_used}, {"energy_mj", &g->energy}};
  for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
    if (!strcmp(key, counters[i].key)) *counters[i].out = strtoull(value, NULL, 10);

  if (!strcmp(key, "compute")) sscanf(value, "%d.%d", &g->cc_major, &g->cc_minor);
  else if (!strcmp(key, "lost")) g->lost = number(value);
  else if (!strcmp(key, "hang")) g->hang = number(value);
  else if (!strcmp(key, "fail")) g->fail = (nvmlReturn_t)number(value);
  else if (!strcmp(key, "process")) parse_process(g, value);
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
