// Completion queues, channels, and asynchronous events.
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "objects.h"

namespace vverbs {

void complete(Context& context, CompletionQueue& queue, const ibv_wc& wc, bool solicited) {
  if (queue.entries.size() >= static_cast<size_t>(queue.base.cqe)) {
    if (!queue.overrun) raise_event(context, IBV_EVENT_CQ_ERR, nullptr, &queue, nullptr, 0);
    queue.overrun = true;
    return;
  }
  queue.entries.push_back(wc);
  queue.count.store(queue.entries.size(), std::memory_order_release);
  if (queue.armed && (!queue.solicited_only || solicited || wc.status != IBV_WC_SUCCESS) &&
      queue.base.channel != nullptr) {
    queue.armed = false;
    push_event(reinterpret_cast<Channel*>(queue.base.channel)->events, &queue.base);
  }
}

void raise_event(Context& context, ibv_event_type type, QueuePair* pair, CompletionQueue* queue,
                 SharedQueue* shared, int port) {
  ibv_async_event event{};
  event.event_type = type;
  if (pair != nullptr)
    event.element.qp = &pair->qp();
  else if (queue != nullptr)
    event.element.cq = &queue->base;
  else if (shared != nullptr)
    event.element.srq = &shared->base;
  else
    event.element.port_num = port;
  push_event(context.events, event);
}

namespace {

enum class About { Pair, Queue, Shared, Port };
About about(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return About::Queue;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return About::Shared;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return About::Pair;
    default:
      return About::Port;
  }
}

int poll(ibv_cq* cq, int most, ibv_wc* wc) {
  CompletionQueue& queue = queue_of(cq);
  if (queue.count.load(std::memory_order_acquire) == 0) {
    // Who polls in a loop leaves the core to the NIC's own threads, which hardware does not need.
    static thread_local unsigned empty = 0;
    if (++empty % 16 == 0) sched_yield();
    return 0;
  }
  const std::lock_guard lock(context_of(cq->context).mutex);
  int taken = 0;
  while (taken < most && !queue.entries.empty()) {
    wc[taken++] = queue.entries.front();
    queue.entries.pop_front();
  }
  queue.count.store(queue.entries.size(), std::memory_order_release);
  return taken;
}

int arm(ibv_cq* cq, int solicited_only) {
  CompletionQueue& queue = queue_of(cq);
  const std::lock_guard lock(context_of(cq->context).mutex);
  queue.solicited_only = solicited_only != 0 && (!queue.armed || queue.solicited_only);
  queue.armed = true;
  return 0;
}

}  // namespace

void fill_completion_operations(ibv_context_ops& operations) {
  operations.poll_cq = poll;
  operations.req_notify_cq = arm;
}

// Withdraws the events about `handle`, and waits until those that the program has are acknowledged.
void settle_events(Context& context, std::unique_lock<std::mutex>& lock, const void* handle,
                   const uint32_t& reported, const uint32_t& acknowledged) {
  {
    const std::lock_guard events(context.events.mutex);
    std::erase_if(context.events.waiting, [&](const ibv_async_event& event) {
      return about(event.event_type) != About::Port && event.element.qp == handle;
    });
  }
  context.acknowledged.wait(lock, [&] { return reported == acknowledged; });
}

}  // namespace vverbs

using namespace vverbs;

extern "C" {

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  auto* channel = new Channel;
  channel->base.context = context;
  channel->base.fd = channel->events.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  if (channel->base.fd >= 0) return &channel->base;
  delete channel;
  return nullptr;
}

