// The buffers of a step: every byte that is no parameter, as a list with the contents, the lifetime
// and the place of each. The tasks of the step give the lifetimes, and a buffer lies where no other
// lies at the same time. Arenas, the memory plan of a run and the addresses for kernels are made
// from this list.
#pragma once

#include <megacpp/op/numbers.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/pass/place_memory.hpp>
#include <megacpp/plan/buffer.hpp>
#include <megacpp/plan/step.hpp>

#include <initializer_list>
#include <span>

namespace mc {

/// The spaces and feeds that the nodes of some phases of a graph read and write, each with the end
/// of the bytes that they touch there.
struct touched {
  bool reads[spaces]{}, writes[spaces]{}, feeds[mc::feeds]{};
  bool seed = false; ///< the nodes read the cotangent of a loss
  std::int64_t ends[spaces]{}, ends_of_feeds[mc::feeds]{}, end_of_seed = 0;

  constexpr touched() = default;
  constexpr touched(const graph& g, const memory_plan& plan, const running_order& order,
                    phases when) {
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.nodes[i];
      if (!when.holds(n.when) && !(is_backward(when) && order.rerun.has(i))) continue;
      for (value_id v : n.in)
        if (v >= 0) read(g, plan, v);
      if (n.region >= 0) read(g, plan, g.regions[n.region].trips);
      if (n.region >= 0) see(g, plan, g.regions[n.region].trips, reads);
      if (n.op->seen >= 0) see(g, plan, n.in[n.op->seen], reads);
      for (value_id v : n.out) {
        if (v < 0) continue;
        see(g, plan, v, writes);
        writes[static_cast<int>(plan.at[v].in)] = true;
        reach(g, plan, v);
        if (n.op->accumulates && g.at(v).is == role::gradient)
          reads[static_cast<int>(plan.at[v].in)] = true;
      }
    }
  }

private:
  constexpr void read(const graph& g, const memory_plan& plan, value_id v) {
    reads[static_cast<int>(plan.at[v].in)] = true;
    if (plan.at[v].in != space::input) return reach(g, plan, v);
    while (g.values[v].is != role::input && g.values[v].producer >= 0) // v renames an input
      v = g.at_node(g.values[v].producer).in[0];
    const value& x = g.values[v];
    const std::int64_t end = first_byte(g, x) + local_bytes(g.ranks, x);
    std::int64_t& most = is_seed(x) ? end_of_seed : ends_of_feeds[static_cast<int>(x.from)];
    if (most < end) most = end;
    if (is_seed(x)) seed = true;
    else feeds[static_cast<int>(x.from)] = true;
  }
  /// Adds the mirror of v, if it has one, and the host memory of kernels beside it.
  constexpr void see(const graph& g, const memory_plan& plan, value_id v, bool (&how)[spaces]) {
    const mirror* const m = plan.mirror_of(v);
    if (m == nullptr) return;
    constexpr auto s = static_cast<int>(space::mirror);
    how[s] = true;
    const std::int64_t copy = m->offset + local_bytes(g.ranks, g.at(v)), room = m->room + m->bytes;
    if (ends[s] < copy) ends[s] = copy;
    if (m->bytes > 0 && ends[s] < room) ends[s] = room;
  }
  constexpr void reach(const graph& g, const memory_plan& plan, value_id v) {
    const address& a = plan.at[v];
    if (a.in == space::weights || a.in == space::gradients) return; // stores hold these bytes
    const std::int64_t end = a.offset + local_bytes(g.ranks, g.at(v));
    if (std::int64_t& most = ends[static_cast<int>(a.in)]; most < end) most = end;
  }
  /// Returns where an input begins in the buffer of its feed, which several inputs may share.
  static constexpr std::int64_t first_byte(const graph& g, const value& x) {
    if (x.from == feed::total) return x.feed_index * size_of(x.type);
    std::int64_t begin = 0;
    for (const value* o = g.values; is_cache(x.from) && o != &x; ++o)
      if (o->is == role::input && is_cache(o->from))
        begin += aligned_bytes(local_bytes(g.ranks, *o));
    return begin;
  }
};

/// A graph that a step runs, with its plan and the memory that its tasks touch. `order` is that of
/// the graph.
struct planned_graph {
  const graph* g = nullptr;
  const memory_plan* plan = nullptr;
  touched in_phase[step_phases]; ///< memory that nodes touch, by number_of() their phases
  std::int64_t fed[mc::feeds]{}; ///< bytes of an input of each feed, read or not
  std::int64_t caches = 0;       ///< bytes of all caches

