/* A network plug-in that reduces: NCCL's CollNet interface, version 12, beside a net plug-in over
   TCP (../net_plugin). The "switch" of InfiniBand is a thread here, or a process on any machine: it
   takes a chunk of each member of a group, and gives all of them the reduction. So each machine
   sends its data once and receives the result once, whatever the number of machines.

     cc -shared -fPIC -pthread -o libnccl-net-switch.so collnet_plugin.c
     cc -pthread -DSWITCH_PROGRAM -o collnet_switch collnet_plugin.c
     ./collnet_switch 10.0.0.9 7777 &                                     # on the switch
     NCCL_NET_PLUGIN=$PWD/libnccl-net-switch.so NCCL_COLLNET_ENABLE=1 \
       COLLNET_SWITCH=10.0.0.9:7777 ./program                             # on each machine

   Without COLLNET_SWITCH the first member's process has the switch. COLLNET_FAULT=<what>[:<n>] has
   it fail, for the tests: see the places where fault() is asked. */
#define OVER_TCP
#include "../net_plugin/net_plugin.c"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

/* ---- What a member and the switch say to each other. */

enum { REDUCE, GATHER, SCATTER };
typedef struct {
  uint64_t group; /* equal at all members, and at no others */
  int32_t members, place;
} Hello;
typedef struct {
  int32_t kind, type, operation,
      place; /* whose data a gathering brings, whom a scattering serves */
  uint64_t bytes;
} Question;

static int sends(const Question* question, int place) {
  return question->kind != GATHER || question->place == place;
}
/* The one whose data are gathered has them. */
static int receives(const Question* question, int place) {
  return question->kind == REDUCE || (question->kind == GATHER) == (question->place != place);
}

/* COLLNET_FAULT=what:n at the n-th question, counted from 1; without n at the first. */
static int fault(const char* what, unsigned long number) {
  const char* set = getenv("COLLNET_FAULT");
  const size_t length = strlen(what);
  if (set == NULL || strncmp(set, what, length) != 0) return 0;
  if (set[length] == ':') return number >= strtoul(set + length + 1, NULL, 10);
  return set[length] == '\0';
}

/* ---- Arithmetic: the types by their numbers in NCCL. Others the switch does not know. */

enum { INT32 = 2, UINT32, INT64, UINT64, FLOAT32 = 7, FLOAT64 = 8 };
enum { SUM, PRODUCT, MAX, MIN };

#define COMBINE(T)                                                         \
  static void combine_##T(T* to, const T* from, size_t n, int operation) { \
    for (size_t i = 0; i < n; ++i)                                         \
      to[i] = operation == SUM       ? to[i] + from[i]                     \
              : operation == PRODUCT ? to[i] * from[i]                     \
              : operation == MAX     ? (from[i] > to[i] ? from[i] : to[i]) \
                                     : (from[i] < to[i] ? from[i] : to[i]);    \
  }
COMBINE(uint32_t)
COMBINE(uint64_t)
COMBINE(float)
COMBINE(double)
/* Sums and products wrap as those of unsigned numbers do. */
#define COMBINE_SIGNED(T)                                                        \
  static void combine_##T(T* to, const T* from, size_t n, int operation) {       \
    if (operation <= PRODUCT) {                                                  \
      combine_u##T((u##T*)to, (const u##T*)from, n, operation);                  \
      return;                                                                    \
    }                                                                            \
    for (size_t i = 0; i < n; ++i)                                               \
      if (operation == MAX ? from[i] > to[i] : from[i] < to[i]) to[i] = from[i]; \
  }
COMBINE_SIGNED(int32_t)
COMBINE_SIGNED(int64_t)

static int combine(void* to, const void* from, size_t bytes, int type, int operation) {
  switch (type) {
    case INT32:
      combine_int32_t(to, from, bytes / 4, operation);
      return SUCCESS;
    case UINT32:
      combine_uint32_t(to, from, bytes / 4, operation);
      return SUCCESS;
    case INT64:
      combine_int64_t(to, from, bytes / 8, operation);
      return SUCCESS;
    case UINT64:
      combine_uint64_t(to, from, bytes / 8, operation);
      return SUCCESS;
    case FLOAT32:
      combine_float(to, from, bytes / 4, operation);
      return SUCCESS;
    case FLOAT64:
      combine_double(to, from, bytes / 8, operation);
      return SUCCESS;
    default:
      return SYSTEM_ERROR;
  }
}

