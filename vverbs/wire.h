// What two queue pairs say to each other: a greeting, then requests one way and replies the other.
// Datagrams have a connection from context to context, and go one way: a greeting, then headers
// with their data. Both ends are this library in one version (kMagic), on machines of one byte
// order.
#pragma once

#include <cstdint>

namespace vverbs {

constexpr uint32_t kMagic = 0x76766231;

struct Greeting {
  uint32_t magic;
  uint32_t to;    // number of the responder's queue pair; 0: datagrams follow, and no welcome
  uint32_t from;  // number of the requester's
  uint32_t psn;
};

struct Welcome {
  uint32_t magic;
  uint32_t accepted;
  uint64_t expected;  // the first message that the responder has not executed
};

struct RequestHeader {
  uint32_t opcode;  // ibv_wr_opcode
  uint32_t imm;
  uint32_t rkey;
  uint32_t solicited;
  uint64_t seq;
  uint64_t addr;
  uint64_t bytes;
  uint64_t compare_add;
  uint64_t swap;
};

enum class ReplyKind : uint32_t {
  Ack,
  Data,
  NotReady,
  AccessError,
  InvalidRequest,
  OperationError
};

struct ReplyHeader {
  ReplyKind kind;
  uint32_t timer;  // of NotReady: the responder's min_rnr_timer
  uint64_t seq;    // all before it are executed
  uint64_t bytes;  // of Data, which follow
};

enum DatagramFlags : uint32_t { kHasImm = 1, kIsSolicited = 2, kIsRoceV2 = 4 };

struct DatagramHeader {
  uint32_t to;  // numbers of queue pairs
  uint32_t from;
  uint32_t qkey;
  uint32_t imm;
  uint32_t flags;
  uint32_t flow_label;
  uint8_t traffic_class;
  uint8_t hop_limit;
  uint8_t service_level;
  uint8_t unused;
  uint32_t bytes;  // at most kMtu, which follow
  uint8_t from_gid[16];
  uint8_t to_gid[16];
};

}  // namespace vverbs
