// A timeline of the ranks in some steps: the tasks of each rank, and its exchanges with other
// ranks, split into waiting for them and moving bytes. It is written as a file in the Chrome trace
// event format, which chrome://tracing and ui.perfetto.dev open.
//
//   timeline t(program, exchanges, micro_batches, 2);
//   t.begin(11), session.profile(&t);       session.step(...);       t.end();
//   const std::vector<std::string> all = agreement(hosts).gather(t.packed(hosts));
//   trace_text(program, ranks.ranks(), all);                         on the first rank
//
// A rank is idle while it waits for an exchange that another rank of the group has not started,
// since no rank can move bytes before. So idle times follow from the start times of all ranks,
// whatever the backend does.
#pragma once

#include <megacpp/comm/timed.hpp>
#include <megacpp/inspect/description.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/request/report_request.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

struct timed_task {
  task what;
  std::int64_t began, ended;
};
struct timed_step {
  std::int64_t step, began, ended;
  std::int64_t tasks, exchanges; ///< tasks and exchanges recorded up to its end
};
/// A timed_exchange in a form that can be sent to another process.
struct sent_exchange {
  collective what;
  axis_set over;
  std::int32_t peer, channel, line;
  std::array<char, 44> file;
  std::int64_t bytes, started, waited, done;
};
/// The clock of a rank at one barrier over all ranks.
struct clock_reading {
  std::int64_t entered, left;
};

/// The times that one rank hands in.
struct rank_times {
  std::vector<clock_reading> clocks;
  std::vector<timed_step> steps;
  std::vector<timed_task> tasks;
  std::vector<sent_exchange> exchanges;
  std::int64_t ahead = 0; ///< nanoseconds by which this rank's clock is ahead

  template <class F> void each_list(F f) { f(clocks), f(steps), f(tasks), f(exchanges); }

  std::string packed() {
    std::string out;
    each_list([&]<class T>(const std::vector<T>& list) {
      static_assert(std::is_trivially_copyable_v<T>);
      const std::size_t n = list.size(), at = out.size();
      out.resize(at + sizeof n + n * sizeof(T));
      std::memcpy(out.data() + at, &n, sizeof n);
      if (n > 0) std::memcpy(out.data() + at + sizeof n, list.data(), n * sizeof(T));
    });
    return out;
  }
  static rank_times unpacked(std::string_view in) {
    rank_times r;
    r.each_list([&]<class T>(std::vector<T>& list) {
      std::size_t n = 0;
      std::memcpy(&n, in.data(), sizeof n);
      in.remove_prefix(sizeof n);
      for (T x; n > 0; --n, in.remove_prefix(sizeof x))
        std::memcpy(static_cast<void*>(&x), in.data(), sizeof x), list.push_back(x);
    });
    return r;
  }
};

/// Returns the nanoseconds by which a clock is ahead of the first rank's. It follows from barriers
/// that both have passed, since no rank leaves a barrier before all have entered it. Clocks that
/// may be equal are taken as equal, as those of one machine are.
inline std::int64_t ahead_of(const std::vector<clock_reading>& first,
                             const std::vector<clock_reading>& clock) {
  std::int64_t least = std::numeric_limits<std::int64_t>::min(),
               most = std::numeric_limits<std::int64_t>::max();
  for (std::size_t i = 0; i < std::min(first.size(), clock.size()); ++i) {
    least = std::max(least, clock[i].entered - first[i].left);
    most = std::min(most, clock[i].left - first[i].entered);
  }
  return first.empty() || (least <= 0 && 0 <= most) ? 0 : least + (most - least) / 2;
}

/// The key of an exchange, the same on all its ranks: the group by its axes and its first rank, or
/// the two ranks of a pair; the step; and the number of exchanges before it in this step.
using exchange_key = std::tuple<int, int, int, std::int64_t, std::int64_t>;
struct latest {
  std::int64_t started = std::numeric_limits<std::int64_t>::min();
  int rank = -1;
};

