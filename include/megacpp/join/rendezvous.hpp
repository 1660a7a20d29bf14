// The place where ranks meet before they are connected: a port of rank 0, the store of torchrun's
// agent, or a folder (meeting_place).
#pragma once

#include <megacpp/join/meeting_at_first.hpp>
#include <megacpp/join/meeting_in_store.hpp>

#include <memory>
#include <string>
#include <utility>

namespace mc {

/// Opens the meeting of a start that TCP connects. Throws mc::error where its place cannot be
/// reached by the deadline.
inline std::unique_ptr<rendezvous> open_rendezvous(const process_start& start,
                                                   const std::string& secret, deadline until,
                                                   const teller& tell) {
  std::string run = start.job.empty() ? "run" : start.job;
  for (char& c : run)
    if (c == '/' || c == '\n') c = '_';
  const std::string job = "megacpp-" + run;
  switch (start.meets) {
  case meeting_place::agent_store: {
    const std::string place = place_text(start.master, start.port);
    descriptor to = detail::reach(start.master, start.port, until, tell, "the store of torchrun",
                                  [](int, std::string&) { return true; });
    return std::make_unique<detail::meeting_in_store<detail::agent_store>>(
        start, detail::agent_store(std::move(to), place, job + "/"), until, tell);
  }
  case meeting_place::folder:
    return std::make_unique<detail::meeting_in_store<detail::folder_store>>(
        start, detail::folder_store(start.place + "/" + job), until, tell);
  default: return std::make_unique<detail::meeting_at_first>(start, secret, until, tell);
  }
}

} // namespace mc
