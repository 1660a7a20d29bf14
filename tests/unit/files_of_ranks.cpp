// What every rank of a layout reads of the files that one rank wrote: its boxes of every tensor,
// whatever form the file has, and all ranks together everything.
#define BOOST_TEST_MODULE files_of_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/train/state.hpp>

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include <kernels.hpp>
#include <scratch.hpp>
#include <unit/every_rank.hpp>

using namespace mc;
using test::coverage;
using test::for_each_rank;
using test::plain_indices;

namespace {

constexpr gpt tied{
    .layers = 2, .hidden = 16, .heads = 4, .ffn = 32, .vocabulary = 37, .positions = 16};
constexpr qwen3 grouped = [] {
  qwen3 m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 24;
  m.vocabulary = 37, m.positions = 16;
  return m;
}();
constexpr qwen3_moe experts = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 24;
  m.expert_ffn = 12, m.experts = 4, m.experts_per_token = 2, m.mlp_only = {0};
  m.vocabulary = 37, m.positions = 16, m.tied = true;
  return m;
}();
/// Without a Hugging Face form.
constexpr qwen3_moe biased = [] {
  qwen3_moe m = experts;
  m.bias_rate = 0.001, m.shared_ffn = 16;
  return m;
}();

/// Writes a state of one rank, which every rank of a layout reads.
template <class Model>
void reads_its_boxes(const Model& m, const layout& l, dtype type, const std::string& form) {
  const setup alone{.batch = {1, 16}, .type = type};
  setup laid_out = alone;
  laid_out.ranks = l;
  const interpreted_program<Model> one(m, alone, "one"), many(m, laid_out, "many");
  stores whole(one.view(), true);
  const dtype main = whole.main_type();
  for (std::int64_t i = 0; i < whole.total(); ++i) { // no two numbers alike
    const double x = 0.5 + static_cast<double>(i) * 0x1p-18;
    whole.set_weight(i, x);
    stores::set(whole.first_moments(), main, i, -x);
    stores::set(whole.second_moments(), main, i, x + 1);
  }
  const test::scratch_folder dir;
  folder_writer out(dir / "state");
  write_state(out, one.view(), whole, {7, 28}, nlohmann::json::object());
  out.commit();
  const model_folder folder(dir / "state");
  const state_file file(folder);
  BOOST_TEST(file.state().field<std::string>("weights") == form);

  std::map<std::string, parameter_ref> by_name;
  for_each_parameter(one.view(), [&](const parameter_ref& r) { by_name[r.name] = r; });
  std::map<std::string, coverage> seen;
  std::set<std::string> differ;
  for_each_rank(mesh(l), [&](const coordinates& rank, const laws::world& w, int number) {
    stores mine(many.view(), true, rank);
    mine.initialise(3);
    require_same_program(file.state(), many.view());
    load_weights(folder, many.view(), mine);
    BOOST_TEST(load_moments(folder, file.state(), many.view(), mine).step == 7);
    for_each_parameter(many.view(), [&](const parameter_ref& r) {
      const parameter_ref& theirs = by_name.at(r.name);
      const auto logical = plain_indices(w, *r.ranks, *r.v, number);
      for (std::int64_t i = 0; i < r.count.n; ++i) {
        const std::int64_t at = logical[static_cast<std::size_t>(i)], there = theirs.offset + at,
                           here = r.offset + i;
        const bool pads = at >= unpadded_size(*r.v, *r.info).n;
        const auto same = [&](const std::byte* a, const std::byte* b, dtype t) {
          return mine.element(a, t, here) == (pads ? 0.0 : whole.element(b, t, there));
        };
        if (!same(mine.weights(), whole.weights(), type) ||
            !same(mine.masters(), whole.masters(), main) ||
            !same(mine.first_moments(), whole.first_moments(), main) ||
            !same(mine.second_moments(), whole.second_moments(), main))
          differ.insert(r.name);
        seen[r.name].add(*r.v, rank, at);
      }
    });
  });
  BOOST_TEST(seen.size() == by_name.size());
  for (const auto& [name, of] : seen) BOOST_TEST(of.once(), name);
  for (const std::string& name : differ)
    BOOST_ERROR(name << " with tp " << l.tp << ", cp " << l.cp << ", ep " << l.ep << ", etp "
                     << l.expert_tp());

  stores first(many.view(), true);
  if (mesh(l) != mesh(layout{})) {
    folder_writer part(dir / "part");
    BOOST_CHECK_EXCEPTION(write_state(part, many.view(), first, {}, nlohmann::json::object()),
                          error, [](const error& e) { return e.code() == exit_code::mismatch; });
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(a_rank_reads_its_boxes_of_a_hugging_face_form) {
  for (const dtype t : {dtype::f32, dtype::bf16})
    for (const layout& l : {layout{}, layout{.tp = 2}, layout{.tp = 4, .cp = 2}})
      reads_its_boxes(tied, l, t, huggingface_form); // transposed, and Q | K | V side by side
  reads_its_boxes(grouped, {.tp = 4}, dtype::f32, huggingface_form);
  for (const layout& l : {layout{.tp = 2, .ep = 2}, layout{.tp = 2, .cp = 2, .ep = 2, .etp = 2}})
    reads_its_boxes(experts, l, dtype::f32, huggingface_form);
}

BOOST_AUTO_TEST_CASE(a_rank_reads_its_boxes_by_the_registrys_names) {
  for (const layout& l :
       {layout{}, layout{.tp = 2, .ep = 4, .etp = 1}, layout{.tp = 4, .ep = 2, .etp = 2}})
    reads_its_boxes(biased, l, dtype::f32, registry_form);
  reads_its_boxes(biased, {.tp = 2, .cp = 2, .ep = 2, .etp = 2}, dtype::bf16, registry_form);
}
