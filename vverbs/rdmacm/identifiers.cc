// Identifiers, channels and events: their life.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <random>
#include <utility>

#include "objects.h"

namespace vverbs::rdmacm {
namespace {

// The events of an identifier that no program has seen yet.
std::vector<Event*> withdraw(const Id& id) {
  std::vector<Event*> result;
  EventQueue<Event*>& queue = channel_of(id.base.channel).events;
  const std::lock_guard lock(queue.mutex);
  std::erase_if(queue.waiting, [&](Event* event) {
    if (event->owner == &id) result.push_back(event);
    return event->owner == &id;
  });
  return result;
}

// Programs end a queue pair when they hear of its end, and its completions that nobody polled go
// with it. One that looks for events and for completions in turn, and had no core when both came,
// shall find the completions: its first look finds nothing, and the descriptor becomes ready again.
bool is_early(EventQueue<Event*>& queue) {
  const std::lock_guard lock(queue.mutex);
  if (queue.waiting.empty()) return false;
  Event& next = *queue.waiting.front();
  if (next.base.event != RDMA_CM_EVENT_DISCONNECTED ||
      (fcntl(queue.fd, F_GETFL) & O_NONBLOCK) == 0 || std::exchange(next.is_announced, true))
    return false;
  uint64_t one = 0;  // whoever waits for an edge gets another one
  if (read(queue.fd, &one, sizeof one) == sizeof one) (void)!write(queue.fd, &one, sizeof one);
  return true;
}

void discard(Event* event) {
  if (event->fd >= 0) close(event->fd);
  delete event;
}

void acknowledge(Id& id) {
  if (id.base.event != nullptr) rdma_ack_cm_event(id.base.event);
  id.base.event = nullptr;
}

}  // namespace

int wait_for_event(Id& id) {
  if (!id.sync) return 0;
  acknowledge(id);
  if (rdma_get_cm_event(id.base.channel, &id.base.event) != 0) return -1;
  const int status = id.base.event->status;
  if (status == 0) return 0;
  if (id.base.event->event == RDMA_CM_EVENT_REJECTED) return fail(ECONNREFUSED);
  return fail(status < 0 ? -status : status);
}

Id* new_id(rdma_event_channel* channel, void* context, rdma_port_space space, ibv_qp_type type) {
  auto* id = new Id;
  id->sync = channel == nullptr;
  id->base.channel = channel != nullptr ? channel : rdma_create_event_channel();
  if (id->base.channel == nullptr) {
    delete id;
    return nullptr;
  }
  id->base.context = context;
  id->base.ps = space;
  id->base.qp_type = type;
  static thread_local std::random_device random;
  id->psn = random() & 0xffffff;
  return id;
}

}  // namespace vverbs::rdmacm

using namespace vverbs::rdmacm;

