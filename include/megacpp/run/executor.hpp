// The executor runs tasks in the same way for training, evaluation, prefill and decode, compiled or
// interpreted. It knows no model, no layout and no schedule: tasks and buffers say what runs where.
// Whoever runs a micro-batch writes its integers into the feeds first.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/plan/buffers.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace mc {

/// The sums of a step, by step_total.
using step_sums = std::array<double, step_totals>;

class executor {
public:
  /// `parts` are indexed by the part numbers that the tasks of `b` use. `b`, `on`, `ranks` (which
  /// moves memory of `on`) and `weights` must outlive the executor. The constructor reserves all
  /// memory, and throws mc::error(exit_code::memory), which names `what` it is for and a `remedy`.
  /// Nodes of the backward pass run only if `backward` is true.
  executor(std::vector<part_view> parts, const buffers& b, device& on, communicator& ranks,
           const stores& weights, const char* what, const char* remedy, bool backward)
      : parts_(std::move(parts)),
        b_(b),
        device_(on),
        lane_(on.main_lane()),
        ranks_(ranks),
        weights_(weights),
        remedy_(remedy),
        backward_(backward),
        prepared_(parts_.size()) {
    if (ranks_.moves() != plane::ranks)
      throw error(exit_code::internal,
                  "a program was given a communicator of hosts: give it that of ranks, which moves "
                  "memory of its device");
    std::size_t places = 0; // places in memory; each is sent at most once at a time
    int copies = 0;
    for (const buffer& x : b_.all()) {
      places += static_cast<std::size_t>(x.copies);
      copies = std::max(copies, static_cast<int>(x.copies));
    }
    most_kept_ += 2 * copies;
    sent_.reserve(places);
    for (const part_view& part : parts_) {
      if (*part.device_type != typeid(on))
        throw error(exit_code::internal,
                    "a program was given a device of another type than it is "
                    "made for: make the device that the program names");
      inputs_.emplace_back(*part.g);
      streams_.emplace_back(part, parts_);
    }
    lane_.reserve({.scratch = scratch_bytes_of(parts_, on, backward_)}, remedy);
    std::int64_t bytes = 0;
    for (int a = 0; a < arenas; ++a) {
      if (a == static_cast<int>(arena_of::host)) continue;
      begin_of_[a] = bytes;
      bytes += b_.bytes(static_cast<arena_of>(a));
    }
    memory_ = arena(on, bytes, what, remedy);
    mirrors_ = arena(on.mirrored(), b_.bytes(arena_of::host), what, remedy);
    for (const buffer& x : b_.all()) {
      auto& of_copies = mirrored_.emplace_back();
      if (x.what != content::mirror) continue;
      for (int copy = 0; copy < x.copies; ++copy) of_copies.emplace_back(on.make_event());
    }
  }
  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;
  ~executor() {
    if (!sent_.empty()) ranks_.give_up(); // sends are left: a step has failed in the middle
  }

  /// Prepares what the kernels of these tasks need. memory() must hold nothing yet: libraries use
  /// it to check what they compute.
  void prepare(const list<task>& step) {
    lent_memory lent(device_, memory_);
    for (const task& t : step) {
      if (t.what != action::run) continue;
      const auto k = static_cast<unsigned>(use_of(t).part);
      if (!prepared_[k].empty()) continue;
      prepared_[k].resize(static_cast<unsigned>(parts_[k].g->node_count));
      parts_[k].prepare(parts_[k], device_, prepared_[k].data(), backward_);
    }
    lent.take_back();
    lane_.reserve({.workspace = device_.products().workspace_bytes()}, remedy_);
  }
  /// Writes the values that no task writes, such as the seed of the backward pass. It is called
  /// once, when everything is prepared.
  void begin() {
    set_numbers();
    if (const int seed = b_.of(content::seed); b_[seed].first >= 0) {
      std::byte one[sizeof(double)];
      const dtype type = weights_.precision().statistic;
      stores::set(one, type, 0, 1.0);
      lane_.write(address_of(seed), one, size_of(type));
    }
  }

