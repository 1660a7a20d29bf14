// Steps and buffers broken on purpose are refused, in constant evaluation as at run time, and those
// of the library are accepted for any number of micro-batches, stages and layers.
#define BOOST_TEST_MODULE broken_steps
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/plan/verify_step.hpp>
#include <megacpp/run/program.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

using namespace mc;

namespace {

/// Two key heads over four ranks, which the prologue repeats, so that values are derived.
constexpr qwen3_moe mixture{.layers = 4,
                            .hidden = 32,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 16,
                            .ffn = 48,
                            .expert_ffn = 24,
                            .experts = 4,
                            .experts_per_token = 2,
                            .vocabulary = 64,
                            .positions = 64,
                            .sparse_step = 2,
                            .tied = true};
constexpr int kinds = 2;
constexpr int kind_of(int layer) { return mixture.kind_of(layer); }

constexpr setup with(int pp) {
  setup s;
  s.ranks = {.tp = 4, .pp = pp, .sequence_parallel = true};
  s.batch = {2, 16};
  s.sums = numerics::batch_invariant; // so that a tied use collects apart
  return s;
}

/// The graphs of a step by part, with their plans.
struct parts {
  graph forward[kinds + 2]{}, g[kinds + 5]{};
  memory_plan plan[kinds + 5]{};
  registry stores;
  planned_graph planned[kinds + 5]{};

  constexpr parts() {
    const setup s = with(1);
    const graph* all[kinds + 2]{};
    for (int i = 0; i < kinds + 2; ++i) {
      const part_kind what = i == 0           ? part_kind::stem
                             : i == kinds + 1 ? part_kind::loss
                                              : part_kind::block;
      forward[i] = forward_graph(mixture, s, what, i == 0 || i == kinds + 1 ? 0 : i - 1);
      g[i] = after_passes(forward[i], {.backward = true});
      all[i] = &g[i];
    }
    const int layers[] = {1, 2, 2, 1};
    stores = make_registry(all, layers);
    g[part_of_update(kinds)] = update_graph(stores, mesh(s.ranks), s.precision);
    g[part_of_evaluation(kinds)] = after_passes(forward[kinds + 1], {});
    g[part_of_totals(kinds)] = totals_graph(mesh(s.ranks));
    for (int i = 0; i < kinds + 5; ++i) {
      plan[i] = place_memory(g[i]);
      planned[i] = planned_graph(g[i], plan[i]);
    }
  }
};

/// A stage's step, to be broken: its tasks and buffers.
struct stage_step {
  stage_shape shape;
  buffers b;
  list<task> tasks;
  int micros;

  constexpr stage_step(std::span<const planned_graph> graphs, int pp, int stage, int count,
                       int chunks = 1)
      : shape(mixture.layers, kinds, layout{.pp = pp, .virtual_stages = chunks}, stage, &kind_of),
        b(buffers_of(graphs, shape)),
        tasks(training_step(shape.training, count)),
        micros(count) {}

  constexpr fault_record wrong() const { return verify_step(tasks, shape.training, b, micros); }
  constexpr int find(int use, phases when, int micro) const {
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == action::run && tasks[i].use == use && tasks[i].when == when &&
          tasks[i].micro == micro)
        return i;
    return -1;
  }
  constexpr int find(action what, phases when, int use = -1, int micro = -1) const {
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == what && tasks[i].when == when && tasks[i].use == use &&
          tasks[i].micro == micro)
        return i;
    return -1;
  }
  constexpr int find(action what, int micro) const {
    for (int i = 0; i < tasks.size(); ++i)
      if (tasks[i].what == what && tasks[i].micro == micro) return i;
    return -1;
  }
  constexpr void drop(int i) { tasks.erase(i, i + 1); }
  constexpr void twice(int i) { tasks.insert(i, task(tasks[i])); }
  /// The last task that does this.
  constexpr int last(action what) const {
    int i = tasks.size() - 1;
    while (i >= 0 && tasks[i].what != what) --i;
    return i;
  }
  constexpr void swap(int i, int j) {
    const task x = tasks[i];
    tasks[i] = tasks[j], tasks[j] = x;
  }
  /// Task i runs where task j stands now.
  constexpr void move(int i, int j) {
    const task x = tasks[i];
    drop(i);
    tasks.insert(j, x);
  }
  constexpr buffer& of(content what, int at = 0) { return b[b.of(what, at)]; }
};