  constexpr planned_graph() = default;
  constexpr planned_graph(const graph& of, const memory_plan& p)
      : planned_graph(of, p, running_order(of)) {}
  constexpr planned_graph(const graph& of, const memory_plan& p, const running_order& order)
      : g(&of), plan(&p) {
    for (const phases when : phases_of_step)
      in_phase[number_of(when)] = touched(of, p, order, when);
    for (int i = 0; i < of.value_count; ++i) {
      const value& v = of.values[i];
      if (v.is != role::input || is_store(v.from)) continue;
      const std::int64_t n = local_bytes(of.ranks, v);
      if (std::int64_t& most = fed[static_cast<int>(v.from)]; most < n) most = n;
      if (is_cache(v.from)) caches += aligned_bytes(n);
    }
  }
  constexpr const touched& in(phases when) const { return in_phase[number_of(when)]; }
  /// Returns whether the backward pass adds to gradients of parameters.
  constexpr bool has_gradients() const {
    const bool(&writes)[spaces] = in(backward_pass).writes;
    return writes[static_cast<int>(space::gradients)] ||
           writes[static_cast<int>(space::derived_gradients)];
  }
};

/// The buffers of a rank, whose steps take turns in the same memory. `graphs` are by part, `uses`
/// are those of the tasks, and `steps` are the steps that it runs, with up to `micros`
/// micro-batches.
class buffers {
public:
  constexpr ~buffers() = default; // nvcc needs it written out, and so the next one
  constexpr buffers(const buffers&) = default;
  constexpr buffers(std::span<const planned_graph> graphs, std::span<const part_use> uses,
                    std::span<const step_shape> steps, int micros = 1)
      : graphs_(graphs) {
    for (const part_use& u : uses) uses_.push(u);
    make();
    find_operands();
    for (const step_shape& step : steps) {
      const int begin = tasks_;
      list<task> alone;
      if (step.update < 0) alone = evaluation_step(step, 1);
      else alone = training_step(step, 1);
      live(alone);
      keep(alone, step, micros, begin);
    }
    place();
  }

  constexpr std::span<const buffer> all() const { return all_; }
  constexpr const buffer& operator[](int i) const { return all_[i]; }
  constexpr buffer& operator[](int i) { return all_[i]; }
  constexpr std::span<const part_use> uses() const { return uses_; }
  constexpr const planned_graph& graph_of_part(int part) const {
    return graphs_[static_cast<unsigned>(part)];
  }
  constexpr const planned_graph& graph_of(int use) const {
    return graphs_[static_cast<unsigned>(uses_[use].part)];
  }
  /// Returns the number of the buffer with these contents, of a use or at a position.
  constexpr int of(content what, int at = 0) const {
    return first_of_[static_cast<int>(what)] + at;
  }
  /// Returns the number of the buffer of a feed of the batch; -1: it is none of the batch.
  constexpr int of(feed f) const {
    const int i = batch_feed(f);
    return i < 0 ? -1 : of(content::fed, i);
  }
  constexpr std::int64_t bytes(arena_of a) const { return bytes_[static_cast<int>(a)]; }

