#include "registry/vote.h"

#include <string>
#include <string_view>

#include "base/wait.h"
#include "base/wire.h"
#include "registry/window_part.h"

namespace niccolite::registry {

Status vote(bootstrap::Member* member, const Status& mine) {
  if (member == nullptr) return mine.copy();
  constexpr uint32_t kMark = 0x67696e77;  // other collective calls begin otherwise
  Writer writer;
  writer.u32(kMark);
  writer.u8(static_cast<uint8_t>(mine.code()));
  writer.text(std::string_view(mine.message()).substr(0, WindowPart::kMostText));
  const bootstrap::Gathered gathered = TRY(member->all_gather(writer.bytes(), Deadline::never()));
  TRY(mine.copy());
  for (int peer = 0; peer < member->nranks(); ++peer) {
    const std::string origin = fmt::format("rank {}", peer);
    Reader reader(gathered[peer], origin);
    if (reader.u32() != kMark) reader.reject("another collective call");
    const uint8_t code = reader.u8();
    const std::string text = reader.text(WindowPart::kMostText);
    if (code > static_cast<uint8_t>(Code::RemoteError)) reader.reject("an unknown failure");
    TRY(reader.finish());
    if (code != 0) return Status::error(static_cast<Code>(code), "rank {}: {}", peer, text);
  }
  return {};
}

}  // namespace niccolite::registry
