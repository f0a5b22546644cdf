"""Tiny audio VAEs of the parity tests: diffusers' own model with random weights that keep every path alive."""
import json

import torch
from diffusers import AutoencoderKLMiniMaxH3Audio
from safetensors.torch import save_file

TINY = dict(
    encoder_dim=4, encoder_rates=(2, 2), latent_dim=32, latent_channels=8, num_attention_heads=2, decoder_dim=16,
    decoder_rates=(2, 2), decoder_kernel_sizes=(4, 4), resblock_kernel_sizes=(3, 7), resblock_dilation_sizes=((1, 3), (1, 3)))
# Odd strides, pooling windows that overlap (16 -> 6), unequal numbers of dilations.
ODD = dict(
    encoder_dim=6, encoder_rates=(3, 5), latent_dim=48, latent_channels=6, num_attention_heads=3, decoder_dim=24,
    decoder_rates=(5, 3), decoder_kernel_sizes=(9, 5), resblock_kernel_sizes=(3, 5, 11),
    resblock_dilation_sizes=((1, 3, 5), (2,), (1, 4)))
# All stages of the published model, narrow.
DEEP = dict(
    encoder_dim=8, latent_dim=256, latent_channels=32, num_attention_heads=8, decoder_dim=256)


def make_model(config, seed=20261130, volume=0.4):
    """`volume` scales the last convolution: clamped samples would compare nothing, nor would silence."""
    model = AutoencoderKLMiniMaxH3Audio(**config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("alpha") and p.ndim == 3:
                p.copy_(0.1 + 1.9 * torch.rand(p.shape, generator=generator))  # linear scale
            elif name.endswith(("alpha", "beta")):
                p.copy_(0.2 * noise)  # log scale
            elif name.endswith("weight_g"):  # about the variance through every convolution
                p.copy_(0.8 * (1 + 0.1 * noise))
                if "conv_post" in name:
                    p.mul_(volume)
            elif "norm" in name and name.endswith("weight"):
                p.copy_(1 + 0.1 * noise)
            elif p.ndim > 1 and not name.endswith("weight_v"):
                p.copy_(1.5 * noise / p[0].numel() ** 0.5)
            else:
                p.copy_(0.2 * noise)
    return model


def config_json(config, model):
    keys = {k: v for k, v in model.config.items() if k in config or k == "sampling_rate"}
    channels = model.config.latent_channels
    keys["latents_mean"] = [0.1 * i - 0.3 for i in range(channels)]
    keys["latents_std"] = [1.0 + 0.25 * i for i in range(channels)]
    return {"_class_name": "AutoencoderKLMiniMaxH3Audio", **keys}


def parametrized(state):
    """The same pair as newer torch spells it."""
    names = {".weight_g": ".parametrizations.weight.original0", ".weight_v": ".parametrizations.weight.original1"}
    out = {}
    for name, t in state.items():
        for old, new in names.items():
            if name.endswith(old):
                name = name[:-len(old)] + new
        out[name] = t
    return out


def folded(state):
    out = {}
    for name, t in state.items():
        if name.endswith(".weight_v"):
            g = state[name[:-1] + "g"].double()
            v = t.double()
            out[name[:-2]] = (g * v / v.flatten(1).norm(dim=1).view(-1, 1, 1)).float()
        elif not name.endswith(".weight_g"):
            out[name] = t
    return out


STYLES = {"diffusers": lambda state: state, "parametrized": parametrized, "folded": folded}


def save(model, config, folder, style="diffusers", change=None):
    folder.mkdir(parents=True, exist_ok=True)
    state = STYLES[style]({k: v.detach().clone() for k, v in model.state_dict().items()})
    if change:
        change(state)
    save_file({k: v.contiguous().clone() for k, v in state.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config_json(config, model)))


def save_released(model, config, folder):
    """config.json with the statistics alone, the shape in metadata.json: as the original release."""
    save(model, config, folder)
    full = config_json(config, model)
    stats = {k: full[k] for k in ("latents_mean", "latents_std", "latent_channels")}
    (folder / "config.json").write_text(json.dumps({"_class_name": "MiniMaxH3AudioVAE", "sample_rate": 32000, **stats}))
    kwargs = {k: full[k] for k in config if k != "latent_channels"}
    kwargs.update(vae_latent_channels=full["latent_channels"], attn_proj=True, decoder_type="bigvgan", sample_rate=32000)
    (folder / "metadata.json").write_text(json.dumps({"metadata": {"kwargs": kwargs}}))