  /// A buffer that a task reads or writes: one of its use, one at its position or the next, or one
  /// that exists once.
  struct operand {
    content what{};
    enum { use, position, next, once } at{};
    std::int8_t index = 0; ///< number among the buffers of `once`
    bool reads = false, writes = false;
    std::int64_t end = 0; ///< end of the bytes that the nodes of its graph touch there
  };
  /// Calls f(number of a buffer, operand) for each buffer that a task touches.
  template <class F> constexpr void for_each_operand(const task& t, F f) const {
    const int k = kind_of(t), position = t.use < 0 ? behind_ - 1 : uses_[t.use].position;
    const int at[] = {t.use, position, position + 1};
    const operand* o = operands_.begin() + begin_[k];
    for (const operand* const end = operands_.begin() + begin_[k + 1]; o != end; ++o)
      f(first_of_[static_cast<int>(o->what)] + (o->at == operand::once ? o->index : at[o->at]), *o);
  }

private:
  /// Returns the kind of a task. Tasks of one kind have the same operands: those of a part in a
  /// phase, or those of another action in a phase.
  constexpr int kind_of(const task& t) const {
    const int part = t.what == action::run
                         ? uses_[t.use].part
                         : static_cast<int>(graphs_.size()) + static_cast<int>(t.what) - 1;
    return part * step_phases + number_of(t.when);
  }
  /// Lists the operands of all kinds of task, in the order of kind_of().
  constexpr void find_operands() {
    using enum phase;
    const auto begins = [&] { begin_.push(operands_.size()); };
    const auto adds = [&](content c, auto at, int index, bool reads, std::int64_t end) {
      operands_.push({c, at, static_cast<std::int8_t>(index), reads, !reads, end});
    };
    std::int64_t fed[mc::feeds]{}, back = 0; // bytes of each input; of a cotangent
    for (const planned_graph& g : graphs_) {
      at_least(back, g.in(backward_pass).ends[static_cast<int>(space::d_stream_in)]);
      for (int f = 0; f < mc::feeds; ++f) at_least(fed[f], g.fed[f]);
    }
    const std::int64_t forth = fed[static_cast<int>(feed::stream)];
    for (const planned_graph& g : graphs_)
      for (const phases when : phases_of_step) begins(), find_operands(g.in(when));
    for (int what = 1; what < actions; ++what)
      for (const phases when : phases_of_step) {
        begins();
        const bool forward = when == phase::forward, backward = when == backward_pass;
        switch (static_cast<action>(what)) {
        case action::run: break;
        case action::feed:
          for (int i = 0; forward && i < static_cast<int>(std::size(batch_feeds)); ++i)
            adds(content::fed, operand::once, i, false, fed[static_cast<int>(batch_feeds[i])]);
          break;
        case action::receive:
          if (forward) adds(content::stream, operand::position, 0, false, forth);
          if (backward) adds(content::d_stream, operand::next, 0, false, back);
          break;
        case action::send:
          if (forward) adds(content::stream, operand::next, 0, true, forth);
          if (backward) adds(content::d_stream, operand::position, 0, true, back);
          break;
        case action::wait: // it touches nothing, but what is sent lies there until then
          if (forward) operands_.push({content::stream, operand::next});
          if (backward) operands_.push({content::d_stream, operand::position});
          break;
        case action::clear:
          if (forward) adds(content::totals, operand::once, 0, false, bytes_of_totals);
          if (backward) adds(content::main_gradients, operand::once, 0, false, 0);
          if (when == phase::epilogue) adds(content::derived_gradients, operand::use, 0, false, 0);
          break;
        }
      }
    begins();
  }
  constexpr void find_operands(const touched& x) {
    const auto both = [&](space s, content c, auto at) {
      const int i = static_cast<int>(s);
      if (x.reads[i] || x.writes[i]) operands_.push({c, at, 0, x.reads[i], x.writes[i], x.ends[i]});
    };
    const auto end = [&](std::initializer_list<feed> all) {
      std::int64_t most = 0;
      for (const feed f : all) at_least(most, x.ends_of_feeds[static_cast<int>(f)]);
      return most;
    };
    both(space::saved, content::saved, operand::use);
    both(space::derived, content::derived, operand::use);
    both(space::derived_gradients, content::derived_gradients, operand::use);
    both(space::mirror, content::mirror, operand::use);
    both(space::gradients, content::main_gradients, operand::once);
    both(space::working, content::working, operand::once);
    both(space::stream_out, content::stream, operand::next);
    both(space::d_stream_in, content::d_stream, operand::position);
    if (x.feeds[static_cast<int>(feed::key_cache)] || x.feeds[static_cast<int>(feed::value_cache)])
      operands_.push({content::caches, operand::position, 0, true, true,
                      end({feed::key_cache, feed::value_cache})});
    const auto read = [&](bool reads, content c, auto at, std::int64_t to, int index = 0) {
      if (reads) operands_.push({c, at, static_cast<std::int8_t>(index), true, false, to});
    };
    read(x.feeds[static_cast<int>(feed::stream)], content::stream, operand::position,
         end({feed::stream}));
    read(x.feeds[static_cast<int>(feed::d_output)], content::d_stream, operand::next,
         end({feed::d_output}));
    read(x.seed, content::seed, operand::once, x.end_of_seed);
    for (const feed f : {feed::gradient, feed::declared_gradient})
      read(x.feeds[static_cast<int>(f)], content::main_gradients, operand::once, 0);
    read(x.feeds[static_cast<int>(feed::seed)] || x.feeds[static_cast<int>(feed::step)] ||
             x.feeds[static_cast<int>(feed::learning_rate)],
         content::numbers, operand::once, bytes_of_numbers);
    if (x.feeds[static_cast<int>(feed::total)])
      operands_.push({content::totals, operand::once, 0, true, true, end({feed::total})});
    for (int i = 0; i < static_cast<int>(std::size(batch_feeds)); ++i)
      read(x.feeds[static_cast<int>(batch_feeds[i])], content::fed, operand::once,
           end({batch_feeds[i]}), i);
  }

