// The components that the training loop asks, each alone: what is due when, which samples a step
// has and how they are shown, what ends a run early, and whether its data have changed.
#define BOOST_TEST_MODULE training
#include <megacpp/chat/packed_conversations.hpp>
#include <megacpp/comm/self.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/data/sample_lines.hpp>
#include <megacpp/data/watched_data.hpp>
#include <megacpp/io/small_file.hpp>
#include <megacpp/optim/recurrence.hpp>
#include <megacpp/train/batch_reader.hpp>
#include <megacpp/train/early_end.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "scratch.hpp"

namespace {

/// Samples of one token, which is the number of the sample.
class numbered_samples final : public mc::sample_set {
public:
  std::int64_t size() const override { return INT64_MAX; }
  void fill(std::int64_t sample, const mc::sample_row& row) const override {
    row.tokens[0] = static_cast<std::int32_t>(sample);
    mc::one_document(row);
  }
  const std::string& name() const override { return name_; }

private:
  std::string name_ = "numbers";
};

/// A run of 40 steps whose batch grows from 8 to 32 sequences.
constexpr mc::batch_schedule growing{.last = 32, .start = 8, .increment = 8, .samples = 300};

/// A token that is shown: a byte, and whether it is learned.
using shown_token = std::pair<char, bool>;

/// Reads the lines of a sample whose tokens are bytes: the tokens of each document.
std::vector<std::vector<shown_token>> documents_in(const std::string& lines) {
  std::vector<std::vector<shown_token>> all;
  std::size_t begin = lines.find('\n') + 1;
  for (std::size_t end; (end = lines.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = lines.substr(begin, end - begin);
    const std::size_t quote = line.find('"');
    if (line.starts_with("  document ") || all.empty()) all.emplace_back();
    if (line.starts_with("  document ")) continue;
    BOOST_REQUIRE((quote != std::string::npos && line.ends_with('"')));
    const std::size_t is_times = line.find(" times ");
    const bool repeats = is_times < quote, learned = line.starts_with("    learned ");
    std::string text;
    for (std::size_t i = quote + 1; i + 1 < line.size(); ++i) {
      if (line[i] != '\\') text += line[i];
      else if (const char c = line[++i]; c != 'x')
        text += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
      else text += static_cast<char>(std::stoi(line.substr(i + 1, 2), nullptr, 16)), i += 2;
    }
    for (int n = repeats ? std::stoi(line) : 1; n > 0; --n)
      for (const char c : text) all.back().emplace_back(c, learned);
  }
  return all;
}

/// The text of a token that is a byte.
std::string byte_of(std::int32_t token) { return {static_cast<char>(token)}; }

/// Two ranks, each a thread.
constexpr mc::mesh two_ranks = mc::mesh_of(mc::layout{}, 2);

} // namespace

BOOST_AUTO_TEST_CASE(the_times_that_are_left_are_those_that_come) {
  for (const std::int64_t interval : {0, 1, 2, 3, 7, 10, 50})
    for (const std::int64_t last : {1, 2, 6, 7, 8, 20, 30})
      for (std::int64_t step = 1; step <= last; ++step) {
        const mc::recurrence r{interval};
        std::int64_t times = 1; // behind the last step
        for (std::int64_t s = step; s < last; ++s) times += r.is_due(s, last);
        BOOST_TEST(r.times_from(step, last) == times,
                   "every " << interval << " of " << last << " from " << step);
      }
}

BOOST_AUTO_TEST_CASE(nothing_is_due_behind_the_last_step_where_it_is_done_in_any_case) {
  BOOST_TEST(mc::recurrence{5}.is_due(10, 11));
  BOOST_TEST(!mc::recurrence{5}.is_due(10, 10));
  BOOST_TEST(!mc::recurrence{0}.is_due(10, 11));
}

BOOST_AUTO_TEST_CASE(replicas_read_every_sample_of_a_run_once_in_the_steps_of_its_schedule) {
  for (const std::int64_t micro : {1, 2, 4})
    for (const std::int64_t replicas : {1, 2}) {
      std::vector<int> read(2000);
      std::vector<mc::batch_cutter> cutters;
      for (std::int64_t r = 0; r < replicas; ++r) cutters.emplace_back(growing, micro, replicas, r);
      std::int64_t samples = 0;
      for (int step = 0; step < 40; ++step) {
        for (const mc::batch_cutter& cut : cutters) {
          const mc::step_batch batch = cut.after(samples);
          BOOST_TEST(batch.size == growing.after(samples));
          for (int m = 0; m < batch.micro_batches; ++m)
            for (std::int64_t i = 0; i < micro; ++i)
              ++read.at(static_cast<std::size_t>(batch.first + cut.samples_before(m) + i));
        }
        samples = cutters[0].after(samples).end();
      }
      for (std::int64_t i = 0; i < 2000; ++i)
        BOOST_TEST(read[static_cast<std::size_t>(i)] == (i < samples ? 1 : 0), "sample " << i);
    }
}

BOOST_AUTO_TEST_CASE(a_reader_gives_each_step_the_samples_of_its_batch) {
  mc::program_view p;
  p.numbers.batch = {.micro = 4, .sequence = 1};
  const numbered_samples all;
  mc::batch_reader reader(p, all, growing, mc::self::hosts());
  std::int64_t samples = 16; // of a run that goes on
  reader.begin(samples);
  for (int step = 0; step < 30; ++step) {
    const mc::step_batch batch = reader.next_batch(samples);
    for (int m = 0; m < batch.micro_batches; ++m) {
      mc::batch_view view;
      reader.give(m, view);
      BOOST_TEST(view.first_sample == 4 * m);
      for (int row = 0; row < 4; ++row)
        BOOST_TEST(view.tokens[row] == static_cast<std::int32_t>(samples + 4 * m + row));
    }
    samples = batch.end();
  }
}

// Whatever the bytes are: a reader of the lines finds every token, and those learned that have a
// label. No line has a byte that a terminal obeys.
BOOST_AUTO_TEST_CASE(a_shown_sample_tells_its_tokens_and_its_labels) {
  std::mt19937 random(5);
  const std::string some =
      "ab \"\\\n\t\r\x01\x1b[2J\x7f\xc3\xa9\xe2\x80\xae\xf0\x9f\x98\x80\xff\xc2\x85";
  for (int trial = 0; trial < 300; ++trial) {
    mc::micro_batch sample(1, 1 + static_cast<std::int64_t>(random() % 24));
    std::vector<std::vector<shown_token>> expected;
    std::int32_t document = 0;
    for (std::size_t i = 0; i < sample.tokens().size(); ++i) {
      const auto token =
          static_cast<unsigned char>(some[random() % (trial % 3 == 0 ? 2 : some.size())]);
      sample.tokens()[i] = token, sample.labels()[i] = mc::ignored_label;
      document += i > 0 && random() % 6 == 0;
      sample.documents()[i] = document;
    }
    for (std::size_t i = 0; i < sample.tokens().size(); ++i) {
      const auto tokens = sample.tokens(), documents = sample.documents();
      const bool last = i + 1 == tokens.size(), ends = last || documents[i + 1] != documents[i];
      if (i == 0 || documents[i] != documents[i - 1])
        expected.emplace_back().emplace_back(static_cast<char>(tokens[i]), false);
      const std::int32_t next = last ? 'z' : tokens[i + 1];
      const bool learned = random() % 2 == 0;
      if (learned) sample.labels()[i] = next;
      if (learned || !ends) expected.back().emplace_back(static_cast<char>(next), learned);
    }
    const std::string lines = mc::sample_lines(7, sample, true, byte_of);
    BOOST_TEST((documents_in(lines) == expected), lines);
    std::size_t learned = 0;
    for (const auto& of : expected)
      learned += static_cast<std::size_t>(std::ranges::count(of, true, &shown_token::second));
    BOOST_TEST(lines.starts_with(
        fmt::format("sample 7: {} tokens, {} learned\n", sample.tokens().size(), learned)));
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const auto c = static_cast<unsigned char>(lines[i]);
      BOOST_TEST(((c >= ' ' && c != 0x7f) || c == '\n'));
    }
    BOOST_TEST(mc::first_not_utf8(lines) == lines.size());
  }
}

