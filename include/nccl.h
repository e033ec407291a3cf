/* nccl.h - the C API of collective communication between GPUs, as Niccolite implements it.
 *
 * Binary compatible with NCCL 2.30 (types, values, layouts, symbol names), with the functions that
 * 2.31 and 2.32 have added: a program compiled with this header runs on any libnccl.so.2 that has
 * the functions it calls, and Niccolite's libnccl.so.2 runs programs compiled with the header of
 * any NCCL 2.x release. Every function declared here is implemented. What is missing of NCCL 2.32
 * is its device API: nccl_device.h, and ncclDevCommCreate and the others that serve it.
 *
 * Every function ncclX has a twin pncclX. ncclX is a weak symbol at the same address, so that a
 * profiling tool can define its own ncclX and forward to pncclX.
 *
 * Threads: one thread at a time may use one communicator; different communicators may be used by
 * different threads. ncclCommAbort and ncclCommGetAsyncError may be called while another thread is
 * inside a call on that communicator.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef NCCL_H_
#define NCCL_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#if CUDART_VERSION >= 11000
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && CUDART_VERSION >= 11080
#include <cuda_fp8.h>
#endif
#include <limits.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Version ---- */

#define NCCL_MAJOR 2
#ifndef NICCOLITE_WITHOUT_DEVICE_API
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#else /* for programs whose kernels communicate by themselves, from 2.28 on, and need not */
#define NCCL_MINOR 27
#define NCCL_PATCH 7
#endif
#define NCCL_SUFFIX ""

/* The version as one number. From 2.9 on minor and patch have two digits each (2.30.7 is 23007),
 * before that the minor had one (2.8.4 is 2804); numbers of later versions are larger either way.
 */
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
/* Spelled out, since the preprocessor and other languages' bindings read it. */
#ifndef NICCOLITE_WITHOUT_DEVICE_API
#define NCCL_VERSION_CODE 23007
#else
#define NCCL_VERSION_CODE 22707
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Handles and ids ---- */

/* One rank's end of a communicator. Made by the ncclCommInit functions, ended by ncclCommDestroy or
 * ncclCommAbort. */
typedef struct ncclComm* ncclComm_t;
#define NCCL_COMM_NULL NULL

/* A registered range of memory that all ranks of a communicator can address. */
typedef struct ncclWindow_vidmem* ncclWindow_t;

/* A run-time parameter of the library, looked up by name. */
typedef struct ncclParamHandle* ncclParamHandle_t;

/* Names one communicator to be. Opaque bytes, passed by value; carry it from the process that made
 * it to all ranks by any means. It contains the secret with which ranks recognise each other:
 * whoever has it can join. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

/* ---- Results ---- */

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1, /* a call of the CUDA driver failed */
  ncclSystemError = 2,        /* a system call or an allocation failed */
  ncclInternalError = 3,      /* the library met a state that should be impossible */
  ncclInvalidArgument = 4,    /* an argument is null, out of range, or not a live communicator */
  ncclInvalidUsage = 5,       /* valid arguments, used in a way that is not allowed */
  ncclRemoteError = 6,        /* a peer has died, or a connection to it broke */
  ncclInProgress = 7, /* a nonblocking communicator is still working; poll ncclCommGetAsyncError */
  ncclTimeout = 8,    /* a wait with a limit has passed it */
  ncclNumResults = 9
} ncclResult_t;

/* ---- Element types, reductions ---- */

typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Values from ncclNumOps to ncclMaxRedOp are operations made at run time for one communicator. */
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4, /* sum divided by the number of ranks; integers are divided toward zero */
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff /* makes the type wide enough for the run-time values */
} ncclRedOp_t;

/* Where the scalar of a run-time operation is read from, and when. */
typedef enum {
  ncclScalarDevice = 0,       /* from memory the device can read, each time the operation runs */
  ncclScalarHostImmediate = 1 /* from host memory, once, while the operation is made */
} ncclScalarResidence_t;

/* ---- Flags and limits ---- */