  /// Runs a task: the nodes of a graph, clearing, or a message to or from a neighbour stage. If the
  /// lane keeps work, tasks wait and are started together when other work has to follow them.
  void run(const task& t) {
    if (can_be_kept(t)) {
      waiting_.push_back(t);
      return;
    }
    start_waiting();
    run_timed(t, [&] { run_untimed(t); });
  }
  /// Starts the tasks that wait. It is called before others use the lane or the weights.
  void start_waiting() {
    if (waiting_.empty()) return;
    const std::vector<task> now = std::exchange(waiting_, {});
    const auto start = [&] {
      for (const task& t : now) run_untimed(t);
    };
    // Another user of the lane may have enlarged its memory, which has moved then.
    kept_tasks of{{}, {lane_.scratch(), lane_.workspace()}, numbers_, nullptr, {}};
    for (task t : now) {
      b_.for_each_operand(t, [&](int number, const buffers::operand&) {
        of.addresses.push_back(address_of(number, t.micro));
      });
      t.micro = 0;
      of.tasks.push_back(t);
    }
    const auto same = [&](const kept_tasks& k) {
      return k.tasks == of.tasks && k.addresses == of.addresses && k.constants == of.constants;
    };
    const auto at = std::find_if(kept_.begin(), kept_.end(), same);
    // Tasks that were used again become the last.
    if (at != kept_.end()) std::rotate(at, at + 1, kept_.end());
    else kept_.push_back(std::move(of));
    if (std::ssize(kept_) > most_kept_) kept_.erase(kept_.begin());
    kept_tasks& kept = kept_.back();
    const shown_range shown(lane_, [&]() -> const std::string& {
      if (kept.name.empty()) {
        kept.name = name_of(now.front());
        if (now.size() > 1) kept.name += " to " + name_of(now.back());
      }
      return kept.name;
    });
    lane_.start_kept(kept.work, start);
  }
  /// Runs other work as task t, which is timed and shown as tasks are.
  template <class F> void time(const task& t, const F& what_it_does) {
    start_waiting();
    const shown_range shown = shown_task(t);
    run_timed(t, what_it_does);
  }
  /// Returns the sums of a step when it is over, and tells its times if they are taken.
  step_sums totals() {
    step_sums sums;
    read(sums.data(), address_of(b_.of(content::totals)), sizeof sums);
    tell_times();
    return sums;
  }
  void tell_times() {
    if (timed_) times_->tell();
  }
  /// Drops the tasks and times of a step that has failed in the middle.
  void forget() {
    waiting_.clear();
    if (timed_) times_->forget();
  }

  step_numbers& numbers() { return numbers_; }
  /// Writes the numbers of the step, such as the learning rate, for its graphs.
  void set_numbers() {
    start_waiting();
    const int number = b_.of(content::numbers);
    if (b_[number].first < 0) return; // no graph reads the numbers
    const std::int64_t whole[] = {static_cast<std::int64_t>(numbers_.seed), numbers_.step};
    lane_.write(address_of(number), whole, sizeof whole);
    lane_.write(address_of(number) + sizeof whole, &numbers_.learning_rate, sizeof(double));
  }
  /// Takes times from now on, and tells them to a clock; nullptr: takes none. The first call with a
  /// clock makes the events that later calls use.
  void profile(step_clock* clock) {
    start_waiting();
    timed_ = clock != nullptr;
    if (!timed_) return;
    if (!times_) times_.emplace(device_);
    times_->tell_to(*clock);
  }
  arena& memory() { return memory_; }
  const arena& memory() const { return memory_; }
  const arena& mirrors() const { return mirrors_; }
  lane_room room() const { return lane_.room(); }
  std::byte* begin_of(arena_of a) const {
    return (a == arena_of::host ? mirrors_ : memory_).data() + begin_of_[static_cast<int>(a)];
  }
  std::byte* address_of(int number, int micro = 0) const {
    const buffer& b = b_[number];
    return begin_of(arena_for(b.what)) + b.at(micro);
  }
  /// Writes integers of a feed of a micro-batch, from element `first` on.
  void write(feed f, std::span<const std::int32_t> ids, std::int64_t first = 0, int micro = 0) {
    write_bytes(f, std::as_bytes(ids), first * std::int64_t{sizeof(std::int32_t)}, micro);
  }
  /// Writes bytes of a feed of a micro-batch, from byte `first` on.
  void write_bytes(feed f, std::span<const std::byte> bytes, std::int64_t first = 0,
                   int micro = 0) {
    start_waiting();
    lane_.write(address_of(b_.of(f), micro) + first, bytes.data(), std::ssize(bytes));
  }
  /// Reads bytes of a buffer, or of other memory of the device.
  void read(void* to, const std::byte* from, std::int64_t bytes) {
    start_waiting();
    device_.read(to, from, bytes);
  }
  /// Returns the addresses of a part's inputs. Those that lie in no buffer stay as they are set
  /// here.
  input_addresses& inputs_of(int part) { return inputs_[static_cast<unsigned>(part)]; }

private:
  /// An arena that holds nothing yet, and is lent to the device's libraries for their checks.
  /// take_back() clears the bytes that they used.
  class lent_memory {
  public:
    lent_memory(device& to, const arena& memory) : to_(to), memory_(memory) {
      to_.lend(memory_.data(), memory_.size());
    }
    lent_memory(const lent_memory&) = delete;
    lent_memory& operator=(const lent_memory&) = delete;
    /// Takes the memory back and clears it. It is called when all checks are done.
    void take_back() {
      const std::int64_t used = to_.take_back();
      if (used > 0) to_.fill(memory_.data(), 0, used);
    }
    ~lent_memory() { to_.take_back(); }

