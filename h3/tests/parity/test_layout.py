"""Packed sequence, row timesteps, noise levels and updates against diffusers 0.42.1: equal bits."""
import subprocess
import types

import numpy as np
import pytest
import torch
from diffusers import MiniMaxH3Scheduler
from diffusers.modular_pipelines.minimax_h3 import before_denoise
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import (
    align_num_frames,
    resolve_canvas_size,
)

PATCH, CHANNELS, AUDIO_TAG, VIDEO_TAG = (1, 2, 2), 2, 2, 0
DTYPES = dict(positions="f8", tags="i1", video_rows="i8", audio_rows="i8", sparse_rows="i8",
              unique="f4", inverse="i4", adaln="i4", counts="i8")


@pytest.fixture(scope="session")
def probe(h3_build):
    found = sorted((h3_build / "h3").rglob("h3_dit_layout_probe"))
    assert found, f"no h3_dit_layout_probe under {h3_build}/h3; build it"

    def run(*commands):
        done = subprocess.run([found[0]], input="\n".join(commands), text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")

    return run


def case(text, target, audio, keyframes=(), refs=(), vision=(), pads=(), t=(0.3, 0.62),
         levels=(0.999, 1.0)):
    return types.SimpleNamespace(text=text, target=target, audio=audio, keyframes=keyframes,
                                 refs=refs, vision=vision, pads=pads, t=t, levels=levels)


IMAGE, IMAGE_WIDE = ("image", (1, 6, 4), 0), ("image", (1, 4, 10), 0)
VIDEO, SILENT = ("video", (7, 4, 6), 12), ("video", (2, 8, 6), 0)
VIDEO_LONG_SOUND = ("video", (2, 4, 4), 99)
AUDIO = ("audio", None, 9)
CASES = {
    "a": case(5, (7, 6, 8), 12, vision=(1, 2)),
    "b_first": case(5, (7, 6, 8), 12, keyframes=("first",), vision=(1, 2)),
    "b_last": case(5, (7, 6, 8), 12, keyframes=("last",)),
    "b_both_17": case(9, (17, 6, 8), 28, keyframes=("first", "last"), vision=(2, 3, 4)),
    "b_last_32": case(77, (32, 4, 6), 178, keyframes=("last",)),
    "b_last_107": case(211, (107, 2, 4), 603, keyframes=("first", "last")),
    "b_last_142": case(3, (142, 2, 2), 803, keyframes=("last",)),
    "c": case(8, (7, 6, 8), 12, refs=(IMAGE, VIDEO, AUDIO), vision=(1, 2, 3)),
    "c2": case(11, (7, 8, 6), 12, refs=(AUDIO, SILENT, IMAGE_WIDE, VIDEO), vision=(0, 10)),
    "c_image": case(6, (2, 4, 4), 4, refs=(IMAGE,)),
    "c_silent": case(6, (2, 4, 4), 4, refs=(SILENT,)),
    "c_long_sound": case(6, (17, 4, 4), 28, refs=(VIDEO_LONG_SOUND, AUDIO)),
    "c_long_video": case(6, (17, 4, 4), 28, refs=(("video", (107, 2, 2), 5),
                                                           ("video", (22, 2, 4), 0))),
    "c_twelve": case(30, (12, 6, 10), 20,
                     refs=(IMAGE, IMAGE_WIDE) * 4 + (VIDEO, AUDIO, SILENT, AUDIO)),
    "d": case(50, (72, 16, 16), 405),
    "e_equal": case(20, (7, 6, 8), 12),  # 20 + 24 + 84 = 128
    "e_one_more": case(21, (7, 6, 8), 12),
    "large": case(50, (37, 48, 84), 207),
    "levels": case(5, (2, 4, 4), 4, refs=(IMAGE, AUDIO), levels=(0.5, 0.25), t=(0.75, 0.125)),
    "first_step": case(5, (2, 4, 4), 4, refs=(IMAGE, VIDEO), t=(0.0, 0.0)),
    "last_step": case(5, (2, 4, 4), 4, keyframes=("first",), t=(0.9995, 0.97)),
}


def ours(probe, folder, c):
    prefix = folder / "layout"

    def text(values):
        return ",".join(map(str, values)) or "-"

    def ref(r):
        kind, shape, audio = r
        parts = {"image": ["i", *(shape or ())], "video": ["v", *(shape or ()), audio],
                 "audio": ["a", audio]}[kind]
        return ":".join(map(str, parts))

    line = ["layout", prefix, c.text, text(c.vision), text(c.pads), text(c.keyframes),
            text([ref(r) for r in c.refs]), *c.target, c.audio, *c.t, *c.levels]
    probe(" ".join(map(str, line)))
    return types.SimpleNamespace(
        **{k: np.fromfile(f"{prefix}.{k}", dtype="<" + d) for k, d in DTYPES.items()})


def theirs(c):
    tags = torch.ones(c.text, dtype=torch.long)
    tags[list(c.vision)] = VIDEO_TAG
    if c.refs:
        refs = [types.SimpleNamespace(kind=k, has_audio=a > 0) for k, _, a in c.refs]
        visual = [torch.empty(1, 24, *s) for k, s, _ in c.refs if s]
        sound = [torch.empty(2 * a, 32) for _, _, a in c.refs if a]
        out = before_denoise.MiniMaxH3Ref2VAPrepareLayoutStep.build_ref2va_packed_sequence(
            tags, refs, visual, sound, *c.target, c.audio, PATCH, CHANNELS, AUDIO_TAG, VIDEO_TAG)
    else:
        out = before_denoise.MiniMaxH3PrepareLayoutStep.build_packed_sequence(
            tags, *c.target, c.audio, PATCH, CHANNELS, AUDIO_TAG, VIDEO_TAG, c.keyframes)
    positions, tags, video, audio, _, n_video, n_audio = out
    unique, inverse = before_denoise.MiniMaxH3SetTimestepsStep.build_row_timesteps(
        video, audio, n_video, n_audio, c.text, *c.t, max(c.t[0], c.levels[0]),
        max(c.t[1], c.levels[1]))
    return types.SimpleNamespace(positions=positions.numpy(), tags=tags.numpy(),
                                 video_rows=video.numpy(), audio_rows=audio.numpy(),
                                 n=(n_video, n_audio), unique=unique.numpy(),
                                 inverse=inverse.numpy())


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_layout_matches_diffusers(probe, tmp_path, name):
    c = CASES[name]
    a, b = ours(probe, tmp_path, c), theirs(c)
    text, used, rows, n_video, n_audio = a.counts
    assert (text, used, (n_video, n_audio)) == (c.text, len(b.tags), b.n)
    assert rows % 64 == 0 and 0 <= rows - used < 64
    positions = a.positions.reshape(rows, 3)
    # In double, hence also after the cast to float32 before RoPE.
    assert same_bits(np.ascontiguousarray(positions[:used]), b.positions)
    assert not positions[used:].any() and (a.tags[used:] == -1).all()
    assert np.array_equal(a.tags[:used], b.tags)
    assert np.array_equal(a.video_rows, b.video_rows)
    assert np.array_equal(a.audio_rows, b.audio_rows)
    assert same_bits(a.unique, b.unique)
    assert np.array_equal(a.inverse[:used], b.inverse)
    assert (a.unique[a.inverse[used:]] == np.float32(c.t[0])).all()
    assert np.array_equal(a.adaln, 3 * a.inverse + np.maximum(a.tags, 0))


def test_sparse_rows_are_target_and_reference_videos_and_pads(probe, tmp_path):
    # text 0-9 | image 10-15 | soundtrack 16-19, video 20-31 | audio 32-35 | target 36-47
    c = case(10, (3, 4, 4), 2, refs=(IMAGE, ("video", (2, 4, 6), 2)), vision=(2, 3, 4, 5),
             pads=(3, 4))
    a = ours(probe, tmp_path, c)
    assert a.sparse_rows.tolist() == [3, 4, *range(20, 32), *range(36, 48)]
    first = ours(probe, tmp_path, case(4, (2, 4, 4), 3, keyframes=("first",)))
    assert first.sparse_rows.tolist() == list(range(14, 22))  # not the keyframe, 4-7


def test_hybrid_layout_matches_hand_computed_numbers(probe, tmp_path):
    # Text 3; keyframes at the origin after the image (1) and the audio (4): 3 + 1 + 4 = 8. Target of
    # 2 x 2 x 2 latents spans 5/3 (1 + 4) = 25/3, so the last keyframe is at 8 + 25/3 - 5/3.
    c = case(3, (2, 2, 2), 2, keyframes=("first", "last"),
             refs=(("image", (1, 2, 2), 0), ("audio", None, 4)), t=(0.25, 0.5))
    a = ours(probe, tmp_path, c)
    text, used, rows, n_video, n_audio = a.counts
    assert (text, used, rows, n_video, n_audio) == (3, 20, 64, 3, 8)
    # One patch a frame: its only coordinate is 32 * 0 on both axes, for audio too.
    times = [0, 1, 2, 8, 8 + 25 / 3 - 5 / 3, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 8, 9, 8, 8 + 5 / 3]
    assert a.positions.reshape(rows, 3)[:used, 0].tolist() == times
    assert not a.positions.reshape(rows, 3)[:, 1:].any()
    assert a.tags[:used].tolist() == [1] * 3 + [0] * 3 + [2] * 12 + [0] * 2
    assert a.video_rows.tolist() == [3, 4, 5, 18, 19]
    assert a.audio_rows.tolist() == list(range(6, 18))
    assert a.sparse_rows.tolist() == [18, 19]
    assert a.unique.tolist() == np.float32([0.25, 0.5, 0.999, 1.0]).tolist()
    assert a.inverse[:used].tolist() == [0] * 3 + [2] * 3 + [3] * 8 + [1] * 4 + [0] * 2


@pytest.mark.parametrize("shift", [12.0, 3.0, 1.0, 3.3, 1.1, 0.7])
def test_noise_levels_match_diffusers(probe, tmp_path, shift):
    for forwards in [*range(1, 65), 100, 500, 1000]:
        probe(f"sigmas {tmp_path}/s {forwards} {shift}")
        scheduler = MiniMaxH3Scheduler(shift=shift)
        scheduler.set_timesteps(forwards + 1)
        assert same_bits(np.fromfile(tmp_path / "s.sigmas", "<f4"), scheduler.sigmas.numpy())


@pytest.mark.parametrize("forwards", [49, 50, 4, 1])
@pytest.mark.parametrize("shift", [12.0, 3.0])
def test_trajectory_matches_diffusers(probe, tmp_path, shift, forwards):
    generator = torch.Generator().manual_seed(forwards)
    count = 2000
    x = torch.randn(count, generator=generator)
    v = torch.randn(forwards, count, generator=generator)
    x.numpy().tofile(tmp_path / "s.x")
    v.numpy().tofile(tmp_path / "s.v")
    probe(f"trajectory {tmp_path}/s {forwards} {shift} {count}")
    out = np.fromfile(tmp_path / "s.out", "<f4").reshape(forwards, count)
    scheduler = MiniMaxH3Scheduler(shift=shift)
    scheduler.set_timesteps(forwards + 1)
    for i, t in enumerate(scheduler.timesteps):
        x = scheduler.step(v[i], t, x, return_dict=False)[0]
        assert same_bits(out[i], x.numpy()), f"forward {i}"


def test_geometry_matches_diffusers(probe):
    sizes = [(w, h) for w in range(100, 2200, 137) for h in range(90, 2100, 111)
             if w <= 4 * h and h <= 4 * w]
    edges = [768, 512, 256, 1024]
    asked = [(w, h, e) for w, h in sizes for e in edges]
    answers = probe(*[f"canvas {w} {h} {e}" for w, h, e in asked])
    for (w, h, e), answer in zip(asked, answers):
        height, width = resolve_canvas_size(w, h, 32, e, 768 * 1344)
        assert answer == f"{width} {height}", (w, h, e)
    answers = probe(*[f"image {w} {h}" for w, h in sizes])
    for (w, h), answer in zip(sizes, answers):
        scale = 2048 / min(w, h)
        want = [max(32, round(side * scale / 32) * 32) for side in (w, h)]
        assert answer == f"{want[0]} {want[1]}", (w, h)
    answers = probe(*[f"timing {n}" for n in range(1, 500)])
    for n, answer in zip(range(1, 500), answers):
        frames = align_num_frames(n, 17, 5)
        assert answer == f"{frames} {(frames - 5) // 17 * 5 + 2} {round(frames / 24 * 40)}", n
