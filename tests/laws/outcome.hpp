// The results of some steps on ranks that are threads, to be compared with those of one rank.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <kernels.hpp>

namespace test {

/// The micro-batch with a number: tokens below 64, some of them without a label; packed, with
/// documents of uneven lengths. Or the micro-batches of several numbers, one behind the other.
struct batches {
  std::vector<std::int32_t> tokens, labels, positions, documents;
  int micro;

  explicit batches(const mc::setup& s, int first, int together = 1, bool one_token = false)
      : micro(s.batch.micro) {
    for (int number = first; number < first + together; ++number)
      add(s, number, micro / together, one_token);
  }
  void add(const mc::setup& s, int number, int sequences, bool one_token) {
    for (int i = 0; i < sequences * s.batch.sequence; ++i) {
      const int x = one_token ? 5 : (i * 7 + number * 13 + i / 5) % 64, at = i % s.batch.sequence;
      tokens.push_back(x), labels.push_back(x % 9 == number % 9 ? -1 : (x * 3 + 1) % 64);
      if (!s.batch.packed) continue;
      const bool begins = at == 0 || at % (7 + number) == 5;
      documents.push_back(documents.empty() ? 0 : documents.back() + (begins ? 1 : 0));
      positions.push_back(begins ? 0 : positions.back() + 1);
    }
  }
  mc::batch_view view(int number) const {
    return {.tokens = tokens.data(),
            .labels = labels.data(),
            .first_sample = number * micro,
            .positions = positions.empty() ? nullptr : positions.data(),
            .documents = documents.empty() ? nullptr : documents.data()};
  }
};

/// The losses and norms, which every rank knows, and the model's weights.
struct outcome {
  std::vector<double> numbers;
  std::map<std::string, std::vector<double>> weights; ///< weights of each parameter, in natural
                                                      ///< order
};

struct how {
  double clip = 1;
  int steps = 4;
  double rate = 1e-2;
  bool together = false;  ///< all micro-batches are one
  bool one_token = false; ///< one token, which always goes to the same experts
};

/// The device that ranks compute on, and the communicator between them.
struct on_cpus {
  using device = mc::cpu;
  static std::unique_ptr<device> make_device() {
    return std::make_unique<device>(mc::product_type::widened, 1);
  }
  static std::unique_ptr<mc::communicator> make_ranks(mc::communicator& hosts, device& on) {
    return hosts.make_ranks(on);
  }
};

/// Returns the outcome of steps of `micros` micro-batches, divided among dp replicas. Ranks that
/// hold the same element must agree on it.
template <class On = on_cpus, class Model>
outcome outcome_of(const Model& m, const mc::setup& s, int dp, int micros, const how& h = {}) {
  const mc::interpreted_program<Model, typename On::device> p(m, s, "ranks");
  const mc::mesh ranks = mc::mesh_of(s.ranks, dp);
  std::vector<outcome> all(static_cast<std::size_t>(mc::ranks_of(ranks)));
  std::vector<batches> data;
  for (int r = 0; r < micros; ++r) data.emplace_back(s, r, h.together ? micros : 1, h.one_token);
  const auto train = [&](mc::communicator& c) {
    const auto own = On::make_device();
    auto& device = *own;
    const auto others = On::make_ranks(c, device);
    mc::session run(p.view(), device, mc::purpose::training, *others);
    run.weights().initialise(1);
    run.numbers().learning_rate = h.rate, run.numbers().clip = h.clip,
    run.numbers().weight_decay = 0.1;
    if (s.precision != mc::dtype::f64)
      run.numbers().epsilon = 1e-6; // rounding errors must not make a whole step
    std::vector<mc::batch_view> mine;
    const int each = h.together ? 1 : micros / dp,
              first = c.coordinate()[static_cast<unsigned>(mc::axis::dp)] * each;
    for (int k = first; k < first + each; ++k)
      mine.push_back(data[static_cast<std::size_t>(k)].view(k));
    outcome& x = all[static_cast<std::size_t>(c.rank())];
    for (int i = 0; i < h.steps; ++i) {
      const mc::step_result r = run.step(mine);
      for (double n : {r.loss.mean(), r.norm}) x.numbers.push_back(n);
    }
    const mc::stores& held = run.weights();
    const mc::dtype type = held.precision().weight;
    std::vector<std::byte> read;
    for_each_parameter(run.program(), [&](const mc::parameter_ref& r) {
      if (r.info->encoding != nullptr) return;
      auto& w = x.weights[r.name];
      w.resize(static_cast<std::size_t>(global_size(*r.v).n), NAN);
      held.boxes_of(r).each_contiguous(
          {}, r.count, [&](mc::local_count i, mc::global_count at, std::int64_t n) {
            read.resize(static_cast<std::size_t>(n * size_of(type)));
            device.read(read.data(), held.weights() + (r.offset + i.n) * size_of(type),
                        std::ssize(read));
            for (std::int64_t k = 0; k < n; ++k)
              w[static_cast<std::size_t>(at.n + k)] = mc::stores::get(read.data(), type, k);
          });
    });
  };
  if (all.size() == 1) train(mc::self::hosts());
  else mc::thread_ranks(ranks, std::chrono::seconds(20)).run(train);
  for (const outcome& o : all) {
    BOOST_TEST((o.numbers == all[0].numbers), "ranks tell different numbers");
    for (const auto& [name, w] : o.weights) {
      std::vector<double>& whole = all[0].weights[name];
      whole.resize(w.size(), NAN);
      bool same = true;
      for (std::size_t i = 0; i < w.size(); ++i) {
        if (std::isnan(whole[i])) whole[i] = w[i];
        same = same && (std::isnan(w[i]) || w[i] == whole[i]);
      }
      BOOST_TEST(same, "ranks hold different weights of " << name);
    }
  }
  return all[0];
}

/// Requires that losses and norms agree relatively, and weights absolutely.
inline void close_to(const outcome& got, const outcome& want, double tolerance,
                     const std::string& name) {
  for (std::size_t i = 0; i < want.numbers.size(); ++i)
    BOOST_TEST(std::abs(got.numbers[i] - want.numbers[i]) <= tolerance * std::abs(want.numbers[i]),
               name << ": number " << i << " is " << got.numbers[i] << ", of one rank "
                    << want.numbers[i]);
  BOOST_TEST(got.weights.size() == want.weights.size(), name);
  for (const auto& [parameter, w] : want.weights) {
    const auto at = got.weights.find(parameter);
    BOOST_REQUIRE(at != got.weights.end());
    BOOST_REQUIRE(at->second.size() >= w.size()); // padding may add rows to a vocabulary
    double most = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double apart = std::abs(at->second[i] - w[i]); // not a number: no rank holds it
      most = apart > most || std::isnan(apart) ? apart : most;
    }
    BOOST_TEST(most <= tolerance, name << ": " << parameter << " differs by " << most);
  }
}

} // namespace test
