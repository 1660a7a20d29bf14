// Trains the models of the fixtures, a mixture of experts with more of what a router may have, and a
// GPT with computed weights, for ten steps in every way below, evaluates and generates, and writes
// what is left: a line of checksums for each case, and with a folder its numbers. Two commits that
// compute the same bits write the same lines.
//
//   all_bits [FOLDER [TEXT]]
//
// TEXT: only cases whose names contain it.
//
// Cases: fp32, bf16 and bf16 with widened products; both numerics; one rank with one thread and
// two, and ranks that are threads under tp 2 with sp, pp 2, dp 2 with ZeRO 1, cp 2, and ep 2 with
// tp 2. Dropout, full recomputation, packed documents and steps without clipping have cases of
// their own. The interpreter runs them. FOLDER/CASE has doubles as this machine stores them: four
// lists, each behind its length. The first is what rank 0 tells (losses, norms, an evaluation,
// logits of generated tokens); then come masters, first and second moments, parameters by name,
// elements in their logical order. The checksum of the stored weights is of every rank's, in the
// order of the ranks.
#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <parity/fixtures.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr int steps = 10, sequence = 24, sequences = 4; ///< sequences: a step's

/// A GPT with weights that every step computes from parameters, before its micro-batches.
struct computed_weights : gpt {
  static constexpr family_name<computed_weights> family{"computed"};
  static constexpr int kinds = 1;
  constexpr var block(context& c, int /*kind*/, var x) const {
    const extent h = hidden_extent(), f{dim::ffn, ffn};
    const placement sharded = on(axis::tp, shard(f.d));
    const var up = weight(c, "up", "weight", {f, h}, sharded, normal_weights(0.3)),
              more = weight(c, "more", "weight", {f, h}, sharded, normal_weights(0.3)),
              y = gelu(linear(to(x, axis::tp, replicate), gelu(up) + more));
    return x + row_parallel(c, "down", y, 1, h, false, 0.3);
  }
};

/// How one case is trained.
struct way {
  std::string name;
  setup s;
  product_type products = product_type::widened;
  int dp = 1, threads = 1;
  double clip = 1;
};

/// Elements of one store by parameter.
using by_name = std::map<std::string, std::vector<double>>;

struct left {
  std::vector<double> told;
  by_name masters, first, second;
  std::map<int, std::vector<double>> stored; ///< weights, by rank
};

/// FNV-1a of the doubles' bytes.
struct checksum {
  std::uint64_t sum = 0xcbf29ce484222325u;

  void add(const std::vector<double>& x) {
    for (const double v : x) {
      unsigned char bytes[sizeof v];
      std::memcpy(bytes, &v, sizeof v);
      for (const unsigned char b : bytes) sum = (sum ^ b) * 0x100000001b3u;
    }
  }
  void add(const by_name& x) {
    for (const auto& [name, values] : x) add(values);
  }
};

/// The sequence of a number: tokens of which some have no label, in two documents where they are
/// packed.
struct text {
  std::vector<std::int32_t> tokens, labels, positions, documents;

  text(int first, int n, int vocabulary) {
    for (int q = first; q < first + n; ++q)
      for (int i = 0; i < sequence; ++i) {
        const std::uint32_t h = (static_cast<std::uint32_t>(q * sequence + i) * 2654435761u) >> 8;
        const int begins = 7 + q % 11; // the second document's first position
        tokens.push_back(static_cast<std::int32_t>(h % static_cast<std::uint32_t>(vocabulary)));
        labels.push_back(h % 13 == 0 ? -1
                                     : static_cast<std::int32_t>(
                                           h * 7 % static_cast<std::uint32_t>(vocabulary)));
        positions.push_back(i < begins ? i : i - begins);
        documents.push_back(2 * (q - first) + (i < begins ? 0 : 1));
      }
  }
};

