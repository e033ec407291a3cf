/* A profiler plug-in of NCCL's interface, version 5: writes what it hears of as a trace that
   chrome://tracing and Perfetto open, a file for each communicator and rank:

     cc -shared -fPIC -pthread -o libnccl-profiler-trace.so profiler_plugin.c
     NCCL_PROFILER_PLUGIN=$PWD/libnccl-profiler-trace.so PROFILER_TRACE=/tmp/trace ./program

   writes /tmp/trace-COMMUNICATOR-RANK.json. PROFILER_MASK (a number) chooses the kinds of events;
   unset: all. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2 };
enum {
  GROUP = 0x1,
  COLLECTIVE = 0x2,
  MESSAGE = 0x4,
  PROXY_OPERATION = 0x8,
  PROXY_STEP = 0x10,
  PROXY_CONTROL = 0x20,
  KERNEL_CHANNEL = 0x40,
  NET_PLUGIN = 0x80,
  GROUP_CALL = 0x100,
  COLLECTIVE_CALL = 0x200,
  MESSAGE_CALL = 0x400,
  KERNEL_LAUNCH = 0x800
};
enum { KERNEL_CHANNEL_STOP = 22 };

typedef struct {
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      uint64_t sequence;
      const char* function;
      const void* input;
      void* output;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
      void* group;
    } collective;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void* group;
    } message;
    struct {
      pid_t pid;
      uint8_t channel;
      int peer, steps, chunk_bytes, is_send;
    } proxy_operation;
    struct {
      int step;
    } proxy_step;
    struct {
      uint8_t channel;
      uint64_t timer;
    } channel;
    struct {
      bool is_captured;
      int depth;
    } group_call;
    struct {
      const char* function;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool is_captured;
    } collective_call;
    struct {
      const char* function;
      size_t count;
      const char* datatype;
      void* stream;
      bool is_captured;
    } message_call;
    struct {
      void* stream;
    } launch;
    char room[88];
  };
} Descriptor;

typedef struct Context Context;

/* Events end in any order: a kernel's channel after the operation above it. They are used again
   after MOST_EVENTS others. */
enum { MOST_EVENTS = 1 << 14 };
typedef struct {
  Context* of;
  uint64_t id, parent;
  uint64_t type;
  double start, stop; /* us */
  char text[200];     /* name and arguments */
} Event;

