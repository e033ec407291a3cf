#include "importers/teccl_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "base/json.h"
#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using json::Kind;
using Json = json::Value;
using schedule::at;
using schedule::Buffer;
using schedule::Collective;
using schedule::length;

constexpr size_t kMostRanks = 1024;
constexpr int kMostChunks = 1 << 12;    // of a rank
constexpr size_t kMostMoves = 1 << 21;  // of parts of chunks
constexpr int kMostParts = 16;          // of a chunk
constexpr double kTolerance = 1e-3;     // of volumes, which are written with six digits

/// Numbers and words of a sentence, from left to right.
class Sentence {
 public:
  explicit Sentence(std::string_view text) : rest_(text) {}
  bool skip(std::string_view words) {
    if (!rest_.starts_with(words)) return false;
    rest_.remove_prefix(words.size());
    return true;
  }
  template <typename T>
  bool read(T& number) {
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return error == std::errc();
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

struct Hop {
  int from, to;  // nodes
  int epoch;
};
struct Path {
  std::vector<Hop> hops;
  double volume;  // of the chunk
  int parts = 0;
};
struct Demand {
  int source, chunk, target;  // source and target: nodes, then ranks
  int line;
  std::vector<Path> paths{};
};

class Reader {
 public:
  Result<TecclSolution> read(std::string_view text) {
    const Json document = TRY(json::parse(text));
    if (document.kind != Kind::Object) return refuse(document, "no object");
    const Json* const paths = find_by_end(document, "hunk paths");
    if (paths == nullptr || paths->kind != Kind::Object)
      return refuse(document, "the solution has no object \"Chunk paths\"");
    if (paths->members.empty()) return refuse(*paths, "nobody demands a chunk");
    for (const json::Member& member : paths->members) TRY(read_demand(member));
    TRY(number_ranks(*paths));
    TRY(find_collective(*paths));
    split();
    Flow flow = TRY(make(*paths));
    return TecclSolution{.flow = std::move(flow), .about = about(document)};
  }

 private:
  static const Json* find_by_end(const Json& object, std::string_view end) {
    for (const json::Member& member : object.members)
      if (member.name.ends_with(end)) return &member.value;
    return nullptr;
  }

  Status read_demand(const json::Member& member) {
    Demand demand{.source = 0, .chunk = 0, .target = 0, .line = member.value.line};
    int epoch = 0;
    Sentence words(member.name);
    if (!(words.skip("Demand at ") && words.read(demand.target) && words.skip(" for chunk ") &&
          words.read(demand.chunk) && words.skip(" from ") && words.read(demand.source) &&
          words.skip(" met by epoch ") && words.read(epoch) && words.is_at_end()))
      return refuse(member.value,
                    fmt::format("\"{}\" is not \"Demand at <gpu> for chunk <number> from <gpu> met "
                                "by epoch <number>\"",
                                member.name));
    if (demand.chunk < 0 || demand.chunk >= kMostChunks)
      return refuse(member.value,
                    fmt::format("chunk {} is not from 0 to {}", demand.chunk, kMostChunks - 1));
    if (demand.source == demand.target)
      return refuse(member.value, fmt::format("gpu {} demands its own chunk", demand.source));
    const Json& met = member.value;
    if (met.kind != Kind::Array || met.items.empty())
      return refuse(met, "nothing meets the demand");
    // One path of texts, or several of [epoch, text].
    if (met.items.front().kind == Kind::Text) {
      demand.paths.push_back(TRY(read_path(met, demand)));
    } else {
      for (const Json& path : met.items) demand.paths.push_back(TRY(read_path(path, demand)));
    }
    double sum = 0;
    for (const Path& path : demand.paths) sum += path.volume;
    if (std::abs(sum - 1) > kTolerance)
      return refuse(met, fmt::format("the volumes of its paths add up to {:.6g}, not 1", sum));
    demands_.push_back(std::move(demand));
    return {};
  }

  static Result<Path> read_path(const Json& list, const Demand& demand) {
    if (list.kind != Kind::Array || list.items.empty())
      return refuse(list, "a path must be a list of hops");
    Path path{.hops = {}, .volume = 1};
    int place = demand.source;
    for (const Json& item : list.items) {
      const bool has_epoch = item.kind == Kind::Array && item.items.size() == 2;
      const Json& text = has_epoch ? item.items[1] : item;
      if (text.kind != Kind::Text) return refuse(item, "a hop must be a text");
      Hop hop{};
      double volume = 1;
      if (!read_hop(text.text, hop, volume))
        return refuse(text, fmt::format("\"{}\" is not \"<node>-><node> [with volume <number>] in "
                                        "epoch <number> [via switches ...]\"",
                                        text.text));
      if (hop.from != place)
        return refuse(text, fmt::format("the chunk is at {}, and leaves {}", place, hop.from));
      if (!(volume > 0 && volume <= 1 + kTolerance))
        return refuse(text, fmt::format("volume {} is not above 0 and at most 1", volume));
      place = hop.to;
      path.volume = std::min(path.volume, volume);
      path.hops.push_back(hop);
    }
    if (place != demand.target)
      return refuse(
          list, fmt::format("the path ends at {}, and {} demands the chunk", place, demand.target));
    return path;
  }
  static bool read_hop(std::string_view text, Hop& hop, double& volume) {
    Sentence words(text);
    if (!(words.read(hop.from) && words.skip("->") && words.read(hop.to))) return false;
    if (words.skip(" with volume ") && !words.read(volume)) return false;
    return words.skip(" in epoch ") && words.read(hop.epoch) &&
           (words.is_at_end() || words.skip(" via switches "));
  }

  /// Nodes become ranks.
  Status number_ranks(const Json& paths) {
    std::set<int> nodes;
    for (const Demand& demand : demands_) nodes.insert(demand.source);
    if (nodes.size() < 2 || nodes.size() > kMostRanks)
      return refuse(paths, fmt::format("chunks come from {} gpus; 2 to {} are possible",
                                       nodes.size(), kMostRanks));
    std::map<int, int> ranks;
    for (const int node : nodes) ranks.emplace(node, length(ranks));
    nranks_ = length(ranks);
    for (Demand& demand : demands_) {
      const auto rename = [&](int& node) -> Status {
        const auto known = ranks.find(node);
        if (known == ranks.end())
          return Status::invalid_argument(
              "line {}: node {} has no chunk of its own: it is a switch, and must be in \"via "
              "switches\"",
              demand.line, node);
        node = known->second;
        return {};
      };
      TRY(rename(demand.source));
      TRY(rename(demand.target));
      for (Path& path : demand.paths)
        for (Hop& hop : path.hops) {
          TRY(rename(hop.from));
          TRY(rename(hop.to));
        }
    }
    return {};
  }

  Status find_collective(const Json& paths) {
    std::map<std::pair<int, int>, int> takers;  // of a chunk of a source
    std::map<std::pair<int, int>, int> counts;  // chunks for a target of a source
    std::map<int, int> chunks;                  // of a source
    for (const Demand& demand : demands_) {
      int& number = takers[{demand.source, demand.chunk}];
      if (number++ == 0) ++chunks[demand.source];
      ++counts[{demand.source, demand.target}];
    }
    const int first = takers.begin()->second;
    const auto has = [](const auto& map, int value) {
      return std::ranges::all_of(map, [&](const auto& entry) { return entry.second == value; });
    };
    chunks_ = counts.begin()->second;
    const bool is_whole = length(counts) == nranks_ * (nranks_ - 1) && has(counts, chunks_);
    if (is_whole && has(takers, nranks_ - 1) && has(chunks, chunks_))
      collective_ = Collective::AllGather;
    else if (is_whole && has(takers, 1))
      collective_ = Collective::AllToAll;
    else
      return refuse(
          paths,
          fmt::format("neither an all-gather nor an all-to-all of {} gpus: each chunk of a "
                      "gpu has to be demanded by all others, or by one, and each gpu has to "
                      "demand equally many of each other (chunk {} of gpu {} is demanded by "
                      "{})",
                      nranks_, takers.begin()->first.second, takers.begin()->first.first, first));
    // Numbers from 0, among the chunks of the source or, all-to-all, those for the target.
    std::ranges::stable_sort(demands_, {}, [](const Demand& demand) {
      return std::tuple(demand.source, demand.target, demand.chunk);
    });
    for (int i = 0; i < length(demands_); ++i) at(demands_, i).chunk = i % chunks_;
    return {};
  }

  /// How many parts a chunk has, and how many of them each path.
  void split() {
    for (parts_ = 1; parts_ <= kMostParts; ++parts_)
      if (std::ranges::all_of(demands_, [&](const Demand& demand) { return are_whole(demand); }))
        break;
    is_rounded_ = parts_ > kMostParts;
    parts_ = std::min(parts_, kMostParts);
    for (Demand& demand : demands_) {
      int left = parts_;
      for (Path& path : demand.paths) {
        path.parts = static_cast<int>(path.volume * parts_ + kTolerance);
        left -= path.parts;
      }
      const auto lacks = [&](const Path& path) { return path.volume * parts_ - path.parts; };
      for (; left > 0; --left) ++std::ranges::max_element(demand.paths, {}, lacks)->parts;
    }
  }
  bool are_whole(const Demand& demand) const {
    return std::ranges::all_of(demand.paths, [&](const Path& path) {
      const double parts = path.volume * parts_;
      return std::abs(parts - std::round(parts)) <= kTolerance;
    });
  }

  int part_of(const Demand& demand, int rank, int part) const {
    return (rank * chunks_ + demand.chunk) * parts_ + part;
  }

  Result<Flow> make(const Json& paths) {
    const bool gathers = collective_ == Collective::AllGather;
    const int large = nranks_ * chunks_ * parts_, small = chunks_ * parts_;
    Flow flow{.name = "teccl",
              .layout = {.collective = collective_,
                         .nranks = nranks_,
                         .root = 0,
                         .chunks = large,
                         .is_in_place = false,
                         .input_chunks = {},
                         .output_chunks = {}}};
    flow.layout.input_chunks.assign(static_cast<size_t>(nranks_), gathers ? small : large);
    flow.layout.output_chunks.assign(static_cast<size_t>(nranks_), large);
    size_t moves = static_cast<size_t>(nranks_) * static_cast<size_t>(small);
    for (const Demand& demand : demands_)
      for (const Path& path : demand.paths)
        moves += path.hops.size() * static_cast<size_t>(path.parts);
    if (moves > kMostMoves)
      return refuse(paths, fmt::format("more than {} parts of chunks are moved", kMostMoves));
    for (int rank = 0; rank < nranks_; ++rank)
      for (int own = 0; own < small; ++own)
        flow.moves.push_back(
            {.operands = {{rank, {Buffer::Input, gathers ? own : rank * small + own}}},
             .rank = rank,
             .target = {Buffer::Output, rank * small + own},
             .line = paths.line});
    if (gathers)
      gather(flow);
    else
      exchange(flow);
    return flow;
  }

  template <typename Function>
  static void for_each_part(const Demand& demand, Function&& function) {
    int part = 0;
    for (const Path& path : demand.paths)
      for (int i = 0; i < path.parts; ++i) function(path, part++);
  }

  /// Paths of several demands share their first hops: a rank gets a part on the earliest one only.
  void gather(Flow& flow) const {
    struct Edge {
      Hop hop;
      int line;
    };
    std::map<int, std::vector<Edge>> edges;  // by place in the output
    for (const Demand& demand : demands_)
      for_each_part(demand, [&](const Path& path, int part) {
        for (const Hop& hop : path.hops)
          edges[part_of(demand, demand.source, part)].push_back({hop, demand.line});
      });
    for (auto& [chunk, of_chunk] : edges) {
      std::ranges::stable_sort(of_chunk, {}, [](const Edge& edge) { return edge.hop.epoch; });
      std::vector<char> has(static_cast<size_t>(nranks_));
      at(has, chunk / (chunks_ * parts_)) = true;
      // Once is enough where epochs ascend along each path.
      for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (const auto& [hop, line] : of_chunk) {
          if (!at(has, hop.from) || at(has, hop.to)) continue;
          at(has, hop.to) = has_moved = true;
          flow.moves.push_back({.operands = {{hop.from, {Buffer::Output, chunk}}},
                                .rank = hop.to,
                                .target = {Buffer::Output, chunk},
                                .line = line});
        }
      }
    }
  }

  /// Each part goes its own way, through the scratch memory of the ranks between.
  void exchange(Flow& flow) const {
    for (const Demand& demand : demands_)
      for_each_part(demand, [&](const Path& path, int part) {
        Operand held{demand.source, {Buffer::Input, part_of(demand, demand.target, part)}};
        const int name = demand.source * flow.layout.chunks + part_of(demand, demand.target, part);
        for (const Hop& hop : path.hops) {
          const Place target = &hop == &path.hops.back()
                                   ? Place{Buffer::Output, part_of(demand, demand.source, part)}
                                   : Place{Buffer::Scratch, name};
          flow.moves.push_back(
              {.operands = {held}, .rank = hop.to, .target = target, .line = demand.line});
          held = {hop.to, target};
        }
      });
  }

  std::string about(const Json& document) const {
    std::string about = "TE-CCL solution";
    const Json* const time = find_by_end(document, "Collective_Finish_Time");
    if (time != nullptr && time->kind == Kind::Number)
      about += fmt::format(" that predicts {:.4g} us", time->number * 1e6);
    if (parts_ > 1)
      about += fmt::format(", chunks split into {} parts{}", parts_,
                           is_rounded_ ? ", to which its volumes are rounded" : "");
    return about;
  }

  std::vector<Demand> demands_;
  int nranks_ = 0;
  Collective collective_ = Collective::AllGather;
  int chunks_ = 0;  // of a rank; all-to-all: for each rank
  int parts_ = 1;   // of a chunk
  bool is_rounded_ = false;
};

}  // namespace

Result<TecclSolution> read_teccl_json(std::string_view text) { return Reader().read(text); }

bool is_teccl_json(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  return first != std::string_view::npos && text[first] == '{' &&
         text.find("-Flows\"") != std::string_view::npos;
}

}  // namespace niccolite::importers
