// The loss curve as an SVG picture.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace mc {

struct curve_point {
  double x = 0; // step
  double y = 0; // loss; points that are not finite leave a gap
};

struct curve_options {
  std::string_view title = "Loss";
  std::string_view x_label = "step";
  std::string_view y_label = "loss (nats per token)";
  int width = 800, height = 450; // pixels
};

/// Returns round numbers within [low, high], about `wanted` of them, whose distance is 1, 2 or 5
/// times a power of ten. It returns one value if there is none, or if doubles are not close enough
/// there.
inline std::vector<double> axis_ticks(double low, double high, int wanted) {
  if (!(high > low)) return {low};
  const double raw = (high - low) / std::max(1, wanted);
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double lead = raw / power;
  const double distance = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  const double slack = 1e-9 * distance;
  const double first = std::ceil((low - slack) / distance);
  const double last = std::floor((high + slack) / distance);
  constexpr double counted = 0x1p53; // above it doubles cannot tell a number from the next
  if (!(-counted < first && first <= last && last < counted)) return {low};
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) ticks.push_back(i == 0 ? 0 : i * distance);
  return ticks;
}

namespace detail {

inline std::string xml_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '<') safe += "&lt;";
    else if (c == '>') safe += "&gt;";
    else if (c == '&') safe += "&amp;";
    else if (c == '"') safe += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20) safe += c;
  }
  return safe;
}

/// The range of the data, and the rectangle of the picture in which it is drawn.
struct curve_frame {
  double left, top, right, bottom;     // rectangle of the picture, in pixels
  double x_low, x_high, y_low, y_high; // range of the data

  double x(double v) const { return left + (v - x_low) / (x_high - x_low) * (right - left); }
  double y(double v) const { return bottom - (v - y_low) / (y_high - y_low) * (bottom - top); }
};

/// Makes a range longer at both ends by a fraction `share` of its length, or by a small margin if
/// it has no length.
inline void widen(double& low, double& high, double share) {
  const double size = std::max(std::fabs(low), std::fabs(high));
  const double margin = high > low ? share * (high - low) : std::max(1.0, 1e-3 * size);
  low -= margin, high += margin;
}

inline bool is_drawable(const curve_point& p) { return std::isfinite(p.x) && std::isfinite(p.y); }

/// Returns at most about two points for each column of pixels, the lowest and the highest, so that
/// spikes of a long run stay visible and the file stays small.
inline std::vector<curve_point> thinned(std::span<const curve_point> points, std::size_t columns) {
  if (points.size() <= 2 * columns) return {points.begin(), points.end()};
  std::vector<curve_point> kept;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t begin = c * points.size() / columns, end = (c + 1) * points.size() / columns;
    std::size_t low = begin, high = begin;
    bool gap = false;
    for (std::size_t i = begin; i < end; ++i) {
      gap = gap || !is_drawable(points[i]);
      if (!(points[i].y >= points[low].y)) low = i;
      if (!(points[i].y <= points[high].y)) high = i;
    }
    if (gap) {
      kept.insert(kept.end(), points.begin() + static_cast<std::ptrdiff_t>(begin),
                  points.begin() + static_cast<std::ptrdiff_t>(end));
      continue;
    }
    kept.push_back(points[std::min(low, high)]);
    if (low != high) kept.push_back(points[std::max(low, high)]);
  }
  return kept;
}

inline void append_series(std::string& svg, const curve_frame& frame, std::string_view css_class,
                          std::span<const curve_point> points, bool dots) {
  auto out = std::back_inserter(svg);
  std::string path;
  bool pen_down = false;
  for (const curve_point& p : points) {
    if (is_drawable(p))
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", pen_down ? "L" : "M",
                     frame.x(p.x), frame.y(p.y));
    pen_down = is_drawable(p);
  }
  if (!path.empty()) fmt::format_to(out, "<path class=\"{} line\" d=\"{}\"/>\n", css_class, path);
  if (dots || points.size() == 1)
    for (const curve_point& p : points)
      if (is_drawable(p))
        fmt::format_to(out, "<circle class=\"{} dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\"/>\n",
                       css_class, frame.x(p.x), frame.y(p.y));
}

} // namespace detail