extern "C" {

rdma_event_channel* rdma_create_event_channel() {
  if (devices().empty()) {
    errno = ENODEV;
    return nullptr;
  }
  auto* channel = new Channel;
  channel->base.fd = channel->events.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (channel->base.fd >= 0) return &channel->base;
  delete channel;
  return nullptr;
}

void rdma_destroy_event_channel(rdma_event_channel* handle) {
  close(handle->fd);
  delete &channel_of(handle);
}

int rdma_create_id(rdma_event_channel* channel, rdma_cm_id** handle, void* context,
                   rdma_port_space space) {
  if (space != RDMA_PS_TCP && space != RDMA_PS_UDP) return fail(EPROTONOSUPPORT);
  const bool datagram = space == RDMA_PS_UDP;
  Id* id = new_id(channel, context, space, datagram ? IBV_QPT_UD : IBV_QPT_RC);
  if (id == nullptr) return -1;
  *handle = &id->base;
  return 0;
}

int rdma_destroy_id(rdma_cm_id* handle) {
  Id& id = id_of(handle);
  acknowledge(id);
  std::vector<Event*> events;
  {
    Agent& all = agent();
    std::unique_lock lock(all.mutex);
    all.drop(id.link_fd);
    all.drop(id.port_fd);
    std::erase(all.ending, &id);
    for (auto entry = all.watched.begin(); entry != all.watched.end();) {
      int fd = entry->first;
      const bool guest = entry->second.id == &id;
      ++entry;
      if (guest) all.drop(fd);
    }
    events = withdraw(id);
    all.acknowledged.wait(lock, [&] { return id.events_reported == id.events_completed; });
  }
  for (Event* event : events) discard(event);
  if (id.sync) rdma_destroy_event_channel(handle->channel);
  delete &id;
  return 0;
}

int rdma_migrate_id(rdma_cm_id* handle, rdma_event_channel* channel) {
  Id& id = id_of(handle);
  if (id.sync && channel == nullptr) return fail(EINVAL);
  const bool sync = channel == nullptr;
  if (sync) channel = rdma_create_event_channel();
  if (channel == nullptr) return -1;
  if (id.sync) acknowledge(id);
  rdma_event_channel* const old = handle->channel;
  {
    Agent& all = agent();
    std::unique_lock lock(all.mutex);
    const auto events = withdraw(id);
    handle->channel = channel;
    for (Event* event : events) push_event(channel_of(channel).events, event);
    all.acknowledged.wait(lock, [&] { return id.events_reported == id.events_completed; });
  }
  if (id.sync) rdma_destroy_event_channel(old);
  id.sync = sync;
  return 0;
}

int rdma_get_cm_event(rdma_event_channel* handle, rdma_cm_event** result) {
  if (handle == nullptr) return fail(EINVAL);
  if (is_early(channel_of(handle).events)) return fail(EAGAIN);
  for (;;) {
    Event* event = nullptr;
    if (vverbs::pop_event(channel_of(handle).events, event,
                          [](Event* taken) { ++taken->owner->events_reported; }) != 0)
      return -1;
    if (event->base.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      Id* const id = take_request(*event);
      if (id == nullptr) {
        rdma_ack_cm_event(&event->base);
        continue;
      }
      event->base.id = &id->base;
    } else if (event->base.event == RDMA_CM_EVENT_CONNECT_RESPONSE) {
      take_reply(*event);
    }
    *result = &event->base;
    return 0;
  }
}

int rdma_ack_cm_event(rdma_cm_event* handle) {
  if (handle == nullptr) return fail(EINVAL);
  auto* event = reinterpret_cast<Event*>(handle);
  {
    Agent& all = agent();
    const std::lock_guard lock(all.mutex);
    ++event->owner->events_completed;
    all.acknowledged.notify_all();
  }
  discard(event);
  return 0;
}

int rdma_create_ep(rdma_cm_id** handle, rdma_addrinfo* address, ibv_pd* pd,
                   ibv_qp_init_attr* attributes) {
  Id* id = new_id(nullptr, nullptr, static_cast<rdma_port_space>(address->ai_port_space),
                  static_cast<ibv_qp_type>(address->ai_qp_type));
  if (id == nullptr) return -1;
  rdma_cm_id* made = &id->base;
  bool good = true;
  if (attributes != nullptr) attributes->qp_type = made->qp_type;
  if ((address->ai_flags & RAI_PASSIVE) != 0) {
    good = rdma_bind_addr(made, address->ai_src_addr) == 0;
    id->pair_pd = pd;
    if (attributes != nullptr) id->pair_attributes = *attributes;
  } else {
    good = rdma_resolve_addr(made, address->ai_src_addr, address->ai_dst_addr, 2000) == 0 &&
           rdma_resolve_route(made, 2000) == 0 &&
           (attributes == nullptr || rdma_create_qp(made, pd, attributes) == 0);
  }
  if (!good) {
    const int error = errno;
    rdma_destroy_ep(made);
    return fail(error);
  }
  *handle = made;
  return 0;
}

void rdma_destroy_ep(rdma_cm_id* id) {
  if (id->qp != nullptr) rdma_destroy_qp(id);
  if (id->srq != nullptr) rdma_destroy_srq(id);
  rdma_destroy_id(id);
}

int rdma_set_option(rdma_cm_id* handle, int level, int option, void* value, size_t bytes) {
  if (level != RDMA_OPTION_ID) return fail(EOPNOTSUPP);
  switch (option) {
    case RDMA_OPTION_ID_TOS:
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      return bytes == sizeof(uint8_t) ? 0 : fail(EINVAL);
    case RDMA_OPTION_ID_REUSEADDR:
      return bytes == sizeof(int) ? 0 : fail(EINVAL);
    case RDMA_OPTION_ID_AFONLY:
      if (bytes != sizeof(int)) return fail(EINVAL);
      id_of(handle).four_or_six_only = *static_cast<int*>(value) != 0;
      return 0;
    default:
      return fail(ENOSYS);
  }
}
}
