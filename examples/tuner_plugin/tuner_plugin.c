/* A tuner plug-in of NCCL's interface, version 5: chooses by a table in a file, whose lines are

     function,least_bytes,most_bytes,algorithm,protocol,channels
     allreduce,0,65536,nvls,ll,-1
     allreduce,65537,1073741824,ring,simple,16

   with NCCL's names; -1 channels: as many as the library likes. The first line that fits holds.

     cc -shared -fPIC -o libnccl-tuner-table.so tuner_plugin.c
     NCCL_TUNER_PLUGIN=$PWD/libnccl-tuner-table.so TUNER_FILE=table.csv ./program */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INFO = 3, TUNING = 0x40 };

typedef void (*Log)(int level, unsigned long subsystem, const char* file, int line,
                    const char* format, ...);

static const char* const functions[] = {"broadcast", "reduce", "allgather", "reducescatter",
                                        "allreduce"};
static const char* const algorithms[] = {
    "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
static const char* const protocols[] = {"ll", "ll128", "simple"};

typedef struct {
  int function, algorithm, protocol, channels;
  size_t least, most;
} Line;

typedef struct {
  Line lines[256];
  int count;
  Log log;
} Context;

static int find(const char* name, const char* const* names, int count) {
  for (int i = 0; i < count; ++i)
    if (strcasecmp(name, names[i]) == 0) return i;
  return -1;
}

static int init(void** context, uint64_t communicator, size_t ranks, size_t nodes, Log log,
                void* domains, void* constants) {
  (void)domains, (void)constants;
  const char* path = getenv("TUNER_FILE");
  FILE* file = path != NULL ? fopen(path, "r") : NULL;
  Context* made = calloc(1, sizeof *made);
  if (file == NULL || made == NULL) {
    if (file != NULL) fclose(file);
    free(made);
    return SYSTEM_ERROR;
  }
  char text[256];
  while (made->count < 256 && fgets(text, sizeof text, file) != NULL) {
    char function[32], algorithm[32], protocol[32];
    Line line;
    if (sscanf(text, "%31[^,],%zu,%zu,%31[^,],%31[^,],%d", function, &line.least, &line.most,
               algorithm, protocol, &line.channels) != 6)
      continue;
    line.function = find(function, functions, 5);
    line.algorithm = find(algorithm, algorithms, 7);
    line.protocol = find(protocol, protocols, 3);
    if (line.function < 0 || line.algorithm < 0 || line.protocol < 0) continue;
    made->lines[made->count++] = line;
  }
  fclose(file);
  made->log = log;
  log(INFO, TUNING, __FILE__, __LINE__, "%d lines from %s for %zu ranks on %zu nodes (%llx)",
      made->count, path, ranks, nodes, (unsigned long long)communicator);
  *context = made;
  return SUCCESS;
}

static int choose(void* context, int function, size_t bytes, int operations, float** costs,
                  int rows, int columns, int is_registered, int* channels) {
  (void)operations, (void)is_registered;
  const Context* const of = context;
  /* The table is one piece, whatever its type says. */
  float* const table = (float*)(void*)costs;
  for (int i = 0; i < of->count; ++i) {
    const Line* const line = &of->lines[i];
    if (line->function != function || bytes < line->least || bytes > line->most) continue;
    if (line->algorithm >= rows || line->protocol >= columns) continue;
    float* const cost = &table[line->algorithm * columns + line->protocol];
    if (*cost < 0) { /* not here: the next line may be */
      of->log(INFO, TUNING, __FILE__, __LINE__, "%s with %s is not available",
              algorithms[line->algorithm], protocols[line->protocol]);
      continue;
    }
    *cost = 0;
    if (line->channels > 0) *channels = line->channels;
    return SUCCESS;
  }
  return SUCCESS;
}

static int finalize(void* context) {
  free(context);
  return SUCCESS;
}

__attribute__((visibility("default"))) const struct {
  const char* name;
  int (*init)(void**, uint64_t, size_t, size_t, Log, void*, void*);
  int (*choose)(void*, int, size_t, int, float**, int, int, int, int*);
  int (*finalize)(void*);
} ncclTunerPlugin_v5 = {"Table", init, choose, finalize};
