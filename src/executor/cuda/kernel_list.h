// The kernels that run launches, each named once: nvcc compiles them (copy_kernels.cu,
// reduce_kernels.cu), and kernels.cc looks for them by the same names when a GPU loads them. The
// list is of macros alone: nothing of what a kernel does is looked at where it is only named.
//
// X(name, variant, protocol, most_peers, in_host, Args, what it does ...): the kernel
// niccolite_<name> of KernelId{.protocol, .variant, .most_peers, .in_host}, with parameters `args`
// of the type Args. What it does may have commas. An operation is named by `WHAT`, as float32_sum,
// and moved by `Operation`.
#pragma once

#define NICCOLITE_KERNELS_OF_PEERS(X, WHAT, Operation, peers)                                    \
  X(direct_##WHAT##_##peers, Direct, LL, peers, false, LaunchArgs,                               \
    run_direct<Operation, peers, /*kSendsEach=*/false>(args))                                    \
  X(direct_each_##WHAT##_##peers, DirectEach, LL, peers, false, LaunchArgs,                      \
    run_direct<Operation, peers, /*kSendsEach=*/true>(args))                                     \
  X(list_##WHAT##_##peers, List, LL, peers, false, LaunchArgs, run_list<Operation, peers>(args)) \
  X(direct_list_##WHAT##_##peers, DirectList, LL, peers, false, ListArgs,                        \
    run_direct_list<Operation, peers>(args))                                                     \
  X(phases_##WHAT##_##peers, Phases, LL128, peers, false, LaunchArgs,                            \
    PhaseKernel<Operation, peers>(args).run())

/// Of a reduction of one type.
#define NICCOLITE_REDUCE_KERNELS(X, WHAT, Operation)                                               \
  NICCOLITE_KERNELS_OF_PEERS(X, WHAT, Operation, 3)                                                \
  NICCOLITE_KERNELS_OF_PEERS(X, WHAT, Operation, 7)                                                \
  X(direct_##WHAT##_3_in_host, Direct, LL, 3, true, LaunchArgs,                                    \
    run_direct<Operation, 3, /*kSendsEach=*/false, /*kInHost=*/true>(args))                        \
  X(direct_each_##WHAT##_3_in_host, DirectEach, LL, 3, true, LaunchArgs,                           \
    run_direct<Operation, 3, /*kSendsEach=*/true, /*kInHost=*/true>(args))                         \
  X(run_##WHAT##_ll, Program, LL, 0, false, LaunchArgs, run_kernel<Operation, Protocol::LL>(args)) \
  X(run_##WHAT##_ll_in_host, Program, LL, 0, true, LaunchArgs,                                     \
    run_kernel<Operation, Protocol::LL, /*kHasRelays=*/true>(args))                                \
  X(run_##WHAT##_ll128, Program, LL128, 0, false, LaunchArgs,                                      \
    run_kernel<Operation, Protocol::LL128>(args))                                                  \
  X(run_##WHAT##_simple, Program, Simple, 0, false, LaunchArgs,                                    \
    run_kernel<Operation, Protocol::Simple>(args))

/// Of those that only move bytes, the ones that messages have: they may run beside the one before
/// them (awaits_last()).
#define NICCOLITE_COPY_KERNELS_BESIDE(X, Operation)                                            \
  X(messages, Messages, LL, 1, false, LaunchArgs, run_messages</*kInHost=*/false>(args))       \
  X(messages_in_host, Messages, LL, 1, true, LaunchArgs, run_messages</*kInHost=*/true>(args)) \
  X(copy_ll, Program, LL, 0, false, LaunchArgs, run_kernel<Operation, Protocol::LL>(args))     \
  X(copy_ll_in_host, Program, LL, 0, true, LaunchArgs,                                         \
    run_kernel<Operation, Protocol::LL, /*kHasRelays=*/true>(args))                            \
  X(copy_ll128, Program, LL128, 0, false, LaunchArgs,                                          \
    run_kernel<Operation, Protocol::LL128>(args))                                              \
  X(copy_simple, Program, Simple, 0, false, LaunchArgs,                                        \
    run_kernel<Operation, Protocol::Simple>(args))                                             \
  X(direct_copy_3, Direct, LL, 3, false, LaunchArgs,                                           \
    run_direct<Operation, 3, /*kSendsEach=*/false>(args))                                      \
  X(direct_copy_7, Direct, LL, 7, false, LaunchArgs,                                           \
    run_direct<Operation, 7, /*kSendsEach=*/false>(args))                                      \
  X(direct_each_copy_3, DirectEach, LL, 3, false, LaunchArgs,                                  \
    run_direct<Operation, 3, /*kSendsEach=*/true>(args))                                       \
  X(direct_each_copy_7, DirectEach, LL, 7, false, LaunchArgs,                                  \
    run_direct<Operation, 7, /*kSendsEach=*/true>(args))                                       \
  X(direct_copy_3_in_host, Direct, LL, 3, true, LaunchArgs,                                    \
    run_direct<Operation, 3, /*kSendsEach=*/false, /*kInHost=*/true>(args))                    \
  X(direct_each_copy_3_in_host, DirectEach, LL, 3, true, LaunchArgs,                           \
    run_direct<Operation, 3, /*kSendsEach=*/true, /*kInHost=*/true>(args))
/// And the others.
#define NICCOLITE_COPY_KERNELS(X, Operation)                                                     \
  X(list_copy_3, List, LL, 3, false, LaunchArgs, run_list<Operation, 3>(args))                   \
  X(list_copy_7, List, LL, 7, false, LaunchArgs, run_list<Operation, 7>(args))                   \
  X(direct_list_copy_3, DirectList, LL, 3, false, ListArgs, run_direct_list<Operation, 3>(args)) \
  X(direct_list_copy_7, DirectList, LL, 7, false, ListArgs, run_direct_list<Operation, 7>(args))
