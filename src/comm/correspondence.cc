#include "comm/correspondence.h"

#include "base/log.h"

namespace niccolite::comm {

std::vector<Result<Bytes>> Correspondence::ask(Question question,
                                               std::span<const bootstrap::Query> queries,
                                               const Deadline& deadline,
                                               bootstrap::Patience patience) {
  std::vector<Bytes> messages;
  std::vector<bootstrap::Query> questions;
  for (const bootstrap::Query& query : queries) {
    Writer writer;
    writer.u8(static_cast<uint8_t>(question));
    writer.raw(query.message);
    messages.push_back(std::move(writer).take());
    questions.push_back({.peer = query.peer, .message = messages.back()});
  }
  return member_->request(questions, deadline, patience);
}

Result<Bytes> Correspondence::ask(Question question, int peer, std::span<const std::byte> message,
                                  const Deadline& deadline, bootstrap::Patience patience) {
  const bootstrap::Query query{.peer = peer, .message = message};
  return std::move(ask(question, {&query, 1}, deadline, patience).front());
}

bool Correspondence::tell(int peer, Question question, std::span<const std::byte> message) {
  Writer writer;
  writer.u8(static_cast<uint8_t>(question));
  writer.raw(message);
  const Status told = member_->notify(peer, writer.bytes());
  if (!told.is_ok()) LOG(Info, Init, "{} cannot tell rank {}: {}", name_, peer, told.message());
  return told.is_ok();
}

void Correspondence::tell_failure(int peer, const Status& status) {
  Writer writer;
  writer.u8(static_cast<uint8_t>(status.code()));
  writer.text(status.message().substr(0, kMostText));
  tell(peer, Question::Fail, writer.bytes());
}

Status Correspondence::agree(const Status& mine) {
  if (member_ == nullptr) return mine.copy();
  Writer writer;
  writer.u8(static_cast<uint8_t>(mine.code()));
  writer.text(mine.message().substr(0, kMostText));
  const bootstrap::Gathered of_all = TRY(member_->all_gather(writer.bytes(), Deadline::never()));
  for (int peer = 0; peer < static_cast<int>(of_all.size()); ++peer) {
    Reader reader(of_all[peer], "the readiness of a rank");
    const uint8_t code = reader.u8();
    const std::string text = reader.text(kMostText);
    if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown code");
    TRY(reader.finish().with_context("rank {}", peer));
    if (code != static_cast<uint8_t>(Code::Ok))
      return Status::error(static_cast<Code>(code), "rank {}: {}", peer, text);
  }
  return {};
}

}  // namespace niccolite::comm
