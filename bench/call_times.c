/* What calls of NCCL's API take their thread, inside a program that nobody changes: put before the
   library (LD_PRELOAD=libcall_times.so[:libnccl.so.2]), it passes each call on and adds up the
   times of the one thread that asks for it. bench/torch_host_time.py does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
  ALL_REDUCE,
  BROADCAST,
  REDUCE,
  ALL_GATHER,
  REDUCE_SCATTER,
  SEND,
  RECV,
  GROUP_START,
  GROUP_END,
  ASYNC_ERROR,
  BCAST,
  CALLS
};
static const char* const kNames[CALLS] = {
    "ncclAllReduce", "ncclBroadcast", "ncclReduce",     "ncclAllGather", "ncclReduceScatter",
    "ncclSend",      "ncclRecv",      "ncclGroupStart", "ncclGroupEnd",  "ncclCommGetAsyncError",
    "ncclBcast"};

static uint64_t nanoseconds[CALLS], calls[CALLS];
static pthread_t measured;
static int is_measuring; /* read by other threads, whose calls are then not counted */

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The library may have been opened by somebody else's dlopen(), where RTLD_NEXT does not look. */
static void* find(const char* name) {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  return dlsym(library != NULL ? library : RTLD_NEXT, name);
}

static void add(int call, uint64_t begin) {
  if (!__atomic_load_n(&is_measuring, __ATOMIC_ACQUIRE) || !pthread_equal(pthread_self(), measured))
    return;
  nanoseconds[call] += now() - begin;
  ++calls[call];
}

/* Counts the calling thread's calls from here on. */
void call_times_start(void) {
  measured = pthread_self();
  memset(nanoseconds, 0, sizeof nanoseconds);
  memset(calls, 0, sizeof calls);
  __atomic_store_n(&is_measuring, 1, __ATOMIC_RELEASE);
}

/* Stops, and writes JSON: {"ncclAllReduce": [calls, microseconds of each], ...}. */
void call_times_stop(char* text, int room) {
  int length = snprintf(text, (size_t)room, "{");
  __atomic_store_n(&is_measuring, 0, __ATOMIC_RELEASE);
  for (int call = 0; call < CALLS && length < room; ++call)
    if (calls[call] != 0)
      length += snprintf(text + length, (size_t)(room - length), "%s\"%s\": [%llu, %.2f]",
                         length > 1 ? ", " : "", kNames[call], (unsigned long long)calls[call],
                         (double)nanoseconds[call] / 1e3 / (double)calls[call]);
  if (length < room) snprintf(text + length, (size_t)(room - length), "}");
}

/* Handles, streams and results as what they are to the caller: words. */
#define PASS_ON(call, name, parameters, arguments)  \
  int name parameters {                             \
    static int(*next) parameters;                   \
    if (next == NULL) *(void**)&next = find(#name); \
    const uint64_t begin = now();                   \
    const int result = next arguments;              \
    add(call, begin);                               \
    return result;                                  \
  }
PASS_ON(ALL_REDUCE, ncclAllReduce,
        (const void* in, void* out, size_t count, int type, int op, void* comm, void* stream),
        (in, out, count, type, op, comm, stream))
PASS_ON(BROADCAST, ncclBroadcast,
        (const void* in, void* out, size_t count, int type, int root, void* comm, void* stream),
        (in, out, count, type, root, comm, stream))
PASS_ON(REDUCE, ncclReduce,
        (const void* in, void* out, size_t count, int type, int op, int root, void* comm,
         void* stream),
        (in, out, count, type, op, root, comm, stream))
PASS_ON(ALL_GATHER, ncclAllGather,
        (const void* in, void* out, size_t count, int type, void* comm, void* stream),
        (in, out, count, type, comm, stream))
PASS_ON(REDUCE_SCATTER, ncclReduceScatter,
        (const void* in, void* out, size_t count, int type, int op, void* comm, void* stream),
        (in, out, count, type, op, comm, stream))
PASS_ON(SEND, ncclSend,
        (const void* in, size_t count, int type, int peer, void* comm, void* stream),
        (in, count, type, peer, comm, stream))
PASS_ON(RECV, ncclRecv, (void* out, size_t count, int type, int peer, void* comm, void* stream),
        (out, count, type, peer, comm, stream))
PASS_ON(GROUP_START, ncclGroupStart, (void), ())
PASS_ON(GROUP_END, ncclGroupEnd, (void), ())
PASS_ON(ASYNC_ERROR, ncclCommGetAsyncError, (void* comm, void* state), (comm, state))
/* What PyTorch's broadcast calls. NVIDIA's library calls itself by public names, as ncclBroadcast
   here: such calls count, too. */
PASS_ON(BCAST, ncclBcast,
        (void* buffer, size_t count, int type, int root, void* comm, void* stream),
        (buffer, count, type, root, comm, stream))