  /// Returns the most bytes that an input of this feed has on one rank.
  constexpr std::int64_t bytes_of_input(feed f) const {
    std::int64_t most = 0;
    for (const planned_graph& p : graphs_)
      for (int i = 0; i < p.g->value_count; ++i)
        if (const value& v = p.g->values[i]; v.is == role::input && v.from == f)
          if (const std::int64_t n = aligned_bytes(local_bytes(p.g->ranks, v)); n > most) most = n;
    return most;
  }
  static constexpr void at_least(std::int64_t& bytes, std::int64_t n) {
    if (bytes < n) bytes = n;
  }

  constexpr void make() {
    const int n = uses_.size(), fed = static_cast<int>(std::size(batch_feeds));
    for (const part_use& u : uses_)
      if (u.position >= behind_) behind_ = u.position + 1;
    for (int c = 0; c < contents; ++c) {
      const auto what = static_cast<content>(c);
      first_of_[c] = all_.size();
      const bool by_use = what <= content::mirror, by_position = what <= content::caches;
      const int count = by_use ? n : by_position ? behind_ + 1 : what == content::fed ? fed : 1;
      all_.resize(all_.size() + count);
      for (int i = first_of_[c]; i < all_.size(); ++i) all_[i].what = what;
    }
    for (int u = 0; u < n; ++u) {
      const memory_plan& plan = *graph_of(u).plan;
      all_[of(content::saved, u)].bytes = plan.saved;
      all_[of(content::derived, u)].bytes = plan.derived;
      all_[of(content::derived_gradients, u)].bytes = plan.derived_gradients;
      all_[of(content::mirror, u)].bytes = plan.mirrored;
    }
    const std::int64_t stream = bytes_of_input(feed::stream);
    for (int i = of(content::stream); i < of(content::stream, behind_); ++i) all_[i].bytes = stream;
    for (const part_use& u : uses_) { // the last part may give something else than a stream
      if (u.position < 0) continue;
      const graph& g = *graph_of_part(u.part).g;
      if (u.position + 1 == behind_ && g.outputs[0] >= 0 && g.at(g.outputs[0]).rank > 0)
        at_least(all_[of(content::stream, behind_)].bytes,
                 aligned_bytes(local_bytes(g.ranks, g.at(g.outputs[0]))));
      at_least(all_[of(content::caches, u.position)].bytes, graph_of_part(u.part).caches);
    }
    for (int p = 0; p <= behind_; ++p)
      all_[of(content::d_stream, p)].bytes = all_[of(content::stream, p)].bytes;
    all_[of(content::seed)].bytes = memory_alignment;
    all_[of(content::numbers)].bytes = memory_alignment;
    all_[of(content::totals)].bytes = aligned_bytes(bytes_of_totals);
    for (const feed f : batch_feeds) all_[of(f)].bytes = bytes_of_input(f);
  }