/* Color of a rank that takes part in a split without getting a communicator. */
#define NCCL_SPLIT_NOCOLOR -1

/* How windows are registered (bits). */
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01     /* every rank uses the same offset in each call */
#define NCCL_WIN_STRICT_ORDERING 0x02    /* remote writes become visible in order */
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096 /* bytes, of a window's start within its allocation */

/* How many CTAs a communicator takes from computation (bits of ncclConfig_t::CTAPolicy). */
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01 /* as few as keep the bandwidth */
#define NCCL_CTA_POLICY_ZERO 0x02       /* none where the copy engines can do the work */

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* end operations in flight on the parent first */
#define NCCL_REVOKE_DEFAULT 0x00
#define NCCL_SUSPEND_MEM 0x01 /* give the communicator's device memory back */

/* What ncclCommMemStats reports, in bytes. */
typedef enum {
  ncclStatGpuMemSuspend = 0,   /* memory that a suspension would release */
  ncclStatGpuMemSuspended = 1, /* whether it is released now, 0 or 1 */
  ncclStatGpuMemPersist = 2,   /* memory that stays */
  ncclStatGpuMemTotal = 3
} ncclCommMemStat_t;

/* One wait of a rank for signals of a peer. */
typedef struct {
  int opCnt;  /* signals to wait for */
  int peer;   /* rank they come from */
  int sigIdx; /* which signal */
  int ctx;    /* which context */
} ncclWaitSignalDesc_t;

/* ---- Configuration of a communicator ---- */

/* "Not set": the library decides, or an environment variable does. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

/* First word of versioned structs that a caller hands in. */
#define NCCL_API_MAGIC 0xcafebeef

/* Start from NCCL_CONFIG_INITIALIZER, then set fields. The struct has only ever grown at its end:
 * `size` and `version` tell the library which fields the caller's header had. It is read during the
 * call and may be reused afterwards. */
typedef struct ncclConfig_v23000 {
  /* set by the initializer, not by hand */
  size_t size;
  unsigned int magic;
  unsigned int version;

  int blocking;            /* 1: calls return when done; 0: at once, with ncclInProgress */
  int cgaClusterSize;      /* CTAs per thread block cluster, 0 to 8 */
  int minCTAs;             /* fewest CTAs of an operation, from 1; NCCL wants maxCTAs set too */
  int maxCTAs;             /* most CTAs of an operation */
  const char* netName;     /* the network to use, by name; must be there */
  int splitShare;          /* 1: children made by a split share this communicator's resources */
  int trafficClass;        /* traffic class of the network */
  const char* commName;    /* a name for logs and profiles */
  int collnetEnable;       /* 1: reductions inside the network where it offers them */
  int CTAPolicy;           /* NCCL_CTA_POLICY_ bits */
  int shrinkShare;         /* as splitShare, for children made by a shrink */
  int nvlsCTAs;            /* CTAs for operations that use NVLink multicast */
  int nChannelsPerNetPeer; /* channels per network peer of send and receive, 1 to 64 */
  int nvlinkCentricSched;  /* 1: schedule for NVLink first */
  int graphUsageMode;      /* 0: never captured; 1: one graph at a time; 2: any mixture */
  int numRmaCtx;           /* contexts of one-sided operations; 0: none */
  int maxP2pPeers;         /* how many peers a rank sends to or receives from */
  int graphStreamOrdering; /* 1: captured operations of a device run in the order of capture */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                     \
  {                                                                                 \
    sizeof(ncclConfig_t),                                 /* size */                \
        NCCL_API_MAGIC,                                   /* magic */               \
        NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), /* version */             \
        NCCL_CONFIG_UNDEF_INT,                            /* blocking */            \
        NCCL_CONFIG_UNDEF_INT,                            /* cgaClusterSize */      \
        NCCL_CONFIG_UNDEF_INT,                            /* minCTAs */             \
        NCCL_CONFIG_UNDEF_INT,                            /* maxCTAs */             \
        NCCL_CONFIG_UNDEF_PTR,                            /* netName */             \
        NCCL_CONFIG_UNDEF_INT,                            /* splitShare */          \
        NCCL_CONFIG_UNDEF_INT,                            /* trafficClass */        \
        NCCL_CONFIG_UNDEF_PTR,                            /* commName */            \
        NCCL_CONFIG_UNDEF_INT,                            /* collnetEnable */       \
        NCCL_CONFIG_UNDEF_INT,                            /* CTAPolicy */           \
        NCCL_CONFIG_UNDEF_INT,                            /* shrinkShare */         \
        NCCL_CONFIG_UNDEF_INT,                            /* nvlsCTAs */            \
        NCCL_CONFIG_UNDEF_INT,                            /* nChannelsPerNetPeer */ \
        NCCL_CONFIG_UNDEF_INT,                            /* nvlinkCentricSched */  \
        NCCL_CONFIG_UNDEF_INT,                            /* graphUsageMode */      \
        NCCL_CONFIG_UNDEF_INT,                            /* numRmaCtx */           \
        NCCL_CONFIG_UNDEF_INT,                            /* maxP2pPeers */         \
        NCCL_CONFIG_UNDEF_INT,                            /* graphStreamOrdering */ \
  }

