// Mutants of an interpreted program: a redistribution, task or address that is dropped or changed
// is refused by its verifier; a changed box or mask changes the results of ranks, and is found by
// comparing them with one rank.
#define BOOST_TEST_MODULE mutants
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/graph/letters.hpp>
#include <megacpp/plan/verify_step.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/session.hpp>

#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <unit/graph_edits.hpp>

using namespace mc;
using mc_test::said;

namespace {

/// A model with a vocabulary that two ranks pad, dropout, and packed documents.
constexpr gpt model{.layers = 2,
                    .hidden = 16,
                    .heads = 4,
                    .ffn = 32,
                    .vocabulary = 63,
                    .positions = 32,
                    .dropout = 0.1,
                    .std = 0.3};
constexpr batching batch{2, 16, true};
constexpr layout four_ranks{.tp = 2, .cp = 2, .sequence_parallel = true};

setup numbers_of(const layout& l) { return {.ranks = l, .batch = batch, .precision = dtype::f64}; }

/// A program whose graphs and plans may be changed.
struct program_copy {
  std::vector<std::unique_ptr<interpreted_part<cpu>>> parts; ///< one for each part
                                                             ///< (plan/memory.hpp)
  program_view view;

  explicit program_copy(const program_view& p) : view(p) {
    for (part_view& part : view.parts) {
      parts.push_back(std::make_unique<interpreted_part<cpu>>(
          *static_cast<const interpreted_part<cpu>*>(part.self)));
      part = parts.back()->view();
    }
  }
  /// Calls f(node) for the nodes of an op.
  template <class F> void each(const op_info& op, F f) {
    for (const auto& part : parts)
      for (int i = 0; i < part->g.node_count; ++i)
        if (node& n = part->g.at_node(i); n.op == &op) f(n);
  }
  /// Calls f(value) for the parameters and inputs with a name.
  template <class F> void each(const std::string& name, F f) {
    for (const auto& part : parts)
      for (int i = 0; i < part->g.value_count; ++i)
        if (value& v = part->g.at(static_cast<value_id>(i));
            v.producer < 0 && v.name != nullptr &&
            name == (v.is == role::parameter ? std::string(v.scope) + "." + v.name : v.name))
          f(v);
  }
};

/// Returns the losses and norms of two steps, of a rank whose numbers differ from `want` if there
/// is one.
std::vector<double> told(const program_view& p, const mesh& ranks,
                         const std::vector<double>& want = {}) {
  std::vector<std::vector<double>> all(static_cast<std::size_t>(ranks_of(ranks)));
  std::vector<std::int32_t> tokens, labels, documents;
  for (int i = 0; i < batch.micro * batch.sequence; ++i) {
    const int at = i % batch.sequence;
    tokens.push_back((i * 7 + i / 5) % 63), labels.push_back(i % 9 == 4 ? -1 : (i * 11 + 2) % 63);
    documents.push_back(at < 5 ? 0 : at < 12 ? 1 : 2);
  }
  const batch_view b{
      .tokens = tokens.data(), .labels = labels.data(), .documents = documents.data()};
  const auto steps = [&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    session run(p, device, purpose::training, *others);
    run.weights().initialise(1);
    run.numbers().learning_rate = 1e-2, run.numbers().seed = 7;
    for (int i = 0; i < 2; ++i) {
      const step_result r = run.step(b);
      for (double x : {r.loss.mean(), r.norm}) all[static_cast<std::size_t>(c.rank())].push_back(x);
    }
  };
  if (all.size() == 1) steps(self::hosts());
  else thread_ranks(ranks, std::chrono::seconds(20)).run(steps);
  for (const auto& x : all)
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!(std::abs(x[i] - want[i]) <= 1e-10 * std::abs(want[i]))) return x;
  return all[0];
}