BOOST_AUTO_TEST_CASE(conversations_are_shown_as_they_are_packed_and_masked) {
  const auto all = std::make_shared<mc::tokenized_conversations>();
  all->add({{'a', 'b', 'c', 'd'}, {0, 0, 1, 1}, 0});
  all->add({{'e', 'f', '\n'}, {1, 1, 0}, 0}); // what comes first is never learned
  const mc::packed_conversations packed("chats", all, {0, 2}, 10, std::nullopt, 1, '!');
  mc::micro_batch sample(1, 10);
  sample.fill(packed, 0);
  BOOST_TEST(mc::sample_lines(0, sample, true, byte_of) ==
             "sample 0: 10 tokens, 3 learned\n"
             "  document 0: 4 tokens, 2 learned\n"
             "            \"ab\"\n"
             "    learned \"cd\"\n"
             "  document 1: 3 tokens, 1 learned\n"
             "            \"e\"\n"
             "    learned \"f\"\n"
             "            \"\\n\"\n"
             "  document 2: 3 tokens, 0 learned\n"
             "            3 times \"!\"\n");
  BOOST_TEST(mc::sample_lines(3, sample, false, {}) ==
             "sample 3: 10 tokens, 3 learned\n"
             "            97 98\n    learned 99 100\n            101\n    learned 102\n"
             "            10 33 33 33\n");
}