/* ---- Settings of one call (since 2.31) ---- */

/* An option of a vendor, in a list of such; none is known to this library, which looks at none. */
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;
  struct {
    int vendorId;
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

/* What one collective is to be carried out by. Start from NCCL_COLLCONFIG_INITIALIZER, then set
 * fields; read during the call. All ranks set the same, but for the event and the profiler's tag:
 * ranks whose settings differ are found out like those that make different calls. An environment
 * variable comes before a field, a field before the configuration of the communicator. Bounds of
 * CTAs that no operation can have are ignored with a line at INFO; maxCTAs above the
 * communicator's is that; a minCTAs above the maximum is 1.
 *
 * algSelection: names of algorithms with protocols, such as "RING_LL128,TREE": `,` is or, `+` and,
 * `^` not, a name means every one that begins with it. */
typedef struct ncclCollConfig_v23200 {
  /* set by the initializer, not by hand */
  size_t size;
  unsigned int magic;
  unsigned int version;

  ncclConfigExt_t* ext;     /* options of vendors */
  int minCTAs;              /* fewest CTAs */
  int maxCTAs;              /* most CTAs */
  int nvlsCTAs;             /* most CTAs of operations that use NVLink multicast */
  int cgaClusterSize;       /* CTAs per thread block cluster */
  const char* algSelection; /* NULL or "": the library chooses */
  int forceAlgSelection;    /* 1: fail where algSelection has nothing that serves; 0: choose */
  int CTAPolicy;            /* NCCL_CTA_POLICY_ bits */
  uint64_t userProfilerTag; /* for profilers */
  cudaEvent_t launchCompletionEvent; /* since 2.32; recorded when the operation has been launched:
                                        another stream can begin then, before it has ended. At most
                                        one for each communicator in a group (ncclInvalidUsage);
                                        made with cudaEventDisableTiming */
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                   \
  {                                                                                   \
    sizeof(ncclCollConfig_t),                             /* size */                  \
        NCCL_API_MAGIC,                                   /* magic */                 \
        NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), /* version */               \
        NULL,                                             /* ext */                   \
        NCCL_CONFIG_UNDEF_INT,                            /* minCTAs */               \
        NCCL_CONFIG_UNDEF_INT,                            /* maxCTAs */               \
        NCCL_CONFIG_UNDEF_INT,                            /* nvlsCTAs */              \
        NCCL_CONFIG_UNDEF_INT,                            /* cgaClusterSize */        \
        NULL,                                             /* algSelection */          \
        1,                                                /* forceAlgSelection */     \
        NCCL_CONFIG_UNDEF_INT,                            /* CTAPolicy */             \
        0,                                                /* userProfilerTag */       \
        NULL,                                             /* launchCompletionEvent */ \
  }

/* ---- Encryption of connections between machines (since 2.32) ---- */

typedef enum { NCCL_ENCRYPTION_MODE_NONE = 0, NCCL_ENCRYPTION_MODE_PSK = 1 } ncclEncryptionMode_t;

/* Start from NCCL_ENCRYPTION_CONFIG_INITIALIZER, then set fields; the key's text is copied. */
typedef struct ncclEncryptionConfig_v23200 {
  /* set by the initializer, not by hand */
  size_t size;
  unsigned int magic;
  unsigned int version;

  ncclEncryptionMode_t mode;
  const char* psk; /* a key that all processes share, of at least 32 characters */
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER                              \
  {                                                                     \
    sizeof(ncclEncryptionConfig_t),                       /* size */    \
        NCCL_API_MAGIC,                                   /* magic */   \
        NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), /* version */ \
        NCCL_ENCRYPTION_MODE_NONE,                        /* mode */    \
        NULL,                                             /* psk */     \
  }

/* What a simulated group reports. */
typedef struct ncclSimInfo_v22200 {
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                        \
  {                                                                                      \
    sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), \
        NCCL_UNDEF_FLOAT                                                                 \
  }

/* ---- The library ---- */

/* Stores the version of the library that is loaded (NCCL_VERSION_CODE of its own header, which may
 * differ from the caller's). Touches no device. ncclInvalidArgument: `version` is null. */
ncclResult_t ncclGetVersion(int* version);
ncclResult_t pncclGetVersion(int* version);

/* A static text for `result`, never null. May be called from any thread at any time. */
const char* ncclGetErrorString(ncclResult_t result);
const char* pncclGetErrorString(ncclResult_t result);

/* The text of the last error of this process, "" when there was none: which call, which rank, why,
 * what to do. It belongs to the library and is overwritten by the next error. `comm` is not looked
 * at and may be null. */
const char* ncclGetLastError(ncclComm_t comm);
const char* pncclGetLastError(ncclComm_t comm);

/* Makes the library read the NCCL_DEBUG variables again. As in NCCL 2.30 the call compiles to
 * nothing, unless NCCL_OS_LINUX is defined; binaries made with older headers find the function in
 * the library. */
#ifdef NCCL_OS_LINUX
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);
#else
#define ncclResetDebugInit()
#define pncclResetDebugInit()
#endif

