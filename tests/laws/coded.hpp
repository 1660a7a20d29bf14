// A parameter that is stored in two arrays, and the op that reads it. It has a code of a byte for
// each element, and for each 64 elements along the last dim a number that multiplies their codes
// (Dettmers et al. 2022, 8-bit block-wise quantisation, here with codes at even distances).
#pragma once

#include <megacpp/graph/letters.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/nn/linear.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace mc_test {

inline constexpr std::int64_t coded_block = 64;
constexpr void same_shape(mc::value& /*box*/) {}
constexpr void one_a_block(mc::value& box) { box.dims[box.rank - 1].n /= coded_block; }
inline void encode_block(const double* x, std::byte* const* to) {
  double most = 0;
  for (std::int64_t i = 0; i < coded_block; ++i) most = std::max(most, std::abs(x[i]));
  const auto scale = static_cast<float>(most / 127);
  for (std::int64_t i = 0; i < coded_block; ++i)
    to[0][i] = static_cast<std::byte>(
        static_cast<int>(std::lround(scale > 0 ? x[i] / static_cast<double>(scale) : 0)) + 128);
  std::memcpy(to[1], &scale, sizeof scale);
}
inline constexpr mc::parameter_encoding coded_form{
    .name = "blocks of 64 codes",
    .block = coded_block,
    .count = 2,
    .arrays = {{"codes", mc::dtype::u8, &same_shape}, {"scales", mc::dtype::f32, &one_a_block}},
    .encode = &encode_block};

struct decode_in : mc::input_names<decode_in> {
  static constexpr name<0, mc::element::u8> codes{};
  static constexpr name<1> scales{};
};
struct decode_out : mc::output_names<decode_out> {
  static constexpr name<0, mc::element::converted> w{};
};
struct decode_attributes {
  mc::dtype to;
};
constexpr void decode_rule(mc::inference& c) {
  using in = decode_in;
  c.typed({in::codes}, mc::dtype::u8), c.typed({in::scales}, mc::dtype::f32);
  const mc::value &codes = c.in(in::codes), &scales = c.in(in::scales);
  c.require(codes.rank == scales.rank, mc::fault::S003, in::codes, in::scales);
  if (codes.rank != scales.rank) return;
  for (int i = 0; i < codes.rank; ++i) {
    const std::int64_t each = i + 1 == codes.rank ? coded_block : 1;
    const bool same =
        codes.dims[i].d == scales.dims[i].d && codes.dims[i].n == each * scales.dims[i].n;
    c.require(same, mc::fault::S002, in::codes, in::scales);
  }
  c.declare(codes).type = c.n.attr.as<decode_attributes>().to;
  mc::place_output(c, 0, mc::algebra::nonlinear, {in::codes, in::scales});
}
inline constexpr mc::op_info decode{.name = "decode",
                                    .rule = &decode_rule,
                                    .typed_by = decode_in::scales,
                                    .decodes = true,
                                    .attributes = mc::attributes_of<decode_attributes>,
                                    .operands = mc::named<decode_in, decode_out>};

template <class T> struct decode_block {
  const std::uint8_t* codes;
  const float* scales;
  T* w;
  template <class Team> void operator()(const Team& /*team*/, std::int64_t b) const {
    for (std::int64_t i = b * coded_block; i < (b + 1) * coded_block; ++i)
      w[i] = mc::convert<T>(static_cast<float>(codes[i] - 128) * scales[b]);
  }
};

} // namespace mc_test

template <> struct mc::kernel_of<&mc_test::decode> {
  template <class, class Call> static void run(Call& c) {
    using in = mc_test::decode_in;
    using out = mc_test::decode_out;
    with_float_type(c.value_of(out::w).type, [&]<class T>(T) {
      for_rows(c.lane(), c.size(in::scales),
               mc_test::decode_block<T>{c.in(in::codes), c.in(in::scales),
                                        reinterpret_cast<T*>(c.out(out::w))});
    });
  }
};

namespace mc_test {

/// A GPT whose blocks have a second MLP, with encoded weights or with plain frozen ones.
struct coded_gpt : mc::gpt {
  static constexpr mc::family_name<coded_gpt> family{"coded"};
  bool coded = true;
  static constexpr auto members = mc::gpt::members + mc::member_list<&coded_gpt::coded>{};

  constexpr mc::var frozen_weight(mc::context& c, const char* scope,
                                  std::initializer_list<mc::extent> dims, mc::placement at) const {
    using namespace mc;
    var w;
    if (coded) {
      const auto stored =
          c.b->parameter(scope, "weight", coded_form, dims, at, normal_weights(0.1));
      w = {c.b, c.b->emit(decode, {stored[0].id, stored[1].id}, 0,
                          decode_attributes{c.precision.weight})};
    } else {
      parameter_info info = normal_weights(0.1);
      info.frozen = true;
      w = c.b->parameter(scope, "weight", c.precision.weight, dims, at, info);
    }
    return to(to(w, axis::dp, R), axis::cp, R);
  }
  constexpr mc::var block(mc::context& c, int kind, mc::var x) const {
    using namespace mc;
    const var h = gpt::block(c, kind, x);
    const placement cut = on(axis::tp, S(dim::ffn));
    const extent F{dim::ffn, ffn}, H = hidden_extent();
    const var up = linear(to(h, axis::tp, R), frozen_weight(c, "coded.up", {F, H}, cut));
    const var down = linear(gelu(up), frozen_weight(c, "coded.down", {H, F}, cut));
    return h + to(down, axis::tp, c.stream);
  }
};

} // namespace mc_test
