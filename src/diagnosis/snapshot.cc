#include "diagnosis/snapshot.h"

#include <vector>

#include "diagnosis/mismatch.h"
#include "planner/form.h"

namespace niccolite::diagnosis {
namespace {

using observe::Event;
using observe::EventKind;

const char* name_of(EventKind kind) {
  switch (kind) {
    case EventKind::Called:
      return "called";
    case EventKind::Begun:
      return "begun";
    case EventKind::Ended:
      return "ended";
    case EventKind::Waiting:
      return "waiting";
    case EventKind::Stalled:
      return "stalled";
    case EventKind::Failed:
      return "failed";
    case EventKind::Ready:
      return "ready";
    case EventKind::Left:
      return "left";
    case EventKind::Planned:
      return "planned";
    case EventKind::Connected:
      return "connected";
    case EventKind::Sent:
      return "sent";
    case EventKind::Received:
      return "received";
  }
  return "unknown";
}

void describe_call(observe::Json& json, const calls::Call& call, uint64_t number) {
  json.text("call", describe(call)).text("function", function_of(call));
  json.number("bytes", call.request.bytes()).number("number", number);
}

void describe_plan(observe::Json& json, const Event& event) {
  json.text("call", describe(calls::call_of(event)));
  if (event.algorithm < planner::forms().size())
    json.text("algorithm", planner::forms()[event.algorithm].name);
  json.text("protocol", executor::name_of(static_cast<executor::Protocol>(event.protocol)));
  json.number("channels", event.number);
}

void describe_event(observe::Json& json, const observe::Clock& clock, const Event& event) {
  json.begin_object();
  json.number("t", clock.nanoseconds(event.time)).text("kind", name_of(event.kind));
  if (event.launch != 0) json.number("launch", event.launch);
  if (event.kind == EventKind::Called) {
    describe_call(json, calls::call_of(event), event.number);
    json.hexadecimal("stream", event.stream);
  }
  if (event.kind == EventKind::Planned) describe_plan(json, event);
  if (event.kind == EventKind::Waiting) json.number("milliseconds", event.value);
  if (event.kind == EventKind::Sent || event.kind == EventKind::Received) {
    json.number("channel", event.stream).number("step", event.number);
    json.number("bytes", event.value);
  }
  const bool is_call = event.kind == EventKind::Called || event.kind == EventKind::Planned;
  if (event.peer >= 0 && !is_call) json.number("peer", event.peer);
  json.end_object();
}

}  // namespace

void describe_snapshot(observe::Json& json, const SnapshotOf& of, const calls::CallLog& log,
                       const Watch& watch) {
  json.hexadecimal("id", of.communicator).number("rank", of.rank).number("nranks", of.nranks);
  json.number("device", of.device).text("state", of.state);
  if (!of.failure.empty()) json.text("failure", of.failure);
  if (of.failure_rank >= 0) json.number("failure_rank", of.failure_rank);
  const Account account = watch.account(of.rank);
  json.number("collectives", account.log.collectives.count);
  json.number("begun", account.progress.begun);
  json.number("running", account.progress.is_running ? 1 : 0);
  if (account.wait) {
    json.begin_object("waiting").number("peer", account.wait->peer);
    json.number("milliseconds", account.wait->lasted.count());
    if (const calls::LoggedCall* const logged = find_waiting(account))
      describe_call(json, logged->call, logged->number);
    json.end_object();
  }
  if (account.blocked) json.text("blocked", account.blocked->describe());
  if (const std::optional<Verdict> verdict = watch.last_verdict()) {
    json.begin_object("verdict").number("rank", verdict->rank);
    json.text("text", verdict->describe(of.communicator, of.describe(verdict->rank)));
    json.end_object();
  }
  json.begin_list("processes");
  for (int rank = 0; rank < of.nranks; ++rank) json.text({}, of.describe(rank));
  json.end_list();
  const std::vector<Event> events = log.recorder()->events();
  const observe::Clock clock;
  json.begin_list("events");
  for (const Event& event : events) describe_event(json, clock, event);
  json.end_list();
}

}  // namespace niccolite::diagnosis
