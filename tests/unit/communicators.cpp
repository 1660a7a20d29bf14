// Every communicator keeps the same promises (tests/communicators.hpp) on both planes: the one of one
// rank, threads of this process, timed too, and simulated ones, on meshes whose dense and expert axes
// fold differently; each as it is, and behind one that checks.
#define BOOST_TEST_MODULE communicators
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/checking.hpp>
#include <megacpp/comm/exchange_lane.hpp>
#include <megacpp/comm/self.hpp>
#include <megacpp/comm/staged_ranks.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/comm/timed.hpp>
#include <megacpp/exec/cpu.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <communicators.hpp>
#include <simulated_communicator.hpp>

using namespace mc;
using namespace mc_test;

namespace {

// Sizes in the order of enum axis: dp, cp, tp, pp, edp, ep, etp.
const mesh meshes[] = {mesh({1, 1, 2, 1, 2, 1, 1}), mesh({2, 1, 2, 2, 1, 2, 2}),
                       mesh({3, 1, 2, 1, 1, 3, 2}), mesh({2, 2, 2, 1, 2, 4, 1})};

/// A CPU whose lanes do what they were asked for when one of them, or of another such CPU, is
/// finished: in an order of chance, as far as events allow it.
class late : public cpu {
public:
  late() : cpu(std::unique_ptr<product_source>(), 1) {}
  lane& main_lane() override { return lane_; }
  std::unique_ptr<lane> make_lane() override { return std::make_unique<late_lane>(); }
  std::unique_ptr<event> make_event() override { return std::make_unique<late_event>(); }

private:
  class late_event final : public event {
  public:
    void wait() override { throw std::logic_error("the host waits for an event"); }
    std::int64_t reached() override { return 0; }

  private:
    friend class late;
    struct moments {
      std::int64_t recorded = 0, come = 0;
    };
    std::shared_ptr<moments> of_ = std::make_shared<moments>();
  };
  class late_lane final : public cpu_lane {
  public:
    late_lane() {
      const std::scoped_lock hold(lock_);
      lanes_.push_back(this);
    }
    ~late_lane() override {
      late_lane::finish();
      const std::scoped_lock hold(lock_);
      std::erase(lanes_, this);
    }
    void write(std::byte* to, const void* from, std::int64_t bytes) override {
      const auto* const first = static_cast<const std::byte*>(from);
      later([to, kept = std::vector<std::byte>(first, first + bytes)] {
        std::copy(kept.begin(), kept.end(), to);
      });
    }
    void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override {
      later([=, this] { cpu_lane::mirror(to, from, bytes); });
    }
    void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
      later([=, this] { cpu_lane::copy(to, from, bytes); });
    }
    void reduce(reduction by, dtype t, std::span<const void* const> parts, void* out,
                std::int64_t n) override {
      later([=, this, kept = std::vector<const void*>(parts.begin(), parts.end())] {
        cpu_lane::reduce(by, t, kept, out, n);
      });
    }
    void record(event& e) override {
      const std::scoped_lock hold(lock_);
      const auto of = static_cast<late_event&>(e).of_;
      later([of, number = ++of->recorded] { of->come = std::max(of->come, number); });
    }
    void wait(event& e) override {
      const std::scoped_lock hold(lock_);
      const auto of = static_cast<late_event&>(e).of_;
      queue_.push_back({[] {}, of, of->recorded});
    }
    void finish() override {
      const std::scoped_lock hold(lock_);
      while (!queue_.empty()) {
        std::vector<late_lane*> ready;
        for (late_lane* const l : lanes_)
          if (!l->queue_.empty() && l->queue_.front().may_begin()) ready.push_back(l);
        if (ready.empty()) throw std::logic_error("lanes wait for events that do not come");
        late_lane& next = *ready[chance_() % ready.size()];
        const started one = std::move(next.queue_.front());
        next.queue_.pop_front();
        one.what();
      }
    }

  private:
    struct started {
      std::function<void()> what;
      std::shared_ptr<const late_event::moments> behind{};
      std::int64_t number = 0;
      bool may_begin() const { return behind == nullptr || behind->come >= number; }
    };
    void later(std::function<void()> f) {
      const std::scoped_lock hold(lock_);
      queue_.push_back({std::move(f)});
    }
    std::deque<started> queue_;
  };
  inline static std::recursive_mutex lock_; ///< of all lanes and their events
  inline static std::vector<late_lane*> lanes_;
  inline static std::minstd_rand chance_;
  late_lane lane_;
};
/// One of which it says, too, that the host does not see its memory.
struct unseen final : late {
  bool host_sees() const override { return false; }
};