/* ---- Parameters ----
 *
 * The environment variables of the library, by name, with the values that they have had since the
 * first of these calls. Nothing is converted: integers are of type I64, flags are neither integers
 * nor texts, the rest are texts. Texts belong to the library and stay. ncclInvalidArgument: a null
 * argument, an unknown name, another type. */

/* Stores a handle of the parameter `key`, for the getters; it stays valid. */
ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key);
ncclResult_t pncclParamBind(ncclParamHandle_t* out, const char* key);

/* Store the value; of an unset text null, of an unset integer its default. */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t* out);
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char** out);

/* Copies the value as it is stored, at most `maxLen` bytes: 8 of an integer, 1 of a flag, a text
 * with its terminator. `len` receives their number, or 0 with ncclInvalidArgument when they do not
 * fit. */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);

/* Stores the value of the parameter `key` as text, "" when it is unset, and its length. An unknown
 * name gives null and 0. */
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen);
ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* valueLen);

/* Stores a table of all names, which is valid until the thread's next call. */
ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char*** table, int* tableLen);

/* Prints all parameters, with values and meanings, to the standard output. */
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

/* Whether the connections of this process are to be encrypted, from the first one on, for which a
 * process says so before its first ncclGetUniqueId or init; null: they are not. This library does
 * not encrypt: with a key set, ncclGetUniqueId and all that makes communicators return
 * ncclInvalidUsage (as NVIDIA's packages do), so that nothing is sent that was to be secret.
 * ncclInvalidArgument: `config` does not come from its initializer, or has no such mode or key. */
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config);

/* ---- Communicators ---- */

/* Makes a new id, and a rendezvous point in this process, which has to live until every rank has
 * joined. An id serves one communicator. With NCCL_COMM_ID=host:port the id is made from the
 * variable instead, the same in every process, and rank 0 is the rendezvous point.
 * ncclInvalidArgument: null, or NCCL_COMM_ID is malformed. ncclInvalidUsage: no network interface
 * fits the NCCL_SOCKET_ variables. ncclSystemError: the socket could not be opened. */
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId);

