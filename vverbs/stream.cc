// Messages on the connections of queue pairs: written from, and read into, registered memory.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "engine.h"
#include "gpu_copies.h"
#include "objects.h"

namespace vverbs {

void watch(Context& context, int fd, uint64_t data, bool write, bool added, bool read) {
  epoll_event event{};
  event.events = (read ? EPOLLIN : 0u) | (write ? EPOLLOUT : 0u);
  event.data.u64 = data;
  epoll_ctl(context.poll_fd, added ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

void close_socket(Socket& socket) {
  if (socket.fd >= 0) close(socket.fd);
  socket = Socket{};
}

namespace {

uint64_t bytes_of(const Outgoing& message) {
  uint64_t bytes = message.head.size();
  for (const Piece& piece : message.pieces) bytes += piece.bytes;
  return bytes;
}

// Where the pieces are in memory from byte `skip` on; false where one of them is no longer
// registered.
bool locate(Context& context, QueuePair& pair, const std::vector<Piece>& pieces, uint64_t skip,
            unsigned access, std::vector<iovec>& where) {
  for (const Piece& piece : pieces) {
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const uint8_t* start = piece.own;
    if (start == nullptr)
      start = memory_of(context, pair.qp().pd, piece.key, piece.addr, piece.bytes, access);
    if (start == nullptr) return false;
    where.push_back({const_cast<uint8_t*>(start) + skip, piece.bytes - skip});
    skip = 0;
  }
  return true;
}

}  // namespace

bool copy_shadows(Context& context, const std::vector<Piece>& pieces, uint64_t skip, uint64_t bytes,
                  bool is_from_gpu) {
  for (const Piece& piece : pieces) {
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const uint64_t part = std::min(piece.bytes - skip, bytes);
    const auto found = context.regions.find(piece.own == nullptr ? piece.key : 0);
    if (part > 0 && found != context.regions.end() && found->second->is_shadow) {
      const Region& region = *found->second;
      const uint64_t address = piece.addr + skip;  // as the program has it, which is the GPU's
      auto* const shadow = static_cast<uint8_t*>(region.base.addr) + (address - region.iova);
      if (!(is_from_gpu ? copy_from_gpu(shadow, address, part)
                        : copy_to_gpu(address, shadow, part)))
        return false;
    }
    bytes -= part;
    skip = 0;
  }
  return true;
}

Step write_out(Context& context, QueuePair& pair, Socket& socket, unsigned access) {
  uint64_t turn = 0;
  while (!socket.out.empty()) {
    Outgoing& message = socket.out.front();
    std::vector<iovec> where;
    if (message.done < message.head.size())
      where.push_back({message.head.data() + message.done, message.head.size() - message.done});
    const uint64_t skip =
        message.done > message.head.size() ? message.done - message.head.size() : 0;
    if (!locate(context, pair, message.pieces, skip, access, where)) return Step::Unregistered;
    if (!where.empty()) {
      msghdr header{};
      header.msg_iov = where.data();
      header.msg_iovlen = where.size();
      const ssize_t written = sendmsg(socket.fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (written < 0) {
        if (errno == EINTR) continue;
        return errno == EAGAIN ? Step::Later : Step::Broken;
      }
      message.done += static_cast<uint64_t>(written);
      turn += static_cast<uint64_t>(written);
      // A pair that is turned away at each greeting makes no progress.
      if (socket.greeted) pair.progress_at = Clock::now();
    }
    if (message.done == bytes_of(message)) socket.out.pop_front();
    if (turn >= kBytesPerTurn) return socket.out.empty() ? Step::Done : Step::Later;
  }
  return Step::Done;
}

Step read_head(Socket& socket, size_t size) {
  while (socket.in.head.size() < size) {
    uint8_t bytes[128];
    const ssize_t got =
        recv(socket.fd, bytes, std::min(sizeof bytes, size - socket.in.head.size()), MSG_DONTWAIT);
    if (got == 0) return Step::Broken;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Step::Later : Step::Broken;
    }
    socket.in.head.insert(socket.in.head.end(), bytes, bytes + got);
  }
  return Step::Done;
}

Step read_body(Context& context, QueuePair& pair, Socket& socket, unsigned access) {
  Incoming& in = socket.in;
  uint64_t turn = 0;
  while (in.done < in.body) {
    if (turn >= kBytesPerTurn) return Step::Later;
    std::vector<iovec> where;
    uint8_t waste[16384];
    if (in.pieces.empty())
      where.push_back({waste, std::min<uint64_t>(sizeof waste, in.body - in.done)});
    else if (!locate(context, pair, in.pieces, in.done, access, where))
      return Step::Unregistered;
    msghdr header{};
    header.msg_iov = where.data();
    header.msg_iovlen = where.size();
    const ssize_t got = recvmsg(socket.fd, &header, MSG_DONTWAIT);
    if (got == 0) return Step::Broken;
    if (got < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Step::Later : Step::Broken;
    }
    if (!copy_shadows(context, in.pieces, in.done, static_cast<uint64_t>(got), false))
      return Step::Unregistered;
    in.done += static_cast<uint64_t>(got);
    turn += static_cast<uint64_t>(got);
    if (socket.greeted) pair.progress_at = Clock::now();
  }
  return Step::Done;
}

}  // namespace vverbs