/// Returns a picture of a run's training and validation losses: axes with ticks and labels, a
/// legend, and colours that follow the reader's light or dark setting. Either series may be empty.
/// The function is pure: equal points give equal text.
inline std::string loss_curve(std::span<const curve_point> training,
                              std::span<const curve_point> validation,
                              const curve_options& options = {}) {
  bool any = false;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  for (const auto series : {training, validation})
    for (const curve_point& p : series) {
      if (!detail::is_drawable(p)) continue;
      x_low = any ? std::min(x_low, p.x) : p.x;
      x_high = any ? std::max(x_high, p.x) : p.x;
      y_low = any ? std::min(y_low, p.y) : p.y;
      y_high = any ? std::max(y_high, p.y) : p.y;
      any = true;
    }
  detail::widen(x_low, x_high, 0);
  detail::widen(y_low, y_high, 0.05);
  const double w = std::max(options.width, 240), h = std::max(options.height, 160);
  const detail::curve_frame f{72, 44, w - 20, h - 52, x_low, x_high, y_low, y_high};

  std::string svg;
  auto out = std::back_inserter(svg);
  fmt::format_to(out,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
                 "height=\"{1}\" role=\"img\" aria-label=\"{2}\">\n<title>{2}</title>\n",
                 w, h, detail::xml_text(options.title));
  // Viewers other than browsers do not know CSS variables, so these are plain rules.
  svg +=
      "<style>\n"
      "svg{font:13px system-ui,sans-serif}.paper{fill:#fff}text{fill:#24292f}\n"
      ".grid{stroke:#d8dee4}.axis{stroke:#24292f}.line{fill:none;stroke-linejoin:round}\n"
      ".train.line{stroke:#0969da;stroke-width:1.2}.train.dot{fill:#0969da}\n"
      ".valid.line{stroke:#bc4c00;stroke-width:2}.valid.dot{fill:#bc4c00}\n"
      "@media (prefers-color-scheme:dark){.paper{fill:#0d1117}text{fill:#e6edf3}\n"
      ".grid{stroke:#30363d}.axis{stroke:#e6edf3}\n"
      ".train.line{stroke:#58a6ff}.train.dot{fill:#58a6ff}\n"
      ".valid.line{stroke:#f0883e}.valid.dot{fill:#f0883e}}\n"
      "</style>\n";
  fmt::format_to(out, "<rect class=\"paper\" width=\"{}\" height=\"{}\"/>\n", w, h);
  fmt::format_to(out, "<text x=\"{}\" y=\"24\" font-size=\"16\" font-weight=\"600\">{}</text>\n",
                 f.left, detail::xml_text(options.title));
  for (const double t : axis_ticks(y_low, y_high, 6)) {
    fmt::format_to(
        out, "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        f.left, f.y(t), f.right, f.y(t));
    fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.6g}</text>\n",
                   f.left - 8, f.y(t) + 4.5, t);
  }
  for (const double t : axis_ticks(x_low, x_high, 8)) {
    fmt::format_to(
        out, "<line class=\"axis\" x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\"/>\n",
        f.x(t), f.bottom, f.bottom + 5);
    fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.10g}</text>\n",
                   f.x(t), f.bottom + 20, t);
  }
  fmt::format_to(out,
                 "<path class=\"axis\" fill=\"none\" d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\"/>\n",
                 f.left, f.top, f.bottom, f.right);
  fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
                 (f.left + f.right) / 2, h - 12, detail::xml_text(options.x_label));
  fmt::format_to(
      out,
      "<text transform=\"translate(18 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (f.top + f.bottom) / 2, detail::xml_text(options.y_label));

  const auto columns = static_cast<std::size_t>(f.right - f.left);
  detail::append_series(svg, f, "train", detail::thinned(training, columns), false);
  detail::append_series(svg, f, "valid", detail::thinned(validation, columns),
                        validation.size() <= 64);

  double at = f.right;
  const std::array<std::string_view, 2> names{"validation", "training"}, classes{"valid", "train"};
  for (std::size_t i = 0; i < 2; ++i) {
    if ((i == 0 ? validation : training).empty()) continue;
    fmt::format_to(out, "<text x=\"{:.1f}\" y=\"24\" text-anchor=\"end\">{}</text>\n", at,
                   names[i]);
    at -= 8.0 * static_cast<double>(names[i].size()) + 4;
    fmt::format_to(out,
                   "<line class=\"{} line\" x1=\"{:.1f}\" y1=\"20\" x2=\"{:.1f}\" y2=\"20\"/>\n",
                   classes[i], at - 22, at);
    at -= 40;
  }
  svg += "</svg>\n";
  return svg;
}

} // namespace mc