/// Ranks of a device: made by their hosts, or staged over those of the host's memory.
struct made {
  static std::unique_ptr<communicator> ranks(communicator& hosts, device& on) {
    return hosts.make_ranks(on);
  }
};
struct staged {
  static std::unique_ptr<communicator> ranks(communicator& hosts, device& on) {
    static cpu of_host(std::unique_ptr<product_source>(), 1);
    return std::make_unique<staged_ranks>(hosts.make_ranks(of_host), on);
  }
};

/// f(hosts, ranks, counts of all) on every rank of a backend of several: what is wrong, by rank.
template <class Device = late, class Made = made, class Ranks, class F>
void on_ranks(Ranks& ranks, bool checks, F f) {
  std::vector<std::atomic<int>> came(static_cast<std::size_t>(ranks_of(ranks.ranks())));
  std::vector<std::string> wrong(came.size());
  ranks.run([&](communicator& c) {
    checked_if(checks, c, [&](communicator& hosts) {
      Device device;
      const auto others = Made::ranks(hosts, device);
      plane_of_rank at_once(hosts), on_lane(*others, device.main_lane());
      wrong[static_cast<std::size_t>(hosts.rank())] = f(at_once, on_lane, came.data());
    });
  });
  for (std::size_t r = 0; r < wrong.size(); ++r)
    BOOST_TEST(wrong[r].substr(0, 300) == "", "rank " << r << " of " << wrong.size());
}
/// f(hosts, ranks, counts, whether they check) on every rank of every backend.
template <class F> void on_all_pairs(F f) {
  std::vector<std::atomic<int>> alone(1);
  cpu device(std::unique_ptr<product_source>(), 1);
  plane_of_rank hosts(self::hosts()), one(self::ranks(), device.main_lane());
  BOOST_TEST(f(hosts, one, alone.data(), false) == "", "one rank");
  const auto plain = [&](plane_of_rank& h, plane_of_rank& r, std::atomic<int>* came) {
    return f(h, r, came, false);
  };
  const auto checked = [&](plane_of_rank& h, plane_of_rank& r, std::atomic<int>* came) {
    return f(h, r, came, true);
  };
  for (const mesh& m : meshes) {
    simulated_ranks simulated(m);
    on_ranks(simulated, false, plain);
    thread_ranks threads(m);
    on_ranks(threads, false, plain);
    on_ranks<unseen>(threads, false, plain);
  }
  thread_ranks threads(meshes[1]);
  on_ranks<unseen, staged>(threads, false, plain);
  on_ranks(threads, true, checked);
  on_ranks<unseen>(threads, true, checked);
  simulated_ranks simulated(meshes[0]);
  on_ranks(simulated, true, checked);
}
/// f on every rank and plane of every backend, and on ranks that are timed.
template <class F> void on_all(F f) {
  on_all_pairs([&](plane_of_rank& hosts, plane_of_rank& ranks, std::atomic<int>* came, bool) {
    const std::string wrong = f(hosts, came);
    hosts.run(exchange::barrier(everyone));
    came[hosts.rank()].store(0);
    hosts.run(exchange::barrier(everyone));
    return wrong + f(ranks, came);
  });
  for (const mesh& m : meshes) {
    std::vector<std::atomic<int>> came(static_cast<std::size_t>(ranks_of(m)));
    std::vector<std::string> wrong(came.size());
    thread_ranks(m).run([&](communicator& hosts) {
      cpu device(std::unique_ptr<product_source>(), 1);
      const auto others = hosts.make_ranks(device);
      std::vector<timed_exchange> room; // of some
      room.reserve(7);
      timed_communicator timed(*others, device);
      timed.record(&room);
      plane_of_rank on_lane(timed, device.main_lane());
      wrong[static_cast<std::size_t>(hosts.rank())] = f(on_lane, came.data());
      timed.record(nullptr);
    });
    for (const std::string& w : wrong) BOOST_TEST(w == "");
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(every_type_group_and_size) {
  on_all([](plane_of_rank& c, std::atomic<int>*) { return every_exchange(c); });
}
BOOST_AUTO_TEST_CASE(several_are_in_flight) {
  on_all([](plane_of_rank& c, std::atomic<int>*) { return exchanges_in_flight(c); });
}
BOOST_AUTO_TEST_CASE(channels_are_apart) {
  on_all([](plane_of_rank& c, std::atomic<int>*) { return channels(c); });
}
BOOST_AUTO_TEST_CASE(a_barrier_waits_for_all) {
  on_all([](plane_of_rank& c, std::atomic<int>* came) { return barriers(c, came); });
}
BOOST_AUTO_TEST_CASE(what_no_group_can_do_is_refused) {
  on_all([](plane_of_rank& c, std::atomic<int>*) { return refusals_of(c); });
}

BOOST_AUTO_TEST_CASE(ranks_wait_in_any_order) {
  on_all([](plane_of_rank& c, std::atomic<int>*) { return waited_for_in_any_order(c); });
}
BOOST_AUTO_TEST_CASE(what_was_waited_for_may_be_written_over) {
  on_all([](plane_of_rank& c, std::atomic<int>*) { return written_over(c); });
}
BOOST_AUTO_TEST_CASE(planes_are_apart) {
  on_all_pairs([](plane_of_rank& hosts, plane_of_rank& ranks, std::atomic<int>*, bool checks) {
    return both_planes(hosts, ranks, checks);
  });
}

// An exchange on a lane begins when the lane has come to it.
BOOST_AUTO_TEST_CASE(an_exchange_is_behind_what_its_lane_was_given) {
  const auto sums = [](communicator& hosts) {
    late device;
    lane& on = device.main_lane();
    const auto ranks = hosts.make_ranks(device);
    float x = 0, sum = 0;
    const float mine = static_cast<float>(1 + hosts.rank());
    on.write(reinterpret_cast<std::byte*>(&x), &mine, sizeof mine);
    ranks->run(on, exchange::all_reduce(everyone, dtype::f32, &x, &sum, 1));
    return sum;
  };
  float found[2]{};
  thread_ranks threads(meshes[0]);
  threads.run([&](communicator& c) { found[c.rank()] = sums(c); });
  BOOST_TEST(found[0] == 3);
  BOOST_TEST(found[1] == 3);
}

// An event that somebody holds, and may have a lane wait for, is not recorded again.
BOOST_AUTO_TEST_CASE(events_of_exchanges_are_used_again_when_nobody_holds_them) {
  late device;
  exchange_lane beside(device);
  std::shared_ptr<event> first = beside.mark(device.main_lane());
  const event* const was = first.get();
  const std::shared_ptr<event> second = beside.mark(device.main_lane());
  BOOST_TEST(second.get() != was);
  first.reset();
  BOOST_TEST(beside.mark(device.main_lane()).get() == was);
}

// What one rank gives itself is copied by its lane, in the lane's order.
BOOST_AUTO_TEST_CASE(one_rank_copies_on_its_lane) {
  struct counted final : cpu_lane {
    int copies = 0;
    void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
      ++copies;
      cpu_lane::copy(to, from, bytes);
    }
  } on;
  const float x = 3;
  float y = 0;
  self::ranks().run(on, exchange::all_reduce(axis::tp, dtype::f32, &x, &y, 1));
  BOOST_TEST(y == 3);
  BOOST_TEST(on.copies == 1);
}

BOOST_AUTO_TEST_CASE(what_is_of_the_other_plane_is_refused) {
  const auto refused = [](auto f, const char* sentence) {
    std::string says = "nothing";
    try {
      f();
    } catch (const error& e) {
      says = e.what();
    }
    return says.find(sentence) != std::string::npos ? "" : says + "; ";
  };
  const auto f = [&](communicator& hosts) {
    cpu device(std::unique_ptr<product_source>(), 1);
    lane& on = device.main_lane();
    const auto ranks = hosts.make_ranks(device);
    const auto x = exchange::barrier(everyone);
    return refused([&] { hosts.run(on, x); }, "a lane was given to hosts") +
           refused([&] { hosts.wait(on, ticket{}); }, "a lane was given to hosts") +
           refused([&] { ranks->run(x); }, "no lane was given to ranks") +
           refused([&] { ranks->wait(ticket{}); }, "no lane was given to ranks");
  };
  BOOST_TEST(f(self::hosts()) == "");
  thread_ranks(meshes[0]).run([&](communicator& c) {
    std::string wrong = f(c);
    checked_if(true, c, [&](communicator& checks) { wrong += f(checks); });
    if (!wrong.empty()) throw error(exit_code::internal, wrong);
  });
}

// A rank that agrees with two others which do not agree is not left alone with them.
BOOST_AUTO_TEST_CASE(who_agrees_with_ranks_that_differ_is_told) {
  for (const bool checks : {false, true}) {
    thread_ranks ranks(mesh({4, 1, 1, 1, 4, 1, 1}), std::chrono::seconds(20));
    BOOST_CHECK_EXCEPTION(
        ranks.run([&](communicator& c) {
          checked_if(checks, c, [&](communicator& hosts) {
            float x[8]{}, y[8]{}, z = 0;
            const std::int64_t n = hosts.rank() == 2 ? 0 : 3 + hosts.rank() / 3;
            const ticket sum = hosts.start(exchange::all_reduce(axis::dp, dtype::f32, x, y, n));
            if (hosts.rank() == 2) hosts.wait(sum);
            const ticket next = hosts.start(exchange::all_reduce(axis::dp, dtype::f32, x, &z, 1));
            if (hosts.rank() != 2) hosts.wait(next), hosts.wait(sum);
            else hosts.wait(next);
          });
        }),
        error, [](const error& e) {
          return std::string(e.what()).find("ranks ask for different exchanges") == 0;
        });
  }
}

// An exchange that goes wrong is told to who waits for it, and not to who waits for another one.
BOOST_AUTO_TEST_CASE(a_fault_is_of_its_exchange) {
  for (const bool checks : {false, true}) {
    std::atomic<int> summed{0}, told{0};
    thread_ranks ranks(meshes[0]);
    BOOST_CHECK_THROW(ranks.run([&](communicator& c) {
      checked_if(checks, c, [&](communicator& hosts) {
        float x[4]{1, 1, 1, 1}, y[4]{}, z[4]{};
        const auto sum = [&](float* to, std::int64_t n) {
          return exchange::all_reduce(axis::tp, dtype::f32, x, to, n);
        };
        const ticket wrong = hosts.start(sum(y, 1 + hosts.rank())), right = hosts.start(sum(z, 4));
        hosts.wait(right);
        summed += static_cast<int>(z[3]);
        hosts.run(exchange::barrier(axis::tp)); // behind it one that throws ends the other, too
        try {
          hosts.wait(wrong);
        } catch (const error& e) {
          told += std::string(e.what()).find("ranks ask for different exchanges") == 0;
          throw;
        }
      });
    }),
                      error);
    BOOST_TEST(summed == 4);
    BOOST_TEST(told >= 1);
  }
}

BOOST_AUTO_TEST_CASE(the_first_that_throws_ends_the_others) {
  thread_ranks ranks(mesh({4, 1, 1, 1, 4, 1, 1}));
  const std::vector<float> in(100, 1.0f);
  std::vector<std::vector<float>> out(4, std::vector<float>(100));
  std::atomic<int> woken{0};
  for (const bool has_started : {false, true}) {
    const auto body = [&](communicator& c) {
      const auto x = exchange::all_reduce(axis::dp, dtype::f32, in.data(),
                                          out[static_cast<std::size_t>(c.rank())].data(), 100);
      if (c.rank() == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20)); // the others wait
        if (has_started) (void)c.start(exchange::barrier(axis::dp));
        throw error(exit_code::data, "rank 2 has no data");
      }
      try {
        c.run(x);
      } catch (const error& e) {
        const std::string says = e.what();
        if (says.find("another rank has ended") != std::string::npos ||
            says.find("ask for different") != std::string::npos)
          ++woken;
        throw;
      }
    };
    BOOST_CHECK_EXCEPTION(ranks.run(body), error, [&](const error& e) {
      const std::string says = e.what();
      return says == "rank 2 has no data" ||
             (has_started && says.find("ranks ask for different exchanges") == 0);
    });
  }
  BOOST_TEST(woken == 6);
}

