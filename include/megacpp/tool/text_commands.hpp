// The commands encode, decode, count and chat of megacpp-data turn texts into token ids and back,
// line by line, on all threads.
#pragma once

#include <megacpp/chat/conversation_file.hpp>
#include <megacpp/data/text_lines.hpp>
#include <megacpp/io/line_reader.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/options/chat_keys.hpp>
#include <megacpp/sets/set_checksums.hpp>
#include <megacpp/threads/in_order.hpp>
#include <megacpp/threads/processors.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>
#include <megacpp/tool/data_flags.hpp>

#include <algorithm>
#include <iterator>
#include <mutex>

namespace mc {

namespace detail {

inline constexpr std::string_view of_whole_texts = ".txt";
/// The size of a vocabulary that has every id that can be read.
inline constexpr std::int64_t any_id = std::int64_t{1} << 31;

/// Returns the tokenizer of --tokenizer, or of --vocab-file and --merge-file. Throws mc::error.
inline std::unique_ptr<const tokenizer> tokenizer_of(const data_program_flags& f) {
  const auto usage = [](const std::string& sentence) { return error(exit_code::usage, sentence); };
  const bool own_files = f.vocab_file.given() || f.merge_file.given();
  if (own_files && f.tokenizer.given())
    throw usage("--tokenizer and --vocab-file contradict each other; give one");
  const bool rules_given = f.tiktoken_pattern.given() || f.special_tokens.given(),
             tiktoken = f.tokenizer.given() && is_tiktoken_file(f.tokenizer());
  for (const auto& [name, given] : {std::pair{"tiktoken-pattern", f.tiktoken_pattern.given()},
                                    std::pair{"special-tokens", f.special_tokens.given()}})
    if (given && !tiktoken)
      throw usage(
          fmt::format("--{} changes nothing without a --tokenizer that is a file of tiktoken's; "
                      "leave it out",
                      name));
  const std::string& type = f.tokenizer_type();
  const std::string_view is = own_files  ? "GPT2BPETokenizer"
                              : tiktoken ? "TikTokenizer"
                                         : "HuggingFaceTokenizer";
  if (f.tokenizer_type.given() && (own_files || f.tokenizer.given()) && type != is)
    throw usage(fmt::format("--tokenizer-type is {}, but {} is of {}; leave one of them out", type,
                            own_files ? "--vocab-file" : "--tokenizer", is));
  if (own_files) {
    if (!f.vocab_file.given() || !f.merge_file.given())
      throw usage("--vocab-file and --merge-file belong together; give both");
    return std::make_unique<tokenizer>(read_vocabulary_and_merges(f.vocab_file(), f.merge_file()));
  }
  if (type == "GPT2BPETokenizer" && !f.tokenizer.given())
    throw usage("--vocab-file and --merge-file are missing: give both files of GPT2BPETokenizer");
  if (!f.tokenizer.given())
    throw usage(
        "--tokenizer is missing: give the folder of a model, a tokenizer.json or a .tiktoken "
        "file");
  if (!rules_given) return open_tokenizer(f.tokenizer());
  std::optional<tiktoken_rules> rules;
  if (f.tiktoken_pattern.given())
    rules = tiktoken_rules_by("--tiktoken-pattern", f.tiktoken_pattern());
  else rules = tiktoken_rules_of(std::filesystem::path(f.tokenizer()).stem().string());
  if (!rules)
    throw usage(
        "--special-tokens needs --tiktoken-pattern, since the name of the file is none whose "
        "rules are known");
  return std::make_unique<tokenizer>(
      read_tiktoken(f.tokenizer(), std::move(*rules),
                    f.special_tokens.given() ? std::optional(f.special_tokens()) : std::nullopt));
}

inline int workers_of(const data_program_flags& f) {
  return f.workers() > 0 ? static_cast<int>(f.workers()) : processors();
}

/// Returns the names of --json-keys. Throws mc::error(exit_code::usage).
inline std::vector<std::string> text_names_of(const data_program_flags& f) {
  if (!f.json_keys.given()) return {"text"};
  std::vector<std::string> names = f.json_keys();
  for (auto at = names.begin(); at != names.end(); ++at) {
    if (at->empty())
      throw error(exit_code::usage, "--json-keys has an empty name; give that of a field");
    if (std::find(names.begin(), at, *at) != at)
      throw error(
          exit_code::usage,
          fmt::format("--json-keys has \"{}\" twice; name each field once", printable(*at)));
  }
  return names;
}

/// The token ids of some texts, one after the other.
struct encoded_texts {
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends; ///< position in `ids` behind each text
  std::int64_t bytes = 0, replaced = 0;