/* ---- The switch: a thread for each group, which ends with the first member that leaves. */

enum { MOST_MEMBERS = 256 };
typedef struct Group {
  uint64_t id;
  int members, joined;
  int fds[MOST_MEMBERS]; /* by place */
  struct Group* next;
} Group;

static int read_all(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = recv(fd, (char*)data + done, bytes - done, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return SYSTEM_ERROR;
    done += (size_t)count;
  }
  return SUCCESS;
}
static int write_all(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = send(fd, (const char*)data + done, bytes - done, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return SYSTEM_ERROR;
    done += (size_t)count;
  }
  return SUCCESS;
}

typedef struct {
  char *sum, *one;
  size_t bytes; /* of each */
} Room;

static int make_room(Room* room, size_t bytes) {
  if (bytes <= room->bytes) return SUCCESS;
  free(room->sum);
  free(room->one);
  *room = (Room){malloc(bytes), malloc(bytes), bytes};
  return room->sum != NULL && room->one != NULL ? SUCCESS : SYSTEM_ERROR;
}

/* One question of all members, and its answer. */
static int answer(Group* group, Room* room, unsigned long number) {
  Question first;
  int have_data = 0;
  for (int place = 0; place < group->members; ++place) {
    Question question;
    if (read_all(group->fds[place], &question, sizeof question) != SUCCESS) return SYSTEM_ERROR;
    if (place == 0) first = question;
    if (memcmp(&question, &first, sizeof first) != 0) return SYSTEM_ERROR; /* they do not match */
    if (place == 0 && make_room(room, first.bytes) != SUCCESS) return SYSTEM_ERROR;
    if (!sends(&first, place)) continue;
    if (read_all(group->fds[place], have_data ? room->one : room->sum, first.bytes) != SUCCESS)
      return SYSTEM_ERROR;
    if (have_data &&
        combine(room->sum, room->one, first.bytes, first.type, first.operation) != SUCCESS)
      return SYSTEM_ERROR;
    have_data = 1;
  }
  if (fault("dies", number)) return SYSTEM_ERROR;
  if (fault("short", number)) first.bytes /= 2;
  for (int place = 0; place < group->members; ++place)
    if (receives(&first, place) &&
        (write_all(group->fds[place], &first.bytes, sizeof first.bytes) != SUCCESS ||
         write_all(group->fds[place], room->sum, first.bytes) != SUCCESS))
      return SYSTEM_ERROR;
  return SUCCESS;
}

static void* serve_group(void* argument) {
  Group* group = argument;
  Room room = {NULL, NULL, 0};
  for (unsigned long number = 1; answer(group, &room, number) == SUCCESS;) ++number;
  for (int place = 0; place < group->members; ++place) close(group->fds[place]);
  free(room.sum);
  free(room.one);
  free(group);
  return NULL;
}

/* Puts a member into its group, and returns the group when it is complete. */
static Group* add_member(Group** waiting, int fd, const Hello* hello) {
  if (hello->members < 1 || hello->members > MOST_MEMBERS || hello->place < 0 ||
      hello->place >= hello->members) {
    close(fd);
    return NULL;
  }
  Group** link = waiting;
  while (*link != NULL && (*link)->id != hello->group) link = &(*link)->next;
  if (*link == NULL) {
    if ((*link = calloc(1, sizeof **link)) == NULL) {
      close(fd);
      return NULL;
    }
    (*link)->id = hello->group;
    (*link)->members = hello->members;
  }
  Group* group = *link;
  if (group->members != hello->members) {
    close(fd);
    return NULL;
  }
  group->fds[hello->place] = fd;
  if (++group->joined < group->members) return NULL;
  *link = group->next;
  return group;
}