/* Joins the communicator named by `commId` as `rank` of `nranks`, on the device that is current.
 * Every rank has to call; the call returns when all have joined. A thread that creates several
 * ranks does so between ncclGroupStart and ncclGroupEnd, and ncclGroupEnd then waits. `comm`
 * receives the communicator, which the caller owns; null after a failure. ncclInvalidArgument:
 * `comm` is null, or rank and nranks do not fit. ncclInvalidUsage: two ranks on one device, one
 * rank twice, different versions, or a bad NCCL_ALGO or NCCL_PROTO. ncclUnhandledCudaError: no
 * usable device. ncclSystemError, ncclRemoteError: ranks that never came (the message names them),
 * or that have died. */
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);

/* The same with settings; a null `config` is the default. With `blocking` 0 it returns
 * ncclInProgress and joins in the background: poll ncclCommGetAsyncError. ncclInvalidArgument also
 * for a field out of range. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config);

/* The same, with `nId` ids of different processes. Takes them for programs that spread the load of
 * large communicators over several; all ranks meet at the first one's process, whose work grows by
 * microseconds a rank, and the other ids are given back. All ranks pass the same ids in one order.
 * ncclInvalidArgument: `nId` is not from 1 to nranks, or an id is none. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config);

/* Makes one communicator over `ndev` devices of this process: rank i on device devlist[i], or i
 * when `devlist` is null. `comm` is an array of ndev elements that receives the ranks in order.
 * ncclInvalidArgument: `comm` is null, `ndev` is negative, no such device. ncclInvalidUsage: a
 * device listed twice. */
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);
ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

/* Begins the orderly end: waits until what was queued is done and closes the connections. All ranks
 * call. Afterwards only ncclCommGetAsyncError, ncclCommDestroy and ncclCommAbort are allowed. A
 * null `comm` succeeds. ncclInvalidArgument: finalized before, or still initializing. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Finalizes if that was not done, and frees everything; the handle is invalid afterwards. Graphs
 * that contain operations of the communicator may still be launched, on all ranks as before: what
 * they use is freed when the last of them is destroyed. In a group it comes after all else, and the
 * group's end waits for it. A null `comm` succeeds. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Ends operations in flight without their peers and frees everything; also from another thread than
 * the one that is stuck. Local: it waits for no other rank. The handle is invalid afterwards. In
 * graphs that are launched then, its operations end at once, and what they write is undefined. A
 * null `comm` succeeds. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* Stores the communicator's state: ncclSuccess, ncclInProgress while a nonblocking call works, or
 * the first error that happened in the background, after which only ncclCommAbort is of use.
 * ncclInvalidArgument: a null or bad argument. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);

/* The number of ranks, the device ordinal and the own rank. ncclInvalidArgument: a null or bad
 * argument, or the communicator is still initializing; its error, when it has one. */
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank);

/* ---- Communicators from communicators ----
 *
 * What they have in common: all ranks concerned call; no rendezvous takes place, since the new
 * communicator uses the connections between processes that the old one has. The old one must have
 * no call under way in another thread and stays as it is; either may end first. A null `config`
 * takes over the settings of the old one, any other is read afresh. `newcomm` is null until the new
 * one is made: when the call returns; in a group, when ncclGroupEnd returns; of a nonblocking
 * communicator, which is in progress meanwhile, once it no longer is. When it fails on one rank it
 * fails on all. splitShare and shrinkShare are taken and change nothing: the new communicator's
 * operations are always independent of the old one's, and the memory of their connections comes
 * from the same pool.
 */

/* One communicator for each `color`, with the ranks that passed it in the order of their `key`s,
 * then of their old ranks. With NCCL_SPLIT_NOCOLOR a rank takes part and gets none.
 * ncclInvalidArgument: `newcomm` is null, a bad communicator, a bad field of `config` (on every
 * rank, the message names the one). */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config);

