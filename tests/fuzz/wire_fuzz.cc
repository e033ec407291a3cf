// Fuzzes what bootstrap and communicators read from a wire: handshake messages, frames (authentic
// ones cut at any place, and raw bytes), every message decoder, names of buffers, unique ids and
// NCCL_COMM_ID. The first byte selects the target; what a decoder accepts must survive encoding
// again.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "bootstrap/messages.h"
#include "bootstrap/unique_id.h"
#include "comm/links.h"
#include "comm/rank_info.h"
#include "comm/version.h"
#include "diagnosis/account.h"
#include "diagnosis/verdict.h"
#include "registry/buffer_messages.h"
#include "wire/frames.h"

using namespace niccolite;
using namespace niccolite::bootstrap;
using namespace niccolite::wire;

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

template <typename Message>
void decode(std::span<const std::byte> bytes) {
  Reader reader(bytes, "fuzzer");
  const auto message = Message::decode(reader);
  if (!message.is_ok()) return;
  const Bytes again = message.value().encode();
  // Behind the type byte, which the caller of a decoder has read; a ProcessEntry has none.
  const size_t skip = std::is_same_v<Message, messages::ProcessEntry> ? 0 : 1;
  Reader second(std::span(again).subspan(skip), "fuzzer");
  require(Message::decode(second).is_ok());
}

void frames(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const size_t piece = static_cast<size_t>(bytes[0]) + 1;
  bytes = bytes.subspan(1);
  FrameSealer sealer({});
  Bytes stream;
  for (size_t at = 0; at < bytes.size(); at += piece)
    sealer.seal(bytes.subspan(at, std::min(piece, bytes.size() - at)), stream);
  FrameOpener opener({}, 4096);
  size_t received = 0;
  for (size_t at = 0; at < stream.size(); at += 13) {
    opener.feed(std::span(stream).subspan(at, std::min<size_t>(13, stream.size() - at)));
    while (true) {
      auto frame = opener.next();
      require(frame.is_ok());
      if (!frame->has_value()) break;
      require(std::memcmp((*frame)->data(), bytes.data() + received, (*frame)->size()) == 0);
      received += (*frame)->size();
    }
  }
  require(received == bytes.size());
  FrameOpener raw({}, 4096);
  raw.feed(bytes);
  while (true) {
    auto frame = raw.next();
    if (!frame.is_ok() || !frame->has_value()) break;
  }
}

void handshakes(std::span<const std::byte> bytes) {
  require(authentication::initialize().is_ok());
  authentication::Handshake acceptor({.key = {}, .number = 0}), initiator({.key = {}, .number = 1});
  if (bytes.size() >= authentication::kHelloBytes)
    acceptor.answer_hello(bytes.first<authentication::kHelloBytes>())
        .ignore("any outcome but a crash");
  initiator.make_hello(0);
  if (bytes.size() >= authentication::kReplyBytes)
    require(!initiator.check_reply(bytes.first<authentication::kReplyBytes>()).is_ok());
  if (bytes.size() >= authentication::kProofBytes)
    require(!acceptor.check_proof(bytes.first<authentication::kProofBytes>()).is_ok());
}

void ids(std::span<const std::byte> bytes) {
  if (bytes.size() >= UniqueId::kBytes) {
    const auto id = UniqueId::parse(bytes.first<UniqueId::kBytes>());
    if (id.is_ok())
      require(std::memcmp(id.value().bytes().data(), bytes.data(), UniqueId::kBytes) == 0);
  }
}

void contributions(std::span<const std::byte> bytes) {
  Reader reader(bytes, "fuzzer");
  const auto list = messages::decode_contributions(reader);
  if (list.is_ok()) require(messages::encode_contributions(list.value()).size() == bytes.size());
}

/// Behind the version and the fingerprint, which a fuzzer would not hit.
void rank_infos(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const int rank = std::to_integer<int>(bytes[0]) % 2;
  comm::RankInfo known;
  known.version = comm::kVersionCode;
  known.fingerprint = planner::fingerprint();
  Bytes message = comm::encode(known);
  constexpr size_t kHead = 4 + 4 + sizeof(planner::Fingerprint);
  message.resize(kHead);
  message.insert(message.end(), bytes.begin() + 1, bytes.end());
  const auto info = comm::decode(message, rank, 4);
  if (info.is_ok()) require(comm::decode(comm::encode(info.value()), rank, 4).is_ok());
  comm::decode(bytes, rank, 4).status().ignore("any outcome but a crash");
}

void links(std::span<const std::byte> bytes) {
  comm::decode_links(bytes, 1, 2, 8).status().ignore("any outcome but a crash");
}

void accounts(std::span<const std::byte> bytes) {
  const auto account = diagnosis::Account::decode(bytes, 1);
  if (account.is_ok()) require(diagnosis::Account::decode(account.value().encode(), 1).is_ok());
}

void verdicts(std::span<const std::byte> bytes) {
  const auto verdict = diagnosis::Verdict::decode(bytes, 4);
  if (verdict.is_ok()) require(diagnosis::Verdict::decode(verdict.value().encode(), 4).is_ok());
}

void buffers(std::span<const std::byte> bytes) {
  const auto request = registry::MapRequest::decode(bytes, "fuzzer");
  if (request.is_ok())
    require(registry::MapRequest::decode(request.value().encode(), "fuzzer").is_ok());
  registry::MapAnswer::decode(bytes, "fuzzer").status().ignore("any outcome but a crash");
  registry::decode_unmap(bytes, "fuzzer").status().ignore("any outcome but a crash");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  constexpr void (*kTargets[])(std::span<const std::byte>) = {frames,
                                                              handshakes,
                                                              ids,
                                                              contributions,
                                                              rank_infos,
                                                              links,
                                                              accounts,
                                                              buffers,
                                                              decode<messages::Join>,
                                                              decode<messages::Assignment>,
                                                              decode<messages::Refused>,
                                                              decode<messages::Failed>,
                                                              decode<messages::ProcessEntry>,
                                                              decode<messages::Gather>,
                                                              decode<messages::GatherAbsent>,
                                                              decode<messages::Data>,
                                                              decode<messages::Request>,
                                                              decode<messages::Response>,
                                                              decode<messages::Left>,
                                                              decode<messages::InGroup>,
                                                              decode<messages::Survive>,
                                                              decode<messages::Lost>,
                                                              decode<messages::Awaited>,
                                                              verdicts};
  kTargets[data[0] % std::size(kTargets)](bytes);
  return 0;
}
