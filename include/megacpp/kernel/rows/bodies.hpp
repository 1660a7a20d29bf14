// Every header with row bodies, for units that compile all of them (kernel/rows/bodies.inc).
#pragma once

#include <megacpp/kernel/rows/activation.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/kernel/rows/cached_attention.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/cross_entropy.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/nf4.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/reduce.hpp>
#include <megacpp/kernel/rows/rms_norm.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/extent.hpp>