/// One rank's part of a run, and what it holds at its end.
template <class Model> void train(const Model& m, const way& w, const program_view& p,
                                  communicator& c, std::mutex& turn, left& all) {
  cpu device(w.products, w.threads);
  const auto others = c.make_ranks(device);
  session run(p, device, purpose::training, *others);
  run.weights().initialise(1);
  step_numbers& n = run.numbers();
  n.seed = 5, n.learning_rate = 1e-2, n.weight_decay = 0.1, n.clip = w.clip;
  const int micro = w.s.batch.micro, mine = sequences / w.dp,
            replica = c.coordinate()[static_cast<unsigned>(axis::dp)];
  std::vector<double> told;
  for (int step = 0; step < steps; ++step) {
    std::vector<text> texts;
    std::vector<batch_view> batches;
    for (int q = replica * mine; q < (replica + 1) * mine; q += micro)
      texts.emplace_back(step * sequences + q, micro, m.vocabulary);
    for (const text& t : texts) {
      batch_view& b = batches.emplace_back();
      b.tokens = t.tokens.data(), b.labels = t.labels.data();
      b.first_sample = replica * mine + static_cast<std::int64_t>(batches.size() - 1) * micro;
      if (w.s.batch.packed) b.positions = t.positions.data(), b.documents = t.documents.data();
    }
    const step_result r = run.step(batches);
    if (!r.applied || !r.finite) throw std::runtime_error("a step was not applied");
    told.insert(told.end(), {r.loss.sum, r.loss.count, r.loss.side, r.norm});
    if (step + 1 == steps) told.push_back(run.evaluate(batches).sum);
  }
  generator g(run.program(), device, run.weights(), {.sequences = 2, .tokens = 12, .prompt = 5},
              *others);
  const std::vector<std::int32_t> prompts[] = {{1, 2, 3, 4, 5}, {7, 8}};
  std::vector<std::span<const std::int32_t>> more{prompts[0], prompts[1]};
  const std::int32_t next[] = {9, 11};
  for (int token = 0; token < 4; ++token) {
    g.append(more);
    for (int b = 0; b < 2; ++b)
      for (int t = 0; t < g.vocabulary(); ++t) told.push_back(g.logit(b, t));
    for (unsigned b = 0; b < 2; ++b) more[b] = {next + b, 1};
  }
  const std::lock_guard lock(turn);
  if (c.rank() == 0) all.told = told;
  const stores& held = run.weights();
  std::vector<double>& stored = all.stored[c.rank()];
  for (std::int64_t i = 0; i < held.total(); ++i)
    stored.push_back(held.element(held.weights(), held.precision().weight, i));
  for_each_parameter(run.program(), [&](const parameter_ref& r) {
    const auto collect = [&](by_name& into, const std::byte* store, dtype t, bool states) {
      auto& x = into[r.name];
      x.resize(static_cast<std::size_t>(global_size(*r.v).n), NAN); // held by nobody yet
      held.held(r, {.states = states, .own = true})
          .each_contiguous({}, global_size(*r.v),
                           [&](global_count at, std::int64_t i, std::int64_t k) {
                             for (std::int64_t e = 0; e < k; ++e) {
                               double& to = x[static_cast<std::size_t>(at.n + e)];
                               if (!std::isnan(to))
                                 throw std::runtime_error("two ranks answer for " + r.name);
                               to = held.element(store, t, i + e);
                             }
                           });
    };
    collect(all.masters, held.masters(), held.precision().master,
            !held.precision().updates_weights());
    collect(all.first, held.first_moments(), held.precision().moment, true);
    collect(all.second, held.second_moments(), held.precision().moment, true);
  });
}

void write(const std::filesystem::path& file, const left& x) {
  std::ofstream out(file, std::ios::binary);
  const auto put = [&](double v) { out.write(reinterpret_cast<const char*>(&v), sizeof v); };
  put(static_cast<double>(x.told.size()));
  for (const double v : x.told) put(v);
  for (const by_name* of : {&x.masters, &x.first, &x.second}) {
    std::size_t count = 0;
    for (const auto& [name, values] : *of) count += values.size();
    put(static_cast<double>(count));
    for (const auto& [name, values] : *of)
      for (const double v : values) put(v);
  }
  if (!out.flush()) throw std::runtime_error(file.string() + " cannot be written");
}

/// What main is asked for.
struct asked {
  std::filesystem::path folder;
  std::string text;
};

/// Whether this processor multiplies bf16. Where it does not, that is said once.
bool has_bf16_products() {
  static const bool has = [] {
    try {
      product_engine of({.type = product_type::bf16, .threads = 1});
      of.prepare(make_product_shape(product_kind::forward, dtype::bf16, 16, 16, 16));
    } catch (const error& e) {
      if (e.code() != exit_code::machine) throw;
      std::printf("left out: bf16 products, which this processor lacks\n");
      return false;
    }
    return true;
  }();
  return has;
}

