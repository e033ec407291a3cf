#include "importers/forestcoll_xml.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <pugixml.hpp>
#include <string>
#include <utility>
#include <vector>

#include "schedule/index.h"

namespace niccolite::importers {
namespace {

using schedule::at;
using schedule::Buffer;
using schedule::Collective;
using schedule::length;

constexpr int kMostRanks = 1024;
constexpr int kMostChunks = 1 << 12;    // of a rank
constexpr size_t kMostMoves = 1 << 21;  // of chunks

/// A name as people order it: "(0, 'GPU', 9)" before "(0, 'GPU', 10)".
std::vector<std::pair<long, std::string>> parts_of(std::string_view name) {
  std::vector<std::pair<long, std::string>> parts;
  for (size_t i = 0; i < name.size();) {
    const bool is_digit = name[i] >= '0' && name[i] <= '9';
    size_t end = i + 1;
    while (end < name.size() && (name[end] >= '0' && name[end] <= '9') == is_digit) ++end;
    long number = -1;
    if (is_digit) std::from_chars(name.data() + i, name.data() + end, number);
    parts.emplace_back(number, is_digit ? std::string() : std::string(name.substr(i, end - i)));
    i = end;
  }
  return parts;
}

struct Tree {
  int root;
  int chunks;
  int line;
  std::vector<std::pair<int, int>> sends{};  // in an order in which a sender already has its chunk
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Flow> read(Collective collective) {
    const pugi::xml_parse_result parsed = document_.load_buffer(text_.data(), text_.size());
    if (!parsed)
      return Status::invalid_argument("line {}: {}", line_at(parsed.offset), parsed.description());
    if (collective != Collective::AllGather && collective != Collective::ReduceScatter &&
        collective != Collective::AllReduce)
      return Status::invalid_argument(
          "ForestColl's trees are for all_gather, reduce_scatter or all_reduce, not {}",
          name_of(collective));
    const pugi::xml_node top = document_.document_element();
    chunks_ = TRY(number(top, "nchunkspernode", kMostChunks));
    TRY(find_ranks(top));
    for (const pugi::xml_node& tree : top.children()) TRY(read_tree(tree));
    for (int rank = 0; rank < length(used_); ++rank)
      if (at(used_, rank) != chunks_)
        return refuse(top, fmt::format("the trees of gpu {} have {} chunks, not {}", rank,
                                       at(used_, rank), chunks_));
    return make(collective);
  }

 private:
  int line_at(ptrdiff_t offset) const {
    const auto end =
        text_.begin() + std::clamp<ptrdiff_t>(offset, 0, static_cast<ptrdiff_t>(text_.size()));
    return 1 + static_cast<int>(std::count(text_.begin(), end, '\n'));
  }
  Status refuse(const pugi::xml_node& node, std::string_view what) const {
    return Status::invalid_argument("line {}: {}", line_at(node.offset_debug()), what);
  }
  Result<int> number(const pugi::xml_node& node, const char* name, int most) const {
    const std::string_view text = node.attribute(name).value();
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most)
      return refuse(node, fmt::format("{} is \"{}\", and must be a whole number from 1 to {}", name,
                                      text, most));
    return value;
  }

  Status find_ranks(const pugi::xml_node& top) {
    std::vector<std::string> names;
    for (const pugi::xml_node& tree : top.children()) {
      if (std::strcmp(tree.name(), "tree") != 0)
        return refuse(tree, fmt::format("<{}> is not known in <Algo>", tree.name()));
      names.emplace_back(tree.attribute("root").value());
    }
    std::ranges::sort(names, {}, [](const std::string& name) { return parts_of(name); });
    names.erase(std::unique(names.begin(), names.end()), names.end());
    if (names.empty() || length(names) > kMostRanks)
      return refuse(top, fmt::format("{} roots; 1 to {} are possible", names.size(), kMostRanks));
    for (const std::string& name : names) ranks_.emplace(name, static_cast<int>(ranks_.size()));
    used_.resize(names.size());
    return {};
  }
  Result<int> rank_of(const pugi::xml_node& node, const char* name) const {
    const std::string text = node.attribute(name).value();
    const auto found = ranks_.find(text);
    if (found == ranks_.end())
      return refuse(node, fmt::format("{} is \"{}\", which is no root of a tree", name, text));
    return found->second;
  }

