// Posts to servers of HTTP, by libcurl. They are there where libcurl is (MEGACPP_WITH_CURL).
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/openssl.hpp>
#include <megacpp/io/secret.hpp>
#include <megacpp/join/environment.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#if defined(MEGACPP_WITH_CURL)
#include <curl/curl.h>
#endif

namespace mc {

/// Returns a URL as a message may show it: without what stands before an @, such as a name and a
/// password, and without what follows a ? or #.
inline std::string shown_url(std::string_view url) {
  const std::size_t scheme = url.find("://"),
                    begin = scheme == std::string_view::npos ? 0 : scheme + 3;
  const std::size_t at = url.rfind('@');
  std::string shown(url.substr(0, begin));
  url.remove_prefix(at == std::string_view::npos || at < begin ? begin : at + 1);
  for (const char c : url.substr(0, url.find_first_of("?#")))
    shown += c > ' ' && c != 0x7f ? c : '?';
  return shown;
}

/// Tells whether whoever sees the network can read what goes to a URL.
inline bool is_unencrypted(std::string_view url) {
  const std::string shown = shown_url(url);
  if (!shown.starts_with("http://")) return false;
  const std::string_view rest = std::string_view(shown).substr(7);
  const std::string_view host =
      rest.substr(0, rest.find_first_of(rest.starts_with('[') ? "]/" : ":/"));
  return host != "localhost" && !host.starts_with("127.") && host != "[::1";
}

/// Returns the file of certificates by which servers are believed: that of a variable of its own,
/// or those that OpenSSL and curl know; "" for the system's.
inline std::string certificates_of(const environment& e, const char* own) {
  for (const char* const name : {own, "SSL_CERT_FILE", "CURL_CA_BUNDLE"})
    if (name[0] != 0 && e.has(name)) return std::string(e.text(name));
  return "";
}

/// Tells whether this program can post, as it can with libcurl.
#if defined(MEGACPP_WITH_CURL)
inline constexpr bool posts_go = true;
#else
inline constexpr bool posts_go = false;
#endif

} // namespace mc

#if defined(MEGACPP_WITH_CURL)
namespace mc {

/// A server that takes posts. Proxies are those of https_proxy, HTTPS_PROXY, http_proxy and
/// no_proxy, as libcurl reads them. A redirection is an answer like another: headers with a secret
/// go to the server that is named, and nowhere else. One thread at a time posts.
class http_server {
public:
  /// Makes a server known. `certificates`: a file of those that it is believed by; "" for the
  /// system's. Throws mc::error(exit_code::memory).
  http_server(std::string url, std::string certificates,
              std::chrono::milliseconds most = std::chrono::seconds(10))
      : url_(std::move(url)), certificates_(std::move(certificates)), most_(most) {
    static const bool ready = [] {
      begin_openssl();
      return ::curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    }();
    curl_.reset(ready ? ::curl_easy_init() : nullptr);
    if (curl_ == nullptr) throw std::bad_alloc();
  }
  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;

  /// Adds a header to all posts: "name: " and a value.
  void header(const std::string& name, std::string_view value) { add(headers_, name, value); }
  void header(const std::string& name, const secret& value) {
    value.with([&](std::string_view text) { add(headers_, name, text); });
  }

  std::string shown() const { return shown_url(url_); }
  /// Makes a post give up that another thread waits for, and later ones within a second.
  void give_up() {
    hurries_ = true;
    gives_up_ = true;
  }

