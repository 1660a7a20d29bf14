// Trains the models of the fixtures, and a mixture with all that a router may have, for ten steps in
// every way below, and writes what is left: a line with three checksums for each case, and with a
// folder its numbers. Two commits that compute the same bits write the same lines.
//
//   all_bits [FOLDER [WORDS]]
//
// WORDS: cases alone whose names have them.
// Cases: fp32, bf16 and bf16 with widened products; both numerics; one rank with one thread and two,
// and ranks that are threads under tp 2 with sp, pp 2, dp 2 with ZeRO 1, cp 2, and ep 2 with tp 2.
// Dropout, full recomputation, packed documents and weights without clipping have cases of their own.
// Of each case FOLDER/CASE has little-endian doubles: the number of steps' numbers, these (loss and
// norm of each step), the number of weights, these, and both moments, parameters by name, elements in
// their logical order.
#include <megacpp/comm/threads.hpp>
#include <megacpp/run/session.hpp>

#include <parity/fixtures.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr int steps = 10, sequence = 24, sequences = 4; ///< sequences: a step's

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
  std::vector<double> numbers;
  by_name weights, first, second;
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
  session run(p, device, purpose::training, c);
  run.weights().initialise(1);
  step_numbers& n = run.numbers();
  n.seed = 5, n.learning_rate = 1e-2, n.weight_decay = 0.1, n.clip = w.clip;
  const int micro = w.s.batch.micro, mine = sequences / w.dp,
            replica = c.coordinate()[static_cast<unsigned>(axis::dp)];
  std::vector<double> numbers;
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
    numbers.push_back(r.loss.mean()), numbers.push_back(r.norm);
  }
  const std::lock_guard lock(turn);
  if (c.rank() == 0) all.numbers = numbers;
  const stores& held = run.weights();
  for_each_parameter(run.program(), [&](const parameter_ref& r) {
    const auto collect = [&](by_name& into, const std::byte* store, dtype t, bool states) {
      auto& x = into[r.name];
      x.resize(static_cast<std::size_t>(global_size(*r.v).n), 0);
      held.part_of(r, {.states = states, .own = true})
          .each_run({}, global_size(*r.v), [&](global_count at, std::int64_t i, std::int64_t k) {
            for (std::int64_t e = 0; e < k; ++e)
              x[static_cast<std::size_t>(at.n + e)] = held.element(store, t, i + e);
          });
    };
    collect(all.weights, held.masters(), held.main_type(), held.type() != held.main_type());
    collect(all.first, held.first_moments(), held.main_type(), true);
    collect(all.second, held.second_moments(), held.main_type(), true);
  });
}

void write(const std::filesystem::path& file, const left& x) {
  std::ofstream out(file, std::ios::binary);
  const auto put = [&](double v) { out.write(reinterpret_cast<const char*>(&v), sizeof v); };
  const auto put_all = [&](const by_name& of) {
    for (const auto& [name, values] : of)
      for (const double v : values) put(v);
  };
  std::size_t count = 0;
  for (const auto& [name, values] : x.weights) count += values.size();
  put(static_cast<double>(x.numbers.size()));
  for (const double v : x.numbers) put(v);
  put(static_cast<double>(count));
  put_all(x.weights), put_all(x.first), put_all(x.second);
  if (!out.flush()) {
    std::fprintf(stderr, "%s cannot be written\n", file.c_str());
    std::exit(1);
  }
}

/// What main is asked for.
struct asked {
  std::filesystem::path folder;
  std::string words;
};

template <class Model>
void print(const std::string& model, const Model& m, const way& w, const asked& a) {
  if ((model + " " + w.name).find(a.words) == std::string::npos) return;
  const interpreted_program<Model> p(m, w.s, "all_bits");
  const mesh ranks = mesh_of(w.s.ranks, w.dp);
  left all;
  std::mutex turn;
  const auto run = [&](communicator& c) { train(m, w, p.view(), c, turn, all); };
  if (ranks_of(ranks) == 1) run(self::of_process());
  else thread_ranks(ranks, std::chrono::seconds(60)).run(run);
  checksum numbers, weights, moments;
  numbers.add(all.numbers), weights.add(all.weights), moments.add(all.first),
      moments.add(all.second);
  std::printf("%s %s: numbers %016llx weights %016llx moments %016llx loss %.6f\n", model.c_str(),
              w.name.c_str(), static_cast<unsigned long long>(numbers.sum),
              static_cast<unsigned long long>(weights.sum),
              static_cast<unsigned long long>(moments.sum), all.numbers[all.numbers.size() - 2]);
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
      w.products = products, w.s.type = type, w.s.sums = sums;
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
      again.s.again = recompute::full, packed.s.batch.packed = true, unclipped.clip = 0;
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

int main(int argc, char** argv) {
  const asked a{argc > 1 ? argv[1] : "", argc > 2 ? argv[2] : ""};
  gpt dropping = test::tiny_gpt2;
  dropping.dropout = 0.1;
  qwen3_moe mixture = test::tiny_qwen3_moe;
  mixture.mlp_only = {1}, mixture.shared_ffn = 16, mixture.bias_rate = 1e-3;
  mixture.aux_loss = 0.01, mixture.router_z_loss = 0.01, mixture.capacity = 1;
  print_all("gpt2", test::tiny_gpt2, false, a);
  print_all("gpt2 with dropout", dropping, false, a);
  print_all("qwen3", test::tiny_qwen3, false, a);
  print_all("qwen3_moe", test::tiny_qwen3_moe, true, a);
  print_all("mixture", mixture, true, a);
}