  Status read_tree(const pugi::xml_node& node) {
    Tree tree{.root = TRY(rank_of(node, "root")),
              .chunks = TRY(number(node, "nchunks", kMostChunks)),
              .line = line_at(node.offset_debug())};
    std::map<int, std::vector<int>> children;
    size_t sends = 0;
    for (const pugi::xml_node& send : node.children()) {
      if (std::strcmp(send.name(), "send") != 0)
        return refuse(send, fmt::format("<{}> is not known in <tree>", send.name()));
      children[TRY(rank_of(send, "src"))].push_back(TRY(rank_of(send, "dst")));
      ++sends;
    }
    // From the root on. Whoever is reached twice, or not at all, shows that it is no tree.
    std::vector<bool> is_reached(ranks_.size());
    is_reached[static_cast<size_t>(tree.root)] = true;
    std::vector<int> reached{tree.root};
    for (int i = 0; i < length(reached); ++i)
      for (const int child : children[at(reached, i)]) {
        if (is_reached[static_cast<size_t>(child)])
          return refuse(node, fmt::format("the tree reaches gpu {} twice", child));
        is_reached[static_cast<size_t>(child)] = true;
        tree.sends.emplace_back(at(reached, i), child);
        reached.push_back(child);
      }
    if (reached.size() != ranks_.size() || sends != tree.sends.size())
      return refuse(node, fmt::format("the tree reaches {} of {} gpus by {} sends", reached.size(),
                                      ranks_.size(), sends));
    at(used_, tree.root) += tree.chunks;
    if (at(used_, tree.root) > chunks_)
      return refuse(
          node, fmt::format("the trees of gpu {} have more than {} chunks", tree.root, chunks_));
    trees_.push_back(std::move(tree));
    return {};
  }

  Result<Flow> make(Collective collective) {
    const int n = length(used_);
    const int large = n * chunks_, small = chunks_;
    Flow flow{.name = "forestcoll",
              .layout = {.collective = collective,
                         .nranks = n,
                         .root = 0,
                         .chunks = large,
                         .is_in_place = false,
                         .input_chunks = {},
                         .output_chunks = {}}};
    flow.layout.input_chunks.assign(static_cast<size_t>(n),
                                    collective == Collective::AllGather ? small : large);
    flow.layout.output_chunks.assign(static_cast<size_t>(n),
                                     collective == Collective::ReduceScatter ? small : large);
    if (static_cast<size_t>(large) * static_cast<size_t>(n) > kMostMoves)
      return Status::invalid_argument("line 1: more than {} chunks are moved", kMostMoves);
    std::vector<int> next(static_cast<size_t>(n));  // chunk of each root
    for (const Tree& tree : trees_)
      for (int i = 0; i < tree.chunks; ++i) {
        const int own = at(next, tree.root)++;
        const int chunk = tree.root * chunks_ + own;
        if (collective != Collective::AllGather)
          add_sums(tree, chunk, collective == Collective::AllReduce ? chunk : own, flow);
        if (collective == Collective::AllGather)
          flow.moves.push_back({.operands = {{tree.root, {Buffer::Input, own}}},
                                .rank = tree.root,
                                .target = {Buffer::Output, chunk},
                                .line = tree.line});
        if (collective == Collective::ReduceScatter) continue;
        for (const auto& [from, to] : tree.sends)
          flow.moves.push_back({.operands = {{from, {Buffer::Output, chunk}}},
                                .rank = to,
                                .target = {Buffer::Output, chunk},
                                .line = tree.line});
      }
    return flow;
  }

  /// Against the tree's direction: each rank adds its own chunk and its children's sums.
  void add_sums(const Tree& tree, int chunk, int result, Flow& flow) const {
    std::map<int, std::vector<Operand>> operands;
    for (int rank = 0; rank < length(used_); ++rank)
      operands[rank] = {{rank, {Buffer::Input, chunk}}};
    const auto add = [&](int rank, const Place& target) {
      flow.moves.push_back(
          {.operands = operands[rank], .rank = rank, .target = target, .line = tree.line});
    };
    for (int i = length(tree.sends) - 1; i >= 0; --i) {
      const auto [parent, child] = at(tree.sends, i);
      const bool is_leaf = operands[child].size() == 1;
      if (!is_leaf) add(child, {Buffer::Scratch, chunk});
      operands[parent].push_back(
          {child, is_leaf ? Place{Buffer::Input, chunk} : Place{Buffer::Scratch, chunk}});
    }
    add(tree.root, {Buffer::Output, result});
  }

  std::string_view text_;
  pugi::xml_document document_;
  int chunks_ = 0;                    // of a rank
  std::map<std::string, int> ranks_;  // by name
  std::vector<int> used_;             // chunks of trees, by root
  std::vector<Tree> trees_;
};

}  // namespace

bool is_forestcoll_xml(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  return first != std::string_view::npos && text[first] == '<' &&
         text.find("<Algo") != std::string_view::npos;
}

Result<Flow> read_forestcoll_xml(std::string_view text, Collective collective) {
  return Reader(text).read(collective);
}

}  // namespace niccolite::importers
