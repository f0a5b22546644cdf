// One place where the commands route and attend: on the CPU over the mapped file, on CUDA over
// copies. Parameters and results are host memory in both cases.
//
//   Engine engine(device, global);
//   TESSERA_RETURN_IF_ERROR(engine.open(input));
//   TESSERA_RETURN_IF_ERROR(engine.attend(params, &plan, kernel, progress, &seconds));
#pragma once

#include <functional>
#include <string>

#include "tessera/attention.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/common/device_memory.h"
#include "tessera/cli/common/input.h"
#include "tessera/router.h"

namespace tessera::cli {

using Progress = std::function<void(int64_t done, int64_t total)>;

class Engine {
 public:
  Engine(const Device& device, const GlobalOptions& global);

  /// CUDA: copies q, k and (if present) v to the device. Borrows `input`.
  Status open(const Input& input);

  /// `params` with the host tensors of `input`. `seconds`: wall time on the CPU, device time
  /// without copies on CUDA.
  Status route(const RouteParams& params, const Progress& progress, Plan* plan, double* seconds);

  /// Fills params.out and params.lse (host, contiguous). The values of params.plan must have been
  /// checked: plans made by `route`, and files read by read_plan.
  Status attend(const AttentionParams& params, const std::string& kernel, const Progress& progress,
                double* seconds);

  /// Which kernel would run. Reserves the output on a CUDA device, as `attend` would.
  Explanation explain(const AttentionParams& params, const std::string& kernel);

  bool on_cuda() const { return exec_.device.kind == DeviceKind::kCuda; }

 private:
  Status route_cuda(RouteParams params, Plan* plan, double* seconds);
  Status attend_cuda(const AttentionParams& host, const std::string& kernel, double* seconds);
  Status to_device(const AttentionParams& host, AttentionParams* out);
  Status upload_plan(const PlanView& host, PlanView* out);

  Execution exec_;
  DeviceStream stream_;
  DeviceTimer timer_;
  DeviceBuffer q_, k_, v_, out_, lse_, workspace_;
  DeviceBuffer index_, count_, dense_rows_, mass_;
};

}  // namespace tessera::cli