BOOST_AUTO_TEST_CASE(ranks_that_ask_for_different_exchanges_are_told) {
  using e = exchange;
  std::vector<float> in(16, 1.0f), out[2] = {in, in};
  const std::vector<std::int64_t> two{1, 2}, three{3, 2};
  struct asked {
    e first, second;
    const char* sentence;
  };
  const auto t = dtype::f32;
  const source_line here{7, "models/mine.hpp"}, there{9, "models/mine.hpp"};
  float *const x = in.data(), *const y = out[0].data(), *const z = out[1].data();
  const asked wishes[] = {
      {e::all_reduce(axis::tp, t, x, y, 3, here), e::all_reduce(axis::tp, t, x, z, 4, there),
       "rank 0 for all-reduce of 3 f32 over tp at mine.hpp:7"},
      {e::all_gather(axis::tp, t, x, y, 3, here), e::reduce_scatter(axis::tp, t, x, z, 3, there),
       "rank 1 for reduce-scatter of 3 f32 over tp at mine.hpp:9"},
      {e::all_gather(axis::tp, t, x, y, 3), e::all_gather(axis::tp, dtype::i32, x, z, 3), "3 i32"},
      {e::all_reduce(axis::tp, t, x, y, 3),
       e::all_reduce(axis::tp, t, x, z, 3, {}, reduction::maximum),
       "rank 1 for all-reduce of the maximum of 3 f32 over tp"},
      {e::broadcast(axis::tp, t, x, y, 3, 0), e::broadcast(axis::tp, t, x, z, 3, 1), "broadcast"},
      {e::send(axis::tp, t, x, 3, 1), e::receive(axis::tp, t, z, 4, 0), "receive of 4"},
      {e::all_to_all(axis::tp, t, x, y, two, two), e::all_to_all(axis::tp, t, x, z, three, two),
       "3 to and 1 from the other"},
      // The same of two places of the model, of which one rank has left one out.
      {e::all_reduce(axis::tp, t, x, y, 3, here), e::all_reduce(axis::tp, t, x, z, 3, there),
       "rank 1 for all-reduce of 3 f32 over tp at mine.hpp:9 (exchange 1 of its group of hosts)"},
      {e::send(axis::tp, t, x, 3, 1, here), e::receive(axis::tp, t, z, 3, 0, there),
       "rank 0 for send of 3 f32 over tp at mine.hpp:7 (exchange 0 of its group of hosts)"},
  };
  const mesh two_ranks({1, 1, 2, 1, 2, 1, 1});
  BOOST_CHECK_EXCEPTION(thread_ranks(two_ranks, std::chrono::seconds(20)).run([&](communicator& c) {
    checked_if(true, c, [&](communicator& hosts) { // of another plane each
      cpu device(std::unique_ptr<product_source>(), 1);
      const auto to = hosts.make_ranks(device);
      if (hosts.rank() == 0) hosts.run(exchange::barrier(axis::tp));
      else to->run(device.main_lane(), exchange::barrier(axis::tp));
    });
  }),
                        error, [](const error& wrong) {
                          return std::string(wrong.what()).find("ranks ask for different") == 0;
                        });
  const auto told = [&](auto& ranks, bool checks, const asked& w) {
    BOOST_CHECK_EXCEPTION(ranks.run([&](communicator& c) {
      checked_if(checks, c, [&](communicator& to) {
        to.run(exchange::barrier(axis::tp));
        to.run(to.rank() == 0 ? w.first : w.second);
      });
    }),
                          error, [&](const error& wrong) {
                            const std::string says = wrong.what();
                            BOOST_TEST_MESSAGE(says);
                            return says.find("ranks ask for different exchanges: rank ") == 0 &&
                                   says.find(w.sentence) != std::string::npos &&
                                   wrong.code() == exit_code::internal;
                          });
  };
  const auto told_of_ranks = [&](auto& ranks, const asked& w) {
    BOOST_CHECK_EXCEPTION(ranks.run([&](communicator& c) {
      checked_if(true, c, [&](communicator& hosts) {
        cpu device(std::unique_ptr<product_source>(), 1);
        const auto to = hosts.make_ranks(device);
        to->run(device.main_lane(), hosts.rank() == 0 ? w.first : w.second);
      });
    }),
                          error, [&](const error& wrong) {
                            return std::string(wrong.what()).find("ranks ask for different") == 0;
                          });
  };
  for (const asked& w : wishes) {
    thread_ranks ranks(two_ranks);
    told(ranks, false, w), told(ranks, true, w);
    BOOST_TEST((out[0] == in && out[1] == in)); // nothing has moved
    simulated_ranks simulated(two_ranks);       // which compare little themselves
    told(simulated, true, w), told_of_ranks(simulated, w);
    out[0] = out[1] = in;
  }
}