/// Returns a rank as text: "rank 3 (tp 1, dp 0, pp 0)", with the coordinates on all axes that have
/// several ranks; those of the expert mesh if it differs.
inline std::string rank_text(const mesh& m, int rank) {
  const coordinates at = coordinates_of(m, rank);
  const bool folds = m.of(axis::ep) > 1 || m.of(axis::etp) != m.of(axis::tp);
  std::string where;
  for (const auto& of_mesh : axes_by_rank)
    for (const axis a : of_mesh)
      if (m.of(a) > 1 && (&of_mesh == &axes_by_rank[0] || (folds && a != axis::pp)))
        where += fmt::format("{}{} {}", where.empty() ? "" : ", ", name_of(a),
                             at[static_cast<unsigned>(a)]);
  return fmt::format("rank {}{}", rank, where.empty() ? "" : " (" + where + ")");
}

/// Collects the events of a trace.
class trace_writer {
public:
  /// Tracks count from 1, since 0 means no thread.
  enum track : std::uint8_t { steps = 1, tasks, communication, idle };
  static constexpr std::array<const char*, 4> track_names{"steps", "tasks", "communication",
                                                          "idle"};

  void event(int rank, track on, std::int64_t begin, std::int64_t end, std::string what) {
    events_.push_back({begin, std::max<std::int64_t>(0, end - begin), rank, on, std::move(what)});
  }
  /// Returns the trace as text, with events in the order of their beginning. Times count from the
  /// first event.
  std::string text(const mesh& m, std::string_view program) {
    std::stable_sort(events_.begin(), events_.end(),
                     [](const timed_event& a, const timed_event& b) {
                       return std::tie(a.begin, a.rank, a.on) < std::tie(b.begin, b.rank, b.on);
                     });
    std::string out(trace_begin);
    const auto at = std::back_inserter(out);
    const char* before = "";
    for (int r = 0; r < ranks_of(m); ++r) {
      fmt::format_to(at,
                     "{}\n{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":"
                     "{{\"name\":\"{}\"}}}}",
                     std::exchange(before, ","), r, rank_text(m, r));
      fmt::format_to(at,
                     ",\n{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_sort_index\",\"args\":"
                     "{{\"sort_index\":{0}}}}}",
                     r);
      for (std::size_t t = 0; t < track_names.size(); ++t)
        fmt::format_to(at,
                       ",\n{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\",\"args\":"
                       "{{\"name\":\"{}\"}}}}",
                       r, t + 1, track_names[t]);
    }
    const std::int64_t origin = events_.empty() ? 0 : events_.front().begin;
    for (const timed_event& e : events_)
      fmt::format_to(at, ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},{}}}",
                     e.rank, static_cast<int>(e.on), microseconds(e.begin - origin),
                     microseconds(e.length), e.what);
    out += "\n],\"otherData\":{\"program\":";
    append_json_text(out, program);
    fmt::format_to(at, ",\"ranks\":{}}}}}\n", ranks_of(m));
    return out;
  }

private:
  struct timed_event {
    std::int64_t begin, length;
    int rank;
    track on;
    std::string what;
  };
  static std::string microseconds(std::int64_t ns) {
    return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
  }
  std::vector<timed_event> events_;
};

} // namespace detail

/// Records a rank's training steps. The constructor reserves all its memory.
class timeline final : public step_clock {
public:
  /// Makes room for `steps` steps of `micros` micro-batches. `p`: the program of all ranks.
  /// `exchanges`: the communicator of this rank, or nullptr if it is the only rank. Both must
  /// outlive this object.
  timeline(const program_view& p, timed_communicator* exchanges, int micros, int steps)
      : exchanges_of_(exchanges) {
    const int stage =
        exchanges == nullptr ? 0 : exchanges->coordinate()[static_cast<unsigned>(axis::pp)];
    const auto room = static_cast<std::size_t>(steps);
    steps_.reserve(room);
    tasks_.reserve(
        room * static_cast<std::size_t>(training_step(stage_of(p, stage).training, micros).size()));
    if (exchanges == nullptr) return;
    bool rounds = false;
    for (const part_view& part : p.parts) rounds = rounds || part.g->region_count > 0;
    const std::size_t listed = calls_of(p, exchanges->ranks(), stage, micros).size();
    // There are more rounds if tokens choose experts unevenly.
    exchanges_.reserve(room * listed * (rounds ? 2 : 1));
  }
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;
  ~timeline() override {
    if (exchanges_of_ != nullptr) exchanges_of_->forget();
  }

