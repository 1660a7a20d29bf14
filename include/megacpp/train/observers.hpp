// The observers of a training run, which its reports tell what happens.
#pragma once

#include <megacpp/observe/katib.hpp>
#include <megacpp/observe/observed.hpp>
#include <megacpp/observe/prometheus.hpp>
#include <megacpp/observe/spans.hpp>
#include <megacpp/observe/tensorboard.hpp>
#include <megacpp/observe/trainjob.hpp>
#include <megacpp/request/report_request.hpp>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// Starts the observers that a request and the environment name, and tells them what begins.
/// note(sentence) is called for each server that the environment names. Throws
/// mc::error(exit_code::memory), and mc::error(exit_code::usage) for a member of the request that
/// this program is built without.
template <class Note> void start(observers& all, const report_request& asked, const environment& e,
                                 Note note, const observed_start& begins) {
  if (asked.tensorboard)
    all.add(std::make_unique<tensorboard>(*asked.tensorboard, asked.tensorboard_interval));
  if (asked.katib) all.add(std::make_unique<katib_lines>(*asked.katib));
  if (asked.port) all.add(prometheus_page_at(asked.address, static_cast<int>(*asked.port)));
  const auto add = [&](const char* variables, const std::string& url,
                       std::unique_ptr<observer> one) {
    const bool built = one != nullptr;
    note(fmt::format("{} is told {}, {} {} set{}", shown_url(url),
                     built ? "what happens" : "nothing", built ? "since" : "though", variables,
                     built ? ""
                           : ": this program is built without libcurl; install "
                             "libcurl4-openssl-dev, and build it again"));
    if (built) all.add(std::move(one));
  };
  const auto add_trace = [&](const char* variables, std::optional<span_destination> to) {
    if (!to) return;
    const std::string url = to->url;
    add(variables, url, span_sender_to(std::move(*to), asked.log_interval));
  };
  add_trace("OTEL_EXPORTER_OTLP_ENDPOINT is", otlp_destination(e));
  add_trace("LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY are", langfuse_destination(e));
  if (const auto to = trainjob_server_of(e))
    add("KUBEFLOW_TRAINER_SERVER_URL is", to->url, trainjob_status_at(*to));
  all.tell(begins);
}

} // namespace mc
