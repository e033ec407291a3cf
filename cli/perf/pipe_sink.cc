#include "cli/perf/pipe_sink.h"

#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/perf/row_json.h"

namespace niccolite::perf {

using nlohmann::json;

void PipeSink::start(const Start& start) { send({{"start", to_json(start)}}); }
void PipeSink::row(const Row& row) { send({{"row", to_json(row)}}); }
void PipeSink::memory(const std::vector<MemoryUse>& uses) {
  json values = json::array();
  for (const MemoryUse& use : uses) values.push_back(to_json(use));
  send({{"memory", values}});
}
void PipeSink::failure(const std::string& message) { send({{"failure", message}}); }

void PipeSink::send(const json& message) {
  const std::string line = message.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t n = write(fd_, line.data() + sent, line.size() - sent);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) sent += static_cast<size_t>(n);
  }
}

}  // namespace niccolite::perf
