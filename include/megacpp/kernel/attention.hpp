// Tiled attention on the CPU, forward and backward: never holds Sq x Sk.
#pragma once

#include <megacpp/kernel/attention_backward.hpp>
#include <megacpp/kernel/attention_forward.hpp>