/* Serves whoever connects: one group on this thread, or any number on threads of their own. */
static void serve(int listener, int is_for_one) {
  Group* waiting = NULL;
  for (;;) {
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (fd < 0) break;
    hurry(fd);
    Hello hello;
    if (read_all(fd, &hello, sizeof hello) != SUCCESS) {
      close(fd);
      continue;
    }
    Group* const complete = add_member(&waiting, fd, &hello);
    if (complete == NULL) continue;
    if (is_for_one) {
      serve_group(complete);
      break;
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, serve_group, complete) == 0) pthread_detach(thread);
  }
  while (waiting != NULL) {
    Group* const next = waiting->next;
    for (int place = 0; place < waiting->members; ++place)
      if (waiting->fds[place] > 0) close(waiting->fds[place]);
    free(waiting);
    waiting = next;
  }
}

static int listen_here(Address address) {
  const int yes = 1;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(fd, (struct sockaddr*)&address, sizeof address) == 0 && listen(fd, SOMAXCONN) == 0)
    return fd;
  close(fd);
  return -1;
}

#ifdef SWITCH_PROGRAM
int main(int count, char** arguments) {
  Address address = {.sin_family = AF_INET};
  if (count != 3 || inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1) {
    fprintf(stderr, "usage: %s ADDRESS PORT\n", arguments[0]);
    return 2;
  }
  address.sin_port = htons((uint16_t)strtoul(arguments[2], NULL, 10));
  const int listener = listen_here(address);
  if (listener < 0) {
    perror("listen");
    return 1;
  }
  puts("ready");
  fflush(stdout);
  serve(listener, 0);
  return 1;
}
#endif

/* ---- The member. */

static Log say;
static int init_collectives(void** context, uint64_t id, void* log) {
  (void)id;
  *(void**)&say = log;
  *context = NULL;
  return fault("init", 1) ? SYSTEM_ERROR : SUCCESS;
}

static int reducing_devices(int* count) {
  *count = fault("hardware", 1) ? 0 : 1;
  return SUCCESS;
}

static int reduce_support(int type, int operation, int* is_supported) {
  *is_supported =
      operation <= MIN && ((type >= INT32 && type <= UINT64) || type == FLOAT32 || type == FLOAT64);
  return SUCCESS;
}

/* The handle: where the switch of a group is whose first member this is, and the group. */
typedef struct {
  Address address;
  uint64_t group;
} Place;
/* The switch in this process. */
typedef struct {
  int fd;         /* that it listens at; -1: there is none here */
  int is_running; /* as a thread, which must have ended before this library is closed */
  pthread_t thread;
} Listener;

static void* serve_one(void* argument) {
  serve((int)(intptr_t)argument, 1);
  return NULL;
}

static void stop_switch(Listener* listener) {
  if (listener->fd < 0) return;
  if (listener->is_running) {
    shutdown(listener->fd, SHUT_RDWR); /* it may still wait for members */
    pthread_join(listener->thread, NULL);
  }
  close(listener->fd);
  listener->fd = -1;
}

static int listen_for_members(void* context, int device, void* handle, void** listener) {
  (void)context, (void)device;
  Place place;
  memset(&place, 0, sizeof place);
  const int random = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  if (random < 0) return SYSTEM_ERROR;
  const ssize_t got = read(random, &place.group, sizeof place.group);
  close(random);
  if (got != sizeof place.group) return SYSTEM_ERROR;
  Listener* made = malloc(sizeof *made);
  if (made == NULL) return SYSTEM_ERROR;
  *made = (Listener){.fd = -1};
  const char* set = getenv("COLLNET_SWITCH");
  if (set == NULL) {
    socklen_t length = first_address(&place.address);
    if ((made->fd = listen_here(place.address)) < 0 ||
        getsockname(made->fd, (struct sockaddr*)&place.address, &length) != 0)
      goto failed;
  } else {
    char host[64] = "";
    unsigned port = 0;
    if (sscanf(set, "%63[^:]:%u", host, &port) != 2 ||
        inet_pton(AF_INET, host, &place.address.sin_addr) != 1)
      goto failed;
    place.address.sin_family = AF_INET;
    place.address.sin_port = htons((uint16_t)port);
  }
  memcpy(handle, &place, sizeof place);
  *listener = made;
  return SUCCESS;
failed:
  if (made->fd >= 0) close(made->fd);
  free(made);
  return SYSTEM_ERROR;
}