  /// Begins a step. `nodes`: another clock that is told the times of the step's nodes.
  void begin(std::int64_t step, step_clock* nodes = nullptr) {
    nodes_ = nodes;
    if (exchanges_of_ != nullptr) exchanges_of_->record(&exchanges_);
    steps_.push_back({step, monotonic_nanoseconds(), 0, 0, 0});
  }
  /// Ends a step. A step that is not `whole` was given up, and its records are dropped.
  void end(bool whole = true) {
    detail::timed_step& s = steps_.back();
    s.ended = monotonic_nanoseconds();
    if (exchanges_of_ != nullptr) exchanges_of_->record(nullptr);
    if (whole) {
      s.tasks = std::ssize(tasks_), s.exchanges = std::ssize(exchanges_);
      return;
    }
    steps_.pop_back();
    const bool none = steps_.empty();
    tasks_.resize(none ? 0 : static_cast<std::size_t>(steps_.back().tasks));
    exchanges_.resize(none ? 0 : static_cast<std::size_t>(steps_.back().exchanges));
  }
  int steps() const { return static_cast<int>(steps_.size()); }

  void node(const graph& g, int index, std::int64_t nanoseconds) override {
    if (nodes_ != nullptr) nodes_->node(g, index, nanoseconds);
  }
  void task(const mc::task& done, std::int64_t began, std::int64_t ended) override {
    if (tasks_.size() < tasks_.capacity()) tasks_.push_back({done, began, ended});
  }

  /// Returns this rank's times as bytes for trace_text. All ranks call it at the same time.
  std::string packed(communicator& hosts) const {
    detail::rank_times r;
    if (ranks_of(hosts.ranks()) > 1)
      for (int i = 0; i < 8; ++i) {
        const std::int64_t entered = monotonic_nanoseconds();
        hosts.run(exchange::barrier(everyone));
        r.clocks.push_back({entered, monotonic_nanoseconds()});
      }
    r.steps = steps_, r.tasks = tasks_;
    for (const timed_exchange& e : exchanges_) {
      detail::sent_exchange s{e.what, e.over,  e.peer,    e.channel, e.line.number,
                              {},     e.bytes, e.started, e.waited,  e.done};
      std::strncpy(s.file.data(), e.line.file_name(), s.file.size() - 1);
      r.exchanges.push_back(s);
    }
    return r.packed();
  }

private:
  timed_communicator* exchanges_of_;
  step_clock* nodes_ = nullptr;
  std::vector<detail::timed_step> steps_;
  std::vector<detail::timed_task> tasks_;
  std::vector<timed_exchange> exchanges_;
};