struct breakage {
  const char* name;
  int pp, stage, micros;
  fault code;
  void (*apply)(stage_step&);
};
constexpr auto T001 = fault::T001, T002 = fault::T002, T004 = fault::T004, T005 = fault::T005;
constexpr breakage broken[] =
    {
        {"two layers run in the wrong order", 1, 0, 2, T001,
         [](stage_step& s) { s.swap(s.find(1, phase::forward, 0), s.find(2, phase::forward, 0)); }},
        {"a layer's forward pass is left out", 1, 0, 2, T001,
         [](stage_step& s) { s.drop(s.find(2, phase::forward, 1)); }},
        {"the backward pass goes in forward order", 1, 0, 2, T001,
         [](stage_step& s) { s.swap(s.find(2, backward_pass, 0), s.find(3, backward_pass, 0)); }},
        {"a micro-batch is not fed", 1, 0, 2, T001,
         [](stage_step& s) { s.drop(s.find(action::feed, 1)); }},
        {"the next micro-batch goes forward before this one has gone back", 1, 0, 2, T001,
         [](stage_step& s) { s.move(s.find(2, phase::forward, 1), s.find(2, backward_pass, 0)); }},
        {"a layer's backward pass is of another micro-batch", 1, 0, 2, T001,
         [](stage_step& s) { s.tasks[s.find(2, backward_pass, 0)].micro = 1; }},
        {"a layer's prologue is left out", 1, 0, 2, T001,
         [](stage_step& s) { s.drop(s.find(1, phase::prologue, -1)); }},
        {"a prologue that derives nothing is left out", 1, 0, 2, T002,
         [](stage_step& s) { s.drop(s.find(0, phase::prologue, -1)); }},
        {"a layer's backward pass runs twice", 1, 0, 2, T002,
         [](stage_step& s) { s.twice(s.find(2, backward_pass, 0)); }},
        {"the last layer's backward pass is left out", 1, 0, 2, T002,
         [](stage_step& s) { s.drop(s.find(0, backward_pass, 1)); }},
        {"gradients of derived values go back before the last micro-batch", 1, 0, 2, T002,
         [](stage_step& s) {
           s.move(s.find(1, phase::epilogue, -1), s.find(1, backward_pass, 1));
         }},
        {"gradients of derived values go back twice", 1, 0, 2, T002,
         [](stage_step& s) { s.twice(s.find(1, phase::epilogue, -1)); }},
        {"a layer's gradients of derived values do not go back", 1, 0, 2, T002,
         [](stage_step& s) { s.drop(s.find(1, phase::epilogue, -1)); }},
        {"gradients are reduced before those of derived values have gone back", 1, 0, 2, T002,
         [](stage_step& s) {
           s.move(s.find(s.shape.training.update, phase::prologue, -1),
                  s.find(1, phase::epilogue, -1));
         }},
        {"gradients are reduced twice", 1, 0, 2, T002,
         [](stage_step& s) { s.twice(s.find(s.shape.training.update, phase::prologue, -1)); }},
        {"gradients are not reduced", 1, 0, 2, T002,
         [](stage_step& s) { s.drop(s.find(s.shape.training.update, phase::prologue, -1)); }},
        {"weights are updated before the norm is known", 1, 0, 2, T002,
         [](stage_step& s) {
           const int end = s.shape.training.update;
           s.swap(s.find(end, phase::forward, -1), s.find(end, phase::epilogue, -1));
         }},
        {"weights are not updated", 1, 0, 2, T002,
         [](stage_step& s) { s.drop(s.find(s.shape.training.update, phase::epilogue, -1)); }},
        {"the totals are not cleared", 1, 0, 2, T001,
         [](stage_step& s) { s.drop(s.find(action::clear, phase::forward)); }},
        {"the gradients are not cleared", 1, 0, 2, T001,
         [](stage_step& s) { s.drop(s.find(action::clear, backward_pass)); }},
        {"gradients of derived values are not cleared", 1, 0, 2, T001,
         [](stage_step& s) { s.drop(s.find(action::clear, phase::epilogue, 2)); }},
        {"the totals are cleared again", 1, 0, 2, T002,
         [](stage_step& s) {
           s.tasks.insert(s.find(action::feed, 1), clear_task(phase::forward));
         }},
        {"the gradients are cleared between micro-batches", 1, 0, 2, T002,
         [](stage_step& s) { s.tasks.insert(s.find(action::feed, 1), clear_task(backward_pass)); }},
        {"the gradients are cleared before the norm", 1, 0, 2, T002,
         [](stage_step& s) {
           s.tasks.insert(s.find(s.shape.training.update, phase::forward, -1),
                          clear_task(backward_pass));
         }},
        {"gradients of derived values are cleared before they go back", 1, 0, 2, T002,
         [](stage_step& s) {
           s.tasks.insert(s.find(2, phase::epilogue, -1), clear_task(phase::epilogue, 2));
         }},
        {"the totals are left out", 1, 0, 2, T002,
         [](stage_step& s) { s.drop(s.find(s.shape.training.totals, phase::forward, -1)); }},
        {"the totals are made whole before the last micro-batch", 1, 0, 2, T002,
         [](stage_step& s) {
           s.move(s.find(s.shape.training.totals, phase::forward, -1),
                  s.find(action::feed, phase::forward, -1, 1));
         }},
        {"the totals are made whole behind the update", 1, 0, 2, T002,
         [](stage_step& s) {
           const int i = s.find(s.shape.training.totals, phase::forward, -1);
           const task x = s.tasks[i];
           s.drop(i);
           s.tasks.push(x);
         }},
        {"the totals lie on the seed", 1, 0, 2, T001,
         [](stage_step& s) { s.of(content::totals).offset = s.of(content::seed).offset; }},
        {"two layers save in one place", 1, 0, 2, T001,
         [](stage_step& s) { s.of(content::saved, 2).offset = s.of(content::saved, 1).offset; }},
        {"two layers with experts save in one place", 1, 0, 2, T001,
         [](stage_step& s) { s.of(content::saved, 4).offset = s.of(content::saved, 2).offset; }},
        {"two layers save in places that overlap by a line", 1, 0, 2, T001,
         [](stage_step& s) {
           buffer &x = s.of(content::saved, 2), &y = s.of(content::saved, 1);
           x.offset = y.offset + y.bytes - memory_alignment;
         }},
        {"the stream after a layer lies on that before it", 1, 0, 2, T001,
         [](stage_step& s) { s.of(content::stream, 2).offset = s.of(content::stream, 1).offset; }},
        {"a cotangent lies on a stream that is read later", 1, 0, 2, T001,
         [](stage_step& s) {
           s.of(content::d_stream, 4).offset = s.of(content::stream, 2).offset;
         }},
        {"derived values of two layers lie in one place", 1, 0, 2, T001,
         [](stage_step& s) {
           s.of(content::derived, 2).offset = s.of(content::derived, 1).offset;
         }},
        {"labels lie on tokens", 1, 0, 2, T001,
         [](stage_step& s) {
           s.b[s.b.of(feed::labels)].offset = s.b[s.b.of(feed::tokens)].offset;
         }},
        {"the seed lies on the labels", 1, 0, 2, T001,
         [](stage_step& s) { s.of(content::seed).offset = s.b[s.b.of(feed::labels)].offset; }},
        {"the numbers of the step lie on the labels", 1, 0, 2, T001,
         [](stage_step& s) { s.of(content::numbers).offset = s.b[s.b.of(feed::labels)].offset; }},
        {"a stage keeps one micro-batch where two are in flight", 2, 0, 3, T001,
         [](stage_step& s) {
           for (int u = 0; u < 3; ++u) s.of(content::saved, u).copies = 1;
         }},
        {"a stage does not wait for the stream", 2, 1, 3, T001,
         [](stage_step& s) { s.drop(s.find(action::receive, 1)); }},
        {"a stage sends what it has not computed", 2, 0, 3, T001,
         [](stage_step& s) { s.move(s.find(action::send, 1), s.find(2, phase::forward, 1)); }},

        {"a micro-batch is fed twice", 1, 0, 2, T002,
         [](stage_step& s) { s.twice(s.find(action::feed, 1)); }},
        {"a task is of a micro-batch that the step has not", 1, 0, 2, T002,
         [](stage_step& s) { s.tasks[s.find(action::feed, 1)].micro = 2; }},
        {"values of the update lie on what a layer derives", 1, 0, 2, T001,
         [](stage_step& s) {
           s.of(content::derived, s.shape.training.update).offset =
               s.of(content::derived, 1).offset;
         }},
        {"two inputs that a stage does not read lie in one place", 2, 1, 2, T001,
         [](stage_step& s) {
           s.b[s.b.of(feed::token_keys)].offset = s.b[s.b.of(feed::tokens)].offset;
         }},

        {"saved values have half their bytes", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::saved, 2).bytes /= 2; }},
        {"saved values lack a line", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::saved, 2).bytes -= memory_alignment; }},
        {"working values lack a line", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::working).bytes -= memory_alignment; }},
        {"derived values have half their bytes", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::derived, 1).bytes /= 2; }},
        {"gradients of derived values lack a line", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::derived_gradients, 1).bytes -= memory_alignment; }},
        {"the stream has half its bytes", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::stream, 2).bytes /= 2; }},
        {"a cotangent lacks a line", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::d_stream, 2).bytes -= memory_alignment; }},
        {"labels lack a line", 1, 0, 2, T004,
         [](stage_step& s) { s.b[s.b.of(feed::labels)].bytes -= memory_alignment; }},
        {"an input that a stage does not read lacks a line", 2, 1, 2, T004,
         [](stage_step& s) { s.b[s.b.of(feed::tokens)].bytes -= memory_alignment; }},
        {"the seed has no bytes", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::seed).bytes = 0; }},
        {"the totals have no bytes", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::totals).bytes = 0; }},
        {"what is received has half its bytes", 2, 1, 2, T004,
         [](stage_step& s) { s.of(content::stream, 0).bytes /= 2; }},
        {"what is sent back has half its bytes", 2, 1, 2, T004,
         [](stage_step& s) { s.of(content::d_stream, 0).bytes /= 2; }},
        {"a layer saves beyond its arena", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::saved, 2).offset += 1 << 20; }},
        {"a layer saves a line beyond its arena", 1, 0, 2, T004,
         [](stage_step& s) {
           buffer& x = s.of(content::saved, 2);
           x.offset = s.b.bytes(arena_of::saved) - x.bytes + memory_alignment;
         }},
        {"a cotangent lies before its arena", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::d_stream, 2).offset = -memory_alignment; }},
        {"the copies of a stream reach beyond its arena", 2, 0, 3, T004,
         [](stage_step& s) { s.of(content::stream, 2).copies = 100; }},
        {"the stream lies between lines", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::stream, 2).offset += 4; }},
        {"a stream has no copy", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::stream, 2).copies = 0; }},
        {"a stream has no place", 1, 0, 2, T004,
         [](stage_step& s) { s.of(content::stream, 2).first = -1; }},

        {"a micro-batch is not sent", 2, 0, 3, T005,
         [](stage_step& s) { s.drop(s.find(action::send, 1)); }},
        {"the last micro-batch is not sent back", 2, 1, 3, T005,
         [](stage_step& s) { s.drop(s.last(action::send)); }},
        {"a micro-batch is sent twice", 2, 0, 3, T005,
         [](stage_step& s) { s.twice(s.find(action::send, 1)); }},
        {"a micro-batch is received twice", 2, 1, 3, T005,
         [](stage_step& s) { s.twice(s.find(action::receive, 1)); }},
        {"a stage receives the backward pass before it sends the forward pass", 2, 0, 3, T005,
         [](stage_step& s) { s.swap(s.find(action::send, 1), s.find(action::send, 1) + 1); }},
        {"what is sent is written over", 2, 0, 3, T005,
         [](stage_step&
                s) { s.drop(s.find(action::wait, phase::forward, s.shape.training.use(2), 1)); }},
        {"a stage waits behind the task that writes over what it sends", 2, 0, 3, T005,
         [](stage_step& s) { s.swap(s.find(action::wait, 1), s.find(action::wait, 1) + 1); }},
        {"a stage waits for what it has sent before it receives", 2, 1, 3, T005,
         [](stage_step& s) { s.move(s.find(action::wait, 1), s.find(action::receive, 1)); }},
        {"a stage waits for all that it has sent before it receives", 2, 0, 3, T005,
         [](stage_step& s) {
           s.tasks.insert(s.find(action::receive, 0), task(s.tasks[s.last(action::wait)]));
         }},
        {"nobody waits for what was sent last", 2, 0, 3, T005,
         [](stage_step& s) { s.drop(s.last(action::wait)); }},
        {"nobody waits for what was sent back last", 2, 1, 3, T005,
         [](stage_step& s) { s.drop(s.last(action::wait)); }},
        {"a single micro-batch is neither sent back nor waited for", 2, 1, 1, T005,
         [](stage_step& s) {
           s.drop(s.last(action::send));
           while (s.last(action::wait) >= 0) s.drop(s.last(action::wait));
         }},
        {"what is received lies on what is sent", 2, 0, 3, T005,
         [](stage_step&
                s) { s.of(content::d_stream, 3).offset = s.of(content::stream, 3).offset; }},
        {"a cotangent lies on what is sent", 2, 0, 3, T005,
         [](stage_step&
                s) { s.of(content::d_stream, 2).offset = s.of(content::stream, 3).offset; }},
        {"the stream lies on the cotangent that is sent", 2, 1, 3, T005,
         [](stage_step&
                s) { s.of(content::stream, 1).offset = s.of(content::d_stream, 0).offset; }},
};