/* One communicator of all ranks but those in `excludeRanksList` (which is sorted by the call):
 * these do not call, and may be dead or have left. The others keep their order, and all pass the
 * same list. Works on a communicator that has failed. With NCCL_SHRINK_ABORT its operations are
 * ended first, and it takes no more of them. When a rank that is to stay dies meanwhile, the call
 * fails on all, and may be repeated with a longer list. ncclInvalidArgument: an empty list, a rank
 * out of range, the caller's own, lists that differ, unknown flags. ncclRemoteError: a rank that is
 * to stay has died, left, or did not call in time. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);

/* Prepares one growth: called by one rank, which carries the id to the newcomers; the other ranks
 * of the communicator hear of it. ncclInvalidUsage: NCCL_COMM_ID is set. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);

/* One communicator of `nRanks`, more than `comm` has. Its members pass `comm`, `rank` -1 and a null
 * `uniqueId` (or the one of ncclCommGetUniqueId), and keep their ranks; newcomers pass a null
 * `comm`, the id and a rank from the old number of ranks on, and join on the device that is
 * current. These do meet, as in ncclCommInitRankConfig: its errors, and its way with nonblocking
 * settings
 * (`newcomm` is there at once and in progress). `comm` stays as it is. ncclInvalidArgument:
 * `nRanks` not larger, a member with a rank or another id, a newcomer without an id. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                          ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                           ncclComm_t* newcomm, ncclConfig_t* config);

/* Ends the operations under way, leaving their data undefined, and refuses others from then on with
 * ncclInvalidUsage. Each rank should call; it waits for none. The communicator can still be asked,
 * split and shrunk, and is ended by ncclCommDestroy or ncclCommAbort; ncclCommFinalize refuses it.
 * A null `comm` succeeds. ncclInvalidArgument: unknown flags, revoked or finalized before. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* ---- Memory of communicators ---- */

/* Gives the device memory of the communicator's connections back (`flags` NCCL_SUSPEND_MEM), or
 * brings it again. All ranks call, with no operation under way; until it is resumed, operations are
 * refused, and graphs that contain some must not be launched. Connections, graphs and what was
 * planned work again afterwards, at the same addresses. Memory that the communicator shares with
 * others of this process (small connections of all share it) goes back when all of these are
 * suspended. In a group it is done by ncclGroupEnd. ncclInvalidUsage, on all ranks: one of them is
 * suspended already (not suspended, for a resume), or has operations under way.
 * ncclInvalidArgument: unknown flags, a bad communicator. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/* Stores what `stat` asks for. The total is what the communicator takes of its device, its part of
 * memory that it shares with others included, so that the totals of all communicators of a process
 * add up to what the driver has given them; it is not there while the communicator is suspended.
 * ncclInvalidArgument: a null `value`, an unknown `stat`, a bad communicator. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);

/* ---- Memory ---- */

/* Allocates `size` bytes of zeroed memory of the current device that other processes and GPUs can
 * map, as windows need it. Not part of groups or captures. A `size` of 0 stores null and succeeds.
 * ncclUnhandledCudaError: `ptr` is null, or the memory cannot be had. */
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t pncclMemAlloc(void** ptr, size_t size);

/* Frees memory of ncclMemAlloc when the work queued on its device is done. Its registrations and
 * windows are to be ended before. A null `ptr` succeeds. ncclUnhandledCudaError: memory of another
 * allocator, or freed before. */
ncclResult_t ncclMemFree(void* ptr);
ncclResult_t pncclMemFree(void* ptr);

/* Marks a range of memory as one that calls of `comm` will use, and stores a handle. Local and
 * cheap; from any thread, also during a capture; for device memory of any allocator and host memory
 * that CUDA knows. A range inside a registered one gets the same handle, which counts. The handle
 * is null, and the call succeeds, where there is nothing to gain: memory that CUDA does not know,
 * an empty range, NCCL_LOCAL_REGISTER=0. Memory that is freed ends its registration's effect, not
 * its handle; so does the communicator's end. ncclInvalidArgument: a bad communicator, one that is
 * still initializing, or a null `handle`. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);

/* Gives a handle of ncclCommRegister back, as often as it was given. A null `handle` succeeds.
 * ncclInvalidUsage: not a live handle of `comm`. */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle);