struct Context {
  FILE* file;
  int is_first;
  uint64_t next;
  pthread_mutex_t mutex;
  Event events[MOST_EVENTS];
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static const char* kind_of(uint64_t type) {
  switch (type) {
    case GROUP:
      return "Group";
    case COLLECTIVE:
      return "Coll";
    case MESSAGE:
      return "P2p";
    case PROXY_OPERATION:
      return "ProxyOp";
    case PROXY_STEP:
      return "ProxyStep";
    case PROXY_CONTROL:
      return "ProxyCtrl";
    case KERNEL_CHANNEL:
      return "KernelCh";
    case NET_PLUGIN:
      return "NetPlugin";
    case GROUP_CALL:
      return "GroupApi";
    case COLLECTIVE_CALL:
      return "CollApi";
    case MESSAGE_CALL:
      return "P2pApi";
    case KERNEL_LAUNCH:
      return "KernelLaunch";
  }
  return "Unknown";
}

static int init(void** context, uint64_t communicator, int* mask, const char* name, int nodes,
                int ranks, int rank, void* log) {
  (void)log;
  const char* wanted = getenv("PROFILER_MASK");
  *mask = wanted != NULL ? (int)strtol(wanted, NULL, 0) : 0xfff;
  Context* made = calloc(1, sizeof *made);
  const char* path = getenv("PROFILER_TRACE");
  char file[1024];
  snprintf(file, sizeof file, "%s-%" PRIx64 "-%d.json", path != NULL ? path : "trace", communicator,
           rank);
  if (made == NULL || (made->file = fopen(file, "w")) == NULL) {
    free(made);
    return SYSTEM_ERROR;
  }
  made->is_first = 1;
  pthread_mutex_init(&made->mutex, NULL);
  fprintf(made->file,
          "{\"name\": \"%s\", \"rank\": %d, \"ranks\": %d, \"nodes\": %d, \"traceEvents\": [\n",
          name != NULL ? name : "", rank, ranks, nodes);
  *context = made;
  return SUCCESS;
}

static void describe(char* text, size_t size, const Descriptor* of) {
  switch (of->type) {
    case COLLECTIVE:
      snprintf(text, size,
               "\"function\": \"%s\", \"sequence\": %" PRIu64
               ", \"count\": %zu, \"type\": \"%s\", \"algorithm\": \"%s\", \"protocol\": \"%s\", "
               "\"channels\": %d",
               of->collective.function, of->collective.sequence, of->collective.count,
               of->collective.datatype, of->collective.algorithm, of->collective.protocol,
               of->collective.channels);
      break;
    case MESSAGE:
      snprintf(text, size,
               "\"function\": \"%s\", \"count\": %zu, \"type\": \"%s\", \"peer\": %d, "
               "\"channels\": %d",
               of->message.function, of->message.count, of->message.datatype, of->message.peer,
               of->message.channels);
      break;
    case COLLECTIVE_CALL:
      snprintf(text, size, "\"function\": \"%s\", \"count\": %zu, \"captured\": %d",
               of->collective_call.function, of->collective_call.count,
               of->collective_call.is_captured);
      break;
    case MESSAGE_CALL:
      snprintf(text, size, "\"function\": \"%s\", \"count\": %zu, \"captured\": %d",
               of->message_call.function, of->message_call.count, of->message_call.is_captured);
      break;
    case GROUP_CALL:
      snprintf(text, size, "\"depth\": %d, \"captured\": %d", of->group_call.depth,
               of->group_call.is_captured);
      break;
    case KERNEL_CHANNEL:
      snprintf(text, size, "\"channel\": %d", of->channel.channel);
      break;
    case PROXY_OPERATION:
      snprintf(text, size, "\"peer\": %d, \"send\": %d, \"steps\": %d", of->proxy_operation.peer,
               of->proxy_operation.is_send, of->proxy_operation.steps);
      break;
    case PROXY_STEP:
      snprintf(text, size, "\"step\": %d", of->proxy_step.step);
      break;
    default:
      text[0] = '\0';
  }
}

static int start(void* context, void** handle, Descriptor* of) {
  Context* const to = context;
  pthread_mutex_lock(&to->mutex);
  Event* const event = &to->events[to->next++ % MOST_EVENTS];
  event->of = to;
  event->id = to->next;
  event->type = of->type;
  event->parent = of->parent != NULL ? ((Event*)of->parent)->id : 0;
  event->start = of->type == KERNEL_CHANNEL ? (double)of->channel.timer / 1e3 : now();
  event->stop = 0;
  describe(event->text, sizeof event->text, of);
  pthread_mutex_unlock(&to->mutex);
  *handle = event;
  return SUCCESS;
}

static int stop(void* handle) {
  Event* const event = handle;
  Context* const to = event->of;
  pthread_mutex_lock(&to->mutex);
  const double end = event->stop != 0 ? event->stop : now();
  fprintf(to->file,
          "%s{\"ph\": \"X\", \"name\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, "
          "\"dur\": %.3f, \"args\": {\"id\": %" PRIu64 ", \"parent\": %" PRIu64 "%s%s}}",
          to->is_first ? "" : ",\n", kind_of(event->type), (int)getpid(),
          event->type == KERNEL_CHANNEL ? 1 : 0, event->start, end - event->start, event->id,
          event->parent, event->text[0] != '\0' ? ", " : "", event->text);
  to->is_first = 0;
  pthread_mutex_unlock(&to->mutex);
  return SUCCESS;
}

static int record(void* handle, int state, void* arguments) {
  Event* const event = handle;
  if (state == KERNEL_CHANNEL_STOP && arguments != NULL)
    event->stop = (double)*(const uint64_t*)arguments / 1e3;
  return SUCCESS;
}

static int finalize(void* context) {
  Context* const of = context;
  fprintf(of->file, "\n]}\n");
  const int failed = fclose(of->file) != 0;
  pthread_mutex_destroy(&of->mutex);
  free(of);
  return failed ? SYSTEM_ERROR : SUCCESS;
}

__attribute__((visibility("default"))) const struct {
  const char* name;
  int (*init)(void**, uint64_t, int*, const char*, int, int, int, void*);
  int (*start)(void*, void**, Descriptor*);
  int (*stop)(void*);
  int (*record)(void*, int, void*);
  int (*finalize)(void*);
} ncclProfiler_v5 = {"Trace", init, start, stop, record, finalize};
