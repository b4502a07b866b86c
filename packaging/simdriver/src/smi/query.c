// --query-gpu and --query-compute-apps: comma-separated values.
#include "smi.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

// A cell is printed into text; no text means unknown.
typedef void print_cell(const struct smi_gpu *g, const struct smi_system *s, char *text, size_t size);

static void number(char *text, size_t size, double value, int digits) {
  if (value >= 0) snprintf(text, size, "%.*f", digits, value);
}

#define TEXT(name, expression)                                                                            \
  static void name(const struct smi_gpu *g, const struct smi_system *s, char *text, size_t size) {        \
    (void)g, (void)s;                                                                                     \
    snprintf(text, size, "%s", expression);                                                               \
  }
#define NUMBER(name, expression, digits)                                                                  \
  static void name(const struct smi_gpu *g, const struct smi_system *s, char *text, size_t size) {        \
    (void)g, (void)s;                                                                                     \
    number(text, size, expression, digits);                                                               \
  }

TEXT(cell_name, g->name)
TEXT(cell_uuid, g->uuid)
TEXT(cell_bus_id, g->bus_id)
TEXT(cell_driver, s->driver)
TEXT(cell_mig, g->mig < 0 ? "" : g->mig ? "Enabled" : "Disabled")
TEXT(cell_persistence, g->persistence < 0 ? "" : g->persistence ? "Enabled" : "Disabled")
NUMBER(cell_index, g->index, 0)
NUMBER(cell_count, s->device_count, 0)
NUMBER(cell_memory_total, g->memory_total, 0)
NUMBER(cell_memory_used, g->memory_used, 0)
NUMBER(cell_memory_free, g->memory_free, 0)
NUMBER(cell_utilization, g->utilization, 0)
NUMBER(cell_memory_utilization, g->memory_utilization, 0)
NUMBER(cell_temperature, g->temperature, 0)
NUMBER(cell_power, g->power, 2)
NUMBER(cell_power_limit, g->power_limit, 2)
NUMBER(cell_sm_clock, g->sm_clock, 0)
NUMBER(cell_memory_clock, g->memory_clock, 0)
NUMBER(cell_sm_clock_max, g->sm_clock_max, 0)
NUMBER(cell_memory_clock_max, g->memory_clock_max, 0)
NUMBER(cell_fan, g->fan, 0)
NUMBER(cell_memory_temperature, g->memory_temperature, 0)
NUMBER(cell_ecc_uncorrected, g->ecc_uncorrected, 0)
NUMBER(cell_pcie_generation, g->pcie_generation, 0)
NUMBER(cell_pcie_width, g->pcie_width, 0)

static void cell_pstate(const struct smi_gpu *g, const struct smi_system *s, char *text, size_t size) {
  (void)s;
  if (g->pstate >= 0) snprintf(text, size, "P%d", g->pstate);
}

static void cell_compute(const struct smi_gpu *g, const struct smi_system *s, char *text, size_t size) {
  (void)s;
  if (g->cc_major >= 0) snprintf(text, size, "%d.%d", g->cc_major, g->cc_minor);
}

static void cell_timestamp(const struct smi_gpu *g, const struct smi_system *s, char *text, size_t size) {
  (void)g, (void)s;
  struct timespec now;
  struct tm local;
  char date[32] = "";
  clock_gettime(CLOCK_REALTIME, &now);
  if (localtime_r(&now.tv_sec, &local)) strftime(date, sizeof date, "%Y/%m/%d %H:%M:%S", &local);
  snprintf(text, size, "%s.%03ld", date, now.tv_nsec / 1000000);
}

static const struct field {
  const char *name, *unit;
  print_cell *print;
} fields[] = {
    {"timestamp", "", cell_timestamp},
    {"driver_version", "", cell_driver},
    {"count", "", cell_count},
    {"index", "", cell_index},
    {"name", "", cell_name},
    {"gpu_name", "", cell_name},
    {"uuid", "", cell_uuid},
    {"gpu_uuid", "", cell_uuid},
    {"pci.bus_id", "", cell_bus_id},
    {"gpu_bus_id", "", cell_bus_id},
    {"compute_cap", "", cell_compute},
    {"memory.total", "MiB", cell_memory_total},
    {"memory.used", "MiB", cell_memory_used},
    {"memory.free", "MiB", cell_memory_free},
    {"utilization.gpu", "%", cell_utilization},
    {"utilization.memory", "%", cell_memory_utilization},
    {"temperature.gpu", "", cell_temperature},
    {"power.draw", "W", cell_power},
    {"power.limit", "W", cell_power_limit},
    {"enforced.power.limit", "W", cell_power_limit},
    {"pstate", "", cell_pstate},
    {"clocks.sm", "MHz", cell_sm_clock},
    {"clocks.current.sm", "MHz", cell_sm_clock},
    {"clocks.gr", "MHz", cell_sm_clock},
    {"clocks.mem", "MHz", cell_memory_clock},
    {"clocks.current.memory", "MHz", cell_memory_clock},
    {"clocks.max.sm", "MHz", cell_sm_clock_max},
    {"clocks.max.memory", "MHz", cell_memory_clock_max},
    {"mig.mode.current", "", cell_mig},
    {"persistence_mode", "", cell_persistence},
    {"fan.speed", "%", cell_fan},
    {"temperature.memory", "", cell_memory_temperature},
    {"ecc.errors.uncorrected.volatile.total", "", cell_ecc_uncorrected},
    {"pcie.link.gen.current", "", cell_pcie_generation},
    {"pcie.link.width.current", "", cell_pcie_width},
};

