// The requests of the commands of a program.
#pragma once

#include <megacpp/request/data_request.hpp>
#include <megacpp/request/kept_request.hpp>
#include <megacpp/request/loop_request.hpp>
#include <megacpp/request/report_request.hpp>
#include <megacpp/request/sampling_request.hpp>
#include <megacpp/request/start_request.hpp>
#include <megacpp/request/tokenizer_request.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace mc {

struct training_request {
  start_request start;
  data_request data;
  loop_request loop;
  report_request reports;
  std::shared_ptr<const kept_request> kept = std::make_shared<kept_request>();
};

/// An evaluation of a model on data, or on the samples that an evaluation of a training run reads.
/// A message names a member as evaluation_request::member.
struct evaluation_request {
  start_request start;
  data_request data;
  std::optional<std::int64_t> eval_iters;   ///< batches that are measured; none: all data
  std::optional<std::int64_t> global_batch; ///< sequences of a batch; none: as the run had
  bool by_set = false;                      ///< `eval_iters` counts for each data set
  bool json = false;                        ///< one object a line
};

struct generation_request {
  start_request start;
  tokenizer_request tokenizer;
  sampling_request sampling;
};

/// A model to be written anew. A message names a member as export_request::member.
struct export_request {
  start_request start;
  std::optional<std::string> save; ///< the folder to write
  std::optional<std::string>
      layout;       ///< layout of the experts' factors of an adapter by itself; none: PEFT's
  bool nf4 = false; ///< linear layers are written in NF4
  bool through_nf4 = false;    ///< weights that an adapter is merged into are rounded to NF4
  bool merge = false;          ///< the adapter is added to the weights of its base
  std::string type = "stored"; ///< type of the weights: stored, fp32, bf16 or fp64
  std::optional<std::uint64_t>
      max_shard; ///< most bytes of a file of weights; none: Hugging Face's default
};

} // namespace mc