/// Returns the trace of all ranks of a program, from the bytes that each has packed. A rank is a
/// process of the trace, with four tracks:
///   steps          each step, with the milliseconds of computing, communication and idling
///   tasks          tasks by the names that `describe` gives them, with micro-batch and layer
///   communication  exchanges, from the time when all ranks of the group have come
///   idle           waiting for the rank that came last
inline std::string trace_text(const program_view& p, const mesh& m,
                              const std::vector<std::string>& packed) {
  using namespace detail;
  std::vector<rank_times> ranks;
  ranks.reserve(packed.size());
  for (const std::string& one : packed) ranks.push_back(rank_times::unpacked(one));
  for (rank_times& r : ranks) {
    r.ahead = ahead_of(ranks[0].clocks, r.clocks);
    for (timed_step& s : r.steps) s.began -= r.ahead, s.ended -= r.ahead;
    for (timed_task& t : r.tasks) t.began -= r.ahead, t.ended -= r.ahead;
    for (sent_exchange& e : r.exchanges)
      e.started -= r.ahead, e.waited -= r.ahead, e.done -= r.ahead;
  }

  // Calls f(rank, step, exchange, key) for all exchanges, in the order of each rank.
  const auto each_exchange = [&](auto f) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      std::int64_t i = 0;
      for (const timed_step& s : ranks[r].steps)
        for (std::map<std::tuple<int, int, int>, std::int64_t> met; i < s.exchanges; ++i) {
          const sent_exchange& e = ranks[r].exchanges[static_cast<std::size_t>(i)];
          const int rank = static_cast<int>(r);
          const group g(m, e.over, rank);
          std::tuple<int, int, int> at{e.over.bits, g[0], -1};
          if (e.what == collective::send) at = {-1 - e.channel, rank, g[e.peer]};
          if (e.what == collective::receive) at = {-1 - e.channel, g[e.peer], rank};
          const auto& [over, first, second] = at;
          f(rank, s, e, exchange_key{over, first, second, s.step, met[at]++});
        }
    }
  };
  std::map<exchange_key, latest> came;
  each_exchange([&](int rank, const timed_step&, const sent_exchange& e, const exchange_key& k) {
    if (latest& last = came[k]; e.started > last.started) last = {e.started, rank};
  });

  trace_writer out;
  struct spent {
    std::int64_t moving = 0, idle = 0;
  };
  std::map<std::pair<int, std::int64_t>, spent> spent_in;
  each_exchange([&](int rank, const timed_step& s, const sent_exchange& e, const exchange_key& k) {
    const latest& last = came[k];
    const std::int64_t moves = std::clamp(last.started, e.waited, e.done);
    const std::string line =
        e.line > 0
            ? fmt::format(",\"line\":\"{}\"", text_of(source_line(e.line, e.file.data())).c_str())
            : "";
    const std::string name = fmt::format("{} over {}", name_of(e.what), name_of(e.over));
    if (moves > e.waited)
      out.event(rank, trace_writer::idle, e.waited, moves,
                fmt::format("\"name\":\"waiting for rank {}\",\"cat\":\"idle\",\"args\":"
                            "{{\"exchange\":\"{}\"{}}}",
                            last.rank, name, line));
    out.event(rank, trace_writer::communication, moves, e.done,
              fmt::format("\"name\":\"{}\",\"cat\":\"communication\",\"args\":{{\"step\":{},"
                          "\"bytes\":{},\"ranks\":{}{},\"in_flight_us\":{}}}",
                          name, s.step, e.bytes, group(m, e.over, rank).size(), line,
                          static_cast<double>(e.waited - e.started) * 1e-3));
    spent& x = spent_in[{rank, s.step}];
    x.moving += e.done - moves, x.idle += moves - e.waited;
  });
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    const stage_shape shape = stage_of(p, coordinates_of(m, rank)[static_cast<unsigned>(axis::pp)]);
    const std::span<const part_use> uses(shape.uses.begin(),
                                         static_cast<std::size_t>(shape.uses.size()));
    std::int64_t i = 0;
    for (const timed_step& s : ranks[r].steps) {
      const spent& x = spent_in[{rank, s.step}];
      const std::int64_t all = s.ended - s.began;
      out.event(
          rank, trace_writer::steps, s.began, s.ended,
          fmt::format("\"name\":\"step {}\",\"cat\":\"step\",\"args\":{{\"step\":{},"
                      "\"compute_ms\":{},\"communication_ms\":{},\"idle_ms\":{}}}",
                      s.step, s.step, static_cast<double>(all - x.moving - x.idle) * 1e-6,
                      static_cast<double>(x.moving) * 1e-6, static_cast<double>(x.idle) * 1e-6));
      for (; i < s.tasks; ++i) {
        const timed_task& t = ranks[r].tasks[static_cast<std::size_t>(i)];
        task named = t.what;
        named.micro = -1;
        text<160> name;
        spell(name, named, uses);
        std::string args = fmt::format("\"step\":{}", s.step);
        if (t.what.micro >= 0) args += fmt::format(",\"micro_batch\":{}", t.what.micro);
        if (t.what.use >= 0)
          if (const part_use& u = uses[static_cast<unsigned>(t.what.use)]; u.as == used_as::layer)
            args += fmt::format(",\"layer\":{}", u.layer);
        out.event(
            rank, trace_writer::tasks, t.began, t.ended,
            fmt::format("\"name\":\"{}\",\"cat\":\"task\",\"args\":{{{}}}", name.c_str(), args));
      }
    }
  }
  return out.text(m, p.name);
}

} // namespace mc