typedef struct {
  struct Collective* of;
  Question question;
  const char* data; /* that is sent; NULL: none */
  char* result;     /* NULL: none */
  size_t sent, received;
  uint64_t length; /* of the result, as the switch says */
  unsigned long number;
  int is_used, is_done;
} Asked;

typedef struct Collective {
  int fd, place;
  Asked asked[MOST_REQUESTS];    /* a ring; they are sent and answered in their order */
  unsigned first, count, unsent; /* unsent: the last so many */
  unsigned long number;
  Listener own;
} Collective;

static int join_group(void* handles[], int members, int place, void* listener, void** collective) {
  Place first;
  memcpy(&first, handles[0], sizeof first);
  Listener* const own = listener;
  if (place == 0 && own->fd >= 0)
    own->is_running = pthread_create(&own->thread, NULL, serve_one, (void*)(intptr_t)own->fd) == 0;
  if (fault("hangs", 1)) pause();
  if (fault("switch", 1)) first.address.sin_port = htons(1);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return SYSTEM_ERROR;
  hurry(fd);
  Hello hello = {.group = first.group, .members = members, .place = place};
  if (fault("group", 1)) hello = (Hello){.group = first.group + (uint64_t)place, .members = 1};
  Collective* made = calloc(1, sizeof *made);
  if (made == NULL || connect(fd, (struct sockaddr*)&first.address, sizeof first.address) != 0 ||
      write_all(fd, &hello, sizeof hello) != SUCCESS || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
    if (say != NULL)
      say(LOG_INFO, LOG_INIT, __FILE__, __LINE__, "Switch: it cannot be reached: %s",
          strerror(errno));
    free(made);
    close(fd);
    return SYSTEM_ERROR;
  }
  made->fd = fd;
  made->place = place;
  made->own = *own;
  own->fd = -1;
  *collective = made;
  return SUCCESS;
}

static void ask(Collective* of, Question question, const void* data, void* result, void** request) {
  *request = NULL; /* "ask again" */
  if (of->count == MOST_REQUESTS) return;
  Asked* next = &of->asked[(of->first + of->count) % MOST_REQUESTS];
  if (next->is_used) return;
  *next = (Asked){.of = of,
                  .question = question,
                  .data = sends(&question, of->place) ? data : NULL,
                  .result = receives(&question, of->place) ? result : NULL,
                  .number = ++of->number,
                  .is_used = 1};
  ++of->count;
  ++of->unsent;
  *request = next;
}

static size_t size_of(int type) {
  return type == INT64 || type == UINT64 || type == FLOAT64 ? 8 : 4;
}

/* ---- memory of GPUs: COLLNET_MEMORY is "device" or "dmabuf", or "refused": the switch says that
   it takes some, and fails */

enum { DEVICE_MEMORY = 2, DMA_BUFFERS = 4 };

static int memory_is(const char* kind) {
  const char* set = getenv("COLLNET_MEMORY");
  return set != NULL && strcmp(set, kind) == 0;
}

static int collective_properties(int device, Properties* properties) {
  const int result = get_properties(device, properties);
  if (memory_is("device")) properties->ptrSupport |= DEVICE_MEMORY;
  if (memory_is("dmabuf") || memory_is("refused"))
    properties->ptrSupport |= DEVICE_MEMORY | DMA_BUFFERS;
  return result;
}

static int register_any(void* collective, void* data, size_t bytes, int type, void** memory) {
  if (type == DEVICE_MEMORY && memory_is("device")) {
    if (say != NULL) say(LOG_INFO, LOG_INIT, __FILE__, __LINE__, "Switch: regMr of device memory");
    type = HOST_MEMORY;
  }
  return register_memory(collective, data, bytes, type, memory);
}

/* A NIC would be given the descriptor (ibv_reg_dmabuf_mr). This one looks whether it is of the same
   memory, and reads the memory of virtual GPUs by its addresses. */