constexpr bool refused(std::span<const planned_graph> graphs, const breakage& x) {
  stage_step s(graphs, x.pp, x.stage, x.micros);
  if (s.wrong().code != fault::none) return false;
  x.apply(s);
  return s.wrong().code == x.code;
}

/// The graphs as constants, as a program has them.
struct of_mixture {
  static constexpr auto model = mixture;
  static constexpr setup numbers = with(1);
};
constexpr int all_steps = assembly<std::remove_const_t<decltype(mixture)>>.count();
static_assert(mc::detail::faults<of_mixture, all_steps>::first == nullptr);
constexpr auto& constants = mc::detail::assembled<of_mixture, all_steps>::now.planned;

/// Each a constant of its own, as compilers count what one takes.
template <int I> constexpr bool is_refused = refused(constants, broken[I]);
template <int... I> constexpr bool all_refused(std::integer_sequence<int, I...>) {
  return (is_refused<I> && ...);
}
static_assert(std::size(broken) >= 12);
static_assert(all_refused(std::make_integer_sequence<int, static_cast<int>(std::size(broken))>{}));

} // namespace

BOOST_AUTO_TEST_CASE(every_broken_step_is_refused_by_its_code) {
  const auto all = std::make_unique<parts>();
  for (const breakage& x : broken) {
    stage_step s(all->planned, x.pp, x.stage, x.micros);
    BOOST_TEST(s.wrong().what.c_str() == "");
    x.apply(s);
    const fault_record wrong = s.wrong();
    BOOST_TEST((wrong.code == x.code), x.name << ": " << wrong.what.c_str());
    BOOST_TEST_MESSAGE(x.name << ": " << code_of(wrong.code) << " " << wrong.what.c_str());
  }
}

