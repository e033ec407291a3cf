// Fuzzes what proxies read from each other: a stream of frames with the bytes of chunks, as an
// authenticated peer sends it, in whatever pieces it comes; and the messages by which endpoints
// connect. No byte may land outside the slots, whatever the frames say.
#include <array>
#include <cstdlib>
#include <cstring>

#include "executor/protocol/call_tag.h"
#include "gpu/virtual/driver.h"
#include "transport/messages.h"
#include "transport/net/inbound.h"

using namespace niccolite;
using namespace niccolite::transport;
using wire::EventLoop;

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

constexpr executor::FifoShape kShape{.channels = 2, .depth = 4, .slot_bytes = 4096};

/// Two ends of a TCP connection.
std::array<Socket, 2> connection() {
  static const Socket listener =
      Socket::listen(Address::parse("127.0.0.1:1").take().with_port(0)).take();
  std::array<Socket, 2> ends;
  ends[0] = Socket::connect(listener.local_address().take()).take();
  while (!ends[1].valid()) {
    int error = 0;
    std::optional<Socket> accepted = listener.accept(&error).take();
    if (accepted) ends[1] = std::move(*accepted);
  }
  return ends;
}

/// A receiver with one connection, to whom `bytes` come on a stream, `piece` at a time.
void receive(std::span<const std::byte> bytes, size_t piece) {
  executor::relay::Bell bell([](void*, uint64_t) {}, nullptr);
  gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
  const net::Key key{.tag = 3};
  const auto end = net::Incoming::create(machine, key, kShape, bell).take();
  const auto loop = EventLoop::create().take();
  std::array<Socket, 2> ends = connection();
  net::Pulse pulse;
  {
    net::Inbound inbound(*loop, {.peer = "rank 1",
                                 .fail = [](Status why) { require(!why.message().empty()); },
                                 .patience = std::chrono::hours(1),
                                 .pulse = &pulse});
    inbound.add(key, *end);
    inbound.progress();
    inbound.welcome({.socket = std::move(ends[1]), .unsent = {}});
    // As a kernel does that takes whatever comes.
    const executor::PortAddress port = end->port();
    int idle = 0;
    loop->set_poller([&] {
      for (uint32_t channel = 0; channel < kShape.channels; ++channel) {
        const uint64_t tail = std::atomic_ref(port.control[channel].remote).load();
        std::atomic_ref(port.remote_control[channel].remote)
            .store(executor::call_tag::steps_in(tail, 0));
      }
      const size_t now = std::min(piece, bytes.size());
      if (now > 0) {
        const Result<Transfer> sent = ends[0].send(bytes.first(now));
        bytes = sent.is_ok() ? bytes.subspan(sent.value().bytes) : bytes.first(0);
      }
      const bool moved = inbound.progress();
      idle = moved || !bytes.empty() ? 0 : idle + 1;
      if (idle > 2) loop->stop();
      return EventLoop::Clock::duration::zero();
    });
    loop->run();
  }
}

/// Frames whose kinds and names are near to valid ones: others are refused at once.
void receive_frames(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto piece = static_cast<size_t>(bytes[0]) * 16 + 1;
  Bytes stream;
  const auto add = [&](const net::Frame& frame) {
    const auto head = std::as_bytes(std::span(&frame, 1));
    stream.insert(stream.end(), head.begin(), head.end());
    if (frame.kind == net::FrameKind::Part)
      stream.resize(stream.size() + std::min<uint32_t>(frame.length, 8192), std::byte{7});
  };
  add({.kind = net::FrameKind::Begin});
  for (bytes = bytes.subspan(1); bytes.size() >= 8; bytes = bytes.subspan(8)) {
    const auto at = [&](size_t i) { return std::to_integer<uint32_t>(bytes[i]); };
    add({.kind = static_cast<net::FrameKind>(at(0) % 8),
         .tag = static_cast<uint16_t>(at(0) < 250 ? 3 : at(1)),
         .channel = at(1) % 3,
         .step = at(2) % 9,
         .bytes = at(3) * 17,
         .offset = at(4) * 17,
         .length = at(5) * 17,
         .call = static_cast<uint16_t>(at(6) % 2)});
  }
  receive(stream, piece);
}

void receive_bytes(std::span<const std::byte> bytes) { receive(bytes, 4096); }

template <typename Message>
void decode(std::span<const std::byte> bytes) {
  const auto message = Message::decode(bytes);
  if (message.is_ok()) require(Message::decode(message.value().encode()).is_ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  constexpr void (*kTargets[])(std::span<const std::byte>) = {
      receive_frames, receive_bytes, decode<ConnectRequest>, decode<ConnectReply>};
  kTargets[data[0] % std::size(kTargets)](bytes);
  return 0;
}
