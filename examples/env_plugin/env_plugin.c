/* An environment plug-in of NCCL's interface, version 2: one file of settings for all machines of
   a cluster, in which a line may be for some of them alone:

     NCCL_DEBUG=INFO
     node7:NCCL_SOCKET_IFNAME=eth1

     cc -shared -fPIC -o libnccl-env-file.so env_plugin.c
     NCCL_ENV_PLUGIN=$PWD/libnccl-env-file.so ENV_FILE=settings.txt ./program

   What the file does not have comes from the environment of the process. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INFO = 3, ENV = 0x80 };
enum { MOST_LINES = 256 };

typedef void (*Log)(int level, unsigned long subsystem, const char* file, int line,
                    const char* format, ...);

static char* names[MOST_LINES];
static char* values[MOST_LINES];
static int count;

static int init(unsigned char major, unsigned char minor, unsigned char patch, const char* suffix,
                Log log) {
  (void)suffix;
  const char* path = getenv("ENV_FILE");
  FILE* file = path != NULL ? fopen(path, "r") : NULL;
  if (file == NULL) return SYSTEM_ERROR;
  char host[256] = "", line[1024];
  gethostname(host, sizeof host - 1);
  while (count < MOST_LINES && fgets(line, sizeof line, file) != NULL) {
    line[strcspn(line, "\r\n")] = '\0';
    char* name = line;
    char* equals = strchr(line, '=');
    if (equals == NULL || line[0] == '#') continue;
    *equals = '\0';
    char* colon = strchr(line, ':');
    if (colon != NULL) {
      *colon = '\0';
      if (strcmp(line, host) != 0) continue;
      name = colon + 1;
    }
    names[count] = strdup(name);
    values[count] = strdup(equals + 1);
    ++count;
  }
  fclose(file);
  log(INFO, ENV, __FILE__, __LINE__, "%d settings for NCCL %d.%d.%d on %s from %s", count, major,
      minor, patch, host, path);
  return SUCCESS;
}

static const char* get(const char* name) {
  for (int i = 0; i < count; ++i)
    if (strcmp(names[i], name) == 0) return values[i];
  return getenv(name);
}

static int finalize(void) {
  for (; count > 0; --count) {
    free(names[count - 1]);
    free(values[count - 1]);
  }
  return SUCCESS;
}

__attribute__((visibility("default"))) const struct {
  const char* name;
  int (*init)(unsigned char, unsigned char, unsigned char, const char*, Log);
  int (*finalize)(void);
  const char* (*get)(const char*);
} ncclEnvPlugin_v2 = {"File", init, finalize, get};