static int register_descriptor(void* collective, void* data, size_t bytes, int type,
                               uint64_t offset, int descriptor, void** memory) {
  *memory = NULL;
  if (type != DEVICE_MEMORY || !memory_is("dmabuf")) return SYSTEM_ERROR;
  const size_t skipped = offset % (size_t)sysconf(_SC_PAGESIZE);
  char* const mapped =
      mmap(NULL, bytes + skipped, PROT_READ, MAP_SHARED, descriptor, (off_t)(offset - skipped));
  if (mapped == MAP_FAILED) return SYSTEM_ERROR;
  const int is_same = memcmp(mapped + skipped, data, bytes) == 0;
  munmap(mapped, bytes + skipped);
  if (!is_same) return SYSTEM_ERROR;
  if (say != NULL) say(LOG_INFO, LOG_INIT, __FILE__, __LINE__, "Switch: regMrDmaBuf");
  return register_memory(collective, data, bytes, HOST_MEMORY, memory);
}

static int all_reduce(void* collective, void* send, void* receive, size_t count, int type,
                      int operation, void* send_memory, void* receive_memory, void** request) {
  Collective* const of = collective;
  const size_t bytes = count * size_of(type);
  if (!is_within(send_memory, send, bytes) || !is_within(receive_memory, receive, bytes))
    return SYSTEM_ERROR;
  if (fault("refuses", of->number + 1)) return SYSTEM_ERROR;
  const Question question = {.kind = REDUCE, .type = type, .operation = operation, .bytes = bytes};
  ask(of, question, send, receive, request);
  return SUCCESS;
}

typedef struct {
  void *memory, *address;
  size_t bytes;
} Piece;

static int gather(void* collective, void* send, int pieces, Piece* receive, size_t per_rank,
                  size_t offset, size_t bytes, void* send_memory, void** request) {
  Collective* const of = collective;
  if (pieces != 1 || bytes != per_rank || offset % per_rank != 0 || bytes > receive->bytes ||
      !is_within(receive->memory, receive->address, bytes) || !is_within(send_memory, send, bytes))
    return SYSTEM_ERROR;
  const Question question = {.kind = GATHER, .place = (int32_t)(offset / per_rank), .bytes = bytes};
  ask(of, question, send, receive->address, request);
  if (*request != NULL && question.place == of->place) memcpy(receive->address, send, bytes);
  return SUCCESS;
}

static int reduce_scatter(void* collective, int pieces, Piece* send, void* receive, size_t per_rank,
                          size_t offset, size_t bytes, int type, int operation,
                          void* receive_memory, void** request) {
  Collective* const of = collective;
  if (pieces != 1 || bytes != per_rank || offset % per_rank != 0 || bytes > send->bytes ||
      !is_within(send->memory, send->address, bytes) || !is_within(receive_memory, receive, bytes))
    return SYSTEM_ERROR;
  const Question question = {.kind = SCATTER,
                             .type = type,
                             .operation = operation,
                             .place = (int32_t)(offset / per_rank),
                             .bytes = bytes};
  ask(of, question, send->address, receive, request);
  return SUCCESS;
}