const program_view& of_four() {
  static const interpreted_program<gpt> p(model, numbers_of(four_ranks), "four ranks");
  return p.view();
}
const std::vector<double>& of_one_rank() {
  static const interpreted_program<gpt> p(model, numbers_of({}), "one rank");
  static const std::vector<double> numbers = told(p.view(), mesh::one_rank());
  return numbers;
}
/// Returns how the ranks show a change; "" if they do not.
std::string difference(const program_view& p) {
  const std::vector<double>& want = of_one_rank();
  const std::vector<double> got = told(p, mesh_of(four_ranks, 1), want);
  const char* names[] = {"loss", "norm", "second loss", "second norm"};
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!(std::abs(got[i] - want[i]) <= 1e-10 * std::abs(want[i])))
      return std::string(names[i]) + " " + std::to_string(got[i]) + ", of one rank " +
             std::to_string(want[i]);
  return "";
}

/// Counts the mutants that were tried, by kind.
std::map<std::string, int>& tried() {
  static std::map<std::string, int> counts;
  return counts;
}
/// Requires that one mutant is found.
void require_found(const std::string& kind, const std::string& name, const std::string& how) {
  ++tried()[kind];
  std::cout << kind << ": " << name << ": " << (how.empty() ? "survives" : how) << "\n";
  BOOST_TEST(!how.empty(), kind << ": " << name << " survives");
}
std::string refused(const fault_record& f) { return f.code == fault::none ? "" : said(f); }

} // namespace

BOOST_AUTO_TEST_CASE(the_program_as_it_is_computes_what_one_rank_does) {
  BOOST_TEST(difference(program_copy(of_four()).view) == "");
}

// Redistributions in stem, block and head, forward and derived, are left out, moved to the other
// axis, or given a wrong source or target.
BOOST_AUTO_TEST_CASE(every_redistribution_is_needed) {
  const auto changed = [](const graph& g, int i, auto change) {
    auto h = std::make_unique<graph>(g);
    change(*h, h->at_node(i));
    return refused(verified(*h, meaning_of(g)).wrong);
  };
  for (int part = 0; part <= of_four().kinds() + 1; ++part) {
    const graph& g = *of_four().part(part).g;
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      if (n.op != &op::redistribute) continue;
      const auto t = n.attr.as<op::transition>();
      const std::string name = name_of_part(of_four(), part) + ", node " + std::to_string(i) +
                               " over " + name_of(t.over);
      require_found("redistribution", name + " left out", changed(g, i, [](graph& h, node& m) {
                      mc_test::rewire(h, m.out[0], m.in[0]);
                    }));
      const auto with = [&](const char* what, const op::transition& other) {
        require_found("redistribution", name + what,
                      changed(g, i, [&](graph&, node& m) { m.attr = other; }));
      };
      if (t.over == axis::tp || t.over == axis::cp)
        with(" over the other axis", {t.over == axis::tp ? axis::cp : axis::tp, t.from, t.to});
      with(" from what it is not", {t.over, t.from == R ? I : R, t.to});
      with(" to what it is not", {t.over, t.from, t.to == R ? I : R});
    }
  }
}

BOOST_AUTO_TEST_CASE(every_task_of_a_step_is_needed) {
  const std::vector<planned_graph> graphs = graphs_of(of_four());
  const stage_shape s = stage_of(of_four(), 0);
  const buffers b = buffers_of(graphs, s);
  const list<task> step = training_step(s.training, 2);
  BOOST_TEST_REQUIRE(refused(verify_step(step, s.training, b, 2)) == "");
  for (int i = 0; i < step.size(); ++i) {
    bool touches = false; // this model has no derived value with a gradient to clear
    b.for_each_operand(step[i], [&](int k, const buffers::operand& o) {
      touches = touches || o.what == content::main_gradients || b[k].bytes > 0;
    });
    if (!touches) continue;
    list<task> without = step;
    without.erase(i, i + 1);
    text<96> name;
    spell(name, step[i], b.uses());
    require_found("task", std::string(name.c_str()) + " left out",
                  refused(verify_step(without, s.training, b, 2)));
  }
}

