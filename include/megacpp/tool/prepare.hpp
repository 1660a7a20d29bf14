// The command prepare of megacpp-data writes texts as an indexed data set, as Megatron-LM's
// preprocess_data.py does.
#pragma once

#include <megacpp/chat/configured_token.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/sets/indexed_writer.hpp>
#include <megacpp/tool/text_commands.hpp>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <unistd.h>

namespace mc {

namespace detail {

/// Writes the data sets of one `prepare`, one for each key, and remembers on the disk how far it
/// came.
class preparation {
public:
  preparation(const data_program_flags& f, const tokenizer& t, const std::vector<std::string>& keys)
      : flags_(f),
        files_(f.input()),
        journal_(f.output_prefix() + ".prepare.json"),
        type_(token_type_of(t.vocabulary())),
        request_(request_of(t, keys)) {
    for (const std::string& key : keys)
      prefixes_.push_back(fmt::format("{}_{}_document", f.output_prefix(), key));
    if (f.append_eod()) eod_ = end_of_document(t, end_token(f));
    for (const std::string& file : files_) {
      std::error_code ignored;
      const auto size = std::filesystem::file_size(file, ignored);
      if (!ignored) total_ += static_cast<std::int64_t>(size);
    }
    while (read_again_ < files_.size() && is_regular(files_[read_again_])) ++read_again_;
    if (!go_on()) {
      for (const std::string& prefix : prefixes_)
        writers_.push_back(std::make_unique<indexed_writer>(prefix, type_));
      forget();
    }
    before_ = bytes_before(at_);
  }

  const line_place& begin() const { return at_; }
  std::int64_t documents() const { return progress(0).documents; }
  std::int64_t replaced() const { return replaced_; }

  /// A failure to write ends the work behind the last whole batch, which is kept.
  void add(const batch_of_texts& b) {
    try {
      write(b);
    } catch (const error& e) {
      if (e.code() == exit_code::output) keep_what_was_written();
      throw;
    }
  }

  /// Makes the batches so far durable, so that a later call goes on behind them. Texts from a pipe,
  /// and all texts behind it, are not kept.
  void keep() {
    if (files_.empty() || is_behind(at_)) return;
    json_output all = json_output::array();
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      if (writers_[i]) writers_[i]->sync();
      const indexed_progress& p = progress(i);
      all.push_back({{"tokens", p.tokens}, {"sequences", p.sequences}, {"documents", p.documents}});
    }
    write_text_file(journal_, json_line({{"request", request_},
                                         {"file", at_.file},
                                         {"line", at_.line},
                                         {"offset", at_.offset},
                                         {"replaced", replaced_},
                                         {"progress", all}}));
    for (const auto& w : writers_)
      if (w) w->keep();
    is_kept_ = true;
    documents_kept_ = documents();
  }
  bool is_kept() const { return is_kept_; }
  std::int64_t documents_kept() const { return documents_kept_; }