// A rank that starts is free at once, whoever comes late, and what it sends arrives while it does
// something else.
BOOST_AUTO_TEST_CASE(a_communicator_that_checks_starts_without_waiting) {
  thread_ranks ranks(mesh({1, 1, 2, 1, 2, 1, 1}), std::chrono::seconds(5));
  const auto t = dtype::f32;
  for (const bool sends : {false, true}) {
    std::atomic<int> stage{0};
    float x[2]{1, 2}, y[2]{};
    const auto reach = [&](int n) { stage.store(n), stage.notify_all(); };
    const auto exchanges = [&](communicator& c) {
      if (c.rank() == 0) {
        const ticket k = c.start(sends ? exchange::send(axis::tp, t, x, 1, 1)
                                       : exchange::all_reduce(axis::tp, t, x, y, 1));
        reach(1);
        if (sends) stage.wait(1); // until it has arrived
        c.wait(k);
      } else {
        stage.wait(0);
        c.run(sends ? exchange::receive(axis::tp, t, y + 1, 1, 0)
                    : exchange::all_reduce(axis::tp, t, x + 1, y + 1, 1));
      }
    };
    ranks.run([&](communicator& c) {
      try {
        checked_if(true, c, exchanges);
      } catch (...) {
        reach(2);
        throw;
      }
      reach(2);
    });
    BOOST_TEST(y[0] == (sends ? 0 : 3));
    BOOST_TEST(y[1] == (sends ? 1 : 3));
  }
}

