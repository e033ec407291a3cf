// The library's parameters by name: the declarations of base/parameters.def, and variables that are
// read at each use. Source: c-api reference, section 13.1.

#include "base/parameters.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <vector>

#include "api/call.h"

/// One parameter, with the value that it has had since the first call of these functions.
struct ncclParamHandle {
  const char* name;
  niccolite::parameters::Kind kind;
  int64_t number = INT64_MIN;  // of integers, bytes and flags; INT64_MIN: unset
  std::string text;            // the value of a choice or text; GetParameter's answer for all kinds
  const char* meaning;
};

namespace niccolite::api {
namespace {

using parameters::Kind;

// These variables are read at each use, so the table of parameters does not have them. The values
// here are read at the first question.
constexpr std::array<std::pair<const char*, const char*>, 8> kReadAtEachUse = {{
    {"NCCL_DEBUG", "VERSION, WARN, INFO or TRACE: what is logged"},
    {"NCCL_DEBUG_SUBSYS", "subsystems whose lines are logged"},
    {"NCCL_DEBUG_FILE", "file of the log; %h is the host, %p the process"},
    {"NCCL_DEBUG_TIMESTAMP_LEVELS", "levels whose lines have a time"},
    {"NCCL_DEBUG_TIMESTAMP_FORMAT", "form of the time, as of strftime"},
    {"NCCL_ALGO", "algorithms that may be chosen"},
    {"NCCL_PROTO", "protocols that may be chosen"},
    {"NCCL_COMM_ID", "host:port where the ranks meet"},
}};

bool is_number(Kind kind) {
  return kind == Kind::Integer || kind == Kind::Bytes || kind == Kind::Flag;
}

// Never destroyed: handles stay valid.
const std::vector<ncclParamHandle>& all() {
  static const auto* const handles = [] {
    auto* made = new std::vector<ncclParamHandle>;
    for (const parameters::Declaration& declaration : parameters::declarations()) {
      const std::string set = parameters::read_now(declaration.name).value_or("");
      const parameters::Reading reading = parameters::read(declaration, set);
      const bool is_unset = reading.number == INT64_MIN;
      made->push_back({.name = declaration.name,
                       .kind = declaration.kind,
                       .number = reading.number,
                       .text = !is_number(declaration.kind) ? reading.text
                               : is_unset                   ? std::string()
                                                            : std::to_string(reading.number),
                       .meaning = declaration.meaning});
    }
    for (const auto& [name, meaning] : kReadAtEachUse)
      made->push_back({.name = name,
                       .kind = Kind::Text,
                       .text = parameters::read_now(name).value_or(""),
                       .meaning = meaning});
    return made;
  }();
  return *handles;
}

const ncclParamHandle* find_parameter(const char* key) {
  const auto found = std::ranges::find_if(
      all(), [&](const ncclParamHandle& handle) { return std::strcmp(handle.name, key) == 0; });
  return found == all().end() ? nullptr : &*found;
}

Status check_arguments(const char* function, bool are_there) {
  if (are_there) return {};
  return Status::invalid_argument("{} : an argument is NULL, or a length is not positive",
                                  function);
}

Status unknown(const char* function, const char* key) {
  return Status::invalid_argument("{} : there is no parameter {}", function, key);
}

Status bind(ncclParamHandle_t* out, const char* key) {
  constexpr const char* kFunction = "ncclParamBind";
  TRY(check_arguments(kFunction, out != nullptr && key != nullptr));
  const ncclParamHandle* found = find_parameter(key);
  if (found == nullptr) return unknown(kFunction, key);
  *out = const_cast<ncclParamHandle_t>(found);  // opaque to the caller, who cannot change it
  return {};
}

// Integers are kept in 64 bits, signed: asking for others is refused, as in NCCL, which converts
// nothing.
template <typename Integer>
ncclResult_t get_integer(const char* function, ncclParamHandle_t handle, Integer* out) {
  return call(function, [&]() -> Status {
    TRY(check_arguments(function, handle != nullptr && out != nullptr));
    const bool is_integer = handle->kind == Kind::Integer || handle->kind == Kind::Bytes;
    if (!is_integer || !std::is_same_v<Integer, int64_t>)
      return Status::invalid_argument("{} : {} is {}", function, handle->name,
                                      is_integer ? "of type I64" : "no integer");
    *out = static_cast<Integer>(handle->number);
    return {};
  });
}

Status get_text(ncclParamHandle_t handle, const char** out) {
  constexpr const char* kFunction = "ncclParamGetStr";
  TRY(check_arguments(kFunction, handle != nullptr && out != nullptr));
  if (is_number(handle->kind))
    return Status::invalid_argument("{} : {} is no text", kFunction, handle->name);
  *out = handle->text.empty() ? nullptr : handle->text.c_str();
  return {};
}

Status get_raw(ncclParamHandle_t handle, void* out, int most, int* length) {
  constexpr const char* kFunction = "ncclParamGet";
  TRY(check_arguments(kFunction,
                      handle != nullptr && out != nullptr && length != nullptr && most > 0));
  *length = 0;
  const bool flag = handle->number > 0;  // unset: false
  const auto bytes = handle->kind == Kind::Flag ? std::as_bytes(std::span(&flag, 1))
                     : is_number(handle->kind)
                         ? std::as_bytes(std::span(&handle->number, 1))
                         : std::as_bytes(std::span(handle->text.c_str(), handle->text.size() + 1));
  if (bytes.size() > static_cast<size_t>(most))
    return Status::invalid_argument("{} : the value of {} has {} bytes, there is room for {}",
                                    kFunction, handle->name, bytes.size(), most);
  std::memcpy(out, bytes.data(), bytes.size());
  *length = static_cast<int>(bytes.size());
  return {};
}

Status get_by_name(const char* key, const char** value, int* length) {
  constexpr const char* kFunction = "ncclParamGetParameter";
  TRY(check_arguments(kFunction, key != nullptr && value != nullptr && length != nullptr));
  *value = nullptr;
  *length = 0;
  const ncclParamHandle* found = find_parameter(key);
  if (found == nullptr) return unknown(kFunction, key);
  *value = found->text.c_str();
  *length = static_cast<int>(found->text.size());
  return {};
}

Status get_all_keys(const char*** table, int* length) {
  TRY(check_arguments("ncclParamGetAllParameterKeys", table != nullptr && length != nullptr));
  thread_local std::vector<const char*> keys;
  keys.clear();
  for (const ncclParamHandle& handle : all()) keys.push_back(handle.name);
  *table = keys.data();
  *length = static_cast<int>(keys.size());
  return {};
}

Status dump_all() {
  std::string text = fmt::format("Parameters of this library, {}\n", all().size());
  for (const ncclParamHandle& handle : all())
    text += fmt::format("{}\n  value: {}\n  {}\n", handle.name,
                        handle.text.empty() ? "(unset)" : handle.text, handle.meaning);
  fputs(text.c_str(), stdout);
  fflush(stdout);
  return {};
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclParamBind(ncclParamHandle_t* out, const char* key) {
  return api::call("ncclParamBind", [&] { return api::bind(out, key); });
}

#define NICCOLITE_GET_INTEGER(name, type)                                 \
  ncclResult_t pncclParamGet##name(ncclParamHandle_t handle, type* out) { \
    return api::get_integer("ncclParamGet" #name, handle, out);           \
  }
NICCOLITE_GET_INTEGER(I8, int8_t)
NICCOLITE_GET_INTEGER(I16, int16_t)
NICCOLITE_GET_INTEGER(I32, int32_t)
NICCOLITE_GET_INTEGER(I64, int64_t)
NICCOLITE_GET_INTEGER(U8, uint8_t)
NICCOLITE_GET_INTEGER(U16, uint16_t)
NICCOLITE_GET_INTEGER(U32, uint32_t)
NICCOLITE_GET_INTEGER(U64, uint64_t)
#undef NICCOLITE_GET_INTEGER

ncclResult_t pncclParamGetStr(ncclParamHandle_t handle, const char** out) {
  return api::call("ncclParamGetStr", [&] { return api::get_text(handle, out); });
}

ncclResult_t pncclParamGet(ncclParamHandle_t handle, void* out, int maxLen, int* len) {
  return api::call("ncclParamGet", [&] { return api::get_raw(handle, out, maxLen, len); });
}

ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* valueLen) {
  return api::call("ncclParamGetParameter", [&] { return api::get_by_name(key, value, valueLen); });
}

ncclResult_t pncclParamGetAllParameterKeys(const char*** table, int* tableLen) {
  return api::call("ncclParamGetAllParameterKeys",
                   [&] { return api::get_all_keys(table, tableLen); });
}

void pncclParamDumpAll(void) {
  api::call("ncclParamDumpAll", [] { return api::dump_all(); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclParamBind);
NICCOLITE_EXPORT(ncclParamGetI8);
NICCOLITE_EXPORT(ncclParamGetI16);
NICCOLITE_EXPORT(ncclParamGetI32);
NICCOLITE_EXPORT(ncclParamGetI64);
NICCOLITE_EXPORT(ncclParamGetU8);
NICCOLITE_EXPORT(ncclParamGetU16);
NICCOLITE_EXPORT(ncclParamGetU32);
NICCOLITE_EXPORT(ncclParamGetU64);
NICCOLITE_EXPORT(ncclParamGetStr);
NICCOLITE_EXPORT(ncclParamGet);
NICCOLITE_EXPORT(ncclParamGetParameter);
NICCOLITE_EXPORT(ncclParamGetAllParameterKeys);
NICCOLITE_EXPORT(ncclParamDumpAll);
