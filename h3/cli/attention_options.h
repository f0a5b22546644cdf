// The attention options of the command line, shared by every command that loads the model.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "h3/attention/selection.h"
#include "h3/cli/commands.h"

namespace h3::cli {

struct AttentionOptionTexts {
  std::optional<std::string> backend, components, config;
  bool allow_fallback = false;
  std::optional<int> ulysses_degree, ring_degree;  // absent: follow from the number of ranks
};

/// Adds --attention-backend, --component-attention-backends, --attention-backend-config,
/// --allow-fallback, --ulysses-degree and --ring-degree.
void add_attention_options(CLI::App* command, AttentionOptionTexts& texts);

/// Parses the texts and the dotted forms. Throws h3::Error.
AttentionChoices attention_choices(const AttentionOptionTexts& texts, const GlobalOptions& global);

}  // namespace h3::cli
