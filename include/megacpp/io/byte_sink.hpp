// The function by which the bytes of a file travel from their producer to its writer.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

namespace mc {

/// A function that takes the next bytes of a file. An exception that it throws ends the writing.
using byte_sink = std::function<void(std::span<const std::byte>)>;

} // namespace mc
