// Messages by which endpoints ask each other through the bootstrap network: "give me your half of
// these connections". A rank that leaves tells the ranks that have not asked: "here is my half".
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/wire.h"
#include "executor/protocol/fifo.h"
#include "transport/pool.h"

namespace niccolite::transport {

struct ConnectRequest {
  struct Item {
    uint8_t protocol = 0;
    uint16_t tag = 0;
    bool asker_sends = false;
  };
  uint8_t connector = 0;      // Connector::Kind of the asking rank; both ends choose one kind
  uint32_t device = 0;        // of the asker
  bool same_process = false;  // the asker lives in the same process
  std::vector<Item> items;
  // For an asking rank on another machine: where each of its proxies listens, by rail.
  std::vector<std::vector<Address>> proxies{};
  std::string network{};  // of its plug-in, which listens at `handle`; empty: sockets
  std::vector<std::byte> handle{};

  std::vector<std::byte> encode() const;
  static Result<ConnectRequest> decode(std::span<const std::byte> bytes);
};

struct ConnectReply {
  struct Region {
    Token token{};  // of the chunk; all zero for "none"
    uint64_t chunk_bytes = 0;
    uint64_t offset = 0;  // in the chunk
  };
  struct Item {
    Region control;
    Region slots;  // only when the asker sends
  };
  std::string address;  // of the descriptor server; empty within a process
  std::vector<Item> items;
  std::vector<uint8_t> is_joined{};  // by item of the request: the answerer has the other half
  std::vector<std::vector<Address>> proxies{};  // to another machine, instead of items
  std::string network{};                        // as in the request
  std::vector<std::byte> handle{};

  std::vector<std::byte> encode() const;
  static Result<ConnectReply> decode(std::span<const std::byte> bytes);
};

/// The message of a rank that leaves: its answer to a request that the receiver has not sent yet.
struct HandOver {
  uint8_t connector = 0;
  std::vector<ConnectRequest::Item> items;  // as the receiver would name them
  ConnectReply reply;

  std::vector<std::byte> encode() const;
  static Result<HandOver> decode(std::span<const std::byte> bytes);
};

}  // namespace niccolite::transport
