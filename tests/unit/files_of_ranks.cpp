// What every rank of a layout reads of the files that one rank wrote: its boxes of every tensor,
// whatever form the file has, and all ranks together everything.
#define BOOST_TEST_MODULE files_of_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/run/interpreter.hpp>
#include <megacpp/train/state.hpp>

#include <cstdint>
#include <string>

#include <kernels.hpp>
#include <scratch.hpp>
#include <unit/every_rank.hpp>

using namespace mc;
using test::biased;
using test::experts;
using test::grouped;
using test::tied;

namespace {

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

  test::hold_what_one_does(
      one.view(), many.view(), l,
      [&](const coordinates& rank) {
        stores mine(many.view(), true, rank);
        for (std::int64_t i = 0; i < mine.total(); ++i) mine.set_weight(i, 3);
        require_same_program(file.state(), many.view());
        load_weights(folder, many.view(), mine);
        BOOST_TEST(load_moments(folder, file.state(), many.view(), mine).step == 7);
        return mine;
      },
      [&](const stores& mine, std::int64_t here, std::int64_t there, bool pads) {
        const auto same = [&](const std::byte* a, const std::byte* b, dtype t) {
          return mine.element(a, t, here) == (pads ? 0.0 : whole.element(b, t, there));
        };
        return same(mine.weights(), whole.weights(), type) &&
               same(mine.masters(), whole.masters(), main) &&
               same(mine.first_moments(), whole.first_moments(), main) &&
               same(mine.second_moments(), whole.second_moments(), main);
      });

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
