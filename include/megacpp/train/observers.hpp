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
/// note(sentence) is called for each server that the environment names, and for each observer that
/// cannot begin. Throws mc::error(exit_code::usage) for an address that check_report_files()
/// refuses.
template <class Note> void start_observers_of(observers& all, const report_request& asked,
                                              const environment& e, Note note,
                                              const observed_start& begins) {
  if (asked.tensorboard)
    all.add(
        [&] {
          return std::make_unique<tensorboard>(*asked.tensorboard, asked.tensorboard_interval);
        },
        note);
  if (asked.katib) all.add([&] { return std::make_unique<katib_lines>(*asked.katib); }, note);
  if (asked.port)
    all.add([&] { return prometheus_page_at(asked.address, static_cast<int>(*asked.port)); }, note);
  const auto add_server = [&](const char* variables, const std::string& url, auto make) {
    note(fmt::format("{} is told {}, {} {} set{}", shown_url(url),
                     posts_go ? "what happens" : "nothing", posts_go ? "since" : "though",
                     variables,
                     posts_go ? is_unencrypted(url) ? ", unencrypted, since the URL is http" : ""
                              : ": this program is built without libcurl; install "
                                "libcurl4-openssl-dev, and build it again"));
    if (posts_go) all.add(make, note);
  };
  const auto add_trace = [&](const char* variables, std::optional<span_destination> to) {
    if (to)
      add_server(variables, to->url,
                 [&] { return span_sender_to(std::move(*to), asked.log_interval); });
  };
  add_trace("OTEL_EXPORTER_OTLP_ENDPOINT is", otlp_destination(e));
  add_trace("LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY are", langfuse_destination(e));
  if (const auto to = trainjob_server_of(e))
    add_server("KUBEFLOW_TRAINER_SERVER_URL is", to->url, [&] { return trainjob_status_at(*to); });
  all.tell(begins);
}

} // namespace mc