  /// The outcome of a post.
  struct answer {
    std::string fault{};  ///< a sentence; "": the server has taken the post
    bool may_help = true; ///< the same post may be taken later
    std::string reply{};  ///< what the server says, up to some bytes
  };
  /// Posts JSON, with a value of Authorization if it is not empty.
  answer post(const std::string& json, const secret& authorization = {}) {
    list headers;
    for (const ::curl_slist* h = headers_.get(); h != nullptr; h = h->next)
      append(headers, h->data);
    add(headers, "Content-Type", "application/json");
    add(headers, "Expect", ""); // no wait for a server's consent
    if (!authorization.empty())
      authorization.with([&](std::string_view v) { add(headers, "Authorization", v); });
    gives_up_ = false;
    const std::int64_t most =
        hurries_ ? std::min<std::int64_t>(most_.count(), 1000) : most_.count();
    std::string reason(CURL_ERROR_SIZE, '\0');
    CURL* const c = curl_.get();
    set(CURLOPT_URL, url_.c_str());
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::min(most, std::int64_t{5000})));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(most));
    set(CURLOPT_HTTPHEADER, headers.get());
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<::curl_off_t>(json.size()));
    set(CURLOPT_POSTFIELDS, json.c_str());
    set(CURLOPT_ERRORBUFFER, reason.data());
    set(CURLOPT_USERAGENT, "megacpp");
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFODATA, &gives_up_);
    set(CURLOPT_XFERINFOFUNCTION, &stops);
    std::string reply;
    set(CURLOPT_WRITEDATA, &reply);
    set(CURLOPT_WRITEFUNCTION, &take);
    if (!certificates_.empty()) set(CURLOPT_CAINFO, certificates_.c_str());
    const CURLcode result = ::curl_easy_perform(c);
    set(CURLOPT_ERRORBUFFER, nullptr);
    set(CURLOPT_HTTPHEADER, nullptr);
    if (result == CURLE_ABORTED_BY_CALLBACK || result == CURLE_OPERATION_TIMEDOUT)
      return {shown() + " did not answer in time"};
    if (result != CURLE_OK && !(result == CURLE_WRITE_ERROR && reply.size() >= most_of_reply)) {
      // libcurl's own words may have a proxy with its password.
      reason.resize(std::string_view(reason.c_str()).size());
      const bool plain = !reason.empty() && reason.find('@') == std::string_view::npos &&
                         reason.find("://") == std::string_view::npos;
      return {fmt::format("{} cannot be reached: {}", shown(),
                          plain ? reason.c_str() : ::curl_easy_strerror(result))};
    }
    long status = 0;
    ::curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    if (status >= 200 && status < 300) return {.reply = std::move(reply)};
    const bool of_key = status == 401 || status == 403;
    return {fmt::format("{} answered {}{}", shown(), status,
                        of_key ? ", since it does not take the key or token" : ""),
            of_key || status == 429 || status >= 500};
  }

private:
  static constexpr std::size_t most_of_reply = 65536;
  struct freed {
    void operator()(CURL* c) const { ::curl_easy_cleanup(c); }
    void operator()(::curl_slist* l) const { ::curl_slist_free_all(l); }
  };
  using list = std::unique_ptr<::curl_slist, freed>;

  static void append(list& to, const char* line) {
    ::curl_slist* const longer = ::curl_slist_append(to.get(), line);
    if (longer == nullptr) throw std::bad_alloc();
    static_cast<void>(to.release());
    to.reset(longer);
  }
  static void add(list& to, const std::string& name, std::string_view value) {
    std::string line = fmt::format("{}:{}{}", name, value.empty() ? "" : " ", value);
    append(to, line.c_str());
    ::explicit_bzero(line.data(), line.size());
  }
  template <class T> void set(CURLoption option, T value) {
    const CURLcode result = ::curl_easy_setopt(curl_.get(), option, value);
    if (result == CURLE_OUT_OF_MEMORY) throw std::bad_alloc();
    if (result != CURLE_OK)
      throw error(exit_code::output,
                  fmt::format("libcurl does not take its option {} for {}: {}",
                              static_cast<int>(option), shown(), ::curl_easy_strerror(result)));
  }
  static int stops(void* gives_up, ::curl_off_t, ::curl_off_t, ::curl_off_t, ::curl_off_t) {
    return static_cast<const std::atomic<bool>*>(gives_up)->load() ? 1 : 0;
  }
  /// Keeps a reply; of one without end, the status counts.
  static std::size_t take(char* data, std::size_t size, std::size_t n, void* to) {
    std::string& reply = *static_cast<std::string*>(to);
    if (reply.size() >= most_of_reply) return 0;
    reply.append(data, size * n);
    return size * n;
  }

  std::string url_, certificates_;
  std::chrono::milliseconds most_;
  std::unique_ptr<CURL, freed> curl_;
  list headers_;
  std::atomic<bool> gives_up_ = false, hurries_ = false;
};

} // namespace mc
#endif
