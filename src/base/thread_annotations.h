// Clang's thread-safety annotations; nothing for other compilers. CI builds with clang's
// -Wthread-safety.
#pragma once

#if defined(__clang__) && defined(_LIBCPP_ENABLE_THREAD_SAFETY_ANNOTATIONS)
#define NICCOLITE_ANNOTATION(x) __attribute__((x))
#else
// libstdc++'s std::mutex carries no capability attribute, on which the analysis depends.
#define NICCOLITE_ANNOTATION(x)
#endif

#define GUARDED_BY(x) NICCOLITE_ANNOTATION(guarded_by(x))
#define REQUIRES(x) NICCOLITE_ANNOTATION(requires_capability(x))
#define EXCLUDES(x) NICCOLITE_ANNOTATION(locks_excluded(x))
