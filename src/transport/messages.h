// What endpoints ask each other through the bootstrap network: "give me your half of these
// connections".
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
  uint8_t connector = 0;      // Connector::Kind that the asker takes; both ends come to the same
  uint32_t device = 0;        // of the asker
  bool same_process = false;  // the asker lives in the same process
  std::vector<Item> items;
  std::vector<Address> proxy{};  // of an asker on another machine: where its proxy listens
  std::string network{};         // of its plug-in, which listens at `handle`; empty: sockets
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
  std::vector<Address> proxy{};  // to another machine, instead of items
  std::string network{};         // as in the request
  std::vector<std::byte> handle{};

  std::vector<std::byte> encode() const;
  static Result<ConnectReply> decode(std::span<const std::byte> bytes);
};

}  // namespace niccolite::transport
