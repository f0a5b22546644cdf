"""The transformer's forward against diffusers, on a checkpoint with diffusers' names and one with the native names."""
import subprocess
from types import SimpleNamespace

import pytest
import tiny_model
import torch
from diffusers.modular_pipelines.minimax_h3 import before_denoise
from safetensors.torch import load_file, save_file

SEED = 20261130
LAYOUTS = {
    "a-t2va": dict(vision=(1, 2), latent=(7, 6, 8), audio=12),
    "b-first": dict(latent=(7, 6, 8), audio=12, anchors=["first"]),
    "b-last": dict(latent=(7, 6, 8), audio=12, anchors=["last"]),
    "b-both": dict(latent=(17, 6, 8), audio=20, anchors=["first", "last"]),
    "c-ref": dict(latent=(7, 6, 8), audio=12, refs=[("image", (1, 4, 6), 0), ("video", (7, 4, 4), 9), ("audio", None, 11)]),
    "c-silent": dict(latent=(7, 6, 8), audio=12, refs=[("audio", None, 7), ("video", (12, 4, 4), 0), ("image", (1, 6, 6), 0),
                                                       ("video", (2, 4, 6), 5)]),
    "e-exact": dict(text=4, latent=(7, 4, 4), audio=16),  # 4 + 32 + 28 = 64 rows
    "e-one-more": dict(text=5, latent=(7, 4, 4), audio=16),
}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(SEED)
    print("seed", SEED)
    return tiny_model.make_model(SEED)


