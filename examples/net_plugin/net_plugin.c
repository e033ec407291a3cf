/* A net plug-in of NCCL's interface, version 12, over Unix sockets: what a plug-in has to do, in
   the fewest lines. Ranks of one machine that are told to be on several (NCCL_HOSTID) talk by it:

     cc -shared -fPIC -o libnccl-net-unix.so net_plugin.c
     NCCL_NET_PLUGIN=$PWD/libnccl-net-unix.so NCCL_HOSTID=a ./program 0 &
     NCCL_NET_PLUGIN=$PWD/libnccl-net-unix.so NCCL_HOSTID=b ./program 1

   Built with -DOVER_TCP it connects machines that reach each other by their first IPv4 address, and
   is named Tcp. Built with -DBROKEN_<what> it lies, or is odd otherwise, for the tests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef OVER_TCP
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#endif

enum { SUCCESS = 0, SYSTEM_ERROR = 2, HOST_MEMORY = 1, MOST_REQUESTS = 32 };

typedef struct {
  char *name, *pciPath;
  uint64_t guid;
  int ptrSupport, regIsGlobal, forceFlush, speed, port;
  float latency;
  int maxComms, maxRecvs, netDeviceType, netDeviceVersion;
  struct {
    int ndevs, devs[8];
  } vProps;
  size_t maxP2pBytes, maxCollBytes;
  int maxMultiRequestSize;
  int16_t railId, planeId;
} Properties;

/* A message is its length and its bytes. Requests of a connection complete in their order. */
typedef struct {
  struct Connection* of;
  char* data;
  uint64_t bytes; /* of a receive: its room, then what comes */
  uint64_t length;
  size_t moved; /* of the length and the bytes */
  int is_used, is_done;
  void* event; /* what a profiler knows it by */
} Request;

/* What we tell of a message, as NCCL's own sockets lay it out (id 2 << 16 | 1). */
typedef struct {
  uint8_t type;
  struct {
    int fd, operation;
    size_t length;
  } socket;
} Told;
enum { SOCKET_LAYOUT = 2 << 16 | 1 };
enum { EVENT_START, EVENT_STOP, EVENT_UPDATE, EVENT_UPDATE_AND_STOP };
static int (*tell)(void** event, int type, void* of, int64_t layout, void* data);

typedef struct Connection {
  int fd, is_send;
  Request requests[MOST_REQUESTS];
  unsigned first, count; /* of a ring */
} Connection;

typedef struct {
  int trafficClass;
} Config;
typedef void (*Log)(int level, unsigned long subsystems, const char* file, int line,
                    const char* format, ...);
enum { LOG_INFO = 3, LOG_INIT = 0x1 };

#ifdef BROKEN_LATE
static void complete_table(void);
#endif

static int init(void** context, uint64_t id, void* config, void* log, void* profiler) {
  (void)id; /* of the communicator */
  ((Log)log)(LOG_INFO, LOG_INIT, __FILE__, __LINE__, "Unix: a communicator of traffic class %d",
             ((Config*)config)->trafficClass);
  *(void**)&tell = profiler;
  *context = NULL;
#ifdef BROKEN_LATE
  complete_table();
#endif
#ifdef BROKEN_INIT
  return SYSTEM_ERROR;
#else
  return SUCCESS;
#endif
}

static int devices(int* count) {
#ifdef BROKEN_COUNT
  *count = -1;
#else
  *count = 1;
#endif
  return SUCCESS;
}

static int get_properties(int device, Properties* properties) {
  (void)device;
  memset(properties, 0, sizeof *properties);
#ifdef OVER_TCP
  properties->name = "tcp0";
#else
  properties->name = "unix0";
#endif
  properties->ptrSupport = HOST_MEMORY;
  properties->regIsGlobal = 1;
  properties->speed = 10000;
  properties->maxComms = 65536;
  properties->maxRecvs = 1;
  properties->vProps.ndevs = 1;
  properties->maxP2pBytes = properties->maxCollBytes = (size_t)1 << 30;
  properties->maxMultiRequestSize = 1;
  properties->railId = properties->planeId = -1;
#ifdef BROKEN_COMMS
  properties->maxComms = 0;
#endif
#ifdef BROKEN_SPEED
  properties->speed = -5;
#endif
  return SUCCESS;
}

static Connection* connection_of(int fd, int is_send) {
  Connection* made = calloc(1, sizeof *made);
  if (made == NULL) return NULL;
  made->fd = fd;
  made->is_send = is_send;
  return made;
}

