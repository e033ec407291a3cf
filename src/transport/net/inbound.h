// Inbound: all that one rank receives from one rank of another machine. Thread safety: the loop's
// thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/net/incoming.h"
#include "transport/net/stream.h"

namespace niccolite::transport::net {

class Inbound final : private Stream::Owner {
 public:
  struct Options {
    std::string peer;  // "rank 3 (process 4711 on host a12)"
    std::function<void(Status)> fail;
  };
  Inbound(bootstrap::EventLoop& loop, Options options)
      : loop_(loop), options_(std::move(options)) {}

  void add(const Key& key, Incoming& end) { ends_.emplace(key, &end); }
  /// The peer has proved who it is.
  void welcome(bootstrap::Link::Stream from);
  /// Moves what can be moved; true when that was something.
  bool progress();

 private:
  struct Opened {
    std::unique_ptr<Stream> stream;
    bool has_begun = false;  // the peer sends frames: it is ready for ours
  };

  std::vector<Opened>::iterator find(const Stream& stream);
  Result<std::byte*> stream_frame(Stream& stream, const Frame& frame) override;
  void stream_arrived(Stream&, const Frame& frame) override;
  void stream_sent(const Part&) override {}
  void stream_ended(Stream& stream, Status why) override;

  bootstrap::EventLoop& loop_;
  const Options options_;
  std::vector<Opened> streams_;
  std::vector<std::unique_ptr<Stream>> ended_;  // until nobody is inside one
  std::map<Key, Incoming*> ends_;
  bool has_moved_ = false;
};

}  // namespace niccolite::transport::net
