// Component and role requests: which layer takes which, and that none was given in vain.
#pragma once

#include <string>

#include "h3/attention/selection.h"

namespace h3 {

/// The request for a component, own or inherited ("transformer_2" inherits "transformer"); null if
/// there is none.
const RequestedBackend* find_component_request(const ComponentRequests& requests,
                                               const std::string& component);
const RequestedBackend* find_role_request(const ComponentRequests& requests,
                                          const LayerDescriptor& layer);

/// Throws kInvalidArgument for a request that addresses no component of the model.
void check_known_components(const ComponentRequests& requests, const ModelLayers& model);

/// Throws kInvalidArgument for a request that no layer took, that led to another backend, or that
/// holds for a part of the component only without a recorded reason; and for sub-block options
/// without a layer that uses them.
void check_requests_used(const AttentionPlan& plan, const ModelLayers& model);

}  // namespace h3
