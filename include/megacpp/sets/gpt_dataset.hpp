// gpt_dataset and blended_dataset have the samples of Megatron's GPTDataset and BlendedDataset.
#pragma once

#include <megacpp/data/sample_set.hpp>
#include <megacpp/data/split.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/sets/blending.hpp>
#include <megacpp/sets/gpt_indices.hpp>
#include <megacpp/sets/index_cache.hpp>
#include <megacpp/sets/indexed_dataset.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// document_ends says what the end of a document changes within a sample. The three switches are
/// Megatron's of these names: positions begin anew, attention stays within documents, and the token
/// behind an end is not predicted.
struct document_ends {
  std::optional<std::int32_t> eod = {}; ///< The token that ends a document.
  std::optional<std::int32_t> pad = {}; ///< Padding other than eod: read as 0 and never predicted.
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
};

/// Fills a row from its L + 1 tokens, as Megatron's _get_ltor_masks_and_position_ids does. Tokens
/// from number `held` on are missing; they are read as 0 and not predicted. eod_mask_loss leaves
/// out the prediction from an eod; positions and documents begin anew behind an eod.
inline void fill_row(std::span<const std::int32_t> tokens, std::size_t held,
                     const document_ends& ends, const sample_row& row) {
  std::int32_t position = 0, document = 0;
  const bool pads = ends.pad && ends.pad != ends.eod;
  const auto real = [&](std::size_t i) { return i < held && !(pads && tokens[i] == *ends.pad); };
  for (std::size_t i = 0; i < row.tokens.size(); ++i) {
    const bool ended = i < held && tokens[i] == ends.eod;
    const bool counts = i + 1 < tokens.size() && real(i + 1) && !(ended && ends.eod_mask_loss);
    row.tokens[i] = real(i) ? tokens[i] : 0;
    row.labels[i] = counts ? tokens[i + 1] : ignored_label;
    row.positions[i] = position++;
    row.documents[i] = document;
    if (ended && ends.reset_position_ids) position = 0;
    if (ended && ends.reset_attention_mask) ++document;
  }
}

/// gpt_dataset has samples of a range of a dataset's sequences.
class gpt_dataset final : public sample_set {
public:
  /// Makes samples of a range of sequences. `part_name`, such as "training", names the range in
  /// messages. Throws mc::error(exit_code::data) for a range without tokens.
  gpt_dataset(std::shared_ptr<const indexed_dataset> data, token_range sequences,
              const gpt_parameters& parameters, const document_ends& ends,
              const index_cache& cache = {}, std::string_view part_name = "training")
      : data_(std::move(data)),
        parameters_(parameters),
        ends_(ends),
        cached_(static_cast<bool>(cache)),
        indices_([this](std::int64_t i) { return data_->length(i); }, sequences, parameters,
                 fmt::format("the {} part of {}", part_name, data_->name()), cache,
                 cache ? key_of(*data_) : "") {}

  std::int64_t size() const override { return indices_.samples(); }
  const std::string& name() const override { return data_->name(); }
  const gpt_indices& indices() const { return indices_; }
  std::string order() const override {
    const gpt_epochs& e = indices_.epochs();
    return e.separate ? fmt::format("{}+1", e.epochs - 1) : fmt::format("{}", e.epochs);
  }

  void fill(std::int64_t sample, const sample_row& row) const override {
    if (sample < 0 || sample >= size())
      throw error(exit_code::internal,
                  fmt::format("sample {} of {} was asked for; it has {}", sample, name(), size()));
    // A row holds L tokens, and L + 1 are needed to fill it, so they are read to memory of their
    // own.
    thread_local std::vector<std::int32_t> tokens;
    tokens.resize(row.tokens.size() + static_cast<std::size_t>(parameters_.extra));
    const std::size_t held = gather(indices_.shuffled(sample), tokens);
    fill_row(tokens, held, ends_, row);
  }

private:
  static std::string key_of(const indexed_dataset& data) {
    return fmt::format("a dataset of {} sequences and {} tokens with the index {:016x}",
                       data.sequences(), data.tokens(), xxh64::of(data.idx_bytes()));
  }

  /// Reads the tokens of sample s of the unshuffled samples to `out`, and returns how many it has.
  std::size_t gather(std::int64_t s, std::span<std::int32_t> out) const {
    const auto check = [this](bool holds) {
      if (!holds) refuse();
    };
    check(s >= 0 && s < indices_.samples());
    const gpt_place from = indices_.place(s), to = indices_.place(s + 1);
    const std::int64_t last = indices_.epochs().documents() - 1;
    check(from.document >= 0 && from.document <= to.document && to.document <= last);
    std::size_t held = 0;
    for (std::int64_t d = from.document; d <= to.document; ++d) {
      const std::int64_t sequence = indices_.document(d);
      check(sequence >= 0 && sequence < data_->sequences());
      // An empty last sequence ends at -1.
      const std::int64_t begin = d == from.document ? std::max<std::int64_t>(from.offset, 0) : 0;
      const std::int64_t end =
          d == to.document ? to.offset + parameters_.extra : data_->length(sequence);
      const std::int64_t n = std::max<std::int64_t>(end - begin, 0);
      check(begin <= data_->length(sequence) && end <= data_->length(sequence) &&
            n <= static_cast<std::int64_t>(out.size() - held));
      data_->read(sequence, begin, out.subspan(held, static_cast<std::size_t>(n)));
      held += static_cast<std::size_t>(n);
    }
    return held;
  }

