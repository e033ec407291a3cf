// Names of events, and the functions that are not offered.
#include <cerrno>
#include <iterator>

static const char* const kEvents[] = {
    "RDMA_CM_EVENT_ADDR_RESOLVED",   "RDMA_CM_EVENT_ADDR_ERROR",
    "RDMA_CM_EVENT_ROUTE_RESOLVED",  "RDMA_CM_EVENT_ROUTE_ERROR",
    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
    "RDMA_CM_EVENT_CONNECT_ERROR",   "RDMA_CM_EVENT_UNREACHABLE",
    "RDMA_CM_EVENT_REJECTED",        "RDMA_CM_EVENT_ESTABLISHED",
    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
    "RDMA_CM_EVENT_MULTICAST_JOIN",  "RDMA_CM_EVENT_MULTICAST_ERROR",
    "RDMA_CM_EVENT_ADDR_CHANGE",     "RDMA_CM_EVENT_TIMEWAIT_EXIT"};

// Multicast, ECE, and sockets over RDMA, so that programs which are linked to them load.
#define REFUSED(name)      \
  extern "C" long name() { \
    errno = EOPNOTSUPP;    \
    return -1;             \
  }
REFUSED(rdma_join_multicast)
REFUSED(rdma_join_multicast_ex)
REFUSED(rdma_leave_multicast)
REFUSED(rdma_reject_ece)
REFUSED(rdma_set_local_ece)
REFUSED(rdma_get_remote_ece)
REFUSED(raccept)
REFUSED(rbind)
REFUSED(rclose)
REFUSED(rconnect)
REFUSED(rfcntl)
REFUSED(rgetpeername)
REFUSED(rgetsockname)
REFUSED(rgetsockopt)
REFUSED(riomap)
REFUSED(riounmap)
REFUSED(riowrite)
REFUSED(rlisten)
REFUSED(rpoll)
REFUSED(rread)
REFUSED(rreadv)
REFUSED(rrecv)
REFUSED(rrecvfrom)
REFUSED(rrecvmsg)
REFUSED(rselect)
REFUSED(rsend)
REFUSED(rsendmsg)
REFUSED(rsendto)
REFUSED(rsetsockopt)
REFUSED(rshutdown)
REFUSED(rsocket)
REFUSED(rwrite)
REFUSED(rwritev)

extern "C" const char* rdma_event_str(unsigned event) {
  return event < std::size(kEvents) ? kEvents[event] : "UNKNOWN EVENT";
}
