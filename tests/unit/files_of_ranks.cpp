// What every rank of a layout reads of the files that one rank wrote: its boxes of every tensor,
// whatever form the file has, and all ranks together everything. What they write together are the
// files that one rank writes.
#define BOOST_TEST_MODULE files_of_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/hf/export_folder.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>
#include <unit/every_rank.hpp>

using namespace mc;
using test::biased;
using test::experts;
using test::grouped;
using test::tied;

namespace {

/// Weights and moments in which no two numbers are alike.
void fill(stores& s) {
  for (std::int64_t i = 0; i < s.total(); ++i) {
    const double x = 0.5 + static_cast<double>(i) * 0x1p-18;
    s.set_weight(i, x);
    stores::set(s.first_moments(), s.precision().moment, i, -x);
    stores::set(s.second_moments(), s.precision().moment, i, x + 1);
  }
}

/// Writes a state of one rank, which every rank of a layout reads.
template <class Model>
void reads_its_boxes(const Model& m, const layout& l, dtype type, const std::string& form) {
  const setup alone{.batch = {1, 16}, .precision = type};
  setup laid_out = alone;
  laid_out.ranks = l;
  const interpreted_program<Model> one(m, alone, "one"), many(m, laid_out, "many");
  stores whole(one.view(), true);
  const dtype main = whole.precision().master;
  fill(whole);
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
}

std::map<std::string, std::string> files_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files[entry.path().filename().string()] = test::read_text(entry.path().string());
  return files;
}

/// The state of one rank, loaded and saved by the ranks of a layout with so many replicas, is that
/// state, byte for byte, as a state and as a model folder.
template <class Model>
void saves_what_one_does(const Model& m, const layout& l, int dp, dtype type) {
  const setup alone{.batch = {1, 16}, .precision = type};
  setup laid_out = alone;
  laid_out.ranks = l;
  const interpreted_program<Model> one(m, alone, "model"), many(m, laid_out, "model");
  stores whole(one.view(), true);
  fill(whole);
  const test::scratch_folder dir;
  constexpr std::uint64_t shard = 5000; // so that weights are in several files
  {
    folder_writer out(dir / "state");
    write_state(out, one.view(), whole, {7, 28}, {{"data", "some"}}, {}, shard);
    out.commit();
  }
  const model_folder folder(dir / "state");
  const state_file file(folder);
  thread_ranks(mesh_of(l, dp)).run([&](communicator& c) {
    const rank_program program(many.view(), c);
    stores mine(program.view(), true, c.coordinate(), host_memory::of_process(), c.ranks());
    for (std::int64_t i = 0; i < mine.total(); ++i) mine.set_weight(i, 3);
    load_weights(folder, many.view(), mine);
    const run_position at = load_moments(folder, file.state(), many.view(), mine);
    const auto write = [&](folder_writer&& out) {
      write_state(out, many.view(), mine, at, {{"data", "some"}}, {}, shard, c);
      out.commit();
    };
    if (c.rank() == 0) write(folder_writer(dir / "again"));
    else write(folder_writer::of_another_rank());
  });
  BOOST_TEST((files_in(dir / "again") == files_in(dir / "state")),
             Model::family.text << " tp " << l.tp << " pp " << l.pp << " cp " << l.cp << " ep "
                                << l.ep << " etp " << l.etp << " zero " << l.zero << " dp " << dp
                                << " " << name_of(type));
}

/// Of each element of the weights one rank of a layout with so many replicas answers, and of each
/// of the masters and moments.
template <class Model> void one_rank_answers_for_each(const Model& m, const layout& l, int dp) {
  const interpreted_program<Model> p(m, {.ranks = l, .batch = {1, 16}, .precision = dtype::bf16},
                                     "m");
  for (const bool states : {false, true}) {
    std::mutex turn;
    std::map<std::string, std::vector<int>> answers;
    thread_ranks(mesh_of(l, dp)).run([&](communicator& c) {
      const rank_program program(p.view(), c);
      const stores mine(program.view(), true, c.coordinate(), host_memory::of_process(), c.ranks());
      const std::lock_guard lock(turn);
      for_each_parameter(p.view(), [&](const parameter_ref& r) {
        std::vector<int>& of = answers[r.name];
        of.resize(static_cast<std::size_t>(global_size(*r.v).n));
        mine.held(r, {.states = states, .own = true})
            .each_contiguous({}, global_size(*r.v),
                             [&](global_count at, std::int64_t, std::int64_t n) {
                               for (std::int64_t i = at.n; i < at.n + n; ++i)
                                 ++of[static_cast<std::size_t>(i)];
                             });
      });
    });
    for (const auto& [name, of] : answers)
      BOOST_TEST(std::ranges::count(of, 1) == std::ssize(of),
                 name << (states ? ", its states" : "") << " with tp " << l.tp << " pp " << l.pp
                      << " cp " << l.cp << " ep " << l.ep << " etp " << l.etp << " zero " << l.zero
                      << " dp " << dp);
  }
}

