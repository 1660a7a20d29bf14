// Pictures of a layout as SVG: the ranks of its two meshes, and the time at which each pipeline
// stage runs each pass of each micro-batch. The functions are pure: equal arguments give equal
// text. Colours follow the reader's light or dark setting.
#pragma once

#include <megacpp/comm/group.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/observe/curve.hpp>
#include <megacpp/plan/step.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

inline void begin_picture(std::string& svg, int width, int height, std::string_view title) {
  fmt::format_to(std::back_inserter(svg),
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
                 "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n",
                 width, height, xml_text(title));
  svg +=
      "<style>\n"
      "svg{font:11px system-ui,sans-serif}.paper{fill:#fff}text{fill:#24292f;text-anchor:middle}\n"
      ".left{text-anchor:start}.title{font-size:14px;font-weight:600;text-anchor:start}\n"
      "rect{stroke:#fff}.a{fill:#b6dbff}.b{fill:#b4f1b4}.c{fill:#ffdf9e}.d{fill:#e3ccff}\n"
      ".e{fill:#ffd0d8}.f{fill:#b3f0e8}.g{fill:#dfe3e8}.h{fill:#f3e6a2}\n"
      "@media (prefers-color-scheme:dark){.paper{fill:#0d1117}text{fill:#e6edf3}\n"
      "rect{stroke:#0d1117}.a{fill:#0c4a8a}.b{fill:#1a5c2a}.c{fill:#7a4f01}.d{fill:#553098}\n"
      ".e{fill:#8e2a3d}.f{fill:#0f5f58}.g{fill:#3d444d}.h{fill:#5f5600}}\n"
      "</style>\n";
  fmt::format_to(std::back_inserter(svg), "<rect class=\"paper\" width=\"{}\" height=\"{}\"/>\n",
                 width, height);
}
inline void add_text(std::string& svg, int x, int y, std::string_view text,
                     std::string_view css_class = "") {
  fmt::format_to(std::back_inserter(svg), "<text{} x=\"{}\" y=\"{}\">{}</text>\n",
                 css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class), x, y,
                 xml_text(text));
}
inline void add_rectangle(std::string& svg, char colour, int x, int y, int width, int height) {
  fmt::format_to(std::back_inserter(svg),
                 "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", colour, x,
                 y, width, height);
}

} // namespace detail

/// Returns a picture of a mesh whose sizes are known, as the dense mesh and as the expert mesh that
/// folds over it. Each rank has the same place in both, with its coordinates. Ranks that share a
/// layer, or experts, have one colour.
inline std::string mesh_picture(const mesh& m) {
  constexpr int height = 44, left = 12, colours = 8;
  int most = 1; // number of axes on which a rank has coordinates
  for (const auto& of_mesh : axes_by_rank)
    most = std::max(most, static_cast<int>(std::count_if(std::begin(of_mesh), std::end(of_mesh),
                                                         [&](axis a) { return m.of(a) > 1; })));
  const int width = std::max(72, 12 + 28 * most);
  const int ranks = ranks_of(m), of_stage = ranks / m.of(axis::pp), columns = std::min(of_stage, 8);
  const int rows = m.of(axis::pp) * ((of_stage + columns - 1) / columns);
  const bool experts = m.of(axis::ep) * m.of(axis::etp) > 1;
  const int panel = 40 + rows * height, panels = experts ? 2 : 1;
  std::string svg;
  detail::begin_picture(svg, std::max(columns * width + 2 * left, 640), panels * panel + left,
                        fmt::format("{} ranks", ranks));
  for (int p = 0; p < panels; ++p) {
    const axis_set together = p == 0 ? axis_set{axis::tp} : axis_set{axis::ep, axis::etp};
    std::string sizes, one;
    for (const axis a : axes_by_rank[p]) sizes += fmt::format(" {} {}", name_of(a), m.of(a));
    for (const axis a : axes_by_rank[p])
      if (together.has(a) && m.of(a) > 1)
        one += fmt::format("{}{}", one.empty() ? "" : " x ", name_of(a));
    detail::add_text(svg, left, p * panel + 22,
                     fmt::format("{} mesh:{}{}", p == 0 ? "Dense" : "Expert", sizes,
                                 one.empty() ? "" : "; a colour is a group of " + one),
                     "title");
    for (int r = 0; r < ranks; ++r) {
      const coordinates at = coordinates_of(m, r);
      const int stage = at[static_cast<unsigned>(axis::pp)], in_stage = r - stage * of_stage;
      const int x = left + in_stage % columns * width,
                y = p * panel + 32 +
                    (stage * (rows / m.of(axis::pp)) + in_stage / columns) * height;
      const group g(m, together, r);
      int before = 0; // number of groups whose first rank comes before this group's
      for (int q = 0; q < g[0]; ++q) before += group(m, together, q)[0] == q;
      detail::add_rectangle(svg, static_cast<char>('a' + before % colours), x, y, width, height);
      detail::add_text(svg, x + width / 2, y + 18, fmt::format("rank {}", r));
      std::string where;
      for (const axis a : axes_by_rank[p])
        if (m.of(a) > 1)
          where += fmt::format("{}{} {}", where.empty() ? "" : " ", name_of(a),
                               at[static_cast<unsigned>(a)]);
      detail::add_text(svg, x + width / 2, y + 34, where);
    }
  }
  return svg + "</svg>\n";
}

/// A forward or backward pass of a micro-batch through a chunk of a stage's layers, and the time
/// when it begins. A forward pass through a chunk takes 1 unit of time and a backward pass 2.
struct timed_pass {
  bool backward = false;
  int micro = 0, chunk = 0;
  int begin = 0;

  int end() const { return begin + (backward ? 2 : 1); }
};
/// The passes of each stage, in their order.
using timed_schedule = std::vector<std::vector<timed_pass>>;

