#include "base/product_version.h"

namespace niccolite {

const char* const kProductVersion = NICCOLITE_PRODUCT_VERSION;

}  // namespace niccolite