enum { FIELDS = sizeof fields / sizeof *fields, MAX_COLUMNS = 64 };

static const struct field *find_field(const char *name) {
  for (size_t i = 0; i < FIELDS; i++)
    if (!strcmp(fields[i].name, name)) return &fields[i];
  return NULL;
}

static int print_fields(void) {
  printf("Fields for --query-gpu:\n");
  for (size_t i = 0; i < FIELDS; i++) printf("  %s%s%s\n", fields[i].name, *fields[i].unit ? "  in " : "", fields[i].unit);
  return EXIT_OK;
}

static void print_heading(const struct smi_options *o, const char *separator, const char *name, const char *unit) {
  if (o->units && *unit) printf("%s%s [%s]", separator, name, unit);
  else printf("%s%s", separator, name);
}

static void print_value(const struct smi_options *o, const char *separator, const char *text, const char *unit) {
  if (!*text) printf("%s[N/A]", separator);
  else if (o->units && *unit) printf("%s%s %s", separator, text, unit);
  else printf("%s%s", separator, text);
}

// smi_print_gpu_query prints one row for each GPU; without options, the list
// of fields.
int smi_print_gpu_query(const struct smi_options *o, const struct smi_system *system, const struct smi_gpu *gpus,
                        unsigned int count) {
  if (!o) return print_fields();
  char names[1024];
  const struct field *columns[MAX_COLUMNS];
  size_t n = 0;
  snprintf(names, sizeof names, "%s", o->query_gpu);
  char *save = NULL;
  for (char *name = strtok_r(names, ", ", &save); name && n < MAX_COLUMNS; name = strtok_r(NULL, ", ", &save)) {
    columns[n] = find_field(name);
    if (!columns[n++]) {
      printf("Field \"%s\" is not a valid field to query.\n", name);
      return EXIT_INVALID;
    }
  }
  for (size_t i = 0; o->header && i < n; i++) print_heading(o, i ? ", " : "", columns[i]->name, columns[i]->unit);
  if (o->header) printf("\n");

  int code = EXIT_OK;
  for (unsigned int row = 0; row < count; row++) {
    if (gpus[row].status != NVML_SUCCESS) {
      printf("Unable to determine the device handle for GPU %u: %s\n", gpus[row].index, smi_error(gpus[row].status));
      code = (int)gpus[row].status;
      continue;
    }
    for (size_t i = 0; i < n; i++) {
      char text[128] = "";
      columns[i]->print(&gpus[row], system, text, sizeof text);
      print_value(o, i ? ", " : "", text, columns[i]->unit);
    }
    printf("\n");
  }
  return code;
}

static const struct app_field {
  const char *name, *unit;
} app_fields[] = {{"gpu_uuid", ""}, {"gpu_name", ""},     {"gpu_bus_id", ""},       {"pid", ""},
                  {"name", ""},     {"process_name", ""}, {"used_gpu_memory", "MiB"}, {"used_memory", "MiB"}};

static const struct app_field *find_app_field(const char *name) {
  for (size_t i = 0; i < sizeof app_fields / sizeof *app_fields; i++)
    if (!strcmp(app_fields[i].name, name)) return &app_fields[i];
  return NULL;
}

static void app_cell(const char *field, const struct smi_gpu *g, const nvmlProcessInfo_t *p, char *text, size_t size) {
  if (!strcmp(field, "gpu_uuid")) snprintf(text, size, "%s", g->uuid);
  else if (!strcmp(field, "gpu_name")) snprintf(text, size, "%s", g->name);
  else if (!strcmp(field, "gpu_bus_id")) snprintf(text, size, "%s", g->bus_id);
  else if (!strcmp(field, "pid")) snprintf(text, size, "%u", p->pid);
  else if (strstr(field, "memory")) snprintf(text, size, "%llu", p->usedGpuMemory >> 20);
  else smi_process_name(p->pid, text, (unsigned int)size);
}

// smi_print_app_query prints one row for each process on a GPU.
int smi_print_app_query(const struct smi_options *o, const struct smi_gpu *gpus, unsigned int count) {
  enum { ROOM = 64 };
  char names[1024];
  const struct app_field *columns[MAX_COLUMNS];
  size_t n = 0;
  snprintf(names, sizeof names, "%s", o->query_apps);
  char *save = NULL;
  for (char *name = strtok_r(names, ", ", &save); name && n < MAX_COLUMNS; name = strtok_r(NULL, ", ", &save)) {
    columns[n] = find_app_field(name);
    if (!columns[n++]) {
      printf("Field \"%s\" is not a valid field to query.\n", name);
      return EXIT_INVALID;
    }
  }
  for (size_t i = 0; o->header && i < n; i++) print_heading(o, i ? ", " : "", columns[i]->name, columns[i]->unit);
  if (o->header) printf("\n");
  for (unsigned int row = 0; row < count; row++) {
    nvmlProcessInfo_t processes[ROOM];
    const unsigned int found = smi_processes(&gpus[row], processes, ROOM);
    for (unsigned int p = 0; p < found; p++) {
      for (size_t i = 0; i < n; i++) {
        char text[256] = "";
        app_cell(columns[i]->name, &gpus[row], &processes[p], text, sizeof text);
        print_value(o, i ? ", " : "", text, columns[i]->unit);
      }
      printf("\n");
    }
  }
  return EXIT_OK;
}
