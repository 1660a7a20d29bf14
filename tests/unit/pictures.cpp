// Pictures of meshes and schedules: those of the documentation are what the code draws, and show
// what papers say.
//
// MEGACPP_WRITE_PICTURES=1 in the environment writes those of the documentation anew.
#define BOOST_TEST_MODULE pictures
#include <boost/test/unit_test.hpp>

#include <megacpp/inspect/pictures.hpp>
#include <where.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace mc;

namespace {

void documented(const char* name, const std::string& svg) {
  const std::string path = test::source_dir + "/docs/pictures/" + name;
  if (std::getenv("MEGACPP_WRITE_PICTURES") != nullptr) std::ofstream(path) << svg;
  std::ifstream file(path);
  BOOST_REQUIRE(file);
  std::ostringstream there;
  there << file.rdbuf();
  BOOST_TEST((there.str() == svg),
             path << " is not what the code draws: see the head of " << __FILE__);
  BOOST_TEST(svg.size() < 24u << 10);
}

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// Texts of a picture, in their order.
std::vector<std::string> texts_of(const std::string& svg) {
  std::vector<std::string> texts;
  for (std::size_t at = svg.find("<text"); at != std::string::npos;
       at = svg.find("<text", at + 1)) {
    const std::size_t from = svg.find('>', at) + 1;
    texts.push_back(svg.substr(from, svg.find("</text>", from) - from));
  }
  BOOST_TEST(texts.size() == count(svg, "</text>"));
  return texts;
}

} // namespace

BOOST_AUTO_TEST_CASE(pictures_of_the_documentation_are_what_the_code_draws) {
  const layout mixture{.tp = 2, .pp = 2, .ep = 4, .etp = 1};
  documented("mesh.svg", mesh_picture(mesh_of(mixture, 4)));
  const auto drawn = [](pipeline_schedule order, int chunks, const char* title) {
    return schedule_picture(timed(order, pipeline(4, chunks), 8), title);
  };
  documented("schedule-1f1b.svg",
             drawn(&one_forward_one_backward, 1, "1F1B: 4 stages, 8 micro-batches"));
  documented("schedule-gpipe.svg", drawn(&gpipe, 1, "GPipe: 4 stages, 8 micro-batches"));
  documented("schedule-interleaved.svg",
             drawn(&one_forward_one_backward, 2,
                   "Interleaved 1F1B: 4 stages of 2 virtual ones, 8 micro-batches"));
}

BOOST_AUTO_TEST_CASE(a_mesh_shows_every_rank_with_its_coordinates) {
  const mesh m = mesh_of({.tp = 2, .pp = 2, .cp = 2, .ep = 4, .etp = 2}, 2);
  const std::vector<std::string> texts = texts_of(mesh_picture(m));
  BOOST_REQUIRE(texts.size() == 2u + 2 * 16 * 2);
  BOOST_TEST(texts[0] == "Dense mesh: tp 2 cp 2 dp 2 pp 2; a colour is a group of tp");
  BOOST_TEST(texts[33] == "Expert mesh: etp 2 ep 4 edp 1 pp 2; a colour is a group of etp x ep");
  for (int r = 0; r < 16; ++r) {
    const auto i = static_cast<std::size_t>(2 * r);
    BOOST_TEST(texts[1 + i] == fmt::format("rank {}", r));
    BOOST_TEST(texts[2 + i] ==
               fmt::format("tp {} cp {} dp {} pp {}", r % 2, r / 2 % 2, r / 4 % 2, r / 8));
    BOOST_TEST(texts[34 + i] == fmt::format("rank {}", r));
    BOOST_TEST(texts[35 + i] == fmt::format("etp {} ep {} pp {}", r % 2, r / 2 % 4, r / 8));
  }
  BOOST_TEST(texts_of(mesh_picture(mesh_of({}, 3))).size() == 1u + 3 * 2); // no experts
}

// 1F1B is idle (pp - 1) / (micros + pp - 1) of the time (Narayanan et al. 2021), whatever a backward
// pass costs; and what the picture shows could run.
BOOST_AUTO_TEST_CASE(a_schedule_is_as_idle_as_its_paper_says) {
  for (int pp = 1; pp <= 6; ++pp)
    for (int micros = 1; micros <= 9; ++micros) {
      const timed_schedule s = timed(&one_forward_one_backward, pp, micros);
      BOOST_TEST(length_of(s) == 3 * (micros + pp - 1));
      BOOST_TEST(bubble_of(s) == (pp - 1.0) / (micros + pp - 1.0),
                 boost::test_tools::tolerance(1e-12));
      std::map<std::tuple<bool, int, int>, timed_pass> at;
      for (int stage = 0; stage < pp; ++stage) {
        int free = 0;
        for (const timed_pass& p : s[static_cast<std::size_t>(stage)]) {
          BOOST_TEST(p.begin >= free);
          free = p.end();
          BOOST_TEST((at.emplace(std::tuple(p.backward, stage, p.micro), p).second));
        }
      }
      BOOST_TEST(at.size() == static_cast<std::size_t>(2 * pp * micros));
      for (const auto& [key, p] : at) {
        const auto [backward, stage, micro] = key;
        if (!backward && stage > 0) BOOST_TEST(p.begin >= (at[{false, stage - 1, micro}].end()));
        if (backward) BOOST_TEST(p.begin >= (at[{false, stage, micro}].end()));
        if (backward && stage + 1 < pp) BOOST_TEST(p.begin >= (at[{true, stage + 1, micro}].end()));
      }
      const std::string svg = schedule_picture(s, "a < b");
      BOOST_TEST(count(svg, "<rect") == static_cast<std::size_t>(1 + 2 * pp * micros + 2));
      BOOST_TEST(count(svg, "a &lt; b") == 3u);
    }
}

// Two stages of two chunks each, by hand: micro-batch 0 goes through stages 0, 1, 0, 1 and back.
BOOST_AUTO_TEST_CASE(chunks_of_a_stage_follow_each_other) {
  const timed_schedule s = timed({{{false, 0, 0}, {false, 0, 1}, {true, 0, 1}, {true, 0, 0}},
                                  {{false, 0, 0}, {false, 0, 1}, {true, 0, 1}, {true, 0, 0}}},
                                 2);
  const auto begins = [&](std::size_t stage) {
    std::vector<int> all;
    for (const timed_pass& p : s[stage]) all.push_back(p.begin);
    return all;
  };
  BOOST_TEST((begins(0) == std::vector{0, 2, 6, 10}));
  BOOST_TEST((begins(1) == std::vector{1, 3, 4, 8}));
  BOOST_TEST(texts_of(schedule_picture(s, "chunks")).back() == "idle 50% of the step");
}

BOOST_AUTO_TEST_CASE(a_schedule_that_waits_without_end_is_refused) {
  BOOST_CHECK_EXCEPTION(timed({{{false, 0}, {true, 0}, {false, 1}, {true, 1}},
                               {{false, 1}, {true, 1}, {false, 0}, {true, 0}}},
                              1),
                        error, [](const error& e) {
                          return std::string(e.what()).find(
                                     "stage 0 of the schedule waits without end at position 1") !=
                                 std::string::npos;
                        });
}