  void clear() { *this = {std::move(ids), std::move(ends), 0, 0}, ids.clear(), ends.clear(); }
  template <class F> void each(F f) const {
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      f(std::span(ids).subspan(begin, end - begin));
      begin = end;
    }
  }
};

/// Encodes the texts of batches of lines, each thread with an encoder of its own.
class batch_encoder {
public:
  batch_encoder(const tokenizer& t, const data_program_flags& f, int threads)
      : rules_{text_names_of(f),
               f.invalid_utf8() == "replace" ? invalid_utf8::replace : invalid_utf8::refuse},
        around_(f.add_special_tokens()) {
    for (int i = 0; i < threads; ++i) encoders_.emplace_back(t);
  }

  const std::vector<std::string>& names() const { return rules_.keys; }

  /// Returns the ids of a batch's texts, for each name apart. A text that is too long for several
  /// like it to be in memory is encoded alone. Throws mc::error(exit_code::data) naming the line.
  void encode(int thread, const line_batch& batch, const std::string& file,
              std::vector<encoded_texts>& to) {
    to.resize(rules_.keys.size());
    for (encoded_texts& texts : to) texts.clear();
    std::unique_lock alone(long_texts_, std::defer_lock);
    if (batch.text.size() > long_text) alone.lock();
    batch.each([&](std::string_view line, std::int64_t number) {
      const std::string where = batch.whole_file ? file : fmt::format("{}: line {}", file, number);
      std::string copy;
      const std::string_view utf8 = as_utf8(line, where, rules_.invalid, copy, to[0].replaced);
      if (batch.whole_file) {
        for (encoded_texts& texts : to) add(thread, utf8, where, texts);
        return;
      }
      if (utf8.find_first_not_of(" \t") == std::string_view::npos) return;
      std::vector<std::string> texts = texts_of_line(utf8, rules_, where, to[0].replaced);
      for (std::size_t i = 0; i < texts.size(); ++i) add(thread, texts[i], where, to[i]);
    });
  }

private:
  static constexpr std::size_t long_text = std::size_t{2} << 20; // bytes

  void add(int thread, std::string_view text, const std::string& where, encoded_texts& to) {
    try {
      encoders_[static_cast<std::size_t>(thread)].encode(text, to.ids, around_);
    } catch (const error& e) {
      throw error(e.code(), fmt::format("{}: {}", where, e.what()));
    }
    to.ends.push_back(to.ids.size());
    to.bytes += static_cast<std::int64_t>(text.size());
  }

  text_rules rules_;
  bool around_;
  std::vector<token_encoder> encoders_;
  std::mutex long_texts_;
};

/// A batch on its way through the threads.
struct batch_of_texts {
  line_batch lines;
  std::vector<encoded_texts> texts;
  std::string out;
};

/// Throws mc::error(exit_code::interrupted) where a signal asks a command to stop.
inline void end_if_asked(const stop_signals& signals) {
  if (signals.requested())
    throw error(exit_code::interrupted, fmt::format("{} ended the work before its end; what was "
                                                    "written so far is cut short",
                                                    signals.name()));
}

inline void tell_replaced(std::int64_t replaced) {
  if (replaced > 0)
    print_note(
        fmt::format("U+FFFD stands for {} bytes that are not UTF-8, or escapes of half a surrogate "
                    "pair",
                    replaced));
}

/// Encodes all texts of `lines`, and hands those of each batch to `use(texts)` in order. Prints and
/// returns how many bytes were replaced.
template <class Use> std::int64_t encode_all(const data_program_flags& f, const tokenizer& t,
                                             line_reader lines, const Use& use) {
  const int threads = workers_of(f);
  batch_encoder encoder(t, f, threads);
  const stop_signals signals;
  std::int64_t replaced = 0;
  in_order<batch_of_texts>(
      threads,
      [&](batch_of_texts& b) {
        end_if_asked(signals);
        return lines.next(b.lines);
      },
      [&](int thread, batch_of_texts& b) {
        encoder.encode(thread, b.lines, lines.name(b.lines.first.file), b.texts);
      },
      [&](const batch_of_texts& b) {
        use(b.texts);
        for (const encoded_texts& texts : b.texts) replaced += texts.replaced;
      });
  tell_replaced(replaced);
  return replaced;
}

/// Writes the checksums of a data set to a file beside it.
inline void write_checksums(const std::string& prefix) {
  const indexed_dataset data(prefix, any_id);
  write_text_file(prefix + ".xxh64", checksum_lines(data));
}

} // namespace detail

