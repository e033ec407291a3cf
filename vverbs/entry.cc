// Functions that need nothing of virtual NICs, and those that are refused.
#include <cerrno>
#include <cstddef>

#define REFUSED(name)     \
  extern "C" int name() { \
    errno = EOPNOTSUPP;   \
    return EOPNOTSUPP;    \
  }
#define REFUSED_POINTER(name) \
  extern "C" void* name() {   \
    errno = EOPNOTSUPP;       \
    return nullptr;           \
  }
#include "refused.def"

extern "C" {

// After a fork the child must not use its parent's NICs; memory needs no care, as the host itself
// reads and writes it.
int ibv_fork_init() { return 0; }
int ibv_is_fork_initialized() { return 2; }  // IBV_FORK_UNNEEDED
int ibv_dontfork_range(void*, size_t) { return 0; }
int ibv_dofork_range(void*, size_t) { return 0; }

// Libraries of real NICs (libmlx5, libefa), to which perftest is linked, offer their drivers:
// virtual NICs need none.
void verbs_register_driver_34(const void*) {}
}
