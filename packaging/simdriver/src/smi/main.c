// nvidia-smi of the simulated driver: command line and exit codes.
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char usage[] =
    "NVIDIA System Management Interface, gpulab's for simulated GPUs\n"
    "\n"
    "  nvidia-smi                                   table of the GPUs and their processes\n"
    "  nvidia-smi -L, --list-gpus                   one line for each GPU\n"
    "  nvidia-smi --query-gpu=FIELD,... --format=csv[,noheader][,nounits]\n"
    "  nvidia-smi --query-compute-apps=FIELD,... --format=csv[,noheader][,nounits]\n"
    "  nvidia-smi --help-query-gpu                  the fields\n"
    "\n"
    "  -i, --id=INDEX|UUID|ADDRESS                  only this GPU\n"
    "  -l, --loop=SECONDS                           again and again\n"
    "  -h, --help\n";

static void set_format(struct smi_options *o, const char *format, bool *csv) {
  char copy[128];
  snprintf(copy, sizeof copy, "%s", format);
  char *save = NULL;
  for (char *word = strtok_r(copy, ", ", &save); word; word = strtok_r(NULL, ", ", &save)) {
    if (!strcmp(word, "csv")) *csv = true;
    else if (!strcmp(word, "noheader")) o->header = false;
    else if (!strcmp(word, "nounits")) o->units = false;
  }
}

// value returns what follows the option's "=", or the next argument.
static const char *value(const char *argument, const char *name, char ***rest) {
  const size_t length = strlen(name);
  if (strncmp(argument, name, length) != 0) return NULL;
  if (argument[length] == '=') return argument + length + 1;
  if (argument[length] == 0 && (*rest)[1]) return *++*rest;
  return NULL;
}

static bool parse(char **argument, struct smi_options *o) {
  bool csv = false;
  const char *text;
  for (; *argument; argument++) {
    if (!strcmp(*argument, "-L") || !strcmp(*argument, "--list-gpus")) o->list = true;
    else if ((text = value(*argument, "--query-gpu", &argument))) o->query_gpu = text;
    else if ((text = value(*argument, "--query-compute-apps", &argument))) o->query_apps = text;
    else if ((text = value(*argument, "--format", &argument))) set_format(o, text, &csv);
    else if ((text = value(*argument, "--id", &argument)) || (text = value(*argument, "-i", &argument))) o->only = text;
    else if ((text = value(*argument, "--loop", &argument)) || (text = value(*argument, "-l", &argument)))
      o->repeat_seconds = (unsigned int)strtoul(text, NULL, 10);
    else {
      printf("Invalid combination of input arguments: %s is not known here. Please run 'nvidia-smi -h' for help.\n",
             *argument);
      return false;
    }
  }
  if ((o->query_gpu || o->query_apps) && !csv) {
    printf("\"--format=\" is missing: a query needs --format=csv.\n");
    return false;
  }
  return true;
}

static bool selected(const struct smi_options *o, const struct smi_gpu *g) {
  if (!o->only) return true;
  char index[16];
  snprintf(index, sizeof index, "%u", g->index);
  return !strcmp(o->only, index) || !strcmp(o->only, g->uuid) || (*g->bus_id && !strcasecmp(o->only, g->bus_id));
}

// show prints one report and returns an exit code.
static int show(const struct smi_options *o) {
  static struct smi_gpu gpus[MAX_DEVICES];
  struct smi_system system;
  const nvmlReturn_t result = smi_read_system(&system);
  if (result != NVML_SUCCESS) {
    printf("The driver cannot be asked: %s\n", smi_error(result));
    return (int)result;
  }
  unsigned int count = 0;
  for (unsigned int i = 0; i < system.device_count && i < MAX_DEVICES; i++) {
    smi_read_gpu(i, &gpus[count]);
    if (selected(o, &gpus[count])) count++;
  }
  if (count == 0) {
    printf("No devices were found\n");
    return EXIT_QUERY_FAILED;
  }
  if (o->query_gpu) return smi_print_gpu_query(o, &system, gpus, count);
  if (o->query_apps) return smi_print_app_query(o, gpus, count);
  if (o->list) smi_print_list(gpus, count);
  else smi_print_table(&system, gpus, count);
  for (unsigned int i = 0; i < count; i++)
    if (gpus[i].status != NVML_SUCCESS) return (int)gpus[i].status;
  return EXIT_OK;
}

int main(int argc, char **argv) {
  struct smi_options o = {.header = true, .units = true};
  if (argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
    fputs(usage, stdout);
    return EXIT_OK;
  }
  if (argc == 2 && !strcmp(argv[1], "--help-query-gpu")) return smi_print_gpu_query(NULL, NULL, NULL, 0);
  if (!parse(argv + 1, &o)) return EXIT_INVALID;
  int code = smi_connect();
  if (code != EXIT_OK) return code;
  for (;;) {
    code = show(&o);
    if (fflush(stdout) != 0) return EXIT_QUERY_FAILED;
    if (code != EXIT_OK || o.repeat_seconds == 0) return code;
    nanosleep(&(struct timespec){.tv_sec = o.repeat_seconds}, NULL);
  }
}