/// Prints a line of ids for each text.
inline void run_encode(const data_program_flags& f) {
  const auto t = detail::tokenizer_of(f);
  if (detail::text_names_of(f).size() > 1)
    throw error(exit_code::usage, "encode writes the ids of one text a line; give one --json-keys");
  using texts_of_batch = std::vector<detail::encoded_texts>;
  detail::encode_all(f, *t, line_reader(f.input()), [](const texts_of_batch& texts) {
    std::string out;
    const auto flush = [&](std::size_t at_least) {
      if (out.size() < at_least) return;
      print(out);
      out.clear();
    };
    texts[0].each([&](std::span<const std::int32_t> ids) {
      out += '[';
      for (std::size_t i = 0; i < ids.size(); ++i) {
        fmt::format_to(std::back_inserter(out), "{}{}", i > 0 ? "," : "", ids[i]);
        flush(1 << 20);
      }
      out += "]\n";
    });
    flush(1);
  });
}

/// Prints a text in quotes for each line of ids.
inline void run_decode(const data_program_flags& f) {
  const auto t = detail::tokenizer_of(f);
  line_reader lines(f.input());
  const stop_signals signals;
  in_order<detail::batch_of_texts>(
      detail::workers_of(f),
      [&](detail::batch_of_texts& b) {
        detail::end_if_asked(signals);
        return lines.next(b.lines);
      },
      [&](int, detail::batch_of_texts& b) {
        b.out.clear();
        b.lines.each([&](std::string_view line, std::int64_t number) {
          if (line.find_first_not_of(" \t") == std::string_view::npos) return;
          const std::string where =
              fmt::format("{}: line {}", lines.name(b.lines.first.file), number);
          const json_value list(parse_json(line, where, exit_code::data, line_reader::longest_line),
                                where, exit_code::data);
          const auto ids = list.as<std::vector<std::int32_t>>();
          try {
            b.out += json_line(json_output(t->decode(ids, f.skip_special_tokens())));
          } catch (const error& e) {
            throw error(e.code(), fmt::format("{}: {}", where, e.what()));
          }
        });
      },
      [&](const detail::batch_of_texts& b) { print(b.out); });
}

/// Prints how many documents, bytes and tokens there are.
inline void run_count(const data_program_flags& f) {
  const auto t = detail::tokenizer_of(f);
  std::int64_t documents = 0, bytes = 0, tokens = 0, longest = 0;
  line_reader lines(f.input(), {}, std::string(detail::of_whole_texts));
  using texts_of_batch = std::vector<detail::encoded_texts>;
  const std::int64_t replaced =
      detail::encode_all(f, *t, std::move(lines), [&](const texts_of_batch& all) {
        for (const detail::encoded_texts& texts : all) {
          texts.each([&](std::span<const std::int32_t> ids) {
            ++documents;
            tokens += std::ssize(ids);
            longest = std::max<std::int64_t>(longest, std::ssize(ids));
          });
          bytes += texts.bytes;
        }
      });
  const double each = tokens > 0 ? static_cast<double>(bytes) / static_cast<double>(tokens) : 0;
  if (f.json())
    print(json_line({{"documents", documents},
                     {"bytes", bytes},
                     {"tokens", tokens},
                     {"longest", longest},
                     {"bytes_per_token", each},
                     {"replaced", replaced}}));
  else
    print_line(
        fmt::format("{} documents | {} bytes | {} tokens, the longest document {} | {:.3f} "
                    "bytes a token",
                    documents, bytes, tokens, longest, each));
}

/// Prints a line {"ids": [...], "mask": [...]} for each conversation.
inline void run_chat(const data_program_flags& f) {
  const auto t = detail::tokenizer_of(f);
  conversation_rules form{
      .vocabulary = t->vocabulary(),
      .tokenizer = t.get(),
      .trained = f.chat_loss() == "all" ? trained_on::all : trained_on::assistant,
      .fields = chat_fields_of(f.chat_keys)};
  form.take_template(f.tokenizer());
  const stop_signals signals;
  std::string out;
  std::int64_t merged = 0;
  read_conversations(f.input(), form, detail::workers_of(f), [&](const chat_tokens& c) {
    detail::end_if_asked(signals);
    out += line_of(c);
    merged += c.merged_turns;
    if (out.size() >= std::size_t{1} << 20) print(std::exchange(out, {}));
  });
  print(out);
  if (merged > 0)
    print_note(
        fmt::format("{} turns begin with a line end that is one token with that of their "
                    "header, and are not learned",
                    merged));
}

} // namespace mc