BOOST_AUTO_TEST_CASE(every_ticket_is_waited_for_once) {
  thread_ranks ranks(mesh({1, 1, 2, 1, 2, 1, 1}));
  const auto told = [&](auto f, const char* sentence) {
    for (const bool checks : {false, true})
      BOOST_CHECK_EXCEPTION(ranks.run([&](communicator& c) { checked_if(checks, c, f); }), error,
                            [&](const error& e) {
                              return std::string(e.what()).find(sentence) != std::string::npos;
                            });
  };
  told([](communicator& c) { (void)c.start(exchange::barrier(axis::tp)); },
       "barrier over tp: it was started and not waited for");
  told(
      [](communicator& c) {
        const ticket t = c.start(exchange::barrier(axis::tp));
        c.wait(t), c.wait(t);
      },
      "waited for twice");
}

// Nobody waits for ever: who does not come, and who has gone, is named, with what he lacks.
BOOST_AUTO_TEST_CASE(a_rank_that_others_wait_for_in_vain_is_named) {
  const auto named = [](thread_ranks& ranks, auto f, std::initializer_list<const char*> parts) {
    BOOST_CHECK_EXCEPTION(ranks.run(f), error, [&](const error& e) {
      BOOST_TEST_MESSAGE(e.what());
      bool all = e.code() == exit_code::ranks;
      for (const char* part : parts)
        all = all && std::string(e.what()).find(part) != std::string::npos;
      return all;
    });
  };
  const source_line here(7, "mine.hpp");
  float x[8]{}, y[8]{};
  thread_ranks four(mesh({2, 1, 2, 1, 4, 1, 1}));
  named(four,
        [&](communicator& c) {
          if (c.rank() == 3) return; // that of dp 1, tp 1
          c.run(exchange::barrier(axis::dp));
          c.run(exchange::all_reduce(axis::tp, dtype::f32, x + c.rank(), y + c.rank(), 1, here));
        },
        {"rank 3 has ended without"});
  named(four,
        [&](communicator& c) {
          if (c.rank() == 1) c.run(exchange::receive(axis::dp, dtype::f32, y, 3, 1, here));
          if (c.rank() == 3) c.run(exchange::barrier(axis_set{}));
        },
        {"rank 3 has ended without", "receive over dp at mine.hpp:7, for which rank 1 waits"});
  named(four, // behind communicators that check, by the same names
        [&](communicator& c) {
          checked_if(true, c, [&](communicator& to) {
            if (to.rank() == 3) return;
            to.run(exchange::all_reduce(axis::tp, dtype::f32, x + c.rank(), y + c.rank(), 1, here));
          });
        },
        {"rank 3 has ended without", "all-reduce over tp at mine.hpp:7, for which rank 2 waits"});
  thread_ranks hasty(mesh({2, 1, 2, 1, 4, 1, 1}), std::chrono::seconds(1));
  std::atomic<int> told{0};
  named(
      hasty,
      [&](communicator& c) {
        c.run(exchange::barrier(axis::tp));
        if (c.rank() == 2) return told.wait(0); // until the others have been told
        try {
          c.run(exchange::all_reduce({axis::dp, axis::tp}, dtype::f32, x + c.rank(), y + c.rank(),
                                     1, here));
        } catch (...) {
          told.store(1), told.notify_all();
          throw;
        }
      },
      {"rank 2 did not come to exchange 0 of its group, all-reduce over dp x tp at mine.hpp:7, for "
       "which rank ",
       " waits ", " s: see what that rank does", "--collective-timeout"});
  hasty.run([](communicator& c) { c.run(exchange::barrier(axis::tp)); }); // others may go on
  // Rank 0 waits for 2, over dp, and that one for 3, over tp, which does not come.
  told.store(0);
  named(hasty,
        [&](communicator& c) {
          if (c.rank() % 2 == 1) return told.wait(0);
          try {
            c.run(c.rank() == 2 ? exchange::barrier(axis::tp, here) : exchange::barrier(axis::dp));
          } catch (...) {
            told.store(1), told.notify_all();
            throw;
          }
        },
        {"rank 3 did not come to exchange 0 of its group, barrier over tp at mine.hpp:7, for which "
         "rank 2 waits"});
  named(hasty,
        [](communicator& c) {
          c.run(exchange::barrier(c.rank() == 0 || c.rank() == 3 ? axis::tp : axis::dp));
        },
        {"ranks wait for each other: rank ", " for rank ", ", and that one for rank ",
         "let all ranks of a group ask for the same"});
}