#ifdef OVER_TCP
typedef struct sockaddr_in Address;
enum { FAMILY = AF_INET };
/* This machine's first address beside the loopback's, if it has one; the system chooses a port. */
static socklen_t first_address(Address* address) {
  *address = (Address){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct ifaddrs* all = NULL;
  if (getifaddrs(&all) != 0) return sizeof *address;
  for (struct ifaddrs* one = all; one != NULL; one = one->ifa_next) {
    if (one->ifa_addr == NULL || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_LOOPBACK) != 0 || (one->ifa_flags & IFF_UP) == 0) continue;
    address->sin_addr = ((struct sockaddr_in*)one->ifa_addr)->sin_addr;
    break;
  }
  freeifaddrs(all);
  return sizeof *address;
}
static void hurry(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}
#else
typedef struct sockaddr_un Address;
enum { FAMILY = AF_UNIX };
static socklen_t first_address(Address* address) {
  *address = (Address){.sun_family = AF_UNIX};
  return sizeof address->sun_family;
}
static void hurry(int fd) { (void)fd; }
#endif

/* The handle: the address that the system chose, with its length in front. */
static int listen_at(void* context, int device, void* handle, void** listener) {
  (void)context, (void)device;
  Address address;
  socklen_t length = first_address(&address);
  const int fd = socket(FAMILY, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return SYSTEM_ERROR;
  if (bind(fd, (struct sockaddr*)&address, length) != 0 || listen(fd, SOMAXCONN) != 0) goto failed;
  length = sizeof address;
  if (getsockname(fd, (struct sockaddr*)&address, &length) != 0) goto failed;
  memset(handle, 0, 128);
  memcpy(handle, &length, sizeof length);
  memcpy((char*)handle + sizeof length, &address, length);
  if ((*listener = connection_of(fd, 0)) != NULL) return SUCCESS;
failed:
  close(fd);
  return SYSTEM_ERROR;
}

static int connect_to(void* context, int device, void* handle, void** connection, void** offload) {
  (void)context, (void)device, (void)offload;
  Address address;
  socklen_t length;
  memcpy(&length, handle, sizeof length);
  if (length > sizeof address) return SYSTEM_ERROR;
  memcpy(&address, (char*)handle + sizeof length, length);
  *connection = NULL;
  const int fd = socket(FAMILY, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return SYSTEM_ERROR;
  hurry(fd);
  /* Over TCP, what is sent before the connection stands waits for it. */
  if (connect(fd, (struct sockaddr*)&address, length) != 0 && errno != EINPROGRESS) {
    const int again = errno == EAGAIN;
    close(fd);
    return again ? SUCCESS : SYSTEM_ERROR;
  }
  if ((*connection = connection_of(fd, 1)) != NULL) return SUCCESS;
  close(fd);
  return SYSTEM_ERROR;
}

static int accept_one(void* listener, void** connection, void** offload) {
  (void)offload;
  *connection = NULL;
  const int fd = accept4(((Connection*)listener)->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return errno == EAGAIN ? SUCCESS : SYSTEM_ERROR;
  hurry(fd);
  if ((*connection = connection_of(fd, 0)) != NULL) return SUCCESS;
  close(fd);
  return SYSTEM_ERROR;
}

/* Sockets need none. Where it pins pages and costs a call of the driver, it shall be rare: how
   often it happened, unix_registrations() tells. */
typedef struct {
  char* data;
  size_t bytes;
} Memory;
static atomic_int registrations, held;

void unix_registrations(int* made, int* left) {
  *made = atomic_load(&registrations);
  *left = atomic_load(&held);
}

static int register_memory(void* connection, void* data, size_t bytes, int type, void** memory) {
  (void)connection;
  *memory = NULL;
  if (type != HOST_MEMORY) return SYSTEM_ERROR;
  Memory* made = malloc(sizeof *made);
  if (made == NULL) return SYSTEM_ERROR;
  *made = (Memory){data, bytes};
  *memory = made;
  atomic_fetch_add(&registrations, 1);
  atomic_fetch_add(&held, 1);
  return SUCCESS;
}

static int deregister_memory(void* connection, void* memory) {
  (void)connection;
  free(memory);
  atomic_fetch_sub(&held, 1);
  return SUCCESS;
}

static int is_within(const Memory* memory, const char* data, size_t bytes) {
  return memory != NULL && data >= memory->data && data + bytes <= memory->data + memory->bytes;
}

static void post(Connection* to, void* data, size_t bytes, void** request) {
  *request = NULL; /* "ask again" */
  if (to->count == MOST_REQUESTS) return;
  Request* next = &to->requests[(to->first + to->count) % MOST_REQUESTS];
  if (next->is_used) return;
  *next = (Request){.of = to, .data = data, .bytes = bytes, .length = bytes, .is_used = 1};
  ++to->count;
  *request = next;
}

static int post_send(void* connection, void* data, size_t bytes, int tag, void* memory,
                     void* profile, void** request) {
  (void)tag;
  if (!is_within(memory, data, bytes)) return SYSTEM_ERROR;
  post(connection, data, bytes, request);
  if (*request == NULL || tell == NULL) return SUCCESS;
  Request* const made = *request;
  Told told = {.type = 1, .socket = {.fd = made->of->fd, .operation = 1, .length = bytes}};
#ifdef BROKEN_EVENTS
  /* Names that nobody gave, an event that ends twice, one that never ends. */
  void* nobody = &told;
  for (int type = EVENT_START; type <= EVENT_UPDATE_AND_STOP + 1; ++type) {
    tell(&nobody, type, &told, SOCKET_LAYOUT, &told);
    tell(NULL, type, profile, SOCKET_LAYOUT, NULL);
    nobody = &nobody;
  }
  tell(&nobody, EVENT_START, profile, -1, NULL);
  void* const twice = nobody;
  tell(&nobody, EVENT_STOP, NULL, 0, NULL);
  nobody = twice;
  tell(&nobody, EVENT_UPDATE_AND_STOP, NULL, 0, NULL);
#endif
  tell(&made->event, EVENT_START, profile, SOCKET_LAYOUT, &told);
  return SUCCESS;
}

static int post_receive(void* connection, int count, void** data, size_t* bytes, int* tags,
                        void** memory, void** profiles, void** request) {
  (void)tags, (void)profiles;
  if (count != 1 || !is_within(memory[0], data[0], bytes[0])) return SYSTEM_ERROR;
  post(connection, data[0], bytes[0], request);
  return SUCCESS;
}

/* As much as the socket takes or has, without waiting. */
static int move(Connection* connection, Request* of) {
  for (;;) {
    const int in_length = of->moved < sizeof of->length;
    char* at =
        in_length ? (char*)&of->length + of->moved : of->data + of->moved - sizeof of->length;
    const size_t left =
        in_length ? sizeof of->length - of->moved : of->length + sizeof of->length - of->moved;
    if (!in_length && of->length > of->bytes) return SYSTEM_ERROR;
    if (left == 0) break;
    const ssize_t count = connection->is_send ? send(connection->fd, at, left, MSG_NOSIGNAL)
                                              : recv(connection->fd, at, left, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return SUCCESS;
    if (count <= 0) return SYSTEM_ERROR;
    of->moved += (size_t)count;
  }
  of->is_done = 1;
  return SUCCESS;
}

static int test(void* request, int* is_done, int* sizes) {
  Request* of = request;
  Connection* connection = of->of;
  *is_done = 0;
  while (connection->count > 0) {
    Request* first = &connection->requests[connection->first];
    const int result = move(connection, first);
    if (result != SUCCESS) return result;
    if (!first->is_done) break;
    connection->first = (connection->first + 1) % MOST_REQUESTS;
    --connection->count;
  }
  if (!of->is_done) return SUCCESS;
  *is_done = 1;
  of->is_used = 0;
#ifndef BROKEN_EVENTS
  if (of->event != NULL) tell(&of->event, EVENT_STOP, NULL, SOCKET_LAYOUT, NULL);
#endif
#ifdef BROKEN_SIZES
  (void)sizes; /* as google's fast socket: nobody needs it */
#else
  if (sizes != NULL) *sizes = (int)of->length;
#endif
  return SUCCESS;
}

static int close_connection(void* connection) {
  close(((Connection*)connection)->fd);
  free(connection);
  return SUCCESS;
}

static int finalize(void* context) {
  (void)context;
  return SUCCESS;
}

/* The functions that are NULL are for GPU memory, merged devices and hints. */
#ifndef BROKEN_LATE
const
#endif
    struct {
  const char* name;
  int (*init)(void**, uint64_t, void*, void*, void*);
  int (*devices)(int*);
  int (*getProperties)(int, Properties*);
  int (*listen)(void*, int, void*, void**);
  int (*connect)(void*, int, void*, void**, void**);
  int (*accept)(void*, void**, void**);
  int (*regMr)(void*, void*, size_t, int, void**);
  void* regMrDmaBuf;
  int (*deregMr)(void*, void*);
  int (*isend)(void*, void*, size_t, int, void*, void*, void**);
  int (*irecv)(void*, int, void**, size_t*, int*, void**, void**, void**);
  void* iflush;
  int (*test)(void*, int*, int*);
  int (*closeSend)(void*);
  int (*closeRecv)(void*);
  int (*closeListen)(void*);
  void *getDeviceMr, *irecvConsumed, *makeVDevice;
  int (*finalize)(void*);
  void* setNetAttr;
}
#ifdef BROKEN_SYMBOL
ncclNetPlugin_v99 = {
#else
ncclNetPlugin_v12 = {
#endif
#ifdef OVER_TCP
    .name = "Tcp",
#else
    .name = "Unix",
#endif
    .init = init,
    .devices = devices,
    .getProperties = get_properties,
    .listen = listen_at,
    .connect = connect_to,
    .accept = accept_one,
    .regMr = register_memory,
    .deregMr = deregister_memory,
    .isend = post_send,
    .irecv = post_receive,
#if !defined BROKEN_TABLE && !defined BROKEN_LATE
    .test = test,
#endif
    .closeSend = close_connection,
    .closeRecv = close_connection,
    .closeListen = close_connection,
    .finalize = finalize,
};

#ifdef BROKEN_LATE
static void complete_table(void) { ncclNetPlugin_v12.test = test; }
#endif
