#include "importers/import.h"

#include <fmt/core.h>

#include "importers/forestcoll_xml.h"
#include "importers/msccl_xml.h"
#include "importers/mscclpp_json.h"
#include "importers/teccl_json.h"

namespace niccolite::importers {
namespace {

std::string about_flow(std::string_view format, const Flow& flow) {
  return fmt::format("{}: {} moves of chunks, {} chunks{}", format, flow.moves.size(),
                     flow.layout.chunks, flow.layout.is_in_place ? ", in place" : "");
}

/// A member of the document that no schedule file has.
bool has_member(std::string_view text, std::string_view quoted) {
  return text.find(quoted) != std::string_view::npos &&
         text.find("\"niccolite schedule") == std::string_view::npos;
}
bool is_mscclpp(std::string_view text) { return has_member(text, "\"gpus\""); }

Result<Foreign> import_flow(std::string_view format, Result<Flow> flow) {
  TRY(flow.status().copy());
  return Foreign{.file = TRY(to_schedule(flow.value())), .about = about_flow(format, flow.value())};
}

Result<Foreign> import_msccl(std::string_view text) {
  const Program program = TRY(read_msccl_xml(text));
  Imported imported = TRY(to_schedule(program));
  std::string about = fmt::format(
      "MSCCL XML: {} thread blocks, {} steps, {} chunks{}; as it is written, its FIFOs need {} "
      "slot{}",
      imported.thread_blocks, imported.steps, program.chunks,
      program.is_in_place ? ", in place" : "", imported.fifo_depth,
      imported.fifo_depth == 1 ? "" : "s");
  return Foreign{.file = std::move(imported.file), .about = std::move(about)};
}

}  // namespace

bool is_foreign(std::string_view text) {
  return is_msccl_xml(text) || is_mscclpp(text) || is_teccl_json(text);
}

bool says_no_collective(std::string_view text) { return is_forestcoll_xml(text); }

Result<Foreign> import(std::string_view text, std::optional<schedule::Collective> collective) {
  if (is_forestcoll_xml(text))
    return import_flow(
        "ForestColl trees",
        read_forestcoll_xml(text, collective.value_or(schedule::Collective::AllGather)));
  if (is_msccl_xml(text)) return import_msccl(text);
  if (is_teccl_json(text)) {
    TecclSolution solution = TRY(read_teccl_json(text));
    return import_flow(solution.about, std::move(solution.flow));
  }
  return import_flow("MSCCL++ plan", read_mscclpp_json(text));
}

}  // namespace niccolite::importers