/* Makes a window of every rank's `size` bytes at `buff`, which all ranks can then address, and
 * stores its handle, a device address. All ranks call, with equal flags; sizes may differ. In a
 * group the handle is there when ncclGroupEnd has returned, of a nonblocking communicator when
 * ncclCommGetAsyncError says so. The memory can be mapped by others: ncclMemAlloc's, or any of
 * CUDA's virtual memory management, also of several pieces; it begins a multiple of
 * NCCL_WIN_REQUIRED_ALIGNMENT bytes into its allocation, and in a symmetric window at the same
 * distance on all ranks, or at one that differs by multiples of 2 MiB. The window is null, and the
 * call succeeds, when a rank has NCCL_WIN_ENABLE=0. A failure of one rank is a failure of all.
 * ncclInvalidArgument: null or bad arguments, a start that is not aligned, flags that differ.
 * ncclUnhandledCudaError: memory of cudaMalloc, or the driver refuses. ncclInvalidUsage: a rank
 * registers another window. ncclRemoteError: a rank has died. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags);

/* Ends this rank's view of a window; no work may use it any more, on any rank. Local. A null `win`
 * succeeds. ncclInvalidArgument: not a live window of `comm`. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* Stores the `buff` that this rank has registered, or null where windows are switched off
 * (NCCL_WIN_ENABLE=0, several machines, no peer access). ncclInvalidArgument: a bad argument, or no
 * live window of `comm`. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);

/* ---- Groups ---- */

/* Calls between start and end are collected and carried out together by the outermost end: needed
 * where one thread drives several ranks, and a way to join operations into one launch. Groups nest,
 * and belong to the calling thread. ncclGroupEnd returns the last error of a call that the group
 * was to record, in which case nothing of it was carried out, or the first failure of carrying it
 * out; the thread is outside any group afterwards. ncclInvalidUsage: no group is open. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* Closes the group without carrying out its operations, and stores the time that they would take,
 * in microseconds, in simInfo->estimatedTime (-1 when there are none). Start `simInfo` from
 * NCCL_SIM_INFO_INITIALIZER; a null one makes it ncclGroupEnd. In a nested group only the level is
 * closed. ncclInvalidArgument: `simInfo` was not initialized. ncclInvalidUsage: no group is open.
 */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

/* ---- Operations made at run time ---- */

/* Makes the operation "multiply this rank's contribution by a scalar, then sum", for reductions of
 * `datatype` on `comm`, and stores its handle in `op`. `scalar` points to one element of
 * `datatype`: with ncclScalarHostImmediate in host memory, read during the call; with
 * ncclScalarDevice in memory that the device can read, which is read each time an operation runs
 * and has to stay valid until then. Local: every rank makes its own, with any scalar.
 * ncclInvalidArgument: a null pointer, a bad type or residence, a bad communicator. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

/* Ends a run-time operation. Calls that have returned keep what they need of it, also inside a
 * group. ncclInvalidArgument: a built-in operation, or none of `comm`. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives ----
 *
 * What holds for all: every rank of the communicator calls, in the same order, with equal counts,
 * types, operations and roots; ranks that differ get ncclInvalidUsage as asynchronous error, with a
 * message that shows both calls. The call returns when the work is queued on `stream` (null: the
 * legacy default stream) and can be captured into a graph. Counts are elements of `datatype`; 0
 * succeeds and queues nothing. Buffers are memory of the communicator's device, aligned to an
 * element, and stay valid until the stream has passed. They do not overlap, except where a call may
 * work in place. ncclInvalidArgument: a bad communicator, type, operation or root; with
 * NCCL_CHECK_POINTERS=1 also memory of another device or of none. ncclInvalidUsage: NCCL_ALGO and
 * NCCL_PROTO leave nothing to run. ncclUnhandledCudaError: the launch failed. */

