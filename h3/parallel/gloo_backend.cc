#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "h3/parallel/backend.h"
#include "h3/parallel/environment.h"

namespace h3::parallel {

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store,
                                            const BackendOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(options.timeout);
  gloo->group_name = options.group_name;
  auto interface = process_env("H3_SOCKET_IFNAME");
  if (!interface) interface = process_env("GLOO_SOCKET_IFNAME");
  if (interface)
    gloo->devices.push_back(Gloo::createDeviceForInterface(*interface));
  else if (is_loopback(options.master_addr))
    // The host's own name may resolve to an address that nobody can reach, as in containers.
    gloo->devices.push_back(Gloo::createDeviceForHostname(options.master_addr));
  else
    gloo->devices.push_back(Gloo::createDefaultDevice());
  return c10::make_intrusive<Gloo>(store, options.rank, options.size, gloo);
}

}  // namespace h3::parallel