  /// Throws mc::error(exit_code::data) where the indices no longer fit the dataset: the data
  /// changed, or the cache holds the indices of other data.
  [[noreturn]] void refuse() const {
    data_->check_unchanged();
    if (const std::string file = data_->written(); !file.empty() || !cached_)
      throw error(exit_code::data,
                  fmt::format("{} changed while it was being read: it has sequences of other "
                              "lengths than at the start; do not write to it during a run",
                              file.empty() ? name() : file));
    throw error(exit_code::data,
                fmt::format("the cached indices of {} are none of its own; remove the folder of "
                            "data_request::cache",
                            name()));
  }

  std::shared_ptr<const indexed_dataset> data_;
  gpt_parameters parameters_;
  document_ends ends_;
  bool cached_; ///< The indices may have been read from a folder.
  gpt_indices indices_;
};

/// blended_dataset has samples of several sets in turn.
class blended_dataset final : public sample_set {
public:
  /// Blends sets by their indices. Throws mc::error(exit_code::data) where the blend takes more
  /// samples of a set than it has.
  blended_dataset(std::vector<std::shared_ptr<const sample_set>> sets, blend_indices indices)
      : sets_(std::move(sets)), indices_(std::move(indices)), name_(name_of_all()) {
    std::vector<std::int64_t> taken(sets_.size());
    for (const std::int16_t set : indices_.sets()) {
      if (set < 0 || static_cast<std::size_t>(set) >= sets_.size())
        throw error(exit_code::data,
                    fmt::format("the cached indices of {} are none of its own; remove the folder "
                                "of data_request::cache",
                                name_));
      ++taken[static_cast<std::size_t>(set)];
    }
    for (std::size_t i = 0; i < sets_.size(); ++i)
      if (taken[i] > sets_[i]->size())
        throw error(exit_code::data,
                    fmt::format("{} samples of {} are blended, but it has {}; give it a smaller "
                                "weight, or more data",
                                taken[i], sets_[i]->name(), sets_[i]->size()));
  }

  std::int64_t size() const override { return indices_.size(); }
  const std::string& name() const override { return name_; }
  const blend_indices& indices() const { return indices_; }
  std::string order() const override {
    std::string all;
    for (const auto& set : sets_) (all += all.empty() ? "" : ", ") += set->order();
    return all;
  }

  void fill(std::int64_t sample, const sample_row& row) const override {
    if (sample < 0 || sample >= size())
      throw error(exit_code::internal,
                  fmt::format("sample {} of {} was asked for; it has {}", sample, name(), size()));
    const auto s = static_cast<std::size_t>(sample);
    sets_[static_cast<std::size_t>(indices_.sets()[s])]->fill(indices_.samples()[s], row);
  }

private:
  std::string name_of_all() const {
    return sets_.size() == 1 ? sets_[0]->name()
                             : fmt::format("{} and {} more", sets_[0]->name(), sets_.size() - 1);
  }

  std::vector<std::shared_ptr<const sample_set>> sets_;
  blend_indices indices_;
  std::string name_;
};

/// dataset_range is one dataset of a blend, with the range of sequences that are for training,
/// validation or test.
struct dataset_range {
  std::shared_ptr<const indexed_dataset> data;
  token_range sequences;
};

/// Returns the samples of a blend, as Megatron's BlendedMegatronDatasetBuilder makes them.
///
/// With weights, each dataset gives its fraction of parameters.samples, which must be set. Without
/// weights, each dataset gives one epoch, and the blend has parameters.samples of these samples, or
/// all. One dataset without a weight is not blended. `part_name` names the samples in messages.
/// Throws mc::error.
inline std::shared_ptr<const sample_set> blended_samples(const std::vector<dataset_range>& parts,
                                                         std::span<const double> weights,
                                                         const gpt_parameters& parameters,
                                                         const document_ends& ends,
                                                         const index_cache& cache = {},
                                                         std::string_view part_name = "training") {
  const auto one = [&](const dataset_range& p, std::optional<std::int64_t> samples) {
    gpt_parameters r = parameters;
    r.samples = samples;
    return std::make_shared<const gpt_dataset>(p.data, p.sequences, r, ends, cache, part_name);
  };
  if (parts.size() == 1 && weights.empty()) return one(parts[0], parameters.samples);
  std::vector<std::shared_ptr<const sample_set>> sets;
  if (!weights.empty()) {
    if (!parameters.samples)
      throw error(exit_code::usage,
                  fmt::format("the {} samples of a blend with weights have no number; give the "
                              "prefixes without weights",
                              part_name));
    const std::vector<double> shares = normalized(weights);
    const blend_sizes sizes = sizes_of_blend(shares, *parameters.samples);
    for (std::size_t i = 0; i < parts.size(); ++i) sets.push_back(one(parts[i], sizes.built[i]));
    return std::make_shared<const blended_dataset>(
        std::move(sets), blend_indices::weighted(shares, sizes.size(), cache));
  }
  std::vector<std::int64_t> sizes;
  for (const dataset_range& p : parts) {
    sets.push_back(one(p, std::nullopt));
    sizes.push_back(sets.back()->size());
  }
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] == 0)
      throw error(exit_code::data,
                  fmt::format("the {} part of {} holds no sample of {} tokens; leave it out, give "
                              "it more data, or another data_request::split",
                              part_name, sets[i]->name(), parameters.sequence));
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  if (!parameters.samples)
    return std::make_shared<const blended_dataset>(std::move(sets),
                                                   blend_indices::exhaustive(sizes, cache));
  return std::make_shared<const blended_dataset>(
      std::move(sets), blend_indices::weighted(std::vector<double>(sizes.begin(), sizes.end()),
                                               std::min(*parameters.samples, all), cache));
}

} // namespace mc
