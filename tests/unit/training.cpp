// The components that the training loop asks, each alone: what is due when, which samples a step
// has, what ends a run early, and whether its data have changed.
#define BOOST_TEST_MODULE training
#include <megacpp/comm/self.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/data/watched_data.hpp>
#include <megacpp/io/small_file.hpp>
#include <megacpp/optim/recurrence.hpp>
#include <megacpp/train/batch_reader.hpp>
#include <megacpp/train/early_end.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <string>
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
