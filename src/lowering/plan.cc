#include "lowering/plan.h"

namespace niccolite::lowering {

const char* name_of(Event event) {
  switch (event) {
    case Event::Advertise:
      return "advertise";
    case Event::TakeAdvertisement:
      return "take advertisement";
    case Event::Request:
      return "request";
    case Event::ServePulls:
      return "serve pulls";
    case Event::Release:
      return "release";
    case Event::AwaitRelease:
      return "await release";
    case Event::AwaitArrival:
      return "await arrival";
    case Event::AwaitCredit:
      return "await credit";
    case Event::Stage:
      return "stage";
    case Event::Move:
      return "move";
    case Event::Announce:
      return "announce";
    case Event::GiveCredit:
      return "give credit";
    case Event::Withdraw:
      return "withdraw";
    case Event::Leave:
      return "leave";
    case Event::AwaitLeave:
      return "await leave";
  }
  return "unknown event";
}

}  // namespace niccolite::lowering
