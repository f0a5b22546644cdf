"""`h3 denoise` against diffusers' transformer and scheduler, over whole trajectories."""
import json
import subprocess

import diffusers
import pytest
import tiny_model
import torch
from diffusers.modular_pipelines.minimax_h3 import before_denoise
from safetensors.torch import load_file, save_file

SEED = 11
LATENT_FRAMES, AUDIO, SIDE = 32, 178, 4  # 4 s on a canvas of 64 x 64
TEXT = 6
before = before_denoise


@pytest.fixture(scope="module")
def model():
    return tiny_model.make_model(SEED)


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    tiny_model.save_native(model, folder)
    return folder


def patchify(x):  # [1, C, T, H, W] -> rows
    _, c, t, h, w = x.shape
    return x.view(c, t, h // 2, 2, w // 2, 2).permute(1, 2, 4, 0, 3, 5).reshape(-1, 4 * c)


def noise(seed, conditions=0):
    generator = lambda: torch.Generator().manual_seed(seed)
    video = patchify(torch.randn(1, 24, LATENT_FRAMES, SIDE, SIDE, generator=generator()))
    audio = torch.randn(2 * AUDIO, 32, generator=generator())
    condition = torch.randn(1, 24, LATENT_FRAMES + conditions, SIDE, SIDE, generator=generator())
    return video, audio, condition


def reference(model, text, forwards, keyframe=None):
    """Rows of the target after all steps."""
    n = TEXT
    tags = torch.ones(n, dtype=torch.long)
    positions, tags, video_rows, audio_rows, text_rows, n_video, n_audio = (
        before.MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            tags, LATENT_FRAMES, SIDE, SIDE, AUDIO, (1, 2, 2), 2, 2, 0, [] if keyframe is None else ["first"]))
    video, audio, condition_noise = noise(SEED, 0 if keyframe is None else 1)
    if keyframe is not None:
        level = torch.tensor(0.999)
        video = torch.cat([level * patchify(keyframe) + (1 - level) * patchify(condition_noise[:, :, :1]), video])
    schedulers = diffusers.MiniMaxH3Scheduler(shift=12.0), diffusers.MiniMaxH3Scheduler(shift=3.0)
    for s in schedulers:
        s.set_timesteps(forwards + 1)
    for i in range(forwards):
        sigma = [s.sigmas[i] for s in schedulers]
        tv, ta = (float(1 - x) for x in sigma)
        timestep, indices = before.MiniMaxH3SetTimestepsStep.build_row_timesteps(
            video_rows, audio_rows, n_video, n_audio, n, tv, ta, max(tv, 0.999), 1.0)
        with torch.no_grad():
            out = model(
                hidden_states=video[None], audio_hidden_states=audio[None], encoder_hidden_states=text[None],
                timestep=timestep, timestep_indices=indices, token_tags=tags, position_ids=positions,
                video_indices=video_rows, audio_indices=audio_rows, text_indices=text_rows)
        step = lambda s, v, x: s.step(v, s.timesteps[i], x, return_dict=False)[0]
        video = torch.cat([video[:n_video], step(schedulers[0], out.sample[0, n_video:], video[n_video:])])
        audio = step(schedulers[1], out.audio_sample[0], audio)
    return video[n_video:], audio


def run(h3_build, checkpoint, tmp_path, text, steps, *options, keyframe=None):
    request = dict(
        task="t2va" if keyframe is None else "fl2va", prompt="x", seed=SEED, num_inference_steps=steps,
        conditions=[] if keyframe is None else [dict(type="image", uri="a.png", role="keyframe", frame_index=0)],
        target=dict(short_edge=64, aspect_ratio="1:1", duration_seconds=4))
    (tmp_path / "request.json").write_text(json.dumps(request))
    tensors = dict(text=text)
    if keyframe is not None:
        tensors["condition.0.visual"] = keyframe
    save_file(tensors, tmp_path / "features.safetensors")
    done = subprocess.run(
        [h3_build / "h3" / "cli" / "h3", "denoise", tmp_path / "request.json", "--features", tmp_path / "features.safetensors",
         "--model-path", checkpoint, "-o", tmp_path / "out.safetensors", "--device", "cpu", "--json", "-q", *options],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(tmp_path / "out.safetensors"), json.loads(done.stdout)


def distance(got, want):
    return float((got - want).norm() / want.norm())


def check(latents, want, bound):
    video = patchify(latents["video"])
    audio = latents["audio"].permute(0, 2, 1).reshape(-1, 32)
    errors = distance(video, want[0]), distance(audio, want[1])
    print("relative L2 of video, audio:", errors)
    assert max(errors) <= bound


def test_trajectory_of_49_forwards(h3_build, model, checkpoint, tmp_path):
    text = torch.randn(TEXT, 192, generator=torch.Generator().manual_seed(1))
    # 50 grid points are 49 forwards: the count of diffusers.
    latents, report = run(h3_build, checkpoint, tmp_path, text, 50, "--step-count", "grid-points")
    assert report["outputs"][0]["forwards"] == 49
    check(latents, reference(model, text, 49), 1e-3)


def test_first_frame_is_pinned(h3_build, model, checkpoint, tmp_path):
    generator = torch.Generator().manual_seed(2)
    text, keyframe = torch.randn(TEXT, 192, generator=generator), torch.randn(1, 24, 1, SIDE, SIDE, generator=generator)
    latents, report = run(h3_build, checkpoint, tmp_path, text, 5, keyframe=keyframe)
    assert report["outputs"][0]["forwards"] == 5
    check(latents, reference(model, text, 5, keyframe), 1e-4)


def test_a_different_seed_gives_a_different_video(h3_build, model, checkpoint, tmp_path):
    text = torch.randn(TEXT, 192, generator=torch.Generator().manual_seed(1))
    latents, _ = run(h3_build, checkpoint, tmp_path, text, 3, "--seed", "12")
    assert distance(patchify(latents["video"]), reference(model, text, 3)[0]) > 0.1
