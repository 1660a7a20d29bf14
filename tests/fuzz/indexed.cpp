// libFuzzer: any two files are either refused with mc::error or an indexed dataset whose sequences
// fill its tokens, and of which every sample holds ids of the vocabulary alone; a cached table is
// either whole or none; any words are refused or a blend with positive weights. Half of the inputs
// are an index as it stands; the others draw lengths and ends of documents for one that is valid,
// and change some of its bytes, so that what lies behind the first check is reached.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/indexed.cpp -lfmt
#include <megacpp/sets/gpt_dataset.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/mman.h>

namespace {

constexpr std::int64_t vocabulary = 100;

void require(bool law) {
  if (!law) std::abort();
}

/// A file in memory.
std::optional<mc::mapped_file> mapped(std::string_view bytes, const char* name) {
  if (bytes.empty()) return std::nullopt;
  mc::descriptor file(::memfd_create(name, MFD_CLOEXEC));
  require(file && ::write(file.get(), bytes.data(), bytes.size()) == std::ssize(bytes));
  return mc::mapped_file(std::move(file), name, mc::exit_code::data);
}

struct files {
  std::string idx, bin;
};

template <class T> void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A valid pair from the first bytes; each four of the rest change a byte of the index.
files drawn(std::span<const std::uint8_t> data) {
  constexpr std::array<std::uint8_t, 6> types{1, 2, 3, 4, 5, 8};
  std::size_t at = 0;
  const auto next = [&] { return at < data.size() ? data[at++] : std::uint8_t{0}; };
  const auto type = static_cast<mc::token_type>(types[next() % types.size()]);
  const std::size_t sequences = next() % 6, documents = next() % 4;
  std::vector<std::int32_t> lengths;
  std::int64_t tokens = 0;
  std::string begins, ends;
  for (std::size_t i = 0; i < sequences; ++i) {
    lengths.push_back(next() % 9);
    append(begins, tokens * mc::size_of(type));
    tokens += lengths.back();
  }
  std::int64_t end = 0;
  for (std::size_t i = 0; i < documents; ++i) {
    append(ends, end);
    end = std::min<std::int64_t>(end + next() % 3, std::ssize(lengths));
  }
  append(ends, std::ssize(lengths));
  if (documents == 0 && sequences > 0) ends.insert(0, 8, '\0');
  files f{.idx = std::string("MMIDIDX\0\0", 9), .bin = {}};
  append(f.idx, std::uint64_t{1});
  append(f.idx, static_cast<std::uint8_t>(type));
  append(f.idx, static_cast<std::uint64_t>(sequences));
  append(f.idx, static_cast<std::uint64_t>(ends.size() / 8));
  for (const std::int32_t length : lengths) append(f.idx, length);
  f.idx += begins + ends;
  for (std::int64_t i = 0; i < tokens * mc::size_of(type); ++i)
    f.bin += static_cast<char>(i % mc::size_of(type) == 0 ? next() % 128 : next() % 16 == 15);
  while (at + 4 <= data.size()) {
    const std::size_t where = (next() << 8 | next()) % f.idx.size();
    if (next() % 2 == 0) f.idx[where] = static_cast<char>(next());
    else f.idx[where] = static_cast<char>(f.idx[where] ^ (1 << next() % 8));
  }
  return f;
}

files as_it_stands(std::span<const std::uint8_t> data) {
  const std::string_view text(reinterpret_cast<const char*>(data.data()), data.size());
  const std::size_t idx = data.size() < 2 ? 0 : std::size_t{data[0]} * 256 + data[1];
  const auto rest = text.substr(std::min<std::size_t>(2, text.size()));
  return {std::string(rest.substr(0, idx)), std::string(rest.substr(std::min(idx, rest.size())))};
}

/// True if f is not refused.
template <class F> bool accepted(mc::exit_code code, F&& f) {
  try {
    f();
    return true;
  } catch (const mc::error& e) {
    require(e.code() == code && std::string_view(e.what()).size() > 10);
    return false;
  }
}

void check_samples(const std::shared_ptr<const mc::indexed_dataset>& data, std::uint8_t flags) {
  const mc::gpt_parameters request{.sequence = 1 + flags % 5,
                                   .samples = flags & 8 ? std::optional(20) : std::nullopt,
                                   .drop_last = (flags & 16) != 0};
  const mc::document_ends ends{.eod = 3,
                               .reset_position_ids = (flags & 32) != 0,
                               .reset_attention_mask = (flags & 64) != 0,
                               .eod_mask_loss = (flags & 128) != 0};
  const mc::gpt_dataset set(data, {0, data->sequences()}, request, ends);
  const auto l = static_cast<std::size_t>(request.sequence);
  std::vector<std::int32_t> row(4 * l);
  const std::span all(row);
  for (std::int64_t i = 0; i < std::min<std::int64_t>(set.size(), 50); ++i)
    accepted(mc::exit_code::data, [&] {
      set.fill(i, {all.first(l), all.subspan(l, l), all.subspan(2 * l, l), all.last(l)});
      for (std::size_t t = 0; t < l; ++t) {
        require(row[t] >= 0 && row[t] < vocabulary);
        require(row[l + t] == mc::ignored_label || (row[l + t] >= 0 && row[l + t] < vocabulary));
        require(row[2 * l + t] >= 0 && row[2 * l + t] <= static_cast<std::int32_t>(t));
      }
    });
}

void check_dataset(const files& f, std::uint8_t flags) {
  auto idx = mapped(f.idx, "idx");
  if (!idx) return;
  const auto data = std::make_shared<const mc::indexed_dataset>("fuzz", *std::move(idx),
                                                                mapped(f.bin, "bin"), vocabulary);
  std::int64_t tokens = 0;
  for (std::int64_t d = 0; d < data->documents(); ++d)
    for (std::int64_t s = data->first_of(d); s < data->first_of(d + 1); ++s) {
      require(data->document_of(s) == d);
      std::vector<std::int32_t> ids(static_cast<std::size_t>(data->length(s)));
      accepted(mc::exit_code::data, [&] {
        data->read(s, 0, ids);
        for (const std::int32_t id : ids) require(id >= 0 && id < vocabulary);
      });
      tokens += data->length(s);
    }
  require(tokens == data->tokens());
  require(tokens * mc::size_of(data->type()) == std::ssize(f.bin));
  if (tokens > 0) check_samples(data, flags);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::span rest(data + 1, size - 1);
  const files f = data[0] % 2 == 0 ? as_it_stands(rest) : drawn(rest);
  accepted(mc::exit_code::data, [&] { check_dataset(f, data[0]); });

  // The same bytes as a cached table, and behind a right header as one of another length.
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), rest.size());
  const std::string key(text.substr(0, 5));
  const std::string whole = mc::detail::table_header(key, std::as_bytes(rest)) + std::string(text);
  accepted(mc::exit_code::data, [&] { // for a pointer of Git LFS
    for (const std::string_view bytes : {text, std::string_view(whole).substr(0, data[0] + 40)})
      if (auto file = mapped(bytes, "table"))
        if (const auto table = mc::detail::table_of(*std::move(file), key, rest.size()))
          require(bytes == whole &&
                  std::memcmp(table->bytes().data(), text.data(), text.size()) == 0);
  });
  if (auto file = mapped(whole, "table"))
    require(mc::detail::table_of(*std::move(file), key, rest.size()).has_value());

  std::vector<std::string> words(1);
  for (const char c : text)
    if (c == '\n') words.emplace_back();
    else words.back() += c;
  accepted(mc::exit_code::usage, [&] {
    const mc::blend b = mc::parse_blend(words, "--data-path");
    require(b.prefixes.size() + b.weights.size() == words.size());
    for (const double share : mc::normalized(b.weights)) require(share >= 0 && share <= 1);
  });
  return 0;
}
