// Group: the calls between group_start() and group_end() of one thread, with the buffers that they
// will use: nothing is queued before the end.
// Thread safety: each thread has its own. The GIL must be held.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <vector>

#include "buffer.h"
#include "communicator.h"
#include "devices.h"

namespace niccolite::python {

class Group {
 public:
  static Group& current();

  bool is_open() const { return depth_ > 0; }
  void start();
  /// Carries out the calls, at the end of the outermost group, and waits for the calls whose
  /// results the program needs at once.
  void end();
  /// Ends the group; at the end of the outermost one nothing is carried out. Returns the estimate
  /// in microseconds.
  float end_simulated();

  /// A call that the library has recorded. `owner` is the Python object of `communicator`.
  struct Call {
    nanobind::object owner;
    Communicator* communicator;
    std::array<Buffer, 2> buffers;
    Stream stream;
    bool is_awaited;
  };
  void add(Call call) { calls_.push_back(std::move(call)); }
  /// The group will make, change or end the communicator, at whose `owner` it is kept alive.
  void add(nanobind::object owner, Communicator* communicator);

 private:
  std::vector<Call> close();

  int depth_ = 0;
  std::vector<Call> calls_;
};

}  // namespace niccolite::python
