"""Noise streams, packing and condition mix against torch.Generator and diffusers: equal bits."""
import subprocess

import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from diffusers.modular_pipelines.minimax_h3.before_denoise import patchify_video_latents

SEEDS = [0, 42, 2**31, 2**32 + 5, 2**63 - 1]


@pytest.fixture(scope="session")
def probe(h3_build):
    found = sorted((h3_build / "h3").rglob("h3_dit_noise_probe"))
    assert found, f"no h3_dit_noise_probe under {h3_build}/h3; build it"

    def run(command, path, *values):
        line = " ".join(map(str, (command, path, *values)))
        done = subprocess.run([found[0]], input=line, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return np.fromfile(path, "<f4")

    return run


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator("cpu").manual_seed(seed))


def rows(latents):
    return patchify_video_latents(latents, (1, 2, 2))


def same_bits(a, b):
    return a.tobytes() == b.contiguous().numpy().tobytes()


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_streams_match_torch(probe, tmp_path, seed):
    out = tmp_path / "rows"
    assert same_bits(probe("video", out, seed, 7, 6, 8, 24), rows(draw(seed, 1, 24, 7, 6, 8)))
    assert same_bits(probe("video", out, seed, 37, 48, 84, 24), rows(draw(seed, 1, 24, 37, 48, 84)))
    assert same_bits(probe("audio", out, seed, 207, 32), draw(seed, 414, 32))
    condition = rows(draw(seed, 1, 24, 37 + 2, 6, 10)[:, :, :12])
    assert same_bits(probe("visual_condition", out, seed, 12, 6, 10, 37, 2, 24), condition)
    assert same_bits(probe("audio_condition", out, seed, 80, 32), draw(seed + 1, 160, 32))


@pytest.mark.parametrize("level", [0.999, 0.5, 0.0, 0.1])
def test_condition_mix_matches_diffusers(probe, tmp_path, level):
    path = tmp_path / "mix"
    clean, noise = draw(1, 4000), draw(2, 4000)
    clean.numpy().tofile(f"{path}.clean")
    noise.numpy().tofile(f"{path}.noise")
    want = MiniMaxH3Scheduler().scale_noise(clean, level, noise)
    assert same_bits(probe("mix", path, level, 4000), want)


def test_normalisation_matches_torch(probe, tmp_path):
    path = tmp_path / "n"
    x, mean, std = draw(3, 1, 24, 3, 4, 6), draw(4, 24), draw(5, 24).abs() + 0.5
    for name, t in dict(x=x, mean=mean, std=std).items():
        t.numpy().tofile(f"{path}.{name}")
    shape = (1, 24, 1, 1, 1)
    assert same_bits(probe("normalize", path, 3, 4, 6, 24),
                     (x - mean.view(shape)) / std.view(shape))
    assert same_bits(probe("denormalize", path, 3, 4, 6, 24), x * std.view(shape) + mean.view(shape))