template <class Model>
void print(const std::string& model, const Model& m, const way& w, const asked& a) {
  if (w.products == product_type::bf16 && !has_bf16_products()) return;
  if ((model + " " + w.name).find(a.text) == std::string::npos) return;
  const interpreted_program<Model> p(m, w.s, "all_bits");
  const mesh ranks = mesh_of(w.s.ranks, w.dp);
  left all;
  std::mutex turn;
  const auto run = [&](communicator& c) { train(m, w, p.view(), c, turn, all); };
  if (ranks_of(ranks) == 1) run(self::hosts());
  else thread_ranks(ranks, std::chrono::seconds(60)).run(run);
  for (const by_name* of : {&all.masters, &all.first, &all.second})
    for (const auto& [name, values] : *of)
      for (const double v : values)
        if (std::isnan(v)) throw std::runtime_error("nobody has a number of all of " + name);
  checksum told, masters, stored, first, second;
  told.add(all.told), masters.add(all.masters), first.add(all.first), second.add(all.second);
  for (const auto& [rank, values] : all.stored) stored.add(values);
  std::printf(
      "%s %s: told %016llx masters %016llx stored %016llx first %016llx second %016llx\n",
      model.c_str(), w.name.c_str(), static_cast<unsigned long long>(told.sum),
      static_cast<unsigned long long>(masters.sum), static_cast<unsigned long long>(stored.sum),
      static_cast<unsigned long long>(first.sum), static_cast<unsigned long long>(second.sum));
  std::fflush(stdout);
  if (!a.folder.empty()) write(a.folder / (model + " " + w.name), all);
}

/// Every way of a model; those with experts over several ranks where it has experts.
template <class Model>
void print_all(const std::string& model, const Model& m, bool has_experts, const asked& a) {
  struct laid {
    const char* name;
    layout ranks;
    int dp;
  };
  std::vector<laid> layouts{
      {"tp 2 sp", {.tp = 2, .sequence_parallel = true}, 1},
      {"pp 2", {.pp = 2}, 1},
      {"dp 2 zero 1", {.zero = 1}, 2},
      {"cp 2", {.cp = 2}, 1},
  };
  if (has_experts) layouts.push_back({"ep 2 tp 2", {.tp = 2, .ep = 2}, 2});
  struct precision {
    const char* name;
    dtype type;
    product_type products;
  };
  for (const auto& [type_name, type, products] :
       {precision{"fp32", dtype::f32, product_type::widened},
        precision{"bf16", dtype::bf16, product_type::bf16},
        precision{"bf16 widened", dtype::bf16, product_type::widened}})
    for (const numerics sums : {numerics::fast, numerics::batch_invariant}) {
      way w;
      const std::string policy = std::string(type_name) + " " + name_of(sums);
      w.products = products, w.s.precision = type, w.s.sums = sums;
      w.s.batch = {.micro = 2, .sequence = sequence};
      const auto print_as = [&](const std::string& how, way x) {
        x.name = policy + ", " + how;
        print(model, m, x, a);
      };
      for (const int threads : {1, 2}) {
        w.threads = threads;
        print_as(threads == 1 ? "1 thread" : "2 threads", w);
      }
      way again = w, packed = w, unclipped = w;
      again.s.recompute_policy = recompute::full, packed.s.batch.packed = true, unclipped.clip = 0;
      print_as("full recomputation", again);
      print_as("packed", packed);
      print_as("no clipping", unclipped);
      w.threads = 1;
      for (const laid& l : layouts) {
        way x = w;
        x.s.ranks = l.ranks, x.dp = l.dp;
        x.s.batch.micro = sequences / l.dp >= 4 ? 2 : 1;
        print_as(l.name, x);
        if (l.ranks.zero == 0) continue;
        x.clip = 0;
        print_as(std::string(l.name) + ", no clipping", x);
      }
    }
}

} // namespace

int main(int argc, char** argv) try {
  const asked a{argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ""};
  gpt dropping = test::tiny_gpt2;
  dropping.dropout = 0.1;
  qwen3_moe mixture = test::tiny_qwen3_moe;
  mixture.mlp_only = {1}, mixture.shared_ffn = 16, mixture.bias_rate = 1e-3;
  mixture.aux_loss = 0.01, mixture.router_z_loss = 0.01, mixture.capacity = 1;
  print_all("gpt2", test::tiny_gpt2, false, a);
  print_all("gpt2 with dropout", dropping, false, a);
  print_all("computed weights", computed_weights{test::tiny_gpt2}, false, a);
  print_all("qwen3", test::tiny_qwen3, false, a);
  print_all("qwen3_moe", test::tiny_qwen3_moe, true, a);
  print_all("mixture", mixture, true, a);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
