// A resolved attention plan under degrees: what is admitted, and what ranks compare at start.
#pragma once

#include "h3/attention/selection.h"
#include "h3/parallel/config_record.h"
#include "h3/parallel/plan.h"

namespace h3::parallel {

/// What admit_layer needs to know about a layer of the plan.
LayerFacts facts_of(const ResolvedLayer& layer);

/// admit_layer for every layer of the plan, then admit_h3. Throws the first refusal.
void admit_plan(const AttentionPlan& plan, const Degrees& degrees);

/// Adds the backend of every component and the plan's digest, under "attention.".
void record_plan(const AttentionPlan& plan, ConfigRecord* record);

}  // namespace h3::parallel