  /// Sets the lifetimes of buffers that no earlier step has: from the first task that touches them
  /// to the last. Derived values and caches live on for ever, and the seed, the totals and the
  /// numbers always.
  constexpr void live(const list<task>& step) {
    const int begin = tasks_;
    for (const task& t : step) {
      buffer& working = all_[of(content::working)];
      if (t.what == action::run && graph_of(t.use).plan->working > working.bytes)
        working.bytes = graph_of(t.use).plan->working;
      for_each_operand(t, [&](int number, const operand&) {
        buffer& b = all_[number];
        if (b.last == whole || (b.last >= 0 && b.last < begin)) return; // the buffer lives already
        if (b.first < 0) b.first = tasks_;
        b.last = tasks_;
      });
      ++tasks_;
    }
    for (buffer& b : all_) {
      if (b.first < begin) continue;
      if (b.what == content::seed || b.what == content::totals || b.what == content::numbers)
        b.first = 0;
      if (lives_on(b.what)) b.last = whole;
    }
  }
  /// Keeps a copy of a buffer for each micro-batch in flight between the pass that writes it and a
  /// later pass that reads it. Such buffers, and those that are sent, share their memory with no
  /// other buffer of a micro-batch. `alone` has the tasks of the step, the first of which has the
  /// number `begin`.
  constexpr void keep(const list<task>& alone, const step_shape& step, int micros, int begin) {
    int forward = -1, end = -1; // first and last task of the micro-batch's passes
    list<int> first(all_.size(), -1), last(all_.size(), -1); // tasks of these that touch a buffer
    for (int i = 0; i < alone.size(); ++i) {
      if (alone[i].micro < 0) continue;
      if (forward < 0) forward = i;
      end = i;
      for_each_operand(alone[i], [&](int number, const operand&) {
        if (first[number] < 0) first[number] = i;
        last[number] = i;
      });
    }
    const auto live_through = [&](buffer& b) {
      if (b.first > begin + forward) b.first = begin + forward;
      if (b.last < begin + end) b.last = begin + end;
    };
    for (const task& t : alone) // nothing may write there until it is received
      if (t.what == action::send)
        for_each_operand(t, [&](int number, const operand&) { live_through(all_[number]); });
    const auto pass_of = [&](int i) {
      const task& t = alone[i];
      return chunk_pass{is_backward(t.when), 0, t.use < 0 ? 0 : uses_[t.use].chunk};
    };
    for (int i = 0; i < all_.size(); ++i) {
      buffer& b = all_[i];
      if (first[i] < 0 || lives_on(b.what) || b.what == content::working) continue;
      const chunk_pass from = pass_of(first[i]), to = pass_of(last[i]);
      if (from.backward == to.backward && from.chunk == to.chunk) continue; // both are in one pass
      const int most =
          in_flight(step.order, step.of, step.stage, from, to, micros, step.update >= 0 ? 2 : 1);
      if (most > b.copies) b.copies = most;
      if (most > 1) live_through(b);
    }
  }

  /// An arena while buffers come and go. Buffers in use end at `top`, with gaps between them.
  struct filling {
    struct gap {
      std::int64_t offset, bytes;
    };
    constexpr filling() = default;
    constexpr ~filling() = default; // nvcc needs it written out
    list<gap> gaps;
    std::int64_t top = 0, most = 0;

    /// Takes the gap that was left last and is large enough, or the top. Returns its offset.
    constexpr std::int64_t take(std::int64_t bytes) {
      for (int k = gaps.size(); k-- > 0;) {
        gap& g = gaps[k];
        if (g.bytes < bytes) continue;
        const std::int64_t at = g.offset;
        g.offset += bytes, g.bytes -= bytes;
        return at;
      }
      top += bytes;
      if (top > most) most = top;
      return top - bytes;
    }
    constexpr void leave(std::int64_t offset, std::int64_t bytes) {
      gaps.push({offset, bytes});
      while (!gaps.empty() && gaps.back().offset + gaps.back().bytes == top) {
        top = gaps.back().offset;
        gaps.pop();
      }
    }
  };

  /// Places every buffer, in the order in which they begin to live.
  constexpr void place() {
    const int steps = tasks_ + 1;
    list<int> next_first(all_.size(), -1), next_last(all_.size(), -1); // next buffer, same task
    list<int> first(steps, -1), last(steps, -1);
    for (int i = all_.size() - 1; i >= 0; --i) {
      const buffer& b = (*this)[i];
      if (b.first < 0 || b.bytes == 0) continue;
      int &begins = first[b.first], &ends = last[b.last < tasks_ ? b.last : tasks_];
      next_first[i] = begins, begins = i;
      next_last[i] = ends, ends = i;
    }
    filling arena[arenas];
    for (int t = 0; t < steps; ++t) {
      for (int i = first[t]; i >= 0; i = next_first[i]) {
        buffer& b = (*this)[i];
        b.offset = arena[static_cast<int>(arena_for(b.what))].take(b.size());
      }
      for (int i = last[t]; i >= 0; i = next_last[i]) {
        const buffer& b = (*this)[i];
        arena[static_cast<int>(arena_for(b.what))].leave(b.offset, b.size());
      }
    }
    for (int a = 0; a < arenas; ++a) bytes_[a] = arena[a].most;
  }

  static constexpr int whole = 1 << 30; ///< number of a task behind all others
  std::span<const planned_graph> graphs_;
  list<part_use> uses_;
  list<buffer> all_;
  list<operand> operands_; ///< operands of all kinds of task, one kind after another
  list<int> begin_;        ///< index of the first operand of each kind
  std::int64_t bytes_[arenas]{};
  int first_of_[contents]{}; ///< number of the first buffer with each contents
  int behind_ = 0;           ///< position behind the last one
  int tasks_ = 0;
};

} // namespace mc
