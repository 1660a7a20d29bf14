// A client of the store of PyTorch's TCPStore, which the agent of torchrun serves: keys with
// values, which outlive the ranks. Its protocol (torch/csrc/distributed/c10d/TCPStore.cpp and
// TCPStoreLibUvBackend.cpp, PyTorch 2.1 and later; both servers speak it): numbers have their least
// significant byte first; a text is its length in 8 bytes and its bytes; a request is one byte and
// what it asks about.
//
//   0 validate  a number of 4 bytes, 0x3C85F7CE           no answer
//   1 set       key, value                                no answer
//   3 get       key                                       its value; the key has to be there
//   5 check     how many keys in 8 bytes, the keys        1 byte, 0 if all are there
//   6 wait      like check                                1 byte, 0 once all are there
//
// PyTorch has others, of which nobody here has need. A wait by `wait` could end at a deadline only
// by a further request, whose answer may cross the first one's. So ranks ask by `check`, again and
// again.
#pragma once

#include <megacpp/join/sockets.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace mc {

/// A connection to such a store.
class torch_store {
public:
  /// `place` names the store in sentences.
  torch_store(descriptor connection, std::string place)
      : connection_(std::move(connection)), place_(std::move(place)) {
    std::string hello(1, '\0');
    add_number(hello, 0x3C85F7CE, 4);
    send(hello);
  }

  void set(std::string_view key, std::string_view value) {
    std::string request(1, '\1');
    add_key(request, key), add_text(request, value);
    send(request);
  }
  bool has(std::string_view key) {
    std::string request(1, '\5');
    add_number(request, 1, 8), add_key(request, key);
    send(request);
    char missing = 0;
    receive(&missing, 1);
    if (missing != 0 && missing != 1) refuse("answers what is no answer");
    return missing == 0;
  }
  /// Returns the value of a key; nothing if it is not there.
  std::optional<std::string> get(std::string_view key) {
    if (!has(key)) return std::nullopt;
    std::string request(1, '\3');
    add_key(request, key);
    send(request);
    const std::uint64_t size = receive_number();
    if (size > longest) refuse("answers what is no answer");
    std::string value(size, '\0');
    receive(value.data(), value.size());
    return value;
  }

private:
  static constexpr std::uint64_t longest = std::uint64_t{1} << 28;
  static constexpr std::chrono::seconds patience{30};

  static void add_number(std::string& to, std::uint64_t n, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i) to += static_cast<char>(n >> (8 * i));
  }
  static void add_text(std::string& to, std::string_view text) {
    add_number(to, text.size(), 8);
    to += text;
  }
  /// PyTorch's own client puts a stroke before each key.
  static void add_key(std::string& to, std::string_view key) {
    add_number(to, key.size() + 1, 8);
    (to += '/') += key;
  }
  void send(std::string_view request) {
    if (!send_all(connection_.get(), request, steady::now() + patience))
      refuse("takes no requests");
  }
  void receive(void* to, std::size_t size) {
    if (!receive_all(connection_.get(), to, size, steady::now() + patience))
      refuse("does not answer");
  }
  std::uint64_t receive_number() {
    unsigned char bytes[8];
    receive(bytes, sizeof bytes);
    std::uint64_t n = 0;
    for (unsigned i = 0; i < 8; ++i) n |= std::uint64_t{bytes[i]} << (8 * i);
    return n;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw error(exit_code::ranks,
                "the store of torchrun at " + place_ + " " + why +
                    ": it has to be that of PyTorch 2.1 or later; see whether another program "
                    "listens there, and what torchrun says");
  }

  descriptor connection_;
  std::string place_;
};

} // namespace mc
