"""The audio VAE of diffusers at full size with random weights, beside vae_audio_bench: time and peak memory.

    python h3/models/vae_audio/bench/diffusers_vae_audio.py [--device cuda:0] [--latents 207] [--samples 10]
"""
import argparse
import json
import time

import torch
from diffusers import AutoencoderKLMiniMaxH3Audio

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--latents", type=int, default=207)
parser.add_argument("--samples", type=int, default=10)
parser.add_argument("--tf32", action="store_true", help="torch's default for convolutions; the engine never uses it")
options = parser.parse_args()
device = torch.device(options.device)
torch.backends.cudnn.allow_tf32 = options.tf32
torch.manual_seed(1)
model = AutoencoderKLMiniMaxH3Audio().eval().to(device)
latents = torch.randn(2, 32, options.latents, device=device)
waveform = torch.rand(2, 1, options.latents * 800, device=device) * 2 - 1


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(name, call):
    start = time.perf_counter()
    held = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    call()
    synchronize()
    first = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device) - held if device.type == "cuda" else 0
    times = []
    for _ in range(options.samples):
        start = time.perf_counter()
        call()
        synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    times.sort()
    print(json.dumps({"name": "diffusers " + name, "latents": options.latents, "tf32": options.tf32,
                      "median_ms": round(times[len(times) // 2], 3), "best_ms": round(times[0], 3),
                      "worst_ms": round(times[-1], 3), "first_ms": round(1e3 * first, 3),
                      "peak_over_held_gb": round(peak / 1e9, 3)}))


with torch.inference_mode():
    measure("decode", lambda: model.decode(latents).sample)
    measure("encode", lambda: model.encode(waveform).latent_dist.mean)
