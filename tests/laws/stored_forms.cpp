// A parameter that is stored in several arrays is initialised, read, saved and loaded under any
// layout as on one rank. Its neighbours train as if it were stored plainly, and a shard that would
// cut one of its blocks is refused.
#define BOOST_TEST_MODULE stored_forms
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/state.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

#include "coded.hpp"
#include "outcome.hpp"

using namespace mc;
using mc_test::coded_gpt;

namespace {

constexpr coded_gpt model_of(bool coded, int hidden = 64, int ffn = 128) {
  coded_gpt m;
  m.layers = 2, m.hidden = hidden, m.heads = 4, m.ffn = ffn, m.vocabulary = 64, m.positions = 32;
  m.coded = coded;
  return m;
}

kernel_table<cpu> kernels() {
  kernel_table<cpu> t = kernel_table<cpu>::all();
  t.add<&mc_test::decode, float>();
  return t;
}
const kernel_table<cpu> table = kernels();

setup setup_of(const layout& l, dtype t) { return {.ranks = l, .batch = {2, 32}, .precision = t}; }

/// Takes some steps on every rank from the contents that `before` puts into its stores; `after`
/// reads them.
template <class Before, class After> std::vector<double> steps(const coded_gpt& m, const layout& l,
                                                               int dp, dtype t, int count,
                                                               Before before, After after) {
  const setup s = setup_of(l, t);
  const interpreted_program<coded_gpt> p(m, s, "coded", table);
  const int micros = 2;
  std::vector<test::batches> data;
  for (int k = 0; k < micros; ++k) data.emplace_back(s, k);
  std::vector<std::vector<double>> told(static_cast<std::size_t>(ranks_of(mesh_of(l, dp))));
  thread_ranks(mesh_of(l, dp), std::chrono::seconds(20)).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    session run(p.view(), device, purpose::training, *others);
    step_numbers& n = run.numbers();
    n.learning_rate = 1e-2, n.clip = 1, n.weight_decay = 0.1, n.epsilon = 1e-6;
    before(run.weights(), p.view());
    const int each = micros / dp, first = c.coordinate()[static_cast<unsigned>(axis::dp)] * each;
    std::vector<batch_view> mine;
    for (int k = first; k < first + each; ++k)
      mine.push_back(data[static_cast<std::size_t>(k)].view(k));
    for (int i = 0; i < count; ++i) {
      const step_result r = run.step(mine);
      for (const double x : {r.loss.mean(), r.norm})
        told[static_cast<std::size_t>(c.rank())].push_back(x);
    }
    after(run.weights(), p.view(), c);
  });
  for (const auto& other : told) BOOST_TEST((other == told[0]));
  return told[0];
}
const auto initial = [](stores& s, const program_view&) { s.initialise(1); };
const auto nothing = [](const stores&, const program_view&, communicator&) {};

/// Returns a function that writes a state of all ranks into a folder.
auto saving(const std::string& folder) {
  return [folder](const stores& s, const program_view& p, communicator& c) {
    const auto write = [&](folder_writer&& out) {
      write_state(out, p, s, {3, 6}, nlohmann::json::object(), {}, hf_shard_limit, c);
      out.commit();
    };
    if (c.rank() == 0) write(folder_writer(folder));
    else write(folder_writer::of_another_rank());
  };
}
auto loading(const std::string& path) {
  return [path](stores& s, const program_view& p) {
    const model_folder folder(path);
    const state_file file(folder);
    load_weights(folder, p, s);
    load_moments(folder, file.state(), p, s);
  };
}
std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = test::read_text(entry.path().string());
  return files;
}

void close(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  BOOST_TEST_REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    BOOST_TEST(std::abs(got[i] - want[i]) <= tolerance * std::abs(want[i]),
               i << ": " << got[i] << " of " << want[i]);
}

constexpr layout layouts[] = {{.tp = 2},
                              {.pp = 2},
                              {.tp = 2, .pp = 2, .sequence_parallel = true, .zero = 1},
                              {.cp = 2, .zero = 1}};

std::string said(const coded_gpt& m, const layout& l) {
  try {
    const interpreted_program<coded_gpt> p(m, setup_of(l, dtype::f32), "coded", table);
  } catch (const error& e) {
    return e.what();
  }
  return "";
}

} // namespace

// A plain program with frozen weights that equal the decoded ones takes the same steps, to the bit.
BOOST_AUTO_TEST_CASE(neighbours_train_as_beside_plain_weights) {
  for (const dtype t : {dtype::f32, dtype::f64}) {
    std::map<std::string, std::vector<double>> decoded;
    const auto read = [&](stores& s, const program_view& p) {
      s.initialise(1);
      for_each_parameter(p, [&](const parameter_ref& r) {
        if (r.info->encoding == nullptr) return;
        std::vector<double>& w = decoded[r.name];
        w.resize(static_cast<std::size_t>(r.count.n));
        std::int64_t codes = 0, scales = 0;
        for_each_array(p, [&](const parameter_ref& a, dtype) {
          if (a.name == r.name + ".codes") codes = a.offset;
          if (a.name == r.name + ".scales") scales = a.offset;
        });
        for (std::size_t i = 0; i < w.size(); ++i) {
          const auto at = static_cast<std::int64_t>(i);
          const float scale = static_cast<float>(
              s.element(s.weights(), dtype::f32, scales + at / mc_test::coded_block));
          const int code = static_cast<int>(s.weights()[codes + at]) - 128;
          w[i] = static_cast<double>(static_cast<float>(code) * scale);
        }
      });
    };
    const auto want = steps(model_of(true), {}, 1, t, 3, read, nothing);
    BOOST_TEST(decoded.size() == 4u);
    const auto got = steps(
        model_of(false), {}, 1, t, 3,
        [&](stores& s, const program_view& p) {
          s.initialise(1);
          for_each_parameter(p, [&](const parameter_ref& r) {
            if (const auto at = decoded.find(r.name); at != decoded.end())
              s.set_weights(r.offset, at->second);
          });
        },
        nothing);
    BOOST_TEST((got == want));
    BOOST_TEST(want[0] > want[4]); // the model learns
  }
}