@pytest.fixture(scope="module", params=["diffusers", "native"])
def checkpoint(request, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    getattr(tiny_model, "save_" + request.param)(model, folder)
    return folder


def make_case(name, times):
    spec = LAYOUTS[name]
    rows = spec.get("text", 5)
    tags = torch.ones(rows, dtype=torch.long)
    tags[list(spec.get("vision", ()))] = 0
    frames, height, width = spec["latent"]
    tail = (frames, height, width, spec["audio"], (1, 2, 2), 2, 2, 0)
    if "refs" in spec:
        refs = [SimpleNamespace(kind=kind, has_audio=kind == "video" and audio > 0) for kind, _, audio in spec["refs"]]
        visual = [torch.zeros(1, 24, *shape) for _, shape, _ in spec["refs"] if shape]
        audio = [torch.zeros(2 * n, 32) for kind, _, n in spec["refs"] if n]
        step = before_denoise.MiniMaxH3Ref2VAPrepareLayoutStep
        packed = step.build_ref2va_packed_sequence(tags, refs, visual, audio, *tail)
    else:
        step = before_denoise.MiniMaxH3PrepareLayoutStep
        packed = step.build_packed_sequence(tags, *tail, spec.get("anchors", []))
    positions, tags, video, audio, text, n_video, n_audio = packed
    per_step = [
        before_denoise.MiniMaxH3SetTimestepsStep.build_row_timesteps(
            video, audio, n_video, n_audio, rows, tv, ta, max(tv, 0.999), 1.0) for tv, ta in times]
    generator = torch.Generator().manual_seed(SEED + 1)
    inputs = dict(
        text=torch.randn(rows, 192, generator=generator), video=torch.randn(len(video), 96, generator=generator),
        audio=torch.randn(len(audio), 32, generator=generator))
    return SimpleNamespace(positions=positions, tags=tags, video=video, audio=audio, text=text, n_video=n_video,
                           n_audio=n_audio, steps=per_step, inputs=inputs, used=len(tags))


def run_diffusers(model, case, step=0):
    timestep, indices = case.steps[step]
    with torch.no_grad():
        out = model(
            hidden_states=case.inputs["video"][None], audio_hidden_states=case.inputs["audio"][None],
            encoder_hidden_states=case.inputs["text"][None], timestep=timestep, timestep_indices=indices,
            token_tags=case.tags, position_ids=case.positions, video_indices=case.video, audio_indices=case.audio,
            text_indices=case.text)
    return out.sample[0, case.n_video:].float(), out.audio_sample[0, case.n_audio:].float()


def run_h3(h3_build, checkpoint, case, tmp_path, dtype="f32", pad_tag=-1, backend=()):
    rows = -(-case.used // 64) * 64
    pad = rows - case.used

    def padded(t, value=0):
        return torch.cat([t, torch.full((pad, *t.shape[1:]), value, dtype=t.dtype)])

    tensors = dict(
        case.inputs, positions=padded(case.positions.double()), tags=padded(case.tags, pad_tag).int(),
        video_rows=case.video.long(), audio_rows=case.audio.long(), sparse_rows=case.video[case.n_video:].long(),
        counts=torch.tensor([case.used, case.n_video, case.n_audio]))
    for k, (timestep, indices) in enumerate(case.steps):
        tensors[f"unique.{k}"] = timestep.float()
        tensors[f"inverse.{k}"] = padded(indices.int(), int(indices[case.text[0]]))
    save_file({k: v.clone().contiguous() for k, v in tensors.items()}, tmp_path / "in.safetensors")
    probe = h3_build / "h3" / "models" / "dit" / "h3_dit_forward_probe"
    subprocess.run([probe, checkpoint, tmp_path / "in.safetensors", tmp_path / "out.safetensors", dtype, *backend], check=True)
    return load_file(tmp_path / "out.safetensors")


def distance(got, want):
    return float((got - want).norm() / want.norm())


@pytest.mark.parametrize("name", LAYOUTS)
def test_forward_equals_diffusers(h3_build, model, checkpoint, tmp_path, name):
    case = make_case(name, [(0.3, 0.62)])
    got = run_h3(h3_build, checkpoint, case, tmp_path)
    video, audio = run_diffusers(model, case)
    errors = distance(got["video.0"], video), distance(got["audio.0"], audio)
    print(name, "rows", case.used, "relative L2 of video, audio:", errors)
    assert float(video.abs().mean()) > 0.1, "a forward near zero would hide everything"
    assert max(errors) <= 1e-5


def test_steps_of_a_session_are_independent(h3_build, model, checkpoint, tmp_path):
    case = make_case("a-t2va", [(0.0, 0.0), (0.3, 0.62), (0.8, 0.9)])  # the first has one timestep, not two
    got = run_h3(h3_build, checkpoint, case, tmp_path)
    for k in range(3):
        video, audio = run_diffusers(model, case, k)
        assert distance(got[f"video.{k}"], video) <= 1e-5
        assert distance(got[f"audio.{k}"], audio) <= 1e-5


def linear_with_f32_sums(self, x):
    """The engine's matrix product on the CPU: bf16 in and out, sums in f32."""
    bias = None if self.bias is None else self.bias.float()
    return torch.nn.functional.linear(x.float(), self.weight.float(), bias).to(self.weight.dtype)


def test_bf16_equals_diffusers_bit_for_bit(h3_build, model, checkpoint, tmp_path, monkeypatch):
    case = make_case("a-t2va", [(0.3, 0.62)])
    rounded = tiny_model.make_model(SEED)
    for name, p in rounded.named_parameters():
        if not any(part in name for part in ("proj_in", "proj_out", "time_embedder")):
            p.data = p.data.to(torch.bfloat16)
    monkeypatch.setattr(torch.nn.Linear, "forward", linear_with_f32_sums)
    exact = run_diffusers(model, case)
    features = case.inputs["text"]
    case.inputs["text"] = features.to(torch.bfloat16)
    want = run_diffusers(rounded, case)
    case.inputs["text"] = features
    got = run_h3(h3_build, checkpoint, case, tmp_path, "bf16", backend=["torch_sdpa"])
    assert torch.equal(got["video.0"], want[0]) and torch.equal(got["audio.0"], want[1])
    # Our own attention rounds its probabilities elsewhere: no farther from f32 than theirs.
    own = run_h3(h3_build, checkpoint, case, tmp_path, "bf16", backend=["fa"])
    errors = distance(own["video.0"], exact[0]), distance(want[0], exact[0])
    print("bf16 from f32, fa and diffusers:", errors)
    assert errors[0] <= 1.5 * errors[1]


# Faults that load cleanly must show: each is planted in the checkpoint or the layout.
def perturbed(model, tmp_path, change):
    state = tiny_model.native_tensors(model.state_dict())
    change(state)
    folder = tmp_path / "perturbed"
    tiny_model.save_native(model, folder)
    save_file(state, folder / "model.safetensors")
    return folder


def swap_halves(state):
    for name, t in state.items():
        if name.endswith("mlp.fc1.weight"):
            state[name] = torch.cat(t.chunk(2)[::-1]).contiguous()


def read_without_interleaving(state):
    for name, t in state.items():
        if name.endswith("qkv_proj.weight"):
            state[name] = t.view(8, 3, 128, -1).permute(1, 0, 2, 3).reshape(3 * 8 * 128, -1).contiguous()


@pytest.mark.parametrize("change", [swap_halves, read_without_interleaving])
def test_wrong_weights_show(h3_build, model, tmp_path, change):
    case = make_case("a-t2va", [(0.3, 0.62)])
    got = run_h3(h3_build, perturbed(model, tmp_path, change), case, tmp_path)
    assert distance(got["video.0"], run_diffusers(model, case)[0]) > 0.1


def test_tags_of_vision_rows_show(h3_build, model, checkpoint, tmp_path):
    case = make_case("a-t2va", [(0.3, 0.62)])
    want = run_diffusers(model, case)[0]
    case.tags = case.tags.clone()
    case.tags[1:3] = 1
    got = run_h3(h3_build, checkpoint, case, tmp_path)
    assert distance(got["video.0"], want) > 0.02


def test_padding_changes_nothing(h3_build, model, checkpoint, tmp_path):
    case = make_case("a-t2va", [(0.3, 0.62)])
    first = run_h3(h3_build, checkpoint, case, tmp_path)
    second = run_h3(h3_build, checkpoint, case, tmp_path, pad_tag=2)
    assert torch.equal(first["video.0"], second["video.0"]) and torch.equal(first["audio.0"], second["audio.0"])


def test_shift_of_all_times_changes_nothing_but_of_video_alone_does(h3_build, model, checkpoint, tmp_path):
    case = make_case("a-t2va", [(0.3, 0.62)])
    want = run_h3(h3_build, checkpoint, case, tmp_path)["video.0"]
    case.positions = case.positions.clone()
    case.positions[:, 0] += 16
    assert float((run_h3(h3_build, checkpoint, case, tmp_path)["video.0"] - want).abs().max()) <= 2e-5
    case.positions[case.video, 0] += 16
    assert distance(run_h3(h3_build, checkpoint, case, tmp_path)["video.0"], want) > 0.02
