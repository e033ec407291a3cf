// FoundOnce: an object of Python that is looked for until it is found, and then kept for ever.
//
// It stands where a static variable would be initialised: an import lets go of the GIL, and another
// thread would hold it while it waits for the end of that initialisation.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>

namespace niccolite::python {

class FoundOnce {
 public:
  /// `find` returns the object, or an invalid one: then the next call looks again. The GIL must be
  /// held.
  template <typename Find>
  nanobind::handle get(const Find& find) {
    if (PyObject* found = known_.load(std::memory_order_acquire)) [[likely]]  // pairs with below
      return found;
    nanobind::object found = find();
    PyObject* none = nullptr;
    if (!found.is_valid()) return {};
    if (known_.compare_exchange_strong(none, found.ptr(), std::memory_order_acq_rel))
      return found.release();
    return none;  // another thread's, by now
  }

 private:
  std::atomic<PyObject*> known_{nullptr};
};

/// The class `name` of a module that the program has imported; invalid as long as it has not.
inline nanobind::object class_of_imported(const char* module, const char* name) {
  const auto key = nanobind::steal(PyUnicode_FromString(module));
  const auto imported = nanobind::steal(PyImport_GetModule(key.ptr()));
  if (!imported.is_valid()) {
    PyErr_Clear();
    return {};
  }
  return nanobind::getattr(imported, name, nanobind::object());  // none while it is being imported
}

}  // namespace niccolite::python