/// Returns the schedule with the time of each pass. A pass begins when two others have ended: the
/// one before it on its stage, and the one that it depends on, which is in the virtual stage before
/// (forward) or behind (backward). Virtual stages are chunk 0 of every stage, then chunk 1, and so
/// on. Throws mc::error(exit_code::internal) if a pass waits without end.
inline timed_schedule timed(timed_schedule order, int chunks) {
  const int stages = static_cast<int>(order.size()), all = stages * chunks;
  const auto number = [&](int stage, int chunk) { return chunk * stages + stage; };
  std::vector<std::size_t> next(order.size(), 0);
  std::vector<int> free(order.size(), 0);
  const auto find = [&](bool backward, int v, int micro) -> const timed_pass* {
    const auto s = static_cast<std::size_t>(v % stages);
    for (std::size_t i = 0; i < next[s]; ++i)
      if (const timed_pass& p = order[s][i];
          p.backward == backward && p.micro == micro && p.chunk == v / stages)
        return &p;
    return nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < stages; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      for (; next[s] < order[s].size(); ++next[s], moved = true) {
        timed_pass& p = order[s][next[s]];
        const int v = number(stage, p.chunk), by = p.backward ? v + 1 : v - 1;
        const bool last = p.backward && v + 1 == all; // its forward pass comes before it
        const timed_pass* const waits_for =
            last ? find(false, v, p.micro) : (by < 0 ? nullptr : find(p.backward, by, p.micro));
        if (waits_for == nullptr && (last || by >= 0)) break;
        p.begin = std::max(free[s], waits_for != nullptr ? waits_for->end() : 0);
        free[s] = p.end();
      }
    }
  }
  for (int stage = 0; stage < stages; ++stage)
    if (next[static_cast<std::size_t>(stage)] < order[static_cast<std::size_t>(stage)].size())
      throw error(exit_code::internal,
                  fmt::format("stage {} of the schedule waits without end at position {}: mend it",
                              stage, next[static_cast<std::size_t>(stage)]));
  return order;
}
/// Returns the passes of a pipeline schedule with the time of each.
inline timed_schedule timed(pipeline_schedule order, const pipeline& of, int micros) {
  timed_schedule passes(static_cast<std::size_t>(of.stages));
  for (int stage = 0; stage < of.stages; ++stage)
    for (int i = 0; i < 2 * micros * of.chunks; ++i) {
      const chunk_pass s = pass_at(order, of, stage, i, micros);
      passes[static_cast<std::size_t>(stage)].push_back({s.backward, s.micro, s.chunk});
    }
  return timed(std::move(passes), of.chunks);
}
inline int length_of(const timed_schedule& s) {
  int end = 0;
  for (const std::vector<timed_pass>& stage : s)
    for (const timed_pass& p : stage) end = std::max(end, p.end());
  return end;
}
/// Returns the fraction of the schedule's length in which a stage is idle, on average.
inline double bubble_of(const timed_schedule& s) {
  std::int64_t busy = 0;
  for (const std::vector<timed_pass>& stage : s)
    for (const timed_pass& p : stage) busy += p.end() - p.begin;
  return 1 - static_cast<double>(busy) /
                 (static_cast<double>(length_of(s)) * static_cast<double>(s.size()));
}

/// Returns a picture of a schedule over time, with a row for each stage. Forward passes, and
/// backward passes, which are twice as long, show the number of their micro-batch. Chunks have
/// different colours.
inline std::string schedule_picture(const timed_schedule& s, std::string_view title) {
  constexpr int height = 26, left = 64, top = 34;
  const int length = length_of(s), width = std::clamp(880 / std::max(1, length), 6, 20);
  int chunks = 1;
  for (const std::vector<timed_pass>& stage : s)
    for (const timed_pass& p : stage) chunks = std::max(chunks, p.chunk + 1);
  constexpr std::array<char, 4> forward{'a', 'f', 'd', 'g'}, backward{'b', 'c', 'e', 'h'};
  const int bottom = top + static_cast<int>(s.size()) * height;
  std::string svg;
  detail::begin_picture(svg, std::max(left + length * width + 12, 480), bottom + 34, title);
  detail::add_text(svg, 12, 22, title, "title");
  for (std::size_t stage = 0; stage < s.size(); ++stage) {
    const int y = top + static_cast<int>(stage) * height;
    detail::add_text(svg, 12, y + 17, fmt::format("stage {}", stage), "left");
    for (const timed_pass& p : s[stage]) {
      const int w = (p.end() - p.begin) * width, x = left + p.begin * width;
      const auto chunk = static_cast<std::size_t>(p.chunk) % forward.size();
      detail::add_rectangle(svg, p.backward ? backward[chunk] : forward[chunk], x, y, w, height);
      const std::string number = fmt::format("{}", p.micro);
      if (w > 6 * static_cast<int>(number.size())) detail::add_text(svg, x + w / 2, y + 17, number);
    }
  }
  int x = left;
  for (int chunk = 0; chunk < std::min(chunks, 4); ++chunk)
    for (const bool back : {false, true}) {
      const auto c = static_cast<std::size_t>(chunk);
      detail::add_rectangle(svg, back ? backward[c] : forward[c], x, bottom + 12, 12, 12);
      const std::string name = fmt::format("{}{}", back ? "backward" : "forward",
                                           chunks > 1 ? fmt::format(", chunk {}", chunk) : "");
      detail::add_text(svg, x + 18, bottom + 22, name, "left");
      x += 30 + 7 * static_cast<int>(name.size());
    }
  detail::add_text(svg, x, bottom + 22, fmt::format("idle {:.0f}% of the step", 100 * bubble_of(s)),
                   "left");
  return svg + "</svg>\n";
}

} // namespace mc