  /// Gives the sets their names. A call that ends meanwhile is taken up here: nothing is encoded
  /// again.
  void commit() {
    const double mb = static_cast<double>(done()) * 1e-6;
    if (!files_.empty()) {
      at_ = {files_.size(), 1, 0};
      keep();
    }
    std::int64_t tokens = -tokens_before_;
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      if (writers_[i]) writers_[i]->commit();
      write_checksums(prefixes_[i]);
      tokens += progress(i).tokens;
    }
    ::unlink(journal_.c_str());
    is_kept_ = false;
    for (std::size_t i = 0; i < writers_.size(); ++i)
      print_line(fmt::format("{}: {} documents, {} tokens of type {}", prefixes_[i],
                             progress(i).documents, progress(i).tokens, name_of(type_)));
    const double seconds = std::max(clock_.seconds(), 1e-9);
    print_note(fmt::format("{:.1f} MB in {}, {:.1f} MB/s, {} tokens/s", mb,
                           duration_text(seconds).view(), mb / seconds,
                           count_text(static_cast<double>(tokens) / seconds).view()));
  }

private:
  void write(const batch_of_texts& b) {
    if (read_again_ > 0 && at_.file < read_again_ && b.lines.first.file >= read_again_) keep();
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      indexed_writer& w = *writers_[i];
      b.texts[i].each([&](std::span<const std::int32_t> ids) {
        if (!ids.empty()) {
          document_.assign(ids.begin(), ids.end());
          if (eod_) document_.push_back(*eod_);
          w.add(document_);
        }
        w.end_document();
      });
    }
    replaced_ += b.texts[0].replaced;
    for (const auto& w : writers_) w->flush();
    at_ = b.lines.next;
    mark();
    const double now = clock_.seconds();
    if (now >= kept_ + 20) keep(), kept_ = clock_.seconds();
    if (now >= told_ + 5) tell(), told_ = now;
  }
  void mark() {
    written_ = {at_, replaced_, {}};
    for (std::size_t i = 0; i < writers_.size(); ++i) written_.progress.push_back(progress(i));
  }
  void keep_what_was_written() {
    if (written_.progress.empty()) return;
    at_ = written_.at, replaced_ = written_.replaced;
    try {
      for (std::size_t i = 0; i < writers_.size(); ++i) writers_[i]->go_back(written_.progress[i]);
      keep();
    } catch (const error&) { // the room is not enough even for this; what was kept before remains
    }
  }

  /// Returns the text of --eod-token, or for HuggingFaceTokenizer the eos_token of the folder, by
  /// which Megatron-LM ends documents; "" where there is neither.
  static std::string end_token(const data_program_flags& f) {
    const bool configured = f.tokenizer_type() == "HuggingFaceTokenizer" && !f.eod_token.given();
    return configured ? configured_token(f.tokenizer(), "eos_token") : f.eod_token();
  }
  /// Returns a hash of all that must be the same for a call to go on where another one ended.
  std::string request_of(const tokenizer& t, const std::vector<std::string>& keys) const {
    xxh64 hash;
    const auto add = [&hash](std::string_view text) {
      hash.add(std::as_bytes(std::span(text)));
      hash.add(std::as_bytes(std::span("\n", 1)));
    };
    namespace fs = std::filesystem;
    std::error_code ignored;
    for (const std::string& file : files_) {
      add(file);
      if (is_regular(file))
        add(fmt::format("{} {}", fs::file_size(file, ignored),
                        fs::last_write_time(file, ignored).time_since_epoch().count()));
    }
    for (const std::string& key : keys) add(key);
    for (const bool b : {flags_.append_eod(), flags_.add_special_tokens()}) add(b ? "1" : "0");
    add(end_token(flags_)), add(flags_.invalid_utf8()), add(t.file());
    add(flags_.tiktoken_pattern());
    for (const std::string& token : flags_.special_tokens()) add(token);
    std::vector<fs::path> read{flags_.tokenizer(), flags_.vocab_file(), flags_.merge_file()};
    if (fs::is_directory(read[0], ignored))
      for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt"})
        read.push_back(read[0] / name);
    for (const fs::path& file : read)
      if (fs::is_regular_file(file, ignored) && fs::file_size(file, ignored) > 0)
        add(mapped_file(file.string(), exit_code::data).text());
    return fmt::format("{:016x}", hash.value());
  }

  /// Takes up the work of a call that ended early. Returns false where no such call had this
  /// request.
  bool go_on() {
    std::error_code ignored;
    if (files_.empty() || !std::filesystem::exists(journal_, ignored)) return false;
    try {
      const json_value kept = read_json(journal_, exit_code::data);
      if (kept.field<std::string>("request") != request_) {
        print_note(
            fmt::format("{} was written for other arguments, so the work begins anew", journal_));
        return false;
      }
      at_ = {kept.field<std::size_t>("file"), kept.field<std::int64_t>("line"),
             kept.field<std::int64_t>("offset")};
      replaced_ = kept.field<std::int64_t>("replaced");
      if (is_behind(at_)) throw kept.fault("field \"file\" names no file of --input");
      const auto all = kept.field<std::vector<json_value>>("progress");
      for (std::size_t i = 0; i < prefixes_.size(); ++i) {
        const indexed_progress p{all.at(i).field<std::int64_t>("tokens"),
                                 all.at(i).field<std::int64_t>("sequences"),
                                 all.at(i).field<std::int64_t>("documents")};
        committed_.push_back(p);
        writers_.push_back(is_committed(prefixes_[i], p)
                               ? nullptr
                               : std::make_unique<indexed_writer>(prefixes_[i], type_, p));
      }
    } catch (const std::exception& e) {
      print_note(fmt::format("the work begins anew: {}", e.what()));
      writers_.clear(), committed_.clear();
      at_ = {}, replaced_ = 0;
      return false;
    }
    for (std::size_t i = 0; i < writers_.size(); ++i) {
      if (writers_[i]) writers_[i]->keep();
      tokens_before_ += progress(i).tokens;
    }
    is_kept_ = true;
    documents_kept_ = documents();
    print_note(fmt::format("going on after {} documents", documents()));
    return true;
  }

  /// Tells whether a call that had read all texts gave a set its name: its partial files are gone
  /// then. Throws mc::error where there is neither a set nor such files.
  bool is_committed(const std::string& prefix, const indexed_progress& p) const {
    std::error_code ignored;
    if (at_.file < files_.size() || std::filesystem::exists(prefix + ".bin.partial", ignored))
      return false;
    const indexed_dataset data(prefix, any_id);
    return data.type() == type_ &&
           indexed_progress{data.tokens(), data.sequences(), data.documents()} == p;
  }
  static bool is_regular(const std::string& file) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(file, ignored);
  }
  /// Tells whether texts before a place cannot be read again.
  bool is_behind(const line_place& at) const {
    return at.file > read_again_ || (at.file == read_again_ && at.offset > 0);
  }
  const indexed_progress& progress(std::size_t i) const {
    return writers_[i] ? writers_[i]->progress() : committed_[i];
  }

  /// Removes the record of an earlier call, which says nothing of the files that this one begins.
  void forget() const {
    if (::unlink(journal_.c_str()) == 0) {
      if (!sync_folder(folder_target(journal_).parent->get()))
        throw output_error("make durable", journal_, errno);
    } else if (errno != ENOENT) {
      throw output_error("remove", journal_, errno);
    }
  }

  std::int64_t bytes_before(const line_place& at) const {
    std::int64_t bytes = at.offset;
    for (std::size_t i = 0; i < at.file && i < files_.size(); ++i) {
      std::error_code ignored;
      const auto size = std::filesystem::file_size(files_[i], ignored);
      if (!ignored) bytes += static_cast<std::int64_t>(size);
    }
    return bytes;
  }
  std::int64_t done() const { return bytes_before(at_) - before_; }

  void tell() const {
    const double mb = 1e-6, rate = static_cast<double>(done()) / clock_.seconds(),
                 left = static_cast<double>(total_ - bytes_before(at_)) / std::max(rate, 1.0);
    std::string line = fmt::format("{:.1f}", static_cast<double>(bytes_before(at_)) * mb);
    if (total_ > 0) line += fmt::format(" of {:.1f}", static_cast<double>(total_) * mb);
    line += fmt::format(" MB | {} documents | {:.1f} MB/s", documents(), rate * mb);
    if (total_ > 0) line += fmt::format(" | ETA {}", duration_text(left).view());
    print_note(line);
  }

  const data_program_flags& flags_;
  std::vector<std::string> files_, prefixes_;
  std::size_t read_again_ = 0; ///< number of files before the first that is a pipe, or of all
  std::string journal_;
  token_type type_;
  std::string request_;
  std::optional<std::int32_t> eod_;
  std::vector<std::unique_ptr<indexed_writer>> writers_; ///< null for a set that is committed
  std::vector<indexed_progress> committed_;
  std::vector<std::int32_t> document_;
  line_place at_;
  std::int64_t replaced_ = 0, total_ = 0;
  std::int64_t before_ = 0, tokens_before_ = 0; ///< bytes and tokens of earlier calls
  /// The state behind the last whole batch in the files.
  struct {
    line_place at;
    std::int64_t replaced = 0;
    std::vector<indexed_progress> progress;
  } written_;
  bool is_kept_ = false;
  std::int64_t documents_kept_ = 0;
  stopwatch clock_;
  double kept_ = 0, told_ = 0;
};

} // namespace detail