namespace {

/// Returns whether two tasks that follow one another may be exchanged: neither writes what the
/// other touches, and one of them exchanges nothing with other stages, or waits when all is sent.
bool independent(const buffers& b, const task& x, const task& y) {
  const auto exchanges = [](const task& t) {
    return t.what == action::receive || t.what == action::send ||
           (t.what == action::wait && t.micro >= 0);
  };
  bool meet = exchanges(x) && exchanges(y);
  b.for_each_operand(x, [&](int i, const buffers::operand& o) {
    b.for_each_operand(y, [&](int j, const buffers::operand& p) {
      meet = meet || (i == j && (o.writes || p.writes) && o.what != content::working);
    });
  });
  return !meet;
}
/// Returns whether nothing was sent, before task i, from the buffer for which it waits.
bool waits_for_nothing(const buffers& b, const list<task>& step, int i) {
  bool sent = false;
  b.for_each_operand(step[i], [&](int k, const buffers::operand&) {
    for (int j = 0; j < i; ++j)
      b.for_each_operand(step[j], [&](int other, const buffers::operand&) {
        sent = sent || (k == other && step[j].what == action::send);
      });
  });
  return step[i].what == action::wait && !sent;
}

} // namespace

// Every task of a pipeline's stages is left out, done twice, done for another micro-batch or
// exchanged with the next; every buffer gets half its bytes, or a place beyond its arena or on
// another buffer. Each mutant is refused, unless it changes nothing.
BOOST_AUTO_TEST_CASE(nothing_of_a_step_between_stages_may_change) {
  gpt deep = model;
  deep.layers = 4;
  const interpreted_program<gpt> program(deep, numbers_of({.pp = 2, .virtual_stages = 2}),
                                         "stages");
  const std::vector<planned_graph> graphs = graphs_of(program.view());
  const int micros = 4;
  for (int stage = 0; stage < 2; ++stage) {
    const stage_shape s = stage_of(program.view(), stage);
    const buffers b = buffers_of(graphs, s);
    const list<task> step = training_step(s.training, micros);
    const auto wrong = [&](const list<task>& tasks, const buffers& buffers) {
      return refused(verify_step(tasks, s.training, buffers, micros));
    };
    BOOST_TEST_REQUIRE(wrong(step, b) == "");
    for (int i = 0; i < step.size(); ++i) {
      text<96> text;
      spell(text, step[i], b.uses());
      const std::string name = text.c_str();
      const task& t = step[i];
      bool touches = t.what != action::clear;
      b.for_each_operand(t, [&](int k, const buffers::operand& o) {
        touches = touches || o.what == content::main_gradients || b[k].bytes > 0;
      });
      if (!touches) continue;
      list<task> other = step;
      other.erase(i, i + 1);
      require_found("task of a stage", name + " left out", wrong(other, b));
      other = step, other.insert(i, t);
      if (t.what != action::wait || t.micro >= 0)
        require_found("task of a stage", name + " twice", wrong(other, b));
      if (t.micro >= 0) {
        other = step, other[i].micro = (t.micro + 1) % micros;
        require_found("task of a stage", name + " of the next one", wrong(other, b));
      }
      if (i + 1 == step.size() || independent(b, t, step[i + 1]) || waits_for_nothing(b, step, i) ||
          waits_for_nothing(b, step, i + 1))
        continue;
      other = step, std::swap(other[i], other[i + 1]);
      require_found("task of a stage", name + " behind the next", wrong(other, b));
    }
    for (int i = 0; i < static_cast<int>(b.all().size()); ++i) {
      if (b[i].bytes == 0 || b[i].first < 0) continue;
      const std::string name = std::string(name_of(b[i].what)) + " " + std::to_string(i);
      const auto changed = [&](const std::string& how, auto change) {
        buffers other = b;
        change(other[i]);
        require_found("buffer of a stage", name + how, wrong(step, other));
      };
      changed(" of half its bytes", [](buffer& x) { x.bytes /= 2; });
      changed(" beyond its arena",
              [&](buffer& x) { x.offset = b.bytes(arena_for(x.what)) - x.size() + 64; });
      if (b[i].copies > 1) changed(" a copy fewer", [](buffer& x) { --x.copies; });
      for (int j = 0; j < i; ++j)
        if (b[j].bytes > 0 && arena_for(b[i].what) == arena_for(b[j].what) &&
            b[i].offset != b[j].offset && b[i].first <= b[j].last && b[j].first <= b[i].last)
          changed(" on buffer " + std::to_string(j), [&](buffer& x) { x.offset = b[j].offset; });
    }
  }
}

