// The kernels that run launches, each named once: nvcc compiles them (copy_kernels.cu,
// reduce_kernels.cu), and kernels.cc looks for them by the same names when a GPU loads them. The
// list consists of macros only: a file that only names kernels does not see their code.
//
// X(name, variant, protocol, most_peers, counters, Args, code ...): the kernel niccolite_<name> of
// KernelId{.protocol, .variant, .most_peers, .counters}, with parameters `args` of the type Args.
// The code may have commas. An operation is named by `WHAT`, as float32_sum, and moved by
// `Operation`.
#pragma once

#define NICCOLITE_KERNELS_OF_PEERS(X, WHAT, Operation, peers)               \
  X(direct_##WHAT##_##peers, Direct, LL, peers, InGpu, LaunchArgs,          \
    run_direct<Operation, peers, /*kSendsEach=*/false>(args))               \
  X(direct_each_##WHAT##_##peers, DirectEach, LL, peers, InGpu, LaunchArgs, \
    run_direct<Operation, peers, /*kSendsEach=*/true>(args))                \
  X(list_##WHAT##_##peers, List, LL, peers, InGpu, ListArgs,                \
    run_list<Operation, peers, /*kSendsEach=*/false>(args))                 \
  X(list_each_##WHAT##_##peers, ListEach, LL, peers, InGpu, ListArgs,       \
    run_list<Operation, peers, /*kSendsEach=*/true>(args))                  \
  X(direct_list_##WHAT##_##peers, DirectList, LL, peers, InGpu, ListArgs,   \
    run_direct_list<Operation, peers>(args))                                \
  X(phases_##WHAT##_##peers, Phases, LL128, peers, InGpu, LaunchArgs,       \
    PhaseKernel<Operation, peers>(args).run())

/// For connections whose counters are in the host's memory, of few peers.
#define NICCOLITE_KERNELS_BY_HOST(X, WHAT, Operation, where, counters)        \
  X(direct_##WHAT##_3_##where, Direct, LL, 3, counters, LaunchArgs,           \
    run_direct<Operation, 3, /*kSendsEach=*/false, Counters::counters>(args)) \
  X(direct_each_##WHAT##_3_##where, DirectEach, LL, 3, counters, LaunchArgs,  \
    run_direct<Operation, 3, /*kSendsEach=*/true, Counters::counters>(args))