BOOST_AUTO_TEST_CASE(the_steps_of_every_stage_are_accepted_for_any_number_of_micro_batches) {
  const auto all = std::make_unique<parts>();
  for (const int pp : {1, 2, 4})
    for (int stage = 0; stage < pp; ++stage)
      for (int micros = 1; micros <= 2 * pp + 1; ++micros)
        for (const int chunks : {1, 2}) {
          if (chunks > 1 && (pp != 2 || micros % pp != 0)) continue;
          const stage_step s(all->planned, pp, stage, micros, chunks);
          BOOST_TEST(s.wrong().what.c_str() == "", "stage " << stage << " of " << pp);
          BOOST_TEST(verify_stage(all->planned, s.shape, false, micros).what.c_str() == "");
        }
}

// What a use of the tasks finds its weights and its dropout by.
BOOST_AUTO_TEST_CASE(stages_run_every_layer_once_by_its_own_number) {
  for (const int pp : {1, 2, 4}) {
    int layer = 0; // of the model, over all stages
    for (int stage = 0; stage < pp; ++stage) {
      const stage_shape s(mixture.layers, kinds, layout{.pp = pp}, stage, &kind_of);
      int of_kind[kinds]{}, position = 0;
      for (const part_use& u : s.uses) {
        if (u.part > kinds + 1) continue; // behind the model's own
        BOOST_TEST(u.position == position++);
        const bool stem = u.part == 0, head = u.part == kinds + 1;
        BOOST_TEST(u.layer == (stem ? -1 : head ? mixture.layers : layer));
        if (stem || head) {
          BOOST_TEST(u.index == 0);
          BOOST_TEST(stage == (stem ? 0 : pp - 1));
          continue;
        }
        const int kind = kind_of(layer++);
        BOOST_TEST(u.part == 1 + kind);
        BOOST_TEST(u.index == of_kind[kind]++);
      }
    }
    BOOST_TEST(layer == mixture.layers);
  }
}

