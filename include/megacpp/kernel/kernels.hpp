// Every kernel of the CPU device.
#pragma once

#include <megacpp/kernel/attention.hpp>
#include <megacpp/kernel/cached_attention.hpp>
#include <megacpp/kernel/dropout.hpp>
#include <megacpp/kernel/elementwise.hpp>
#include <megacpp/kernel/embedding.hpp>
#include <megacpp/kernel/experts.hpp>
#include <megacpp/kernel/linear.hpp>
#include <megacpp/kernel/loss.hpp>
#include <megacpp/kernel/norm.hpp>
#include <megacpp/kernel/optimizer.hpp>
#include <megacpp/kernel/redistribute.hpp>
#include <megacpp/kernel/rope.hpp>
#include <megacpp/kernel/router.hpp>
#include <megacpp/kernel/select.hpp>
#include <megacpp/kernel/totals.hpp>
