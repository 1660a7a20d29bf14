// A compiled program of several ranks beside the interpreted one of the same layout: with threads
// as ranks, both compute the same bits.
#pragma once

#include <megacpp/comm/threads.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <kernels.hpp>

namespace mc::laws {

inline constexpr batching two_sequences{2, 32};
/// Number of micro-batches of a step on each replica.
inline constexpr int bits_micros = 4;

/// Returns the weights, norms and losses of each rank after some steps, byte for byte.
inline std::vector<std::string> bytes_of(const program_view& p, int dp) {
  const mesh m = mesh_of(p.numbers.ranks, dp);
  std::vector<std::string> all(static_cast<std::size_t>(ranks_of(m)));
  thread_ranks(m).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    session run(p, device, purpose::training, *others);
    run.weights().initialise(1);
    run.numbers().learning_rate = 1e-2, run.numbers().clip = 0.5, run.numbers().seed = 3;
    std::string& out = all[static_cast<std::size_t>(c.rank())];
    const auto tokens = static_cast<std::size_t>(two_sequences.micro * two_sequences.sequence);
    const bool packed = p.numbers.batch.packed;
    std::vector<std::int32_t> ids(tokens), labels(tokens), documents(tokens);
    for (int step = 0; step < 3; ++step) {
      const auto next = [&](int micro, batch_view& b) {
        const int replica = c.coordinate()[static_cast<unsigned>(axis::dp)],
                  first = (step * 4 + replica) * bits_micros + micro;
        for (std::size_t i = 0; i < tokens; ++i) {
          ids[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(first) * 13) % 61);
          labels[i] = i % 9 == 4 ? -1 : (ids[i] * 3 + 1) % 61;
          documents[i] = static_cast<std::int32_t>(i % 32 / 11);
        }
        b = {ids.data(), labels.data(), first * two_sequences.micro};
        if (packed) b.documents = documents.data();
        return true;
      };
      const auto r = run.step(bits_micros, next);
      for (const double x : {r->loss.sum, r->loss.count, r->norm})
        out.append(reinterpret_cast<const char*>(&x), sizeof x);
    }
    const stores& s = run.weights();
    for_each_parameter(run.program(), [&](const parameter_ref& r) {
      out.append(
          reinterpret_cast<const char*>(s.weights() + r.offset * size_of(s.precision().weight)),
          static_cast<std::size_t>(r.count.n * size_of(s.precision().weight)));
    });
  });
  return all;
}

/// Returns a sentence about the first rank of `dp` replicas whose bytes differ; "" if none does.
template <class Run> std::string rank_with_other_bits(int dp) {
  const program_view compiled = compiled_program<Run>("compiled");
  const interpreted_program interpreted(Run::model, program<Run>::numbers, "interpreted");
  const std::vector<std::string> got = bytes_of(compiled, dp),
                                 want = bytes_of(interpreted.view(), dp);
  for (std::size_t r = 0; r < want.size(); ++r)
    if (got[r].size() <= 1000 || got[r] != want[r])
      return "rank " + std::to_string(r) + " of " + std::to_string(want.size()) + " has other bits";
  return "";
}

} // namespace mc::laws
