// Listening and connecting, and the queue pairs of identifiers.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "objects.h"

namespace vverbs::rdmacm {
namespace {

constexpr int kBacklog = 1024;
constexpr uint8_t kAckTimeout = 14;     // 67 ms
constexpr uint8_t kNotReadyTimer = 12;  // 0.64 ms

int most_atomic_reads(const Id& id) {
  ibv_device_attr device{};
  return ibv_query_device(id.base.verbs, &device) == 0 ? device.max_qp_rd_atom : 0;
}

// Makes the message of the program's parameters, and of ours where it gives none. 0 or an error.
int fill(Id& id, Kind kind, const rdma_conn_param* parameters, size_t room) {
  Message message{};
  message.magic = kMagic;
  message.kind = kind;
  message.port_space = static_cast<uint32_t>(id.base.ps);
  message.psn = id.psn;
  message.qkey = RDMA_UDP_QKEY;
  message.port = port_of(id.base.route.addr.src_addr);
  message.gid = id.place.gid;
  message.retry_count = message.rnr_retry_count = 7;
  const int most = most_atomic_reads(id);
  message.responder_resources =
      kind == Kind::Request ? static_cast<uint8_t>(most) : id.responder_resources;
  message.initiator_depth = kind == Kind::Request ? static_cast<uint8_t>(most) : id.initiator_depth;
  if (parameters != nullptr) {
    if (parameters->private_data_len > room) return EINVAL;
    if (parameters->responder_resources != RDMA_MAX_RESP_RES) {
      if (parameters->responder_resources > most) return EINVAL;
      message.responder_resources = parameters->responder_resources;
    }
    if (parameters->initiator_depth != RDMA_MAX_INIT_DEPTH) {
      if (parameters->initiator_depth > most) return EINVAL;
      message.initiator_depth = parameters->initiator_depth;
    }
    message.flow_control = parameters->flow_control;
    message.retry_count = std::min<uint8_t>(parameters->retry_count, 7);
    message.rnr_retry_count = std::min<uint8_t>(parameters->rnr_retry_count, 7);
    message.srq = parameters->srq;
    message.qp_num = parameters->qp_num;
    if (parameters->private_data_len > 0)
      std::memcpy(message.private_data, parameters->private_data, parameters->private_data_len);
  }
  if (id.base.qp != nullptr) {
    message.qp_num = id.base.qp->qp_num;
    message.srq = id.base.qp->srq != nullptr;
  }
  id.own = message;
  id.responder_resources = message.responder_resources;
  id.initiator_depth = message.initiator_depth;
  return 0;
}

// Fills in all that brings a queue pair to attributes.qp_state. 0 or an error.
int attributes_for(const Id& id, ibv_qp_attr& attributes, int& mask) {
  const bool datagram = id.base.qp_type == IBV_QPT_UD;
  mask = IBV_QP_STATE;
  switch (attributes.qp_state) {
    case IBV_QPS_INIT:
      attributes.pkey_index = 0;
      attributes.port_num = id.place.port;
      attributes.qkey = RDMA_UDP_QKEY;
      attributes.qp_access_flags =
          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
      mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (datagram ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
      return 0;
    case IBV_QPS_RTR: {
      if (datagram) return 0;
      if (id.other.magic != kMagic) return EINVAL;  // nobody has said what to connect to
      ibv_port_attr port{};
      if (const int error = ibv_query_port(id.base.verbs, id.place.port, &port); error != 0)
        return error;
      attributes.path_mtu = port.active_mtu;
      attributes.dest_qp_num = id.other.qp_num;
      attributes.rq_psn = id.other.psn;
      attributes.max_dest_rd_atomic = id.responder_resources;
      attributes.min_rnr_timer = kNotReadyTimer;
      attributes.ah_attr = {};
      attributes.ah_attr.is_global = 1;
      attributes.ah_attr.port_num = id.place.port;
      attributes.ah_attr.grh.dgid = id.other.gid;
      attributes.ah_attr.grh.sgid_index = id.place.gid_index;
      attributes.ah_attr.grh.hop_limit = 64;
      mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
      return 0;
    }
    case IBV_QPS_RTS:
      attributes.sq_psn = id.psn;
      mask |= IBV_QP_SQ_PSN;
      if (datagram) return 0;
      attributes.timeout = kAckTimeout;
      attributes.retry_cnt = id.retry_count;
      attributes.rnr_retry = id.other.rnr_retry_count;
      attributes.max_rd_atomic = id.initiator_depth;
      mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
      return 0;
    default:
      return EINVAL;
  }
}

int move(Id& id, ibv_qp_state state) {
  ibv_qp_attr attributes{};
  attributes.qp_state = state;
  int mask = 0;
  const int error = attributes_for(id, attributes, mask);
  return error != 0 ? error : ibv_modify_qp(id.base.qp, &attributes, mask);
}

int connect_pair(Id& id) {
  const int error = move(id, IBV_QPS_RTR);
  return error != 0 ? error : move(id, IBV_QPS_RTS);
}

// IPv4 that came to a socket of IPv6.
void unmap(sockaddr_storage& address) {
  auto& six = reinterpret_cast<sockaddr_in6&>(address);
  if (address.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return;
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, 4);
  address = {};
  std::memcpy(&address, &four, sizeof four);
}

void reject(Id& id, const void* data, size_t bytes) {
  Message message{};
  message.magic = kMagic;
  message.kind = Kind::Reject;
  if (bytes > 0) std::memcpy(message.private_data, data, bytes);
  send(id, message);
  agent().drop(id.link_fd);
  id.state = State::Closed;
}

void destroy_queues(rdma_cm_id& id) {
  if (id.recv_cq != nullptr) ibv_destroy_cq(id.recv_cq);
  if (id.send_cq != nullptr) ibv_destroy_cq(id.send_cq);
  if (id.recv_cq_channel != nullptr) ibv_destroy_comp_channel(id.recv_cq_channel);
  if (id.send_cq_channel != nullptr) ibv_destroy_comp_channel(id.send_cq_channel);
  id.recv_cq = id.send_cq = nullptr;
  id.recv_cq_channel = id.send_cq_channel = nullptr;
}

bool make_queue(rdma_cm_id& id, uint32_t entries, ibv_comp_channel*& channel, ibv_cq*& queue) {
  channel = ibv_create_comp_channel(id.verbs);
  if (channel == nullptr) return false;
  queue = ibv_create_cq(id.verbs, static_cast<int>(std::max(entries, 1u)), &id, channel, 0);
  return queue != nullptr;
}

}  // namespace

Id* take_request(Event& event) {
  Id& listener = *event.owner;
  Id* id =
      new_id(listener.base.channel, listener.base.context, listener.base.ps, listener.base.qp_type);
  const int fd = event.fd;
  event.fd = -1;
  rdma_addr& address = id->base.route.addr;
  socklen_t own_size = sizeof address.src_storage, peer_size = sizeof address.dst_storage;
  getsockname(fd, &address.src_addr, &own_size);
  const bool alive = getpeername(fd, &address.dst_addr, &peer_size) == 0;
  unmap(address.src_storage);
  unmap(address.dst_storage);
  const auto place = alive ? place_of(address.src_addr) : std::nullopt;
  const std::lock_guard lock(agent().mutex);
  id->link_fd = fd;
  if (!place) {
    reject(*id, nullptr, 0);
    delete id;
    return nullptr;
  }
  set_port(address.src_addr, port_of(listener.base.route.addr.src_addr));
  set_port(address.dst_addr, event.request.port);
  settle(*id, *place);
  address.addr.ibaddr.sgid = place->gid;
  address.addr.ibaddr.dgid = event.request.gid;
  address.addr.ibaddr.pkey = htobe16(0xffff);
  const Message& request = id->other = event.request;
  id->responder_resources = request.initiator_depth;
  id->initiator_depth = request.responder_resources;
  id->retry_count = request.retry_count;
  std::memcpy(event.private_data, request.private_data, sizeof event.private_data);
  if (id->is_datagram()) {
    rdma_ud_param& ud = event.base.param.ud;
    ud.private_data = event.private_data;
    ud.private_data_len = kDatagramRequestBytes;
  } else {
    rdma_conn_param& conn = event.base.param.conn;
    conn.private_data = event.private_data;
    conn.private_data_len = kRequestBytes;
    conn.responder_resources = id->responder_resources;
    conn.initiator_depth = id->initiator_depth;
    conn.flow_control = request.flow_control;
    conn.retry_count = request.retry_count;
    conn.rnr_retry_count = request.rnr_retry_count;
    conn.srq = request.srq;
    conn.qp_num = request.qp_num;
  }
  id->state = State::Requested;
  if (listener.sync) {
    id->sync = true;
    id->base.channel = rdma_create_event_channel();
  }
  agent().watch(fd, Role::Link, *id, false);
  return id;
}

void take_reply(Event& event) {
  Id& id = *event.owner;
  const std::lock_guard lock(agent().mutex);
  id.responder_resources = id.other.initiator_depth;
  id.initiator_depth = id.other.responder_resources;
  if (id.base.qp == nullptr) return;
  const int error = connect_pair(id);
  if (error == 0 && id.state == State::Responded) {
    Message ready = id.own;
    ready.kind = Kind::Ready;
    send(id, ready);
    id.state = State::Connected;
    event.base.event = RDMA_CM_EVENT_ESTABLISHED;
    return;
  }
  if (id.state == State::Responded) reject(id, nullptr, 0);
  event.base.event = RDMA_CM_EVENT_CONNECT_ERROR;
  event.base.status = error != 0 ? -error : -ECONNRESET;
}

}  // namespace vverbs::rdmacm

using namespace vverbs::rdmacm;

extern "C" {

int rdma_listen(rdma_cm_id* handle, int backlog) {
  Id& id = id_of(handle);
  if (id.state == State::Idle) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    if (const int error = bind_to(id, reinterpret_cast<sockaddr&>(any)); error != 0)
      return fail(error);
  }
  if (id.state != State::Bound) return fail(EINVAL);
  sockaddr_storage address = handle->route.addr.src_storage;
  auto& any_port = reinterpret_cast<sockaddr&>(address);
  set_port(any_port, 0);
  const int fd = socket(any_port.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int only = id.four_or_six_only ? 1 : 0;
  if (any_port.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  if (bind(fd, &any_port, size_of(any_port)) != 0 ||
      listen(fd, backlog > 0 ? std::min(backlog, kBacklog) : kBacklog) != 0) {
    const int error = errno;
    close(fd);
    return fail(error);
  }
  Agent& all = agent();
  const std::lock_guard lock(all.mutex);
  id.link_fd = fd;
  id.state = State::Listening;
  all.watch(fd, Role::Listener, id, false);
  all.watch(id.port_fd, Role::Port, id, false);
  return 0;
}

int rdma_connect(rdma_cm_id* handle, rdma_conn_param* parameters) {
  Id& id = id_of(handle);
  {
    const std::lock_guard lock(agent().mutex);
    if (id.state != State::RouteResolved) return fail(EINVAL);
    const size_t room = id.is_datagram() ? kDatagramRequestBytes : kRequestBytes;
    if (const int error = fill(id, Kind::Request, parameters, room); error != 0) return fail(error);
    id.retry_count = id.own.retry_count;
    start_connecting(id);
  }
  return wait_for_event(id);
}

int rdma_accept(rdma_cm_id* handle, rdma_conn_param* parameters) {
  Id& id = id_of(handle);
  {
    const std::lock_guard lock(agent().mutex);
    if (id.state != State::Requested) return fail(EINVAL);
    const size_t room = id.is_datagram() ? kDatagramReplyBytes : kReplyBytes;
    if (const int error = fill(id, Kind::Reply, parameters, room); error != 0) return fail(error);
    if (id.is_datagram()) {
      send(id, id.own);
      agent().drop(id.link_fd);
      id.state = State::Closed;
      return 0;
    }
    if (handle->qp != nullptr)
      if (const int error = connect_pair(id); error != 0) return fail(error);
    id.state = State::Accepted;
    send(id, id.own);
  }
  return wait_for_event(id);
}

int rdma_establish(rdma_cm_id* handle) {
  Id& id = id_of(handle);
  const std::lock_guard lock(agent().mutex);
  if (id.state != State::Responded || handle->qp != nullptr) return fail(EINVAL);
  Message ready = id.own;
  ready.kind = Kind::Ready;
  send(id, ready);
  id.state = State::Connected;
  return 0;
}

int rdma_reject(rdma_cm_id* handle, const void* data, uint8_t bytes) {
  Id& id = id_of(handle);
  if (bytes > kRejectBytes) return fail(EINVAL);
  const std::lock_guard lock(agent().mutex);
  if (id.state != State::Requested && id.state != State::Responded) return fail(EINVAL);
  reject(id, data, bytes);
  return 0;
}

int rdma_disconnect(rdma_cm_id* handle) {
  Id& id = id_of(handle);
  bool wait = false;
  {
    const std::lock_guard lock(agent().mutex);
    if (id.state != State::Connected && id.state != State::Accepted &&
        id.state != State::Disconnecting && id.state != State::Ending && id.state != State::Closed)
      return fail(EINVAL);
    if (handle->qp != nullptr) {
      ibv_qp_attr attributes{};
      attributes.qp_state = IBV_QPS_ERR;
      if (const int error = ibv_modify_qp(handle->qp, &attributes, IBV_QP_STATE); error != 0)
        return fail(error);
    }
    if (id.state == State::Connected || id.state == State::Accepted) {
      Message message = id.own;
      message.kind = Kind::Disconnect;
      send(id, message);
      id.state = State::Disconnecting;
    }
    // The event may be there already, or even be taken.
    auto& queue = channel_of(handle->channel).events;
    const std::lock_guard events(queue.mutex);
    wait = id.state == State::Disconnecting || id.state == State::Ending || !queue.waiting.empty();
  }
  return wait ? wait_for_event(id) : 0;
}

int rdma_get_request(rdma_cm_id* listen, rdma_cm_id** handle) {
  Id& id = id_of(listen);
  if (!id.sync) return fail(EINVAL);
  if (listen->event != nullptr) {
    rdma_ack_cm_event(listen->event);
    listen->event = nullptr;
  }
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(listen->channel, &event) != 0) return -1;
  int error = event->status < 0 ? -event->status : event->status;
  if (error == 0 && event->event != RDMA_CM_EVENT_CONNECT_REQUEST) error = EINVAL;
  if (error == 0 && id.pair_attributes) {
    ibv_qp_init_attr attributes = *id.pair_attributes;
    if (rdma_create_qp(event->id, id.pair_pd, &attributes) != 0) {
      error = errno;
      rdma_reject(event->id, nullptr, 0);
      rdma_destroy_id(event->id);
    }
  }
  if (error != 0) {
    listen->event = event;
    return fail(error);
  }
  // The identifier acknowledges it, as it does with its own events.
  *handle = event->id;
  (*handle)->event = event;
  return 0;
}

int rdma_init_qp_attr(rdma_cm_id* handle, ibv_qp_attr* attributes, int* mask) {
  const Id& id = id_of(handle);
  const std::lock_guard lock(agent().mutex);
  const int error = handle->verbs == nullptr ? EINVAL : attributes_for(id, *attributes, *mask);
  return error == 0 ? 0 : fail(error);
}

int rdma_create_qp_ex(rdma_cm_id* id, ibv_qp_init_attr_ex* attributes) {
  if (id->verbs == nullptr || id->qp != nullptr) return fail(EINVAL);
  if ((attributes->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    attributes->comp_mask |= IBV_QP_INIT_ATTR_PD;
    attributes->pd = id->pd;
  } else if (attributes->pd->context != id->verbs) {
    return fail(EINVAL);
  }
  if (id->srq != nullptr) attributes->srq = id->srq;
  bool good = true;
  if (attributes->recv_cq == nullptr) {
    good = make_queue(*id, attributes->cap.max_recv_wr, id->recv_cq_channel, id->recv_cq);
    attributes->recv_cq = id->recv_cq;
  }
  if (good && attributes->send_cq == nullptr) {
    good = make_queue(*id, attributes->cap.max_send_wr, id->send_cq_channel, id->send_cq);
    attributes->send_cq = id->send_cq;
  }
  id->qp = good ? ibv_create_qp_ex(id->verbs, attributes) : nullptr;
  int error = id->qp == nullptr ? errno : 0;
  if (error == 0) {
    id->pd = attributes->pd;
    error = move(id_of(id), IBV_QPS_INIT);
    if (error == 0 && id->qp_type == IBV_QPT_UD) error = connect_pair(id_of(id));
  }
  if (error == 0) return 0;
  rdma_destroy_qp(id);
  return fail(error);
}

int rdma_create_qp(rdma_cm_id* id, ibv_pd* pd, ibv_qp_init_attr* attributes) {
  ibv_qp_init_attr_ex extended{};
  std::memcpy(&extended, attributes, sizeof *attributes);
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd != nullptr ? pd : id->pd;
  if (extended.pd == nullptr) return fail(EINVAL);
  const int result = rdma_create_qp_ex(id, &extended);
  std::memcpy(attributes, &extended, sizeof *attributes);
  return result;
}

void rdma_destroy_qp(rdma_cm_id* id) {
  if (id->qp != nullptr) ibv_destroy_qp(id->qp);
  id->qp = nullptr;
  destroy_queues(*id);
}

int rdma_create_srq(rdma_cm_id* id, ibv_pd* pd, ibv_srq_init_attr* attributes) {
  if (pd == nullptr) pd = id->pd;
  if (pd == nullptr || id->srq != nullptr) return fail(EINVAL);
  id->srq = ibv_create_srq(pd, attributes);
  if (id->srq == nullptr) return -1;
  id->pd = pd;
  return 0;
}

int rdma_create_srq_ex(rdma_cm_id* id, ibv_srq_init_attr_ex* attributes) {
  const uint32_t type = (attributes->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) != 0
                            ? static_cast<uint32_t>(attributes->srq_type)
                            : static_cast<uint32_t>(IBV_SRQT_BASIC);
  if (type != IBV_SRQT_BASIC) return fail(EOPNOTSUPP);
  ibv_srq_init_attr basic{};
  basic.srq_context = attributes->srq_context;
  basic.attr = attributes->attr;
  ibv_pd* const pd = (attributes->comp_mask & IBV_SRQ_INIT_ATTR_PD) != 0 ? attributes->pd : nullptr;
  return rdma_create_srq(id, pd, &basic);
}

void rdma_destroy_srq(rdma_cm_id* id) {
  if (id->srq != nullptr) ibv_destroy_srq(id->srq);
  id->srq = nullptr;
}

// A message that overtakes the last word of the connection says that there is one; that comes too.
int rdma_notify(rdma_cm_id*, ibv_event_type event) {
  return event == IBV_EVENT_COMM_EST ? 0 : fail(EINVAL);
}
}
