"""The audio VAE against diffusers: both directions, every spelling of the weights, full depth, negative controls."""
import subprocess

import pytest
import tiny_vae_audio as tiny
import torch
from safetensors.torch import load_file, save_file

SEED = 20261130
CASES = {  # config, shape of the waveform
    "tiny": (tiny.TINY, (2, 1, 32)),
    "tiny-padded": (tiny.TINY, (2, 1, 33)),
    "tiny-one-sample": (tiny.TINY, (1, 1, 1)),
    "odd": (tiny.ODD, (3, 1, 15 * 9 + 4)),
}


def distance(got, want):
    return float((got - want).norm() / want.norm())


def run_h3(h3_build, folder, tmp_path, **inputs):
    save_file({k: v.contiguous() for k, v in inputs.items()}, tmp_path / "in.safetensors")
    probe = h3_build / "h3" / "models" / "vae_audio" / "h3_vae_audio_probe"
    subprocess.run([probe, folder, tmp_path / "in.safetensors", tmp_path / "out.safetensors"], check=True)
    return load_file(tmp_path / "out.safetensors")


def inputs_of(model, shape):
    generator = torch.Generator().manual_seed(SEED + 1)
    waveform = torch.randn(shape, generator=generator).mul(0.3).clamp(-1, 1)
    frames = -(-shape[2] // model.hop_length)
    return waveform, torch.randn(shape[0], model.config.latent_channels, frames, generator=generator)


def run_diffusers(model, waveform, latents):
    with torch.no_grad():
        posterior = model.encode(waveform).latent_dist
        return posterior.mean, posterior.logs, model.decode(latents).sample


def alive(decoded):
    """Not silent, and most samples are not clamped."""
    assert float(decoded.std()) > 0.01
    assert float((decoded.abs() == 1).float().mean()) < 0.05


@pytest.mark.parametrize("style", [*tiny.STYLES, "released"])
@pytest.mark.parametrize("name", CASES)
def test_both_directions_equal_diffusers(h3_build, tmp_path, name, style):
    config, shape = CASES[name]
    print("seed", SEED)
    model = tiny.make_model(config, SEED)
    if style == "released":
        tiny.save_released(model, config, tmp_path / "vae")
    else:
        tiny.save(model, config, tmp_path / "vae", style)
    waveform, latents = inputs_of(model, shape)
    mean, logs, decoded = run_diffusers(model, waveform, latents)
    got = run_h3(h3_build, tmp_path / "vae", tmp_path, waveform=waveform, latents=latents)
    if shape[2] > 1:
        alive(decoded)
    errors = distance(got["mean"], mean), distance(got["logs"], logs), distance(got["decoded"], decoded)
    print(name, style, "relative L2 of mean, logs, waveform:", errors)
    assert got["decoded"].shape == decoded.shape
    assert max(errors) <= 2e-6


def test_full_depth_equals_diffusers(h3_build, tmp_path):
    print("seed", SEED)
    model = tiny.make_model(tiny.DEEP, SEED)
    tiny.save(model, tiny.DEEP, tmp_path / "vae")
    waveform, latents = inputs_of(model, (2, 1, 800 * 12 - 7))
    mean, logs, decoded = run_diffusers(model, waveform, latents)
    alive(decoded)
    got = run_h3(h3_build, tmp_path / "vae", tmp_path, waveform=waveform, latents=latents)
    errors = distance(got["mean"], mean), distance(got["logs"], logs), distance(got["decoded"], decoded)
    print("full depth, relative L2 of mean, logs, waveform:", errors)
    assert got["decoded"].shape == (2, 1, 9600)
    assert max(errors) <= 1e-4


def test_statistics_are_applied_per_channel(h3_build, tmp_path):
    model = tiny.make_model(tiny.TINY, SEED)
    tiny.save(model, tiny.TINY, tmp_path / "vae")
    raw = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(SEED))
    got = run_h3(h3_build, tmp_path / "vae", tmp_path, raw=raw)
    config = tiny.config_json(tiny.TINY, model)
    mean, std = (torch.tensor(config[k]).view(1, -1, 1) for k in ("latents_mean", "latents_std"))
    assert torch.equal(got["normalized"], (raw - mean) / std)
    assert torch.equal(got["denormalized"], got["normalized"] * std + mean)


# Faults that load cleanly must show in the direction they belong to.
def swap_g_and_scale(state):
    state["decoder.conv_pre.weight_g"] = state["decoder.conv_pre.weight_g"].flip(0)


def reverse_up_filter(state):
    name = "decoder.resblocks.0.activations.0.upsample.filter"
    state[name] = state[name].roll(1, -1)


def exchange_log_scales(state):
    a, b = (f"decoder.activation_post.act.{x}" for x in ("alpha", "beta"))
    state[a], state[b] = state[b], state[a]


def exchange_q_and_v_bias(state):
    a, b = "pre_block.attn.q_bias", "pre_block.attn.v_bias"
    state[a], state[b] = state[b], state[a]


def exchange_norms(state):
    for part in ("weight", "bias"):
        a, b = f"pre_block.norm1.{part}", f"pre_block.norm3.{part}"
        state[a], state[b] = state[b], state[a]


def exchange_gate(state):
    for part in ("weight", "bias"):
        a, b = f"pre_block.mlp.w0.{part}", f"pre_block.mlp.w1.{part}"
        state[a], state[b] = state[b], state[a]


def reverse_snake(state):
    state["encoder.block.1.block.0.block.0.alpha"] = state["encoder.block.1.block.0.block.0.alpha"].flip(1)


@pytest.mark.parametrize("change, output", [
    (swap_g_and_scale, "decoded"), (reverse_up_filter, "decoded"), (exchange_log_scales, "decoded"),
    (exchange_q_and_v_bias, "mean"), (exchange_norms, "mean"), (exchange_gate, "mean"), (reverse_snake, "mean")])
def test_wrong_weights_show(h3_build, tmp_path, change, output):
    model = tiny.make_model(tiny.TINY, SEED)
    tiny.save(model, tiny.TINY, tmp_path / "vae", change=change)
    waveform, latents = inputs_of(model, (2, 1, 32))
    mean, logs, decoded = run_diffusers(model, waveform, latents)
    got = run_h3(h3_build, tmp_path / "vae", tmp_path, waveform=waveform, latents=latents)
    want = {"mean": mean, "decoded": decoded}
    assert distance(got[output], want[output]) > 1e-3
    other = "mean" if output == "decoded" else "decoded"
    assert distance(got[other], want[other]) <= 2e-6


def test_non_finite_latents_are_refused(h3_build, tmp_path):
    model = tiny.make_model(tiny.TINY, SEED)
    tiny.save(model, tiny.TINY, tmp_path / "vae")
    with pytest.raises(subprocess.CalledProcessError):
        run_h3(h3_build, tmp_path / "vae", tmp_path, latents=torch.full((2, 8, 4), float("nan")))
