// How the bytes of a file being written travel from who has them to who stores them.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace mc {

/// Takes the next bytes of a file. What it throws ends the writing.
using byte_sink = std::function<void(std::span<const std::byte>)>;

} // namespace mc
