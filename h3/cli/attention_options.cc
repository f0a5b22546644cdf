#include "h3/cli/attention_options.h"

#include <utility>
#include <vector>

namespace h3::cli {
namespace {

std::vector<std::pair<std::string, std::string>> dotted_of(const GlobalOptions& global,
                                                           const std::string& option) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const DottedOption& d : global.dotted) {
    if (d.option == option) pairs.emplace_back(d.key, d.value);
  }
  return pairs;
}

}  // namespace

void add_attention_options(CLI::App* command, AttentionOptionTexts& texts) {
  command
      ->add_option("--attention-backend", texts.backend,
                   "Backend of every layer that can run it (h3 attention --backends lists them)")
      ->type_name("NAME");
  command
      ->add_option("--component-attention-backends", texts.components,
                   "Backends per component or role: JSON, @FILE, a=b,c=d, or "
                   "--component-attention-backends.NAME BACKEND")
      ->type_name("TEXT");
  command
      ->add_option("--attention-backend-config", texts.config,
                   "Options of subblock_sparse_attn: JSON, @FILE, PATH, k=v,k=v, or "
                   "--attention-backend-config.KEY VALUE")
      ->type_name("TEXT");
  command->add_flag("--allow-fallback", texts.allow_fallback,
                    "Let an explicit request be replaced where it cannot run");
  command->add_option("--ulysses-degree", texts.ulysses_degree, "Ranks that share the heads")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  command->add_option("--ring-degree", texts.ring_degree, "Ranks that pass keys around")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
}

AttentionChoices attention_choices(const AttentionOptionTexts& texts, const GlobalOptions& global) {
  AttentionChoices choices;
  if (texts.backend) {
    choices.global = RequestedBackend{backend_from_text(*texts.backend, "--attention-backend")};
  }
  choices.components = parse_component_requests(texts.components.value_or(""),
                                                dotted_of(global, "component-attention-backends"));
  const auto config = dotted_of(global, "attention-backend-config");
  choices.subblock = parse_subblock_settings(texts.config.value_or(""), config);
  // Empty text sets nothing; neither does an object that repeats the defaults.
  choices.subblock_given = !config.empty() || !(choices.subblock == SubBlockSettings{});
  choices.allow_fallback = texts.allow_fallback;
  choices.ulysses_degree = texts.ulysses_degree.value_or(1);
  choices.ring_degree = texts.ring_degree.value_or(1);
  return choices;
}

}  // namespace h3::cli