/// Encodes texts on all threads and writes them in their order. Work that ends early is kept where
/// it can be, and the same call goes on. Throws mc::error.
inline void run_prepare(const data_program_flags& f) {
  if (!f.output_prefix.given())
    throw error(
        exit_code::usage,
        "--output-prefix is missing: give the beginning of the names to write, such as data/web");
  if (f.eod_token.given() && !f.append_eod())
    throw error(exit_code::usage, "--eod-token changes nothing without --append-eod; leave it out");
  const auto t = detail::tokenizer_of(f);
  const int threads = detail::workers_of(f);
  detail::batch_encoder encoder(*t, f, threads);
  const stop_signals signals;
  detail::preparation all(f, *t, encoder.names());
  line_reader lines(f.input(), all.begin(), std::string(detail::of_whole_texts));
  try {
    in_order<detail::batch_of_texts>(
        threads,
        [&](detail::batch_of_texts& b) {
          detail::end_if_asked(signals);
          return lines.next(b.lines);
        },
        [&](int thread, detail::batch_of_texts& b) {
          encoder.encode(thread, b.lines, lines.name(b.lines.first.file), b.texts);
        },
        [&](const detail::batch_of_texts& b) { all.add(b); });
    all.commit();
  } catch (const error& e) {
    if (e.code() == exit_code::output && all.is_kept())
      throw error(e.code(), fmt::format("{}; then the same command goes on", e.what()));
    if (e.code() != exit_code::interrupted) throw;
    all.keep();
    const char* const why = "for a pipe cannot be read again";
    throw error(
        exit_code::interrupted,
        fmt::format(
            "{} ended the work after {} documents{}", signals.name(), all.documents(),
            !all.is_kept() ? fmt::format(", and nothing of it is kept, {}", why)
            : all.documents_kept() < all.documents()
                ? fmt::format("; the same command goes on after {}, {}", all.documents_kept(), why)
                : "; the same command goes on"));
  }
  detail::tell_replaced(all.replaced());
}

} // namespace mc
