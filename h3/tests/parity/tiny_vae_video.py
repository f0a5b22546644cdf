"""Tiny video VAEs for the parity tests: diffusers' own model with random weights that keep every path alive."""
import json

import diffusers
import torch
from safetensors.torch import save_file

MEAN24 = [0.1 * (i % 7) - 0.3 for i in range(24)]
STD24 = [0.7 + 0.1 * (i % 5) for i in range(24)]
CONFIGS = {
    # Names as in the converter's test configuration: every temporal and spatial path, 32 channels a head.
    "v-min": dict(latent_channels=24, block_out_channels=(32, 64), layers_per_block=1, spatial_downsample_factors=(2, 2),
                  temporal_downsample_factors=(2, 2), decoder_num_layers=4, decoder_num_attention_heads=4,
                  decoder_attention_head_dim=32),
    # Group count, registers and MLP width of their own; one rotary frequency per axis.
    "v-small": dict(latent_channels=4, block_out_channels=(8, 16), layers_per_block=1, spatial_downsample_factors=(2, 2),
                    temporal_downsample_factors=(2, 2), decoder_num_layers=2, decoder_num_attention_heads=2,
                    decoder_attention_head_dim=8, norm_num_groups=8, decoder_num_register_tokens=2, decoder_ffn_mult=2),
    # The released head width; no temporal compression, so that one clip is two latents.
    "v-tile": dict(latent_channels=8, block_out_channels=(32, 32), layers_per_block=1, spatial_downsample_factors=(2, 2),
                   temporal_downsample_factors=(1, 1), decoder_num_layers=2, decoder_num_attention_heads=2,
                   decoder_attention_head_dim=64),
    # The released patch: 16 pixels and 4 frames, from levels of which the last keep the size.
    "v-patch": dict(latent_channels=24, block_out_channels=(32, 32, 64, 64, 64), layers_per_block=1,
                    spatial_downsample_factors=(2, 2, 2, 2, 1), temporal_downsample_factors=(1, 2, 2, 1, 1),
                    decoder_num_layers=2, decoder_num_attention_heads=2, decoder_attention_head_dim=64),
}
TILE = {"v-min": (32, 8), "v-small": (16, 8), "v-tile": (32, 8), "v-patch": (64, 16)}


def statistics(name):
    channels = CONFIGS[name]["latent_channels"]
    return MEAN24[:channels], STD24[:channels]


def make_model(name, seed=20261130):
    mean, std = statistics(name)
    model = diffusers.AutoencoderKLMiniMaxH3(**CONFIGS[name], latents_mean=mean, latents_std=std).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in key and key.endswith("weight"):
                p.copy_(1 + 0.1 * noise)
            elif p.ndim > 1 and "register" not in key:
                p.copy_(noise / p[0].numel() ** 0.5)
            else:  # biases, layer scales, registers
                p.copy_(0.3 * noise)
            if ".to_q." in key or ".to_k." in key:  # norms of q and k make any scale of these alike
                p.mul_(2)
    return model


def set_tiling(model, name, on):
    if not on:
        return model.disable_tiling()
    size, overlap = TILE[name]
    model.enable_tiling(size, size, overlap, overlap)


def save_diffusers(model, name, folder):
    """As a diffusers copy of the release has it: vae/config.json and its weights; tiles beside them."""
    vae = folder / "vae"
    vae.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, vae / "diffusion_pytorch_model.safetensors")
    mean, std = statistics(name)
    size, overlap = TILE[name]
    (vae / "config.json").write_text(json.dumps(dict(
        _class_name="AutoencoderKLMiniMaxH3", clip_length=17, token_drop=3, latents_mean=mean, latents_std=std,
        vae_tile_size=size, vae_tile_overlap_min=overlap, **CONFIGS[name])))


def official_tensors(state, heads, width):
    """Names and layouts of the original checkpoint, written from the published conversion rules."""
    out = {}
    for key, value in state.items():
        key = key.replace("encoder.down_blocks.", "encoder.down.").replace(".resnets.", ".block.")
        key = key.replace(".conv_shortcut.", ".nin_shortcut.").replace(".downsamplers.0.", ".downsample.")
        key = key.replace("decoder.proj_in.", "decoder.x_embedder.").replace(".to_out.0.", ".to_out.")
        key = key.replace(".ff.net.2.", ".ff.w2.")
        if ".ff.net.0.proj." in key:
            up, gate = value.chunk(2)
            key, value = key.replace(".ff.net.0.proj.", ".ff.w1."), torch.cat([gate, up])
        for letter in "kv":
            if f".to_{letter}." in key:
                key = None
                break
        if key is None:
            continue
        if ".to_q." in key:
            parts = [state[key.replace(".to_q.", f".to_{x}.")] for x in "qkv"]
            rows = [m.view(heads, width, *m.shape[1:]) for m in parts]
            value = torch.stack(rows, 1).reshape(3 * heads * width, *value.shape[1:])
            key = key.replace(".to_q.", ".to_qkv.")
        out[key] = value
    out["decoder.mask_token"] = torch.zeros(1, 1, heads * width)
    return {k: v.contiguous().clone() for k, v in out.items()}


def save_official(model, name, folder):
    """As the release has it: video_vae/config.json with statistics and tiles, the model itself in source/."""
    c = CONFIGS[name]
    source = folder / "video_vae" / "source"
    source.mkdir(parents=True, exist_ok=True)
    save_file(official_tensors(model.state_dict(), c["decoder_num_attention_heads"], c["decoder_attention_head_dim"]),
              source / "model.safetensors")
    base = c["block_out_channels"][0]
    vit = dict(num_layers=c["decoder_num_layers"], heads=c["decoder_num_attention_heads"],
               dim_head=c["decoder_attention_head_dim"], norm_type="rms_norm", norm_affine=True, qk_norm_type="rms_norm",
               qk_norm_affine=False, ffn_activation_fn="silu", ffn_use_gated=True, rope_theta=100.0, rope_dim_ratio=0.75,
               num_register_tokens=c.get("decoder_num_register_tokens", 4), ffn_mult=c.get("decoder_ffn_mult", 4))
    (source / "config.json").write_text(json.dumps(dict(
        in_channels=3, out_ch=3, ch=base, ch_mult=[w // base for w in c["block_out_channels"]],
        num_res_blocks=c["layers_per_block"], embed_dim=c["latent_channels"], z_channels=c["latent_channels"],
        space_down=c["spatial_downsample_factors"], time_down=c["temporal_downsample_factors"], use_3d_conv=True,
        use_vit_decoder=True, causal_encoder=True, causal_decoder=False, use_t_isolated_gn=True, padding_mode="reflect",
        norm_num_groups=c.get("norm_num_groups", 32), vit_decoder_kwargs=vit)))
    mean, std = statistics(name)
    size, overlap = TILE[name]
    (folder / "video_vae" / "config.json").write_text(json.dumps(dict(
        latent_channels=c["latent_channels"], vae_clip_length=17, vae_token_drop=3, vae_encoder_tiling=1, vae_decoder_tiling=1,
        vae_parallel_tiling=1, vae_tile_size=size, vae_tile_overlap_min=overlap, vae_chunk_dim=-1, latents_mean=mean,
        latents_std=std, source_path="source", source_safetensors_path="source/model.safetensors")))