struct named_schedule {
  const char* name;
  pipeline_schedule order;
  int chunks;
};
constexpr named_schedule schedules[] = {{"1F1B", &one_forward_one_backward, 1},
                                        {"GPipe", &gpipe, 1},
                                        {"interleaved 1F1B", &one_forward_one_backward, 2},
                                        {"interleaved 1F1B", &one_forward_one_backward, 4},
                                        {"GPipe, cut", &gpipe, 2}};

BOOST_AUTO_TEST_CASE(schedules_run_any_number_of_micro_batches_that_they_say_they_do) {
  for (const named_schedule& s : schedules)
    for (int pp = s.chunks > 1 ? 2 : 1; pp <= 16; ++pp)
      for (int micros = 1; micros <= 8 * pp; ++micros) {
        const fault_record wrong = verify_schedule(s.order, pipeline(pp, s.chunks), micros);
        const bool legal = s.chunks == 1 || s.order == &gpipe || micros % pp == 0;
        BOOST_TEST((wrong.code == fault::none) == legal, s.name << ", " << pp << " stages of "
                                                                << s.chunks << ", " << micros
                                                                << ": " << wrong.what.c_str());
      }
}

// An evaluation goes forward only, one chunk behind the other.
BOOST_AUTO_TEST_CASE(evaluations_run_any_number_of_micro_batches) {
  for (int chunks = 1; chunks <= 4; ++chunks)
    for (int pp = 1; pp <= 8; ++pp)
      for (int micros = 1; micros <= 3 * pp + 1; ++micros)
        BOOST_TEST(verify_schedule(&forward_only, pipeline(pp, chunks), micros, 1).what.c_str() ==
                   "");
}

