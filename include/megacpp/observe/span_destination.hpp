// The servers that a run's trace goes to, as variables of the environment name them.
#pragma once

#include <megacpp/io/secret.hpp>
#include <megacpp/join/environment.hpp>
#include <megacpp/observe/http.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// A server of spans, and attributes that all of them have.
struct span_destination {
  std::string url;          ///< of traces
  std::string certificates; ///< the file of those that the server is believed by; "": the system's
  std::string service = "megacpp";
  std::vector<std::pair<std::string, std::string>> resource{}; ///< more attributes of the process
  std::vector<std::pair<std::string, secret>> headers{};
  std::chrono::milliseconds most = std::chrono::seconds(10); ///< the time of a post
  std::string fault{}; ///< why nothing can be sent; "": nothing is known
};

namespace detail {

/// Returns a text of a URL or of baggage in which %41 stands for A.
inline std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned code = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      out += static_cast<char>(code);
      i += 2;
    } else out += text[i];
  }
  return out;
}
/// Calls f(name, value) for each of `name=value,name=value`, and returns whether all are of that
/// form. Blanks around them do not count, and nothing may stand between two commas.
template <class F> bool each_pair(std::string_view list, F f) {
  bool all = true;
  const auto trimmed = [](std::string_view t) {
    const std::size_t begin = std::min(t.find_first_not_of(" \t"), t.size());
    return t.substr(begin, t.find_last_not_of(" \t") + 1 - begin);
  };
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    const std::string_view one = list.substr(0, end);
    if (const std::size_t is = one.find('=');
        is != std::string_view::npos && !trimmed(one.substr(0, is)).empty())
      f(std::string(trimmed(one.substr(0, is))), percent_decoded(trimmed(one.substr(is + 1))));
    else all = all && trimmed(one).empty();
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return all;
}
/// Tells whether a text may be the name of a header (RFC 9110, 5.6.2).
inline bool is_header_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}
inline std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t v = 0;
    for (std::size_t k = 0; k < 3; ++k)
      v = v << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k)
      out += i + k > bytes.size() ? '=' : digits[v >> (18 - 6 * k) & 63];
  }
  return out;
}
inline std::string without_end(std::string_view url, char c) {
  while (url.ends_with(c)) url.remove_suffix(1);
  return std::string(url);
}

} // namespace detail

/// Returns the collector that the variables of OpenTelemetry name, if they do:
/// OTEL_EXPORTER_OTLP_ENDPOINT and its like
/// (https://opentelemetry.io/docs/specs/otel/protocol/exporter/).
inline std::optional<span_destination> otlp_destination(const environment& e) {
  const auto text = [&](const char* traces, const char* all) {
    return std::string(e.has(traces) ? e.text(traces) : e.text(all));
  };
  const std::string of_traces(e.text("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")),
      base(e.text("OTEL_EXPORTER_OTLP_ENDPOINT"));
  if ((of_traces.empty() && base.empty()) || e.text("OTEL_SDK_DISABLED") == "true" ||
      e.text("OTEL_TRACES_EXPORTER") == "none")
    return std::nullopt;
  span_destination to;
  const std::size_t query = std::min(base.find('?'), base.size());
  to.url = of_traces.empty()
               ? detail::without_end(base.substr(0, query), '/') + "/v1/traces" + base.substr(query)
               : of_traces;
  to.certificates = certificates_of(e, e.has("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE")
                                           ? "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"
                                           : "OTEL_EXPORTER_OTLP_CERTIFICATE");
  bool right = true;
  const bool pairs =
      detail::each_pair(text("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"),
                        [&](const std::string& name, const std::string& value) {
                          secret kept(value);
                          right = right && detail::is_header_name(name) && kept.fits_header();
                          to.headers.emplace_back(name, std::move(kept));
                        });
  if (!pairs || !right) {
    to.headers.clear();
    to.fault =
        "OTEL_EXPORTER_OTLP_HEADERS is no list name=value,name=value of headers in one line "
        "each, where %20 stands for a blank and %2C for a comma: nothing is sent";
  }
  detail::each_pair(e.text("OTEL_RESOURCE_ATTRIBUTES"),
                    [&](const std::string& name, const std::string& value) {
                      if (name == "service.name") to.service = value;
                      else to.resource.emplace_back(name, value);
                    });
  if (e.has("OTEL_SERVICE_NAME")) to.service = e.text("OTEL_SERVICE_NAME");
  if (const auto ms =
          whole_number(text("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"));
      ms && *ms > 0)
    to.most = std::chrono::milliseconds(*ms);
  if (text("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") == "grpc")
    to.fault =
        "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and this program sends JSON over HTTP: give "
        "http/json, and an endpoint of the collector for HTTP, whose port is usually 4318";
  return to;
}

/// Returns Langfuse, where LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY are set: that of
/// LANGFUSE_HOST, or its cloud.
inline std::optional<span_destination> langfuse_destination(const environment& e) {
  const secret key(e.text("LANGFUSE_SECRET_KEY"));
  const std::string name = secret(e.text("LANGFUSE_PUBLIC_KEY")).with([](std::string_view text) {
    return std::string(text);
  });
  if (key.empty() && name.empty()) return std::nullopt;
  span_destination to;
  const std::string host(e.has("LANGFUSE_HOST") ? e.text("LANGFUSE_HOST")
                                                : "https://cloud.langfuse.com");
  to.url = detail::without_end(host, '/') + "/api/public/otel/v1/traces";
  to.certificates = certificates_of(e, "");
  if (key.empty() || name.empty())
    to.fault = fmt::format("{} is set and {} is not, and Langfuse wants both: set it, or neither",
                           key.empty() ? "LANGFUSE_PUBLIC_KEY" : "LANGFUSE_SECRET_KEY",
                           key.empty() ? "LANGFUSE_SECRET_KEY" : "LANGFUSE_PUBLIC_KEY");
  if (!key.fits_header() || !secret(name).fits_header())
    to.fault = "LANGFUSE_PUBLIC_KEY or LANGFUSE_SECRET_KEY has several lines: give one";
  key.with([&](std::string_view text) {
    std::string pair = name + ":" + std::string(text), header = "Basic " + detail::base64(pair);
    to.headers.emplace_back("Authorization", secret(header));
    ::explicit_bzero(pair.data(), pair.size());
    ::explicit_bzero(header.data(), header.size());
  });
  to.headers.emplace_back("x-langfuse-ingestion-version", secret("4"));
  return to;
}

} // namespace mc
