// The programs that bench/gpu/ten_minutes.py measures compile, and fit on an H100.
#include "../../bench/gpu/programs/runs.hpp"

#include <megacpp/run/compiled.hpp>

using mc::operator""_GiB;

static_assert(mc::fits<gpt2_124m_on_cuda>(75_GiB));
static_assert(mc::fits<gpt2_1558m_on_cuda>(75_GiB));
static_assert(mc::fits<qwen3_8b_on_cuda>(75_GiB));
static_assert(mc::fits<qwen3_30b_a3b_on_cuda>(75_GiB));
static_assert(mc::fits<small_experts_on_cuda>(1_GiB));