BOOST_AUTO_TEST_CASE(one_rank_knows_of_a_signal_at_once) {
  mc::agreement alone(mc::self::hosts());
  mc::early_end end(alone, {});
  BOOST_TEST(!end.stops());
  end.take_signals();
  std::raise(SIGTERM);
  BOOST_TEST(end.stops());
  BOOST_TEST(end.signals_if_alone() == end.signals());
  BOOST_TEST(end.agree_on_signal() == "SIGTERM");
  end.release_signals();
  BOOST_TEST(!end.stops());
}

BOOST_AUTO_TEST_CASE(several_ranks_stop_once_they_have_agreed_on_it) {
  std::atomic<int> early = 0, stopped = 0, named = 0, waits_for_others = 0;
  mc::thread_ranks(two_ranks).run([&](mc::communicator& hosts) {
    mc::agreement all(hosts);
    mc::early_end end(all, {});
    if (all.first()) end.take_signals(), mc::detail::note_stop_signal(SIGUSR1);
    early += end.stops();
    static_cast<void>(end.confer());
    stopped += end.stops();
    named += end.agree_on_signal() == "SIGUSR1";
    waits_for_others += end.signals_if_alone() == nullptr;
  });
  BOOST_TEST(waits_for_others == 2);
  BOOST_TEST(early == 0);
  BOOST_TEST(stopped == 2);
  BOOST_TEST(named == 2);
}

BOOST_AUTO_TEST_CASE(time_is_up_for_all_ranks_when_it_is_for_the_first) {
  std::atomic<int> early = 0, up = 0;
  mc::thread_ranks(two_ranks).run([&](mc::communicator& hosts) {
    mc::agreement all(hosts);
    mc::early_end end(all, all.first() ? 0.0 : 1e9); // minutes
    early += end.time_is_up();
    static_cast<void>(end.confer());
    up += end.time_is_up();
  });
  BOOST_TEST(early == 0);
  BOOST_TEST(up == 2);
}

BOOST_AUTO_TEST_CASE(an_error_of_one_rank_waits_until_all_are_asked) {
  const mc::error broken(mc::exit_code::output, "the report cannot be written");
  mc::agreement alone(mc::self::hosts());
  mc::early_end of_one(alone, {});
  BOOST_CHECK_THROW(of_one.tell([&] { throw broken; }), mc::error);

  std::atomic<int> pending = 0, went_on = 0;
  const auto run = [&] {
    mc::thread_ranks(two_ranks).run([&](mc::communicator& hosts) {
      mc::agreement all(hosts);
      mc::early_end end(all, {});
      end.tell([&] {
        if (!all.first()) throw broken;
      });
      ++went_on;
      pending += end.confer();
      end.throw_pending();
    });
  };
  BOOST_CHECK_EXCEPTION(run(), mc::error,
                        [&](const mc::error& e) { return e.code() == broken.code(); });
  BOOST_TEST(went_on == 2);
  BOOST_TEST(pending == 2);
}

BOOST_AUTO_TEST_CASE(data_that_hold_other_tokens_are_named_and_touched_ones_told_once) {
  std::string file;
  std::uint64_t tokens = 1;
  int hashes = 0, notes = 0;
  const auto note = [&](const std::string& line) {
    ++notes;
    BOOST_TEST(line.starts_with("book.txt"));
  };
  const auto hash = [&] { return ++hashes, tokens; };
  mc::watched_data watched([&] { return file; }, hash), unwatched(nullptr, hash);
  watched.begin(), unwatched.begin();
  BOOST_TEST(watched.changed_file(note) == "");
  BOOST_TEST(hashes == 1); // the tokens are not read again while no file was written to
  file = "book.txt";
  BOOST_TEST(watched.changed_file(note) == "");
  BOOST_TEST(watched.changed_file(note) == "");
  BOOST_TEST(notes == 1);
  tokens = 2;
  BOOST_TEST(watched.changed_file(note) == "book.txt");
  BOOST_TEST(unwatched.changed_file(note) == "");
}

BOOST_AUTO_TEST_CASE(a_small_file_is_replaced_and_a_rehearsal_leaves_none) {
  const test::scratch_folder dir;
  const mc::descriptor folder(::open(dir.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const mc::detail::small_file file(folder.get(), dir.path(), "newest");
  file.rehearse("1\n");
  BOOST_TEST(!file.read());
  BOOST_TEST(mc::detail::list_folder(folder.get())->empty());
  file.replace("1\n");
  BOOST_TEST(file.read().value_or("") == "1\n");
  file.replace("22\n");
  BOOST_TEST(file.read().value_or("") == "22\n");
  BOOST_TEST(mc::detail::list_folder(folder.get())->size() == 1u);
}