/// The kernels of a reduction of one type.
#define NICCOLITE_REDUCE_KERNELS(X, WHAT, Operation)                                               \
  NICCOLITE_KERNELS_OF_PEERS(X, WHAT, Operation, 3)                                                \
  NICCOLITE_KERNELS_OF_PEERS(X, WHAT, Operation, 7)                                                \
  X(direct_lines_##WHAT##_3, DirectLines, LL128, 3, InGpu, LaunchArgs,                             \
    run_direct_lines<Operation, 3>(args))                                                          \
  NICCOLITE_KERNELS_BY_HOST(X, WHAT, Operation, in_host, InHost)                                   \
  NICCOLITE_KERNELS_BY_HOST(X, WHAT, Operation, relayed, OfProxies)                                \
  X(run_##WHAT##_ll, Program, LL, 0, InGpu, LaunchArgs, run_kernel<Operation, Protocol::LL>(args)) \
  X(run_##WHAT##_ll_relayed, Program, LL, 0, OfProxies, LaunchArgs,                                \
    run_kernel<Operation, Protocol::LL, /*kHasRelays=*/true>(args))                                \
  X(run_##WHAT##_ll128, Program, LL128, 0, InGpu, LaunchArgs,                                      \
    run_kernel<Operation, Protocol::LL128>(args))                                                  \
  X(run_##WHAT##_simple, Program, Simple, 0, InGpu, LaunchArgs,                                    \
    run_kernel<Operation, Protocol::Simple>(args))                                                 \
  X(places_##WHAT, Places, Simple, 0, InGpu, LaunchArgs, run_with_places<Operation>(args))
/// And those that switches have, too: switch_reduces().
#define NICCOLITE_TEAM_KERNELS(X, WHAT, Operation)                                 \
  X(team_##WHAT, Team, Simple, 0, InGpu, LaunchArgs, run_by_team<Operation>(args)) \
  X(team_##WHAT##_ll, TeamWords, LL, 0, InGpu, LaunchArgs, run_words_by_team<Operation>(args))

/// Kernels that only move bytes and carry messages: they may run beside the kernel before them
/// (awaits_last()).
#define NICCOLITE_COPY_KERNELS_BESIDE(X, Operation)                                              \
  X(messages, Messages, LL, 1, InGpu, LaunchArgs, run_messages<Counters::InGpu>(args))           \
  X(messages_in_host, Messages, LL, 1, InHost, LaunchArgs, run_messages<Counters::InHost>(args)) \
  X(messages_relayed, Messages, LL, 1, OfProxies, LaunchArgs,                                    \
    run_messages<Counters::OfProxies>(args))                                                     \
  X(copy_ll, Program, LL, 0, InGpu, LaunchArgs, run_kernel<Operation, Protocol::LL>(args))       \
  X(copy_ll_relayed, Program, LL, 0, OfProxies, LaunchArgs,                                      \
    run_kernel<Operation, Protocol::LL, /*kHasRelays=*/true>(args))                              \
  X(copy_ll128, Program, LL128, 0, InGpu, LaunchArgs,                                            \
    run_kernel<Operation, Protocol::LL128>(args))                                                \
  X(copy_simple, Program, Simple, 0, InGpu, LaunchArgs,                                          \
    run_kernel<Operation, Protocol::Simple>(args))                                               \
  X(places_copy, Places, Simple, 0, InGpu, LaunchArgs, run_with_places<Operation>(args))         \
  X(direct_copy_3, Direct, LL, 3, InGpu, LaunchArgs,                                             \
    run_direct<Operation, 3, /*kSendsEach=*/false>(args))                                        \
  X(direct_copy_7, Direct, LL, 7, InGpu, LaunchArgs,                                             \
    run_direct<Operation, 7, /*kSendsEach=*/false>(args))                                        \
  X(direct_each_copy_3, DirectEach, LL, 3, InGpu, LaunchArgs,                                    \
    run_direct<Operation, 3, /*kSendsEach=*/true>(args))                                         \
  X(direct_each_copy_7, DirectEach, LL, 7, InGpu, LaunchArgs,                                    \
    run_direct<Operation, 7, /*kSendsEach=*/true>(args))                                         \
  NICCOLITE_KERNELS_BY_HOST(X, copy, Operation, in_host, InHost)                                 \
  NICCOLITE_KERNELS_BY_HOST(X, copy, Operation, relayed, OfProxies)
/// And the others.
#define NICCOLITE_COPY_KERNELS(X, Operation)                                                       \
  X(list_copy_3, List, LL, 3, InGpu, ListArgs, run_list<Operation, 3, /*kSendsEach=*/false>(args)) \
  X(list_copy_7, List, LL, 7, InGpu, ListArgs, run_list<Operation, 7, /*kSendsEach=*/false>(args)) \
  X(list_each_copy_3, ListEach, LL, 3, InGpu, ListArgs,                                            \
    run_list<Operation, 3, /*kSendsEach=*/true>(args))                                             \
  X(list_each_copy_7, ListEach, LL, 7, InGpu, ListArgs,                                            \
    run_list<Operation, 7, /*kSendsEach=*/true>(args))                                             \
  X(direct_list_copy_3, DirectList, LL, 3, InGpu, ListArgs, run_direct_list<Operation, 3>(args))   \
  X(direct_list_copy_7, DirectList, LL, 7, InGpu, ListArgs, run_direct_list<Operation, 7>(args))   \
  X(team_copy, Team, Simple, 0, InGpu, LaunchArgs, run_by_team<Operation>(args))                   \
  X(team_copy_ll, TeamWords, LL, 0, InGpu, LaunchArgs, run_words_by_team<Operation>(args))