// The values that are saved for the backward pass lie apart, in each part and over the parts of a
// step.
BOOST_AUTO_TEST_CASE(every_place_in_memory_is_needed) {
  for (int part = 0; part <= of_four().kinds() + 1; ++part) {
    const graph& g = *of_four().part(part).g;
    for (int i = 0; i < g.value_count; ++i) {
      memory_plan plan = *of_four().part(part).plan;
      address& at = plan.at[static_cast<unsigned>(i)];
      const node_id made = g.at(static_cast<value_id>(i)).producer;
      if (at.in != space::saved || at.offset == 0 || is_alias(plan, g.at_node(made))) continue;
      at.offset = 0;
      require_found("place", name_of_part(of_four(), part) + ", value " + std::to_string(i),
                    refused(verify_memory(g, plan)));
    }
  }
  const std::vector<planned_graph> graphs = graphs_of(of_four());
  const stage_shape s = stage_of(of_four(), 0);
  for (const content what : {content::saved, content::stream, content::d_stream})
    for (int at = 2; at < 4; ++at) { // no stream comes before the stem
      buffers b = buffers_of(graphs, s);
      if (b[b.of(what, at)].bytes == 0) continue;
      b[b.of(what, at)].offset = b[b.of(what, at - 1)].offset;
      require_found("buffer", std::string(name_of(what)) + " of position " + std::to_string(at),
                    refused(verify_step(training_step(s.training, 2), s.training, b, 2)));
    }
}