// Narayanan et al. 2021: under 1F1B a stage keeps as many micro-batches as there are stages from it
// on; interleaved, passes through its chunks that fill the pipeline, and one. GPipe keeps all.
BOOST_AUTO_TEST_CASE(schedules_keep_as_many_micro_batches_as_their_papers_say) {
  for (const named_schedule& s : schedules)
    for (int pp = s.chunks > 1 ? 2 : 1; pp <= 8; ++pp)
      for (int micros = s.chunks > 1 ? pp : 1; micros <= 4 * pp; micros += s.chunks > 1 ? pp : 1)
        for (int stage = 0; stage < pp; ++stage) {
          const pipeline p(pp, s.chunks);
          int most = 0, now = 0;
          for (int i = 0; i < 2 * micros * s.chunks; ++i) {
            now += s.order(p, stage, i, micros).backward ? -1 : 1;
            most = std::max(most, now);
          }
          const int fill =
              s.chunks == 1 ? pp - stage - 1 : 2 * (pp - stage - 1) + (s.chunks - 1) * pp;
          BOOST_TEST(most == (s.order == &gpipe ? micros * s.chunks
                                                : std::min(fill + 1, micros * s.chunks)));
          if (s.chunks == 1)
            BOOST_TEST(in_flight(s.order, p, stage, {false}, {true}, micros) == most);
          int kept = 0;
          for (int chunk = 0; chunk < s.chunks; ++chunk)
            kept += in_flight(s.order, p, stage, {false, 0, chunk}, {true, 0, chunk}, micros);
          BOOST_TEST(kept >= most);
          if (s.order != &gpipe && micros >= 2 * pp) // and no more of any greater number
            for (int chunk = 0; chunk < s.chunks; ++chunk)
              BOOST_TEST(
                  in_flight(s.order, p, stage, {false, 0, chunk}, {true, 0, chunk}, micros) ==
                  in_flight(s.order, p, stage, {false, 0, chunk}, {true, 0, chunk}, 2 * pp));
        }
}

