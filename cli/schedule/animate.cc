#include "cli/schedule/animate.h"

#include <fmt/core.h>

#include <algorithm>

#include "schedule/file.h"
#include "schedule/timeline.h"

namespace niccolite::schedule_command {
namespace {

constexpr int kMostRanks = 64;
constexpr size_t kMostEvents = 20'000;

constexpr const char* kPage = R"html(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>@TITLE@</title>
<style>
body { font: 14px sans-serif; margin: 1.5em; color: #222; background: #fff }
table { border-collapse: collapse; margin: 1em 0 }
th { font-weight: normal; color: #666; padding: 2px 8px; text-align: left }
td { border: 1px solid #ccc; width: 3.2em; height: 1.6em; padding: 0 }
td.now { outline: 3px solid #d60; outline-offset: -2px }
td div { display: flex; height: 1.6em }
td div span { flex: 1 }
ul { columns: 2; color: #333; min-height: 6em; padding-left: 1.2em }
button { min-width: 5em }
.legend span { display: inline-block; padding: 1px 7px; margin-right: 3px }
</style></head><body>
<h1 style="font-size: 1.3em">@TITLE@</h1>
<p><button id="back">Back</button> <button id="play">Play</button> <button id="on">Next</button>
<input id="at" type="range" min="0" value="0" style="width: 22em; vertical-align: middle"> <span id="where"></span></p>
<p class="legend">A block shows the ranks whose contributions it holds: <span id="legend"></span></p>
<div id="buffers"></div><ul id="events"></ul>
<script>
"use strict";
const schedule = @SCHEDULE@;
const events = @EVENTS@;  // [step, rank, channel, worker, instruction], in an order in which they can run
const n = schedule.ranks, root = schedule.root || 0, blocks = schedule.blocks;
const cut = ["all_reduce", "reduce", "broadcast"].includes(schedule.collective);
const color = rank => `hsl(${Math.round(360 * rank / n)}, 65%, 68%)`;
const place = (rank, [buffer, block]) => `${rank} ${buffer} ${block}`;
// What a rank contributes is in its input at first; the block's number stands beside the rank.
const contents = [new Map()], changed = [new Set()], said = [[]];
function initial(rank, block) {
  const owner = ["all_gather", "gather"].includes(schedule.collective) ? rank : block;
  return {block: owner, ranks: [rank]};
}
const last = events.reduce((most, event) => Math.max(most, event[0]), -1);
const fifos = schedule.connections.map(() => []);
let state = new Map(), next = 0;
for (let step = 0; step <= last; ++step) {
  const now = new Set(), lines = [];
  for (; next < events.length && events[next][0] === step; ++next) {
    const [, rank, channel, worker, number] = events[next];
    const step = schedule.programs[rank][channel][worker].steps[number];
    const operands = (step.receive || []).map(each => fifos[each].shift());
    const words = (step.receive || []).map(each => `rank ${schedule.connections[each][0]}`);
    if (step.source) {
      const known = state.get(place(rank, step.source));
      const own = known || initial(rank, step.source[1]);
      operands.splice(step.source_position || 0, 0, own);
      words.splice(step.source_position || 0, 0, `${step.source[0]} ${step.source[1]}`);
      if (!known) state.set(place(rank, step.source), own);
    }
    const value = {block: operands[0].block, ranks: [...new Set(operands.flatMap(each => each.ranks))].sort((a, b) => a - b)};
    const to = (step.send || []).map(each => `rank ${schedule.connections[each][1]}`);
    if (step.target) {
      state.set(place(rank, step.target), value);
      now.add(place(rank, step.target));
      to.unshift(`${step.target[0]} ${step.target[1]}`);
    }
    for (const each of step.send || []) fifos[each].push(value);
    lines.push(`rank ${rank}: ${words.join(" + ")} \u2192 ${to.join(", ")}`);
  }
  contents.push(new Map(state));
  changed.push(now);
  said.push(lines);
}
const names = ["input", "output", "scratch"].map(buffer => [buffer, 1 + Math.max(-1,
  ...[...state.keys()].map(key => key.split(" ")).filter(key => key[1] === buffer).map(key => Number(key[2])))]);
document.getElementById("legend").replaceChildren(...Array.from({length: n}, (_, rank) => {
  const box = document.createElement("span");
  box.style.background = color(rank);
  box.textContent = rank;
  return box;
}));
const slider = document.getElementById("at");
slider.max = contents.length - 1;
function show() {
  const at = Number(slider.value), table = document.createElement("table"), head = table.insertRow();
  head.appendChild(document.createElement("th"));
  for (const [buffer, count] of names)
    for (let block = 0; block < count; ++block) {
      const cell = document.createElement("th");
      cell.textContent = `${buffer} ${block}`;
      head.appendChild(cell);
    }
  for (let rank = 0; rank < n; ++rank) {
    const row = table.insertRow(), name = document.createElement("th");
    name.textContent = `rank ${rank}`;
    row.appendChild(name);
    for (const [buffer, count] of names)
      for (let block = 0; block < count; ++block) {
        const cell = row.insertCell(), key = place(rank, [buffer, block]);
        const value = contents[at].get(key) || (buffer === "input" && state.has(key) ? initial(rank, block) : null);
        if (changed[at].has(key)) cell.className = "now";
        if (!value) continue;
        const bar = document.createElement("div");
        for (const owner of value.ranks) {
          const part = document.createElement("span");
          part.style.background = color(owner);
          bar.appendChild(part);
        }
        cell.title = `block ${value.block} of rank${value.ranks.length === 1 ? "" : "s"} ${value.ranks.join(", ")}`;
        cell.appendChild(bar);
      }
  }
  document.getElementById("buffers").replaceChildren(table);
  document.getElementById("where").textContent = at === 0 ? "before the first step" : `step ${at} of ${contents.length - 1}`;
  document.getElementById("events").replaceChildren(...said[at].map(line => {
    const item = document.createElement("li");
    item.textContent = line;
    return item;
  }));
}
const move = by => { slider.value = Number(slider.value) + by; show(); };
let timer = 0;
const play = document.getElementById("play");
function stop() { clearInterval(timer); timer = 0; play.textContent = "Play"; }
play.onclick = () => {
  if (timer) return stop();
  if (slider.value === slider.max) slider.value = 0;
  play.textContent = "Pause";
  timer = setInterval(() => { move(1); if (slider.value === slider.max) stop(); }, 900);
};
document.getElementById("back").onclick = () => { stop(); move(-1); };
document.getElementById("on").onclick = () => { stop(); move(1); };
slider.oninput = show;
show();
</script></body></html>
)html";

void replace(std::string& text, std::string_view mark, std::string_view by) {
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size())
    text.replace(at, mark.size(), by);
}

}  // namespace

Result<std::string> animate(const schedule::Schedule& schedule) {
  if (schedule.nranks > kMostRanks)
    return Status::invalid_usage("a page shows at most {} ranks, not {}", kMostRanks,
                                 schedule.nranks);
  schedule::Timeline timeline = TRY(schedule::timeline(schedule));
  if (timeline.events.size() > kMostEvents)
    return Status::invalid_usage("a page shows at most {} instructions, not {}", kMostEvents,
                                 timeline.events.size());
  // The timeline's order keeps that of each worker, and so do the steps.
  std::stable_sort(
      timeline.events.begin(), timeline.events.end(),
      [](const schedule::Event& a, const schedule::Event& b) { return a.step < b.step; });
  std::string events;
  for (const schedule::Event& event : timeline.events) {
    const auto& [rank, channel, worker, instruction] = event.position;
    events += fmt::format("{}[{},{},{},{},{}]", events.empty() ? "" : ",", event.step, rank,
                          channel, worker, instruction);
  }
  std::string file = to_file(schedule);
  replace(file, "<", "\\u003c");  // a name in the file cannot end the script
  std::string title = fmt::format("{} {}, {} ranks", name_of(schedule.collective),
                                  schedule.algorithm, schedule.nranks);
  replace(title, "&", "&amp;");
  replace(title, "<", "&lt;");
  std::string page = kPage;
  replace(page, "@TITLE@", title);
  replace(page, "@EVENTS@", "[" + events + "]");
  replace(page, "@SCHEDULE@", file);
  return page;
}

}  // namespace niccolite::schedule_command
