#include "cli/tune/least_squares.h"

#include <utility>

namespace niccolite::tune {

double encode(const Unknown& unknown, double value) {
  const double bounded = std::clamp(value, unknown.least, unknown.most);
  return unknown.is_part ? std::log(bounded / (1 - bounded)) : std::log(bounded);
}

double decode(const Unknown& unknown, double x) {
  const double value = unknown.is_part ? 1 / (1 + std::exp(-x)) : std::exp(x);
  return std::clamp(value, unknown.least, unknown.most);
}

// Gauss's elimination with pivots.
std::optional<Vector> solve(Matrix a, Vector b) {
  const size_t size = b.size();
  for (size_t column = 0; column < size; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < size; ++row)
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    if (std::abs(a[pivot][column]) < 1e-300) return std::nullopt;
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (size_t row = column + 1; row < size; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (size_t k = column; k < size; ++k) a[row][k] -= factor * a[column][k];
      b[row] -= factor * b[column];
    }
  }
  for (size_t row = size; row-- > 0;) {
    for (size_t k = row + 1; k < size; ++k) b[row] -= a[row][k] * b[k];
    b[row] /= a[row][row];
  }
  return b;
}

}  // namespace niccolite::tune