/// When the last pass of a step is over, where a micro-batch takes a stage so long in each
/// direction, and what is sent arrives at once.
int length_of_step(const named_schedule& s, int pp, int micros, int forward, int backward) {
  const pipeline p(pp, s.chunks);
  const int all = p.virtual_stages(), n = 2 * micros * s.chunks;
  std::vector<int> over(static_cast<unsigned>(2 * all * micros), -1),
      free(static_cast<unsigned>(pp)), at(static_cast<unsigned>(pp));
  const auto when = [&](bool back, int v, int micro) -> int& {
    return over[static_cast<unsigned>(((back ? 1 : 0) * all + v) * micros + micro)];
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < pp; ++stage)
      for (int& i = at[static_cast<unsigned>(stage)]; i < n; ++i, moved = true) {
        const chunk_pass x = s.order(p, stage, i, micros);
        const int v = p.number(stage, x.chunk);
        const bool first = x.backward ? v + 1 == all : v == 0;
        const int ready = first ? 0 : when(x.backward, x.backward ? v + 1 : v - 1, x.micro);
        if (ready < 0) break;
        int& now = free[static_cast<unsigned>(stage)];
        now = std::max(now, ready) + (x.backward ? backward : forward);
        when(x.backward, v, x.micro) = now;
      }
  }
  return *std::max_element(free.begin(), free.end());
}

// The time in which a stage idles is (pp - 1) / (v m) of the time in which it computes, with m
// micro-batches and v chunks, whatever a backward pass costs (Huang et al. 2019; Narayanan et al.
// 2021, section 2.2).
BOOST_AUTO_TEST_CASE(schedules_idle_as_long_as_their_papers_say) {
  for (const named_schedule& s : schedules)
    for (int pp = 2; pp <= 8; ++pp)
      for (int micros = pp; micros <= 6 * pp; micros += pp)
        for (const int backward : {1, 2}) {
          const int busy = micros * s.chunks * (1 + backward);
          BOOST_TEST(length_of_step(s, pp, micros, 1, backward) - busy == (pp - 1) * (1 + backward),
                     s.name << ", " << pp << " stages of " << s.chunks << ", " << micros);
        }
}

/// A schedule with two entries of one stage swapped.
template <pipeline_schedule Order, int Stage, int I, int J>
constexpr chunk_pass swapped(const pipeline& p, int stage, int i, int micros) {
  return Order(p, stage, stage != Stage ? i : i == I ? J : i == J ? I : i, micros);
}
constexpr auto swap_of_forwards = &swapped<&one_forward_one_backward, 0, 0, 1>,
               swap_of_backwards = &swapped<&gpipe, 2, 6, 7>,
               backward_first = &swapped<&gpipe, 1, 5, 7>;