/// f(layout, replicas) for every layout of a model with experts over at most eight ranks.
template <class F> void for_each_layout(F f) {
  for (const int tp : {1, 2, 4})
    for (const int pp : {1, 2})
      for (const int cp : {1, 2})
        for (const int dp : {1, 2, 3, 4})
          for (const int ep : {1, 2, 4})
            for (const int etp : {1, 2, 4})
              for (const int zero : {0, 1}) {
                const int dense = tp * cp * dp;
                if (dense * pp > 8 || dense % (ep * etp) != 0) continue;
                if (tp * cp % (ep * etp) != 0 && ep * etp % (tp * cp) != 0) continue;
                f(layout{.tp = tp, .pp = pp, .cp = cp, .ep = ep, .etp = etp, .zero = zero}, dp);
              }
}

} // namespace

BOOST_AUTO_TEST_CASE(a_rank_reads_its_boxes_of_a_hugging_face_form) {
  for (const dtype t : {dtype::f32, dtype::bf16})
    for (const layout& l : {layout{}, layout{.tp = 2}, layout{.tp = 4, .cp = 2}})
      reads_its_boxes(tied, l, t, huggingface_files); // transposed, and Q | K | V side by side
  reads_its_boxes(grouped, {.tp = 4}, dtype::f32, huggingface_files);
  for (const layout& l : {layout{.tp = 2, .ep = 2}, layout{.tp = 2, .cp = 2, .ep = 2, .etp = 2}})
    reads_its_boxes(experts, l, dtype::f32, huggingface_files);
}

// So what was saved under one layout, and loaded and saved under another, is the same.
BOOST_AUTO_TEST_CASE(ranks_of_any_layout_save_the_state_of_one_rank) {
  gpt deep = tied;
  deep.layers = 4;
  for (const dtype t : {dtype::f32, dtype::bf16, dtype::f64})
    for (const int zero : {0, 1}) {
      saves_what_one_does(deep, {.pp = 2, .virtual_stages = 2, .zero = zero}, 1, t);
      saves_what_one_does(deep, {.tp = 2, .pp = 3, .cut = {.layers = {0, 3, 1}}, .zero = zero}, 1,
                          t);
      saves_what_one_does(tied, {.zero = zero}, 3, t);
      saves_what_one_does(tied, {.tp = 2, .pp = 2, .zero = zero}, 1, t);
      saves_what_one_does(tied, {.tp = 2, .pp = 2, .sequence_parallel = true, .zero = zero}, 2, t);
      saves_what_one_does(grouped, {.tp = 2, .cp = 2, .zero = zero}, 2, t);
      saves_what_one_does(grouped, {.tp = 4, .zero = zero}, 1, t); // two ranks share a kv head
      saves_what_one_does(experts, {.zero = zero}, 2, t);          // every rank has all experts
      saves_what_one_does(biased, {.tp = 2, .etp = 1, .zero = zero}, 2, t);
      saves_what_one_does(experts, {.tp = 2, .ep = 2, .zero = zero}, 2, t);
      saves_what_one_does(experts, {.tp = 2, .pp = 2, .ep = 4, .etp = 1, .zero = zero}, 2, t);
      saves_what_one_does(biased, {.tp = 2, .cp = 2, .ep = 2, .etp = 2, .zero = zero}, 1, t);
    }
}

// What is written of the stores is what ranks answer for, and what nobody answers for would be
// zero.
BOOST_AUTO_TEST_CASE(one_rank_answers_for_every_element) {
  int layouts = 0;
  for_each_layout([&](const layout& l, int dp) {
    one_rank_answers_for_each(biased, l, dp), ++layouts;
    if (l.ep == 1 && l.etp == 1) one_rank_answers_for_each(tied, l, dp);
  });
  BOOST_TEST(layouts > 100);
}

BOOST_AUTO_TEST_CASE(a_rank_reads_its_boxes_by_the_registrys_names) {
  for (const layout& l :
       {layout{}, layout{.tp = 2, .ep = 4, .etp = 1}, layout{.tp = 4, .ep = 2, .etp = 2}})
    reads_its_boxes(biased, l, dtype::f32, registry_files);
  reads_its_boxes(biased, {.tp = 2, .cp = 2, .ep = 2, .etp = 2}, dtype::bf16, registry_files);
}

// Tensors of several blocks, of which the last is shorter, and of fewer than there are ranks.
BOOST_AUTO_TEST_CASE(ranks_export_what_one_does) {
  gpt wide = tied;
  wide.vocabulary = 10007;
  const interpreted_program<gpt> p(wide, {.batch = {1, 16}}, "model");
  stores weights(p.view(), true);
  fill(weights);
  const test::scratch_folder dir;
  save_model_folder(dir / "model", p.view(), weights);
  for (const storage_type as : {storage_type::f32, storage_type::bf16, storage_type::f64}) {
    export_model_folder(dir / "model", dir / "one", p.view(), as);
    for (const int n : {2, 3, 7}) {
      thread_ranks(mesh_of({}, n)).run([&](communicator& c) {
        export_model_folder(model_folder(dir / "model"), dir / "many", p.view(), as, hf_shard_limit,
                            c);
      });
      BOOST_TEST((files_in(dir / "many") == files_in(dir / "one")), n << " ranks");
    }
  }
}