/* Combines `count` elements of all ranks' `sendbuff` with `op` and gives the result, the same bits,
 * to every `recvbuff`. In place: sendbuff == recvbuff. */
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream);

/* The same, with the result at `root` alone; other ranks' `recvbuff` is not used and may be null.
 * In place: sendbuff == recvbuff. */
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream);

/* Copies `count` elements of the root's `sendbuff` to every `recvbuff`, the root's included; other
 * ranks' `sendbuff` is not used. In place: sendbuff == recvbuff. */
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream);

/* ncclBroadcast in place, by its older name. */
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);

/* Gathers `sendcount` elements of every rank, in rank order, in every rank's `recvbuff` of nranks *
 * sendcount elements. In place: sendbuff == recvbuff + rank * sendcount. */
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/* Combines the ranks' `sendbuff` of nranks * recvcount elements with `op` and gives rank i the i-th
 * part of the result. In place: recvbuff == sendbuff + rank * recvcount. */
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);

/* Sends the i-th `count` elements of `sendbuff` to rank i, which finds them at place `rank` of its
 * `recvbuff`. Both have nranks * count elements. Not in place. */
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

/* Gathers `count` elements of every rank, in rank order, in the root's `recvbuff` of nranks * count
 * elements; other ranks' is not used. In place at the root: sendbuff == recvbuff + root * count. */
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* Gives rank i the i-th `count` elements of the root's `sendbuff` of nranks * count elements; other
 * ranks' is not used. In place at the root: recvbuff == sendbuff + root * count. */
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

/* The same with settings of the call's own (ncclCollConfig_t); a null `config` sets nothing.
 * ncclInvalidArgument also: `config` does not come from its initializer, forceAlgSelection is
 * neither 0 nor 1, CTAPolicy has other bits, or algSelection has nothing that could carry out the
 * operation; all of these are found by the call itself, in groups, too. Source: reference
 * c-api-2.32, section 4. */
ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                  ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, int root, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                  ncclDataType_t datatype, int root, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t pncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config);
ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                      ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t* config);
ncclResult_t pncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, int root, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t* config);

/* ---- Point to point ----
 *
 * A send matches one receive of the peer with the same number of bytes; messages from one rank to
 * another are matched in the order of the calls. The stream waits for the peer. All sends and
 * receives of a group progress together, in any pattern; calls that have to progress together, such
 * as the two halves of an exchange, belong into one group. A message to the own rank needs its send
 * and its receive in one group (ncclInvalidUsage). A count of 0 has to be matched as well.
 * ncclInvalidArgument: a bad communicator, type or peer. */

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

/* ---- One-sided ----
 *
 * A put stores into a peer's window without a call of the peer, and then raises the peer's counter
 * of signals from this rank by one; the peer waits for signals. Only the two ranks are concerned.
 * The calls are queued on `stream`, which is all that orders them: puts of one stream arrive in
 * their order, and data are there before their signal. In a group puts are queued before, and waits
 * after all else. They can be captured; each launch of the graph puts, signals or waits anew. A
 * rank may signal itself. `sigIdx`, `ctx` and `flags` are reserved and have to be 0.
 * ncclInvalidArgument: they are not, a bad communicator or type, a peer out of range. */

/* Copies `count` elements of `datatype` from `localbuff` to byte `peerWinOffset` of the peer's copy
 * of `peerWin`, then signals. `localbuff` lies in a window of this rank; both windows are symmetric
 * (NCCL_WIN_COLL_SYMMETRIC). A count of 0 only signals. ncclInvalidArgument also: either is not in
 * such a window, or reaches beyond it. */
ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/* Signals without data. */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream);

/* Has `stream` wait until, for each of `nDesc` descriptors, `opCnt` signals of `peer` have arrived
 * that no other wait has taken. The descriptors are copied. ncclInvalidArgument also: `nDesc` or an
 * `opCnt` is not above 0, `signalDescs` is null. */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                             cudaStream_t stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* NCCL_H_ */