  private:
    device& to_;
    const arena& memory_;
  };

  template <class F> void run_timed(const task& t, const F& what_it_does) {
    if (timed_) times_->task_begins(lane_);
    what_it_does();
    if (timed_) times_->task_ends(lane_, t);
  }

  /// Returns whether the lane may keep a task and repeat it: the task's work depends on its
  /// addresses and the run's constants alone. It does not meet other ranks, and the host waits for
  /// no value of the device, such as the counts of experts.
  bool can_be_kept(const task& t) const {
    if (!lane_.keeps_work() || timed_ || ranks_of(ranks_.ranks()) > 1) return false;
    if (t.what != action::run && t.what != action::clear) return false;
    bool mirrors = false;
    b_.for_each_operand(
        t, [&](int, const buffers::operand& o) { mirrors = mirrors || o.what == content::mirror; });
    return !mirrors;
  }
  /// Tasks whose work a lane has kept, with everything that their work depends on. Tasks of another
  /// micro-batch are the same if they have the same addresses.
  struct kept_tasks {
    std::vector<task> tasks;
    std::vector<const std::byte*> addresses;
    run_constants constants;
    std::unique_ptr<lane::kept_work> work;
    std::string name; ///< name under which tools show these tasks, made at first use
  };
  /// Shows a task to tools under the name that --trace gives it, with the number of its
  /// micro-batch.
  shown_range shown_task(const task& t) {
    return {lane_, [&]() -> const std::string& { return name_of(t); }, t.micro};
  }
  const std::string& name_of(task t) {
    t.micro = -1;
    for (const auto& [named, name] : names_)
      if (named == t) return name;
    text<160> name;
    spell(name, t, b_.uses());
    return names_.emplace_back(t, name.c_str()).second;
  }
  void run_untimed(const task& t) {
    const shown_range shown = shown_task(t);
    switch (t.what) {
    case action::clear: return clear(t);
    case action::send: return send(t);
    case action::receive: return receive(t);
    case action::wait: return wait(t);
    case action::feed: return;
    case action::run: break;
    }
    frame f = frame_of(t);
    const auto k = static_cast<unsigned>(use_of(t).part);
    parts_[k].run(parts_[k], t.when, device_, f, prepared_[k].data());
  }
  const part_use& use_of(const task& t) const { return b_.uses()[static_cast<unsigned>(t.use)]; }
  /// Returns the stage that a task sends to or receives from. Streams go to the next stage and
  /// cotangents to the one before.
  int neighbour(const task& t) const {
    const bool next = (t.what == action::send) == (t.when == phase::forward);
    const group stages = ranks_.over(axis::pp);
    return (stages.rank() + (next ? 1 : stages.size() - 1)) % stages.size();
  }
  /// Returns the channel of a task, since two stages may send each other both the stream and its
  /// cotangent.
  static int channel(const task& t) { return t.when == phase::forward ? 0 : 1; }
  void send(const task& t) {
    const stage_stream& x = streams_[static_cast<unsigned>(use_of(t).part)];
    b_.for_each_operand(t, [&](int number, const buffers::operand&) {
      const std::byte* const at = address_of(number, t.micro);
      sent_.push_back({at, ranks_.start(lane_, exchange::send(axis::pp, x.type, at, x.elements,
                                                              neighbour(t), x.line, channel(t)))});
    });
  }
  /// Waits for sends of a micro-batch, or of all micro-batches for a task that has none.
  void wait(const task& t) {
    b_.for_each_operand(t, [&](int number, const buffers::operand&) {
      const std::byte* const first = address_of(number, t.micro);
      const std::byte* const end = first + (t.micro < 0 ? b_[number].size() : b_[number].bytes);
      std::erase_if(sent_, [&](const sent& s) {
        if (s.at < first || s.at >= end) return false;
        ranks_.wait(lane_, s.gone);
        return true;
      });
    });
  }
  void receive(const task& t) {
    const stage_stream& x = streams_[static_cast<unsigned>(use_of(t).part)];
    b_.for_each_operand(t, [&](int number, const buffers::operand&) {
      ranks_.run(lane_, exchange::receive(axis::pp, x.type, address_of(number, t.micro), x.elements,
                                          neighbour(t), x.line, channel(t)));
    });
  }
  void clear(const task& t) {
    b_.for_each_operand(t, [&](int number, const buffers::operand& o) {
      if (o.what == content::main_gradients) return weights_.clear_gradients();
      if (const std::int64_t bytes = b_[number].bytes; bytes > 0)
        lane_.fill(address_of(number), 0, bytes);
    });
  }
  frame frame_of(const task& t) {
    const part_use& u = use_of(t);
    input_addresses& in = inputs_of(u.part);
    frame f;
    f.input = in.data();
    f.set(space::weights, weights_.weights()), f.set(space::gradients, weights_.gradients());
    f.index = u.index, f.layer = u.layer, f.constants = &numbers_;
    f.stores = &weights_.entries();
    f.on = &lane_, f.times = timed_ ? &*times_ : nullptr;
    f.ranks = &ranks_, f.coordinate = ranks_.coordinate();
    b_.for_each_operand(t, [&](int number, const buffers::operand& o) {
      std::byte* const at = address_of(number, t.micro);
      switch (o.what) {
      case content::saved: return f.set(space::saved, at);
      case content::derived: return f.set(space::derived, at);
      case content::derived_gradients: return f.set(space::derived_gradients, at);
      case content::mirror:
        f.mirrored = mirrored_of(number, t.micro);
        return f.set(space::mirror, at);
      case content::working: return f.set(space::working, at);
      case content::stream: // the backward pass may read the stream again
        return o.at == buffers::operand::next ? f.set(space::stream_out, at)
                                              : in.set(feed::stream, at);
      case content::d_stream:
        return o.at == buffers::operand::position ? f.set(space::d_stream_in, at)
                                                  : in.set(feed::d_output, at);
      case content::seed: return set_seeds(in, at);
      case content::caches: return set_caches(in, at);
      case content::fed: return in.set(batch_feeds[o.index], at);
      case content::totals: return set_totals(in, at);
      case content::numbers: return set_numbers(in, at);
      case content::main_gradients: return;
      }
    });
    return f;
  }
  /// Returns the event that comes when a micro-batch's copy of a mirror is done.
  mirror_event* mirrored_of(int number, int micro) {
    auto& of_copies = mirrored_[static_cast<unsigned>(number)];
    const std::size_t copies = of_copies.size();
    return &of_copies[copies == 1 || micro < 0 ? 0 : static_cast<unsigned>(micro) % copies];
  }
  /// Sets the addresses of the cotangents of a part's losses.
  static void set_seeds(input_addresses& in, std::byte* seed) {
    in.each([&](const value& v, std::byte*& at) {
      if (is_seed(v)) at = seed;
    });
  }
  /// Sets the addresses of a part's caches, in the order of their declarations.
  static void set_caches(input_addresses& in, std::byte* caches) {
    in.each([&](const value& v, std::byte*& at) {
      if (!is_cache(v.from)) return;
      at = caches;
      caches += aligned_bytes(local_bytes(in.of().ranks, v));
    });
  }
  /// Sets the addresses of the step's numbers, in the order of their feeds.
  static void set_numbers(input_addresses& in, std::byte* numbers) {
    in.each([&](const value& v, std::byte*& at) {
      if (is_number(v.from))
        at = numbers + (static_cast<int>(v.from) - static_cast<int>(feed::seed)) * 8;
    });
  }
  static void set_totals(input_addresses& in, std::byte* totals) {
    in.each([&](const value& v, std::byte*& at) {
      if (v.from == feed::total) at = totals + v.feed_index * size_of(v.type);
    });
  }

  std::vector<part_view> parts_;
  std::vector<input_addresses> inputs_; ///< addresses of the inputs of each part
  const buffers& b_;
  device& device_;
  lane& lane_;
  communicator& ranks_;
  const stores& weights_;
  const char* remedy_;
  bool backward_;
  std::vector<std::vector<prepared_node>> prepared_; ///< prepared nodes of each part
  std::vector<stage_stream> streams_; ///< stream that each part sends to the next stage
  struct sent {
    const std::byte* at;
    ticket gone;
  };
  std::vector<sent> sent_; ///< sends without a wait so far
  arena memory_, mirrors_;
  std::vector<std::vector<mirror_event>> mirrored_; ///< one list for each buffer, one event for
                                                    ///< each of its copies
  std::int64_t begin_of_[arenas]{};                 ///< offset of each arena in its memory
  step_numbers numbers_{};
  std::vector<task> waiting_; ///< tasks to be started together later
  int most_kept_ = 16;        ///< number of task lists that are kept
  std::vector<kept_tasks> kept_;
  std::vector<std::pair<task, std::string>> names_; ///< names of tasks that were shown so far
  std::optional<step_times> times_;
  bool timed_ = false;
};

} // namespace mc
