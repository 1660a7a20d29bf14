// random_tokens makes tokens at random, for measuring speed without a file.
#pragma once

#include <megacpp/data/token_source.hpp>
#include <megacpp/num/random.hpp>

namespace mc {

/// random_tokens is a source whose token i is a pure function of the seed and i, uniform in
/// [0, vocabulary).
class random_tokens final : public token_source {
public:
  random_tokens(std::int64_t size, std::int64_t vocabulary, std::uint64_t seed)
      : size_(size),
        vocabulary_(static_cast<std::uint64_t>(vocabulary)),
        key_(random_key(seed, stream)) {}

  std::int64_t size() const override { return size_; }
  const std::string& name() const override { return name_; }
  std::int32_t token(std::int64_t i) const override {
    const auto words = philox(key_, static_cast<std::uint64_t>(i / 4));
    return static_cast<std::int32_t>(below(vocabulary_, words[static_cast<unsigned>(i % 4)]));
  }
  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = token(first + static_cast<std::int64_t>(i));
  }

private:
  /// `stream` keeps these numbers apart from other random numbers of the same seed.
  static constexpr std::uint64_t stream = 0x72616e646f6d74u;

  std::int64_t size_;
  std::uint64_t vocabulary_, key_;
  std::string name_ = "random tokens";
};

} // namespace mc
