// Reductions of single elements by their definition: in long double or 128-bit integers, slowly.
// Results are exact where the sum is; otherwise they follow numeric.h's accumulator step by step.
#pragma once

#include <cstddef>
#include <span>

#include "executor/numeric.h"

namespace niccolite::executor {

bool is_nan(DataType type, const std::byte* element);

/// The reduction of one element of each operand, in order, with the final scaling if `finish`.
void reference_reduction(DataType type, const Reduction& reduction,
                         std::span<const std::byte* const> operands, bool finish,
                         std::byte* result);

void reference_scale_input(DataType type, const Reduction& reduction, const std::byte* operand,
                           std::byte* result);

/// Stores a small whole number, or half of one, that every type but integers holds exactly
/// (integers drop the half).
void store_number(DataType type, double number, std::byte* result);

}  // namespace niccolite::executor
