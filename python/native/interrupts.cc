#include "interrupts.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "library.h"

namespace niccolite::python {

// The handler's data, set before the handler.
static sem_t wake_up;
static struct sigaction python_handler;

// The wait of the main thread, which the watcher takes out while it aborts.
static std::atomic<InterruptibleWait*> current_wait{nullptr};
static std::atomic<bool> is_aborting{false};

// Held while a handle is taken out, and while a call that does not end the communicator uses one.
static std::mutex handles;

ncclComm_t take(ncclComm_t& place) {
  const std::lock_guard lock(handles);
  // relaxed: the library checks the handle.
  return std::atomic_ref(place).exchange(nullptr, std::memory_order_relaxed);
}

ncclResult_t ask_async_error(ncclComm_t& place) {
  const std::lock_guard lock(handles);
  const ncclComm_t communicator = std::atomic_ref(place).load(std::memory_order_relaxed);
  if (communicator == nullptr) return ncclSuccess;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t answer = library().CommGetAsyncError(communicator, &state);
  return answer == ncclSuccess ? state : answer;
}

static void handle(int signal_number) {
  sem_post(&wake_up);
  python_handler.sa_handler(signal_number);
}

void abort_when_woken() {
  for (;;) {
    if (sem_wait(&wake_up) != 0) continue;
    // seq_cst, both: the destructor first takes the wait out and then looks whether we abort.
    is_aborting.store(true);
    if (InterruptibleWait* wait = current_wait.exchange(nullptr))
      for (ncclComm_t* communicator : wait->communicators_)
        if (const ncclComm_t taken = take(*communicator)) library().CommAbort(taken);
    is_aborting.store(false);
  }
}

// One thread for each process, a forked one included; it takes no signals itself.
static void start_watcher() {
  static pid_t watched = 0;
  if (watched == getpid()) return;
  watched = getpid();
  sem_init(&wake_up, 0, 0);
  is_aborting.store(false);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(abort_when_woken).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

bool is_main_thread() {
  static thread_local const bool is_main = syscall(SYS_gettid) == getpid();
  return is_main;
}

void watch_for_interrupts() {
  if (!is_main_thread()) return;
  struct sigaction present;
  if (sigaction(SIGINT, nullptr, &present) != 0) return;
  const bool is_function = (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler != SIG_DFL &&
                           present.sa_handler != SIG_IGN;
  if (!is_function) return;
  library().CommAbort.loaded();  // looking it up may throw, which the watcher could not
  start_watcher();
  if (present.sa_handler == handle) return;
  python_handler = present;
  struct sigaction ours = present;
  ours.sa_handler = handle;
  sigaction(SIGINT, &ours, nullptr);
}

InterruptibleWait::InterruptibleWait(std::span<ncclComm_t* const> communicators)
    : communicators_(communicators) {
  if (!is_main_thread()) return;
  is_watched_ = true;
  current_wait.store(this);
}

InterruptibleWait::~InterruptibleWait() {
  if (!is_watched_) return;
  current_wait.store(nullptr);
  while (is_aborting.load()) sched_yield();  // it may have taken this wait
}

}  // namespace niccolite::python