BOOST_AUTO_TEST_CASE(more_ranks_than_processors) {
  thread_ranks ranks(mesh({4, 2, 4, 2, 4, 2, 4}));
  on_ranks(ranks, false, [](plane_of_rank& hosts, plane_of_rank& of_ranks, std::atomic<int>*) {
    return exchanges_in_flight(hosts) + exchanges_in_flight(of_ranks) +
           both_planes(hosts, of_ranks, false);
  });
}

// Megatron-LM's order of ranks: of 2 x 2 x 2 x 2 ranks with the experts of a layer over 4 of them
// (its RankGenerator, order tp-cp-ep-dp-pp, for the dense mesh and for that of experts).
BOOST_AUTO_TEST_CASE(ranks_are_numbered_as_in_megatron) {
  const mesh m({2, 2, 2, 2, 2, 4, 1});
  const auto members = [&](axis_set over, int rank) {
    const group g(m, over, rank);
    std::vector<int> all;
    for (int i = 0; i < g.size(); ++i) all.push_back(g[i]);
    return all;
  };
  using enum axis;
  using list = std::vector<int>;
  BOOST_TEST((members(tp, 0) == list{0, 1}));
  BOOST_TEST((members(cp, 0) == list{0, 2}));
  BOOST_TEST((members(dp, 1) == list{1, 5}));
  BOOST_TEST((members(pp, 3) == list{3, 11}));
  BOOST_TEST((members({dp, cp}, 1) == list{1, 3, 5, 7}));
  BOOST_TEST((members(ep, 5) == list{4, 5, 6, 7}));
  BOOST_TEST((members(edp, 6) == list{2, 6}));
  BOOST_TEST((members({ep, etp}, 12) == list{12, 13, 14, 15}));
  BOOST_CHECK_EXCEPTION(simulated_ranks(mesh({2, 1, 1, 1, 1, 1, 1})).run([](communicator&) {}),
                        error, [](const error& e) {
                          return std::string(e.what()).find("does not count the ranks") !=
                                 std::string::npos;
                        });
}