BOOST_AUTO_TEST_CASE(ranks_of_any_layout_compute_and_save_what_one_does) {
  const test::scratch_folder dir;
  const auto want = steps(model_of(true), {}, 1, dtype::f64, 3, initial, nothing);
  steps(model_of(true), {}, 1, dtype::f32, 0, initial, saving(dir / "one"));
  for (const layout& l : layouts)
    for (const int dp : {1, 2}) {
      close(steps(model_of(true), l, dp, dtype::f64, 3, initial, nothing), want, 1e-10);
      const std::string folder = dir / ("of" + std::to_string(l.tp) + std::to_string(l.pp) +
                                        std::to_string(l.cp) + std::to_string(dp));
      steps(model_of(true), l, dp, dtype::f32, 0, initial, saving(folder));
      BOOST_TEST((files_in(folder) == files_in(dir / "one")));
    }
}

// A state goes from one rank to a layout and back, and a run continues from it as if nothing had
// happened.
BOOST_AUTO_TEST_CASE(a_state_is_resharded_and_resumed) {
  const test::scratch_folder dir;
  steps(model_of(true), {}, 1, dtype::f64, 2, initial, saving(dir / "state"));
  const auto want = steps(model_of(true), {}, 1, dtype::f64, 2, loading(dir / "state"), nothing);
  BOOST_TEST((files_in(dir / "state").at("model.safetensors").find("coded.up.weight.codes") !=
              std::string::npos));
  for (const layout& l : layouts) {
    const std::string again =
        dir / ("again" + std::to_string(l.tp) + std::to_string(l.pp) + std::to_string(l.cp));
    steps(model_of(true), l, 1, dtype::f64, 0, loading(dir / "state"), saving(again));
    BOOST_TEST((files_in(again) == files_in(dir / "state")));
    close(steps(model_of(true), l, 1, dtype::f64, 2, loading(dir / "state"), nothing), want, 1e-10);
  }
}

// The plan counts the bytes of the arrays, and no other bytes of such a parameter.
BOOST_AUTO_TEST_CASE(a_form_takes_what_its_arrays_do) {
  const interpreted_program<coded_gpt> coded(model_of(true), setup_of({}, dtype::f32), "c", table),
      plain(model_of(false), setup_of({}, dtype::f32), "p", table);
  const memory_items a = memory_of_stage(coded.view()), b = memory_of_stage(plain.view());
  const std::int64_t elements = std::int64_t{2} * 2 * 64 * 128; // layers, matrices
  BOOST_TEST(b.weights - a.weights == elements * 4 - elements - elements / 64 * 4);
  BOOST_TEST(a.gradients == b.gradients);
  BOOST_TEST(a.moments == b.moments);
  // Decoded weights are not kept, neither for the step nor for the backward pass.
  BOOST_TEST(a.derived == b.derived);
  BOOST_TEST(a.saved == b.saved);
  BOOST_TEST(stores(coded.view(), true).bytes() == a.weights + a.gradients + a.masters + a.moments);
  BOOST_TEST(coded.view().parameters == plain.view().parameters);
}

// A pass that reads the codes of another parameter, or its scales, is found; decoding twice stays
// decoding twice.
BOOST_AUTO_TEST_CASE(arrays_of_two_parameters_are_told_apart) {
  const auto graph_with = [](int swapped) {
    auto b = std::make_unique<builder>(mesh(layout{}));
    const extent F{dim::ffn, 128}, H{dim::hidden, 64};
    const var x = b->input(feed::stream, "x", dtype::f32, {{dim::sequence, 8}, H}, {});
    var y[2];
    std::array<var, max_arrays> of[2];
    for (int k = 0; k < 2; ++k)
      of[k] = b->parameter(k == 0 ? "one" : "two", "weight", mc_test::coded_form, {F, H}, {},
                           normal_weights(0.1));
    for (int k = 0; k < 2; ++k) {
      const var codes = of[swapped == 1 ? 1 - k : k][0], scales = of[swapped == 2 ? 1 - k : k][1];
      y[k] = linear(x, {b.get(), b->emit(mc_test::decode, {codes.id, scales.id}, 0,
                                         mc_test::decode_attributes{dtype::f32})});
    }
    b->g.outputs[0] = (y[0] + gelu(y[1])).id;
    BOOST_TEST((b->g.wrong.code == fault::none), b->g.wrong.what.c_str());
    return std::make_unique<graph>(b->g);
  };
  const auto right = graph_with(0);
  const meaning before = meaning_of(*right);
  BOOST_TEST((verify_meaning(*right, before, false).code == fault::none));
  for (const int swapped : {1, 2})
    BOOST_TEST((verify_meaning(*graph_with(swapped), before, false).code == fault::P019));
}

BOOST_AUTO_TEST_CASE(no_shard_cuts_a_block) {
  BOOST_TEST(said(model_of(true), {.tp = 2}).empty());
  BOOST_TEST(said(model_of(true, 64, 64), {}).empty());
  BOOST_TEST(said(model_of(true, 64, 64), {.tp = 2})
                 .find("parameter(coded.down.weight: ffn 64 over 2 ranks, stored in blocks of "
                       "64)") != std::string::npos);
  BOOST_TEST(said(model_of(true, 64, 96), {}).find("MEGA-S001") == 0u);
}
