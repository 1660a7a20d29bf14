// gpt_indices says which tokens each sample has, as Megatron's GPTDataset does (Megatron-LM,
// megatron/core/datasets/gpt_dataset.py and helpers.cpp).
//
// The document index lays E epochs of a range of sequences end to end in a shuffled order. The
// sample index says where each sample begins in the tokens of these sequences: a sample has L + 1
// tokens, and its last token is the first one of the next sample. Then the shuffle index shuffles
// the samples. If less than 0.8 of the last epoch is needed, that epoch is shuffled alone, behind
// the others. So the run sees all tokens of the other epochs before it begins the last.
#pragma once

#include <megacpp/data/split.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/sets/index_cache.hpp>
#include <megacpp/sets/numpy_random.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mc {

/// gpt_parameters says how many samples are wanted, of how many tokens, and in which order.
struct gpt_parameters {
  std::int64_t sequence = 0;                ///< L, the tokens of a sample.
  std::optional<std::int64_t> samples = {}; ///< The least number of samples; none means one epoch.
  std::uint32_t seed = 1234;                ///< The seed of the shuffled orders.
  bool drop_last = true; ///< A short last sample is dropped; if false, it is padded.
  int extra = 1;         ///< The tokens of a sample beyond L: 1 for its last label, or 0.
};

/// gpt_epochs says how many epochs of a range of sequences give the samples that are asked for.
struct gpt_epochs {
  std::int64_t sequences = 0, tokens = 0; ///< The sequences and tokens of one epoch.
  std::int64_t epochs = 1;                ///< The number of epochs.
  std::int64_t samples = 0;               ///< The samples of all epochs.
  std::int64_t apart = 0; ///< The samples before the last epoch, if that is shuffled alone.
  bool separate = false;  ///< The last epoch is shuffled alone.

  /// Returns the length of the document index.
  std::int64_t documents() const { return epochs * sequences; }
  // Megatron stores the sample index and the shuffle index in wider types where they are long.
  bool wide_places() const { return documents() > std::numeric_limits<std::int32_t>::max(); }
  bool wide_samples() const { return samples >= 0xffffffffll - 1; }
};

/// Returns how many epochs are needed of a range with so many sequences and tokens. `what`
/// names the range in messages. Throws mc::error(exit_code::data) for a range without tokens, or
/// for more samples than can be numbered.
inline gpt_epochs count_epochs(std::int64_t sequences, std::int64_t tokens,
                               const gpt_parameters& parameters, std::string_view what) {
  const std::int64_t l = parameters.sequence, most = std::int64_t{1} << 56;
  if (sequences <= 0 || tokens <= 0)
    throw error(
        exit_code::data,
        fmt::format("{} has no tokens; give more data or another data_request::split", what));
  gpt_epochs e{.sequences = sequences, .tokens = tokens};
  if (parameters.samples) {
    if (*parameters.samples > most / l)
      throw error(exit_code::data,
                  fmt::format("{} cannot give {} samples of {} tokens; train on fewer", what,
                              *parameters.samples, l));
    const std::int64_t wanted = *parameters.samples * l + parameters.extra;
    e.epochs = std::max<std::int64_t>(1, (wanted + tokens - 1) / tokens);
  }
  if (e.epochs > most / std::max(sequences, tokens) || e.epochs > (std::int64_t{1} << 31) - 1 ||
      sequences > std::numeric_limits<std::int32_t>::max())
    throw error(exit_code::data,
                fmt::format("{} has {} tokens in {} sequences, of which {} epochs are more than "
                            "can be numbered; give more data, or fewer samples",
                            what, tokens, sequences, e.epochs));
  const std::int64_t all = e.epochs * tokens - parameters.extra;
  // Megatron takes the ceil of a binary32 quotient, which is some samples off where there are many.
  e.samples =
      parameters.drop_last
          ? all / l
          : static_cast<std::int64_t>(std::ceil(static_cast<float>(all) / static_cast<float>(l)));
  if (e.epochs > 1) {
    e.apart = ((e.epochs - 1) * tokens - parameters.extra) / l;
    const std::int64_t an_epoch = (tokens - parameters.extra) / l;
    e.separate = *parameters.samples - e.apart <
                 static_cast<std::int64_t>(0.80 * static_cast<double>(an_epoch));
  }
  return e;
}

/// gpt_place is where a sample begins: a place in the document index, and how many tokens of the
/// sequence there come before.
struct gpt_place {
  std::int64_t document = 0, offset = 0;
  bool operator==(const gpt_place&) const = default;
};

/// gpt_indices holds the three indices of a dataset, one behind the other in a table.
class gpt_indices {
public:
  /// Builds the indices of the sequences in `part`, or takes them from `cache`. length(i) is the
  /// length of sequence i, and `key` is a text that tells this data from other data. Throws
  /// mc::error.
  template <class Length>
  gpt_indices(const Length& length, token_range part, const gpt_parameters& parameters,
              std::string_view what, const index_cache& cache = {}, std::string_view key = "")
      : parameters_(parameters),
        epochs_(count_epochs(part.size(), tokens_of(length, part), parameters, what)),
        table_(cache.get("gpt", whole_key(part, key), bytes(), what,
                         [&](index_table& table) { fill(length, part, table); })) {}

  const gpt_epochs& epochs() const { return epochs_; }
  std::int64_t samples() const { return epochs_.samples; }