/* A part of `size` bytes at `data`, of which the last `left` are still to move. */
static int move_part(Collective* of, int is_send, char* data, size_t size, size_t* left) {
  if (*left == 0) return SUCCESS;
  char* const at = data + size - *left;
  const ssize_t count =
      is_send ? send(of->fd, at, *left, MSG_NOSIGNAL) : recv(of->fd, at, *left, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return SUCCESS;
  if (count <= 0) return SYSTEM_ERROR;
  *left -= (size_t)count;
  return SUCCESS;
}

/* Head, then body: `done` counts the bytes of both. True when all have moved. */
static int move_both(Collective* of, int is_send, void* head, size_t head_bytes, void* body,
                     size_t body_bytes, size_t* done, int* result) {
  for (;;) {
    size_t left = *done < head_bytes ? head_bytes - *done : head_bytes + body_bytes - *done;
    const size_t before = left;
    if (left == 0) return 1;
    *result = *done < head_bytes ? move_part(of, is_send, head, head_bytes, &left)
                                 : move_part(of, is_send, body, body_bytes, &left);
    if (*result != SUCCESS || left == before) return 0;
    *done += before - left;
    /* The answer's length is known now. */
    if (!is_send && *done == head_bytes && *(uint64_t*)head != body_bytes) {
      *result = SYSTEM_ERROR;
      return 0;
    }
  }
}

static int progress(Collective* of) {
  int result = SUCCESS;
  while (of->unsent > 0) {
    Asked* const next = &of->asked[(of->first + of->count - of->unsent) % MOST_REQUESTS];
    if (!move_both(of, 1, &next->question, sizeof next->question, (void*)next->data,
                   next->data != NULL ? next->question.bytes : 0, &next->sent, &result))
      break;
    --of->unsent;
  }
  while (result == SUCCESS && of->count > of->unsent) {
    Asked* const next = &of->asked[of->first];
    if (next->result != NULL && !move_both(of, 0, &next->length, sizeof next->length, next->result,
                                           next->question.bytes, &next->received, &result))
      break;
    next->is_done = 1;
    of->first = (of->first + 1) % MOST_REQUESTS;
    --of->count;
  }
  return result;
}

static int test_asked(void* request, int* is_done, int* size) {
  Asked* const asked = request;
  *is_done = 0;
  if (fault("never", asked->number)) return SUCCESS;
  const int result = asked->is_done ? SUCCESS : progress(asked->of);
  if (result != SUCCESS || !asked->is_done) return result;
  *is_done = 1;
  if (size != NULL) *size = (int)asked->question.bytes;
  asked->is_used = 0;
  return SUCCESS;
}

static int leave_group(void* collective) {
  close(((Collective*)collective)->fd);
  stop_switch(&((Collective*)collective)->own);
  free(collective);
  return SUCCESS;
}

static int end_listening(void* listener) {
  stop_switch(listener);
  free(listener);
  return SUCCESS;
}

/* It is complete after init alone, as of plug-ins that look for their library there. */
static int init_and_complete(void** context, uint64_t id, void* log);

struct {
  const char* name;
  int (*init)(void**, uint64_t, void*);
  int (*devices)(int*);
  int (*getProperties)(int, Properties*);
  int (*listen)(void*, int, void*, void**);
  int (*connect)(void*[], int, int, void*, void**);
  int (*reduceSupport)(int, int, int*);
  int (*regMr)(void*, void*, size_t, int, void**);
  int (*regMrDmaBuf)(void*, void*, size_t, int, uint64_t, int, void**);
  int (*deregMr)(void*, void*);
  int (*iallreduce)(void*, void*, void*, size_t, int, int, void*, void*, void**);
  int (*iallgather)(void*, void*, int, Piece*, size_t, size_t, size_t, void*, void**);
  int (*ireducescatter)(void*, int, Piece*, void*, size_t, size_t, size_t, int, int, void*, void**);
  void* iflush;
  int (*test)(void*, int*, int*);
  int (*closeColl)(void*);
  int (*closeListen)(void*);
  void* makeVDevice;
  int (*finalize)(void*);
} ncclCollNetPlugin_v12 = {.name = "Switch", .init = init_and_complete};

static int init_and_complete(void** context, uint64_t id, void* log) {
  if (ncclCollNetPlugin_v12.devices != NULL) return init_collectives(context, id, log);
  ncclCollNetPlugin_v12.devices = reducing_devices;
  ncclCollNetPlugin_v12.getProperties = collective_properties;
  ncclCollNetPlugin_v12.listen = listen_for_members;
  ncclCollNetPlugin_v12.connect = join_group;
  ncclCollNetPlugin_v12.reduceSupport = reduce_support;
  ncclCollNetPlugin_v12.regMr = register_any;
  ncclCollNetPlugin_v12.regMrDmaBuf = register_descriptor;
  ncclCollNetPlugin_v12.deregMr = deregister_memory;
  ncclCollNetPlugin_v12.iallreduce = all_reduce;
  ncclCollNetPlugin_v12.iallgather = gather;
  ncclCollNetPlugin_v12.ireducescatter = reduce_scatter;
  ncclCollNetPlugin_v12.test = test_asked;
  ncclCollNetPlugin_v12.closeColl = leave_group;
  ncclCollNetPlugin_v12.closeListen = end_listening;
  ncclCollNetPlugin_v12.finalize = finalize;
  return init_collectives(context, id, log);
}