// A wrong box gives ranks other tokens or weights than they compute with; a mask is what attention,
// dropout or the loss leave out. Nothing verifies these tables, so the ranks are run.
BOOST_AUTO_TEST_CASE(every_box_and_every_mask_is_seen) {
  struct mutant {
    const char* kind;
    std::string name;
    std::function<void(program_copy&)> change;
  };
  const auto lies = [](const char* parameter, dim d) {
    return [=](program_copy& p) {
      p.each(parameter, [&](value& v) { v.at[axis::tp] = d == dim::none ? I : S(d); });
    };
  };
  const auto fed = [](const char* input, feed other) {
    return [=](program_copy& p) { p.each(input, [&](value& v) { v.from = other; }); };
  };
  const auto attends = [](std::initializer_list<const op_info*> ops, auto change) {
    return [ops = std::vector<const op_info*>(ops), change](program_copy& p) {
      for (const op_info* op : ops)
        p.each(*op, [&](node& n) { mc_test::change<attention_options>(n, change); });
    };
  };
  const auto drops = [](bool forward, bool backward, auto change) {
    return [=](program_copy& p) {
      p.each(op::dropout, [&](node& n) {
        if (n.derived ? backward : forward) mc_test::change<op::dropout_attributes>(n, change);
      });
    };
  };
  const auto all_see = [](attention_options& o) { o.causal = false; };
  const auto near = [](attention_options& o) { o.window = 3; };
  const auto other_salt = [](op::dropout_attributes& a) { a.salt += 5; };
  std::vector<mutant> list{
      {"box", "fc is cut by its inputs", lies("mlp.fc.weight", dim::hidden)},
      {"box", "every rank has the first part of fc", lies("mlp.fc.weight", dim::none)},
      {"box", "proj is cut by its outputs", lies("mlp.proj.weight", dim::hidden)},
      {"box", "queries are cut within heads", lies("attn.q.weight", dim::head_dim)},
      {"box", "keys are cut by their inputs", lies("attn.k.weight", dim::hidden)},
      {"box", "every rank has the values' first heads", lies("attn.v.weight", dim::none)},
      {"box", "attention's output is cut within heads", lies("attn.proj.weight", dim::head_dim)},
      {"box", "the table is cut by its columns", lies("wte.weight", dim::hidden)},
      {"box", "every rank has the first words", lies("wte.weight", dim::none)},
      {"mask", "attention sees later tokens",
       attends({&op::attention, &op::attention_grad}, all_see)},
      {"mask", "attention sees three tokens", attends({&op::attention, &op::attention_grad}, near)},
      {"mask", "attention's gradient is that of all tokens",
       attends({&op::attention_grad}, all_see)},
      {"mask", "attention's gradient is that of three tokens",
       attends({&op::attention_grad}, near)},
      {"mask", "every token is a document", fed("documents", feed::positions)},
      {"mask", "documents are told by tokens", fed("documents", feed::tokens)},
      {"mask", "every key is a document", fed("all_documents", feed::all_order)},
      {"mask", "keys are where their documents are", fed("all_order", feed::all_documents)},
      {"mask", "a label that counts for nothing counts", fed("labels", feed::tokens)},
      {"mask", "dropout has another salt", drops(true, true, other_salt)},
      {"mask", "dropout's gradient has another salt", drops(false, true, other_salt)},
      {"mask", "dropout's result has another salt", drops(true, false, other_salt)},
      {"mask", "dropout's gradient is scaled by another probability",
       drops(false, true, [](op::dropout_attributes& a) { a.probability = 0.2; })},
      {"mask", "sequences drop the same positions", fed("token_keys", feed::positions)},
      {"mask", "equal tokens drop the same", fed("token_keys", feed::tokens)},
      {"mask", "a step drops what its seed says alone",
       [](program_copy& p) { p.each(op::dropout, [](node& n) { n.in[3] = n.in[2]; }); }},
      {"mask", "rows that pad the vocabulary are words",
       [](program_copy& p) {
         const auto all = [](auto& a) { a.vocabulary = 64; };
         p.each(op::vocabulary_partial,
                [&](node& n) { mc_test::change<op::vocabulary_attributes>(n, all); });
       }},
      {"mask", "the loss's gradient counts rows that pad the vocabulary",
       [](program_copy& p) {
         const auto all = [](auto& a) { a.vocabulary = 64; };
         p.each(op::vocabulary_partial_grad,
                [&](node& n) { mc_test::change<op::vocabulary_attributes>(n, all); });
       }},
  };
  for (const char* input : {"tokens", "labels", "positions", "documents", "token_keys"}) {
    list.push_back(
        {"box", std::string(input) + " are cut over tp, not over cp", [=](program_copy& p) {
           p.each(input, [](value& v) { std::swap(v.at[axis::tp], v.at[axis::cp]); });
         }});
    list.push_back({"box", std::string(input) + " of whole sequences are what a rank of cp has",
                    [=](program_copy& p) {
                      p.each(input, [](value& v) { v.at[axis::cp] = S(dim::batch); });
                    }});
  }
  for (const mutant& m : list) {
    program_copy p(of_four());
    m.change(p);
    std::string how;
    try {
      how = difference(p.view);
    } catch (const std::exception& e) {
      how = e.what();
    }
    require_found(m.kind, m.name, how);
  }
  int all = 0;
  for (const auto& [kind, n] : tried()) std::cout << kind << " " << n << "\n", all += n;
  BOOST_TEST(all >= 40);
}