  /// Returns the sequence at a place of the document index.
  std::int32_t document(std::int64_t place) const { return documents()[to_size(place)]; }
  std::span<const std::int32_t> documents() const {
    return table_.values<std::int32_t>(documents_begin(), epochs_.documents());
  }
  /// Returns where sample s of the unshuffled samples begins, 0 <= s <= samples().
  gpt_place place(std::int64_t s) const {
    const auto at = [&]<class T>(T) -> gpt_place {
      const auto p = table_.values<T>(0, 2 * (samples() + 1)).subspan(2 * to_size(s), 2);
      return {p[0], p[1]};
    };
    return epochs_.wide_places() ? at(std::int64_t()) : at(std::int32_t());
  }
  /// Returns which of the unshuffled samples is sample i.
  std::int64_t shuffled(std::int64_t i) const {
    if (epochs_.wide_samples())
      return table_.values<std::int64_t>(shuffle_begin(), samples())[to_size(i)];
    return table_.values<std::uint32_t>(shuffle_begin(), samples())[to_size(i)];
  }

private:
  static std::size_t to_size(std::int64_t i) { return static_cast<std::size_t>(i); }
  static std::uint64_t even(std::uint64_t bytes) { return (bytes + 7) / 8 * 8; }

  template <class Length> static std::int64_t tokens_of(const Length& length, token_range part) {
    std::int64_t tokens = 0;
    for (std::int64_t i = part.begin; i < part.end; ++i) tokens += length(i);
    return tokens;
  }

  std::uint64_t shuffle_begin() const {
    return 2 * to_size(samples() + 1) * (epochs_.wide_places() ? 8 : 4);
  }
  std::uint64_t documents_begin() const {
    return even(shuffle_begin() + to_size(samples()) * (epochs_.wide_samples() ? 8 : 4));
  }
  std::uint64_t bytes() const { return documents_begin() + 4 * to_size(epochs_.documents()); }

  std::string whole_key(token_range part, std::string_view key) const {
    return fmt::format(
        "gpt indices 1: sequence {}, samples {}, seed {}, drop_last {}, extra {}, "
        "sequences {} to {} of {}",
        parameters_.sequence, parameters_.samples.value_or(-1), parameters_.seed,
        parameters_.drop_last, parameters_.extra, part.begin, part.end, key);
  }

  template <class Length>
  void fill(const Length& length, token_range part, index_table& table) const {
    numpy_random random(parameters_.seed);
    const auto documents = table.values<std::int32_t>(documents_begin(), epochs_.documents());
    fill_documents(random, part, documents);
    if (epochs_.wide_places()) fill_places<std::int64_t>(length, documents, table);
    else fill_places<std::int32_t>(length, documents, table);
    if (epochs_.wide_samples()) fill_shuffle<std::int64_t>(random, table);
    else fill_shuffle<std::uint32_t>(random, table);
  }

  void fill_documents(numpy_random& random, token_range part,
                      std::span<std::int32_t> documents) const {
    const std::size_t n = to_size(epochs_.sequences);
    for (std::size_t at = 0; at < documents.size(); at += n)
      std::iota(documents.begin() + static_cast<std::ptrdiff_t>(at),
                documents.begin() + static_cast<std::ptrdiff_t>(at + n),
                static_cast<std::int32_t>(part.begin));
    const std::size_t together = documents.size() - (epochs_.separate ? n : 0);
    random.shuffle(documents.first(together));
    random.shuffle(documents.subspan(together));
  }

  template <class T, class Length> void fill_places(const Length& length,
                                                    std::span<const std::int32_t> documents,
                                                    index_table& table) const {
    const auto out = table.values<T>(0, 2 * (samples() + 1));
    // Lengths are read for many documents at once. They are all over memory, and reads that do not
    // wait for each other are faster.
    std::array<std::int32_t, 1024> ahead;
    std::size_t ahead_begin = 0, ahead_end = 0;
    const auto length_at = [&](std::size_t d) -> std::int64_t {
      if (d >= ahead_end) {
        ahead_begin = d;
        ahead_end = std::min(d + ahead.size(), documents.size());
        for (std::size_t i = d; i < ahead_end; ++i)
          ahead[i - d] = static_cast<std::int32_t>(length(documents[i]));
      }
      return ahead[d - ahead_begin];
    };
    std::size_t d = 0, at = 0;
    std::int64_t offset = 0;
    const auto put = [&] {
      out[at++] = static_cast<T>(d);
      out[at++] = static_cast<T>(offset);
    };
    put();
    for (std::int64_t s = 0; s < samples(); ++s) {
      for (std::int64_t left = parameters_.sequence + parameters_.extra;;) {
        const std::int64_t rest = length_at(d) - offset;
        left -= rest;
        if (left <= 0) { // The sample ends within this document.
          offset += left + rest - parameters_.extra;
          break;
        }
        if (d + 1 == documents.size()) { // There are no more tokens, so the sample is short.
          offset = length_at(d) - parameters_.extra;
          break;
        }
        ++d;
        offset = 0;
      }
      put();
    }
  }

  template <class T> void fill_shuffle(numpy_random& random, index_table& table) const {
    const auto out = table.values<T>(shuffle_begin(), samples());
    std::iota(out.begin(), out.end(), T{0});
    const std::size_t together = epochs_.separate ? to_size(epochs_.apart) : out.size();
    random.shuffle(out.first(together));
    random.shuffle(out.subspan(together));
  }

  gpt_parameters parameters_;
  gpt_epochs epochs_;
  index_table table_;
};

} // namespace mc