int ibv_destroy_comp_channel(ibv_comp_channel* handle) {
  auto* channel = reinterpret_cast<Channel*>(handle);
  {
    const std::lock_guard lock(context_of(handle->context).mutex);
    if (handle->refcnt != 0) return EBUSY;
  }
  close(handle->fd);
  delete channel;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                      ibv_comp_channel* channel, int vector) {
  if (entries < 1 || entries > kMaxCqe || vector < 0 || vector >= context->num_comp_vectors) {
    errno = EINVAL;
    return nullptr;
  }
  if (context_of(context).gone) {
    errno = EIO;
    return nullptr;
  }
  auto* queue = new CompletionQueue;
  queue->base.context = context;
  queue->base.channel = channel;
  queue->base.cq_context = cq_context;
  queue->base.cqe = entries;
  pthread_mutex_init(&queue->base.mutex, nullptr);
  pthread_cond_init(&queue->base.cond, nullptr);
  const std::lock_guard lock(context_of(context).mutex);
  if (channel != nullptr) ++channel->refcnt;
  return &queue->base;
}

int ibv_resize_cq(ibv_cq* cq, int entries) {
  const std::lock_guard lock(context_of(cq->context).mutex);
  if (entries < 1 || entries > kMaxCqe ||
      queue_of(cq).entries.size() > static_cast<size_t>(entries))
    return EINVAL;
  cq->cqe = entries;
  return 0;
}

int ibv_destroy_cq(ibv_cq* cq) {
  CompletionQueue* queue = &queue_of(cq);
  Context& context = context_of(cq->context);
  {
    std::unique_lock lock(context.mutex);
    if (queue->users != 0) return EBUSY;
    if (cq->channel != nullptr) {
      auto& events = reinterpret_cast<Channel*>(cq->channel)->events;
      {
        const std::lock_guard channel(events.mutex);
        std::erase(events.waiting, cq);
      }
      --cq->channel->refcnt;
    }
    context.acknowledged.wait(lock,
                              [&] { return queue->events_reported == cq->comp_events_completed; });
    settle_events(context, lock, cq, queue->async_reported, cq->async_events_completed);
  }
  pthread_mutex_destroy(&cq->mutex);
  pthread_cond_destroy(&cq->cond);
  delete queue;
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  ibv_cq* found = nullptr;
  if (pop_event(reinterpret_cast<Channel*>(channel)->events, found, [](ibv_cq* taken) {
        __atomic_fetch_add(&queue_of(taken).events_reported, 1u, __ATOMIC_SEQ_CST);
      }) != 0)
    return -1;
  *cq = found;
  *cq_context = found->cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned count) {
  Context& context = context_of(cq->context);
  const std::lock_guard lock(context.mutex);
  cq->comp_events_completed += count;
  context.acknowledged.notify_all();
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  return pop_event(context_of(context).events, *event, [](const ibv_async_event& taken) {
    switch (about(taken.event_type)) {
      case About::Pair:
        __atomic_fetch_add(&pair_of(taken.element.qp).async_reported, 1u, __ATOMIC_SEQ_CST);
        break;
      case About::Queue:
        __atomic_fetch_add(&queue_of(taken.element.cq).async_reported, 1u, __ATOMIC_SEQ_CST);
        break;
      case About::Shared:
        __atomic_fetch_add(&queue_of(taken.element.srq).async_reported, 1u, __ATOMIC_SEQ_CST);
        break;
      case About::Port:
        break;
    }
  });
}

void ibv_ack_async_event(ibv_async_event* event) {
  ibv_context* handle = nullptr;
  uint32_t* acknowledged = nullptr;
  switch (about(event->event_type)) {
    case About::Pair:
      handle = event->element.qp->context;
      acknowledged = &event->element.qp->events_completed;
      break;
    case About::Queue:
      handle = event->element.cq->context;
      acknowledged = &event->element.cq->async_events_completed;
      break;
    case About::Shared:
      handle = event->element.srq->context;
      acknowledged = &event->element.srq->events_completed;
      break;
    case About::Port:
      return;
  }
  Context& context = context_of(handle);
  const std::lock_guard lock(context.mutex);
  ++*acknowledged;
  context.acknowledged.notify_all();
}
}
