// Reads ForestColl's trees: for each root spanning trees, along which its chunks go to all others.
// Thread safety: functions of values.
#pragma once

#include <string_view>

#include "importers/flow.h"

namespace niccolite::importers {

/// Does `text` look like such a file?
bool is_forestcoll_xml(std::string_view text);

/// All-gather, as the trees are; reduce-scatter, against their direction; or all-reduce, both.
/// Ranks are the nodes that are roots, in the order of their names, numbers by their value.
///
/// InvalidArgument with the line: no XML, an element or attribute that is not known, roots with
/// different numbers of chunks, a tree that is none or that leaves out a root.
Result<Flow> read_forestcoll_xml(std::string_view text, schedule::Collective collective);

}  // namespace niccolite::importers
