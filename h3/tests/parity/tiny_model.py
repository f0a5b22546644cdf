"""The tiny transformer of the parity tests: diffusers' own model with random weights that keep every path alive."""
import json

import diffusers
import torch
from safetensors.torch import save_file

CONFIG = dict(
    num_attention_heads=8, attention_head_dim=128, hidden_size=256, num_layers=3, num_refiner_layers=2, ffn_dim=512,
    in_channels=24, audio_in_channels=32, patch_size=(1, 2, 2), text_dim=192, freq_dim=256, time_embed_hidden_dim=256,
    time_embed_dim=128, rope_freq_dim=16)


def make_model(seed=20261130):
    model = diffusers.MiniMaxH3Transformer3DModel(**CONFIG).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim > 1:
                p.copy_(noise / p.shape[1] ** 0.5)
            elif name.endswith("bias"):
                p.copy_(0.1 * noise)
            elif "norm_q" in name or "norm_k" in name:  # sharp attention: a nearly uniform one hides faults
                p.copy_(2 + 0.3 * noise)
            else:
                p.copy_(1 + 0.1 * noise)
    return model


def save_diffusers(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous() for k, v in model.state_dict().items()},
              folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps({"_class_name": "MiniMaxH3Transformer3DModel", **CONFIG}))


def native_tensors(state, heads=8, width=128):
    """Names and layouts of the original checkpoint, written from the published conversion rules."""
    out = {}

    def block(old, new, adaln):
        q, k, v = (state[f"{old}.attn.to_{x}.weight"] for x in "qkv")
        rows = [m.view(heads, width, -1) for m in (q, k, v)]
        out[f"{new}.attn.qkv_proj.weight"] = torch.stack(rows, 1).reshape(3 * heads * width, -1)
        up, gate = state[f"{old}.ff.net.0.proj.weight"].chunk(2)
        out[f"{new}.mlp.fc1.weight"] = torch.cat([gate, up])
        out[f"{new}.mlp.fc2.weight"] = state[f"{old}.ff.net.2.weight"]
        out[f"{new}.attn.out_proj.weight"] = state[f"{old}.attn.to_out.0.weight"]
        for x in "qk":
            out[f"{new}.attn.{x}_norm.weight"] = state[f"{old}.attn.norm_{x}.weight"]
        for n in ("norm1.weight", "norm2.weight") + (("adaln_proj.linear.weight", "adaln_proj.linear.bias") if adaln else ()):
            out[f"{new}.{n}"] = state[f"{old}.{n}"]

    for i in range(CONFIG["num_layers"]):
        block(f"transformer_blocks.{i}", f"blocks.{i}", True)
    for j in range(CONFIG["num_refiner_layers"]):
        block(f"token_refiner.refiner_blocks.{j}", f"token_refiner.blocks.{j}", False)
    out["token_refiner.final_norm.weight"] = state["token_refiner.final_norm.weight"]
    out["final_layer.norm.weight"] = state["norm_out.norm.weight"]
    for old, new in (("proj_in", "video_patch_proj"), ("audio_proj_in", "audio_patch_proj"),
                     ("context_embedder", "condition_proj"), ("time_embedder.linear_1", "time_embedder.proj_in"),
                     ("time_embedder.linear_2", "time_embedder.proj_out"), ("norm_out.linear", "final_layer.adaln_proj.linear"),
                     ("proj_out", "final_layer.video_out"), ("audio_proj_out", "final_layer.audio_out")):
        for n in ("weight", "bias"):
            out[f"{new}.{n}"] = state[f"{old}.{n}"]
    out["rope.inv_freq"] = 1 / 10000 ** (torch.arange(16) * 2 / 32)
    return {k: v.contiguous().clone() for k, v in out.items()}


def save_native(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(native_tensors(model.state_dict()), folder / "model.safetensors")
    names = dict(hidden_size=256, num_layers=3, token_refiner_num_layers=2, num_attention_heads=8, attention_head_dim=128,
                 ffn_hidden_size=512, latents_dim=24, audio_latents_dim=32, patch_size=[1, 2, 2], text_dim=192,
                 timestep_input_dim=256, time_embed_hidden_size=256, time_embed_dim=128, adaln_out_features=4608,
                 final_adaln_out_features=512, rope_inv_freq_len=16, norm_eps=1e-5, qk_norm_eps=1e-5, final_norm_eps=1e-5)
    (folder / "config.json").write_text(json.dumps({"_class_name": "MiniMaxH3DiTModel", **names}))
