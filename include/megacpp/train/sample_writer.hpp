// Texts that a training run writes between its steps. generate/ has a writer of them, and stands
// below train/.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/stores.hpp>
#include <megacpp/run/view.hpp>

#include <functional>
#include <memory>
#include <string_view>

namespace mc {

class sample_writer {
public:
  virtual ~sample_writer() = default;
  /// Returns a text by the weights as they are now, which is valid until the next call; less of it
  /// once `stop` asks for an end. Changes nothing that training reads. Throws mc::error.
  virtual std::string_view write(const stop_signals* stop) = 0;
};

/// Makes a writer for a session's weights and the data of its run; all must outlive it. Throws
/// mc::error for a request that contradicts the data, and for a model that cannot generate.
using make_sample_writer = std::function<std::unique_ptr<sample_writer>(
    const program_view&, const training_request&, device&, const stores&, const run_data&)>;

} // namespace mc