static_assert(verify_schedule(swap_of_forwards, pipeline(3), 6).code == fault::T003);
static_assert(verify_schedule(swap_of_backwards, pipeline(3), 6).code == fault::T003);
static_assert(verify_schedule(backward_first, pipeline(3), 6).code == fault::T003);

// Two passes of one direction swapped: another order than the neighbour's, whatever they are.
BOOST_AUTO_TEST_CASE(schedules_with_two_entries_swapped_are_refused) {
  static int first = 0, second = 0, of = 0;
  static pipeline_schedule right = nullptr;
  const pipeline_schedule wrong = [](const pipeline& p, int stage, int i, int micros) {
    return right(p, stage, stage != of ? i : i == first ? second : i == second ? first : i, micros);
  };
  int swaps = 0;
  for (const named_schedule& s : schedules) {
    right = s.order;
    const pipeline p(3, s.chunks);
    const int micros = 6, n = 2 * micros * s.chunks;
    for (of = 0; of < 3; ++of)
      for (first = 0; first < n; ++first)
        for (second = first + 1; second < n; ++second) {
          const chunk_pass a = right(p, of, first, micros), b = right(p, of, second, micros);
          if (a.backward != b.backward) continue;
          const fault_record found = verify_schedule(wrong, p, micros);
          BOOST_TEST((found.code == fault::T003), s.name << ": " << first << " and " << second);
          ++swaps;
        }
  }
  BOOST_TEST(swaps > 1000);
}

// A schedule that keeps more of some number of micro-batches than its buffers were laid out for is in
// order, and refused by who runs that number.
BOOST_AUTO_TEST_CASE(schedules_that_keep_more_than_their_buffers_hold_are_refused) {
  const pipeline_schedule changes = [](const pipeline& p, int stage, int i, int micros) {
    return micros > 4 * p.stages ? gpipe(p, stage, i, micros)
                                 : one_forward_one_backward(p, stage, i, micros);
  };
  const auto all = std::make_unique<parts>();
  BOOST_TEST((verify_schedule(changes, pipeline(2), 10).code == fault::none));
  const stage_shape s(mixture.layers, kinds, layout{.pp = 2, .schedule = changes}, 0, &kind_of);
  const buffers b = buffers_of(all->planned, s);
  for (const int micros : {8, 10}) {
    const fault_record wrong =
        verify_step(training_step(s.training, micros), s.training, b, micros);
    BOOST_TEST((wrong.code == (micros == 8 ? fault::none : fault::T001)), wrong.what.c_str());
  }
}

// One micro-batch alone keeps one copy, whatever the schedule.
BOOST_AUTO_TEST_CASE(a_micro_batch_alone_is_kept_once) {
  for (const named_schedule& s : schedules)
    for (int chunk = 0; chunk < s.chunks; ++chunk)
      BOOST_TEST(in_flight(s.order, pipeline(4, s.chunks), 0, {false, 0, chunk}, {true, 0, chunk},
                           1) == 1);
}

// No two buffers that live at once share a byte, and what a stage needs is what its tasks keep.
BOOST_AUTO_TEST_CASE(buffers_that_live_at_once_lie_apart) {
  const auto all = std::make_unique<parts>();
  for (const int pp : {1, 2, 4})
    for (int stage = 0; stage < pp; ++stage) {
      const stage_step s(all->planned, pp, stage, 2 * pp);
      std::int64_t saved = 0;
      for (const part_use& u : s.shape.uses)
        if (u.part <= kinds + 1) saved += all->plan[u.part].saved * s.shape.flights(u.chunk);
      BOOST_TEST(s.b.bytes(arena_of::saved) == saved);
      for (const buffer& x : s.b.all())
        for (const buffer& y : s.b.all()) {
          if (&x == &y || arena_for(x.what) != arena_for(y.what)) continue;
          if (x.bytes == 0 || y.bytes == 0 || x.first < 0 || y.first < 0) continue;
          const bool apart = x.last < y.first || y.last < x.first;
          BOOST_TEST((apart || x.offset + x.size() <= y.offset || y.offset + y.size() <= x.offset));
        }
    }
}
