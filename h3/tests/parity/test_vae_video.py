"""The video VAE against diffusers: encoder and decoder, tiled and whole, on checkpoints with official and diffusers names."""
import functools
import subprocess

import pytest
import tiny_vae_video as tiny
import torch
from safetensors.torch import load_file, save_file

SEED = 20261130
LIMIT = 2e-6  # relative L2, f32
STYLES = ["official", "diffusers"]


@functools.lru_cache(maxsize=None)
def model_of(name):
    print("seed", SEED)
    return tiny.make_model(name, SEED)


@functools.lru_cache(maxsize=None)
def folder_of(name, style, base):
    folder = base / f"{name}-{style}"
    getattr(tiny, "save_" + style)(model_of(name), name, folder)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return tmp_path_factory.mktemp("vae_video")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def run_h3(h3_build, folder, tmp_path, *options, **tensors):
    save_file({k: v.contiguous() for k, v in tensors.items()}, tmp_path / "in.safetensors")
    probe = h3_build / "h3" / "models" / "vae_video" / "h3_vae_video_probe"
    subprocess.run([probe, folder, tmp_path / "in.safetensors", tmp_path / "out.safetensors", *options], check=True)
    return load_file(tmp_path / "out.safetensors")


def distance(got, want):
    assert got.shape == want.shape
    return float((got - want).norm() / want.norm())


def noise(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED + seed))


def denormalised(name, z):
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in tiny.statistics(name))
    return z * std + mean


def shown(raw):
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1, 1)
    return (raw * std + mean).clamp(0, 1)


def normalised_pixels(rgb):  # uint8-like [T, H, W, 3] -> [1, 3, T, H, W]
    mean = torch.tensor([0.485, 0.456, 0.406])
    std = torch.tensor([0.229, 0.224, 0.225])
    return ((rgb.float() / 255 - mean) / std).permute(3, 0, 1, 2)[None]


ENCODED = {  # config: [B, 3, T, H, W]
    "v-min": (1, 3, 22, 40, 56),
    "v-small": (2, 3, 22, 16, 24),
    "v-tile": (1, 3, 20, 44, 64),
    "v-patch": (1, 3, 5, 80, 112),
}


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("name", ENCODED)
def test_encoder_equals_diffusers(h3_build, checkpoints, tmp_path, name, tiled):
    model = model_of(name)
    tiny.set_tiling(model, name, tiled)
    x = noise(*ENCODED[name])
    style = STYLES[tiled]
    got = run_h3(h3_build, folder_of(name, style, checkpoints), tmp_path, *([] if tiled else ["no-encoder-tiling"]), pixels=x)
    with torch.no_grad():
        want = model.encode(x).latent_dist
    sample = want.sample(generator=torch.Generator().manual_seed(42))
    errors = {k: distance(got[k], v) for k, v in dict(mean=want.mean, logvar=want.logvar, std=want.std, sample=sample).items()}
    print(name, "tiled" if tiled else "whole", style, errors)
    assert float(want.mean.std()) > 0.1 and float(want.logvar.std()) > 0.1, "moments near zero would hide everything"
    assert max(errors.values()) <= LIMIT
    assert torch.equal(got["mode"], got["mean"])


def test_one_frame_is_encoded_alone(h3_build, checkpoints, tmp_path):
    model = model_of("v-min")
    tiny.set_tiling(model, "v-min", True)
    x = noise(1, 3, 1, 40, 56)
    got = run_h3(h3_build, folder_of("v-min", "official", checkpoints), tmp_path, pixels=x)
    with torch.no_grad():
        want = model.encode(x).latent_dist
    assert got["mean"].shape[2] == 1 and distance(got["mean"], want.mean) <= LIMIT


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", ["image", "video"])
def test_pictures_become_the_latents_of_the_pipeline(h3_build, checkpoints, tmp_path, kind, style):
    """Bytes to normalised pixels, cut to whole latents and legal lengths; sample of seed 42, rounded to half, normalised."""
    model = model_of("v-min")
    tiny.set_tiling(model, "v-min", True)
    shape = (2, 43, 58, 3) if kind == "image" else (26, 43, 58, 3)
    rgb = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(SEED)).int()
    got = run_h3(h3_build, folder_of("v-min", style, checkpoints), tmp_path, **{kind: rgb})
    clips = [normalised_pixels(i[None]) for i in rgb] if kind == "image" else [normalised_pixels(rgb[:22])]
    mean, std = (torch.tensor(v).view(1, -1, 1, 1, 1) for v in tiny.statistics("v-min"))
    samples, modes = [], []
    for clip in clips:
        with torch.no_grad():
            posterior = model.encode(clip[..., :40, :56]).latent_dist
        sample = posterior.sample(generator=torch.Generator().manual_seed(42))
        samples.append((sample.half().float() - mean) / std)
        modes.append((posterior.mean - mean) / std)
    assert distance(got[f"{kind}_mode"], torch.cat(modes)) <= LIMIT
    step = (got[f"{kind}_latents"] - torch.cat(samples)).abs() * std  # a sum that rounds the other way is one half ulp off
    assert float((step > 0).float().mean()) < 0.01 and float(step.max()) <= 2**-8
    assert distance(got[f"{kind}_latents"], torch.cat(samples)) <= 5e-5


DECODED = {  # config: latents
    "v-min": (1, 24, 7, 8, 12),
    "v-small": (2, 4, 7, 8, 6),
    "v-patch": (1, 24, 7, 4, 7),
}


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("name", DECODED)
def test_decoder_equals_diffusers(h3_build, checkpoints, tmp_path, name, tiled):
    model = model_of(name)
    tiny.set_tiling(model, name, tiled)
    z = noise(*DECODED[name])
    style = STYLES[not tiled]
    got = run_h3(h3_build, folder_of(name, style, checkpoints), tmp_path, *([] if tiled else ["no-decoder-tiling"]), latents=z)
    with torch.no_grad():
        want = model.decode(denormalised(name, z)).sample
    error = distance(got["raw"], want), distance(got["frames"], shown(want))
    print(name, "tiled" if tiled else "whole", style, error)
    assert float(want.std()) > 0.1
    assert max(error) <= LIMIT
    assert 0 < float(got["frames"].mean()) < 1
    bytes_ = (got["frames"].permute(0, 2, 3, 4, 1) * 255).clamp(0, 255)
    assert torch.equal(got["rgb"], bytes_.floor())  # truncated, as the release writes its videos


@pytest.mark.parametrize("latents", [3, 4, 5, 6, 8, 12, 17])
def test_temporal_decode_equals_diffusers(h3_build, checkpoints, tmp_path, latents):
    model = model_of("v-min")
    tiny.set_tiling(model, "v-min", True)
    z = noise(1, 24, latents, 8, 8)
    got = run_h3(h3_build, folder_of("v-min", "official", checkpoints), tmp_path, latents=z)
    with torch.no_grad():
        want = model.decode(denormalised("v-min", z)).sample
    frames = {3: 9, 4: 13, 5: 17, 6: 18, 8: 26, 12: 39, 17: 56}[latents]
    assert want.shape[2] == frames and distance(got["raw"], want) <= LIMIT
    firsts, counts = got["chunks"].T.tolist()
    assert max(counts) <= 17 and sum(counts) == frames
    assert firsts == [sum(counts[:i]) for i in range(len(counts))]


def test_frames_that_are_asked_for_are_the_last(h3_build, checkpoints, tmp_path):
    z = noise(1, 24, 8, 8, 8)
    folder = folder_of("v-min", "official", checkpoints)
    whole = run_h3(h3_build, folder, tmp_path, latents=z)["frames"]
    for count in (1, 6, 22, 26):
        got = run_h3(h3_build, folder, tmp_path, f"frames={count}", latents=z)["frames"]
        assert torch.equal(got, whole[:, :, -count:])


def tile_case():
    model = model_of("v-tile")
    tiny.set_tiling(model, "v-tile", True)
    z = noise(1, 8, 2, 16, 24)  # 64 x 96 pixels: rows 0, 16, 32 and columns 0, 20, 40, 64
    with torch.no_grad():
        return z, model._decode_clip(z)


@pytest.mark.parametrize("batch", [1, 5])
def test_uneven_tiles_equal_diffusers(h3_build, checkpoints, tmp_path, batch):
    z, want = tile_case()
    got = run_h3(h3_build, folder_of("v-tile", "diffusers", checkpoints), tmp_path, f"tile-batch={batch}", clip=z)
    error = distance(got["decoded_clip"], want)
    print("batch", batch, error)
    assert error <= LIMIT


# Faults of the model under comparison that must show: each is planted in diffusers' side.
def wrong_axes(self, position_ids):
    return self.right(position_ids[..., [0, 2, 1]])


def test_wrong_rotary_axis_order_shows(h3_build, checkpoints, tmp_path, monkeypatch):
    z = noise(1, 8, 2, 8, 6)
    got = run_h3(h3_build, folder_of("v-tile", "official", checkpoints), tmp_path, "no-decoder-tiling", clip=z)["decoded_clip"]
    model = model_of("v-tile")
    tiny.set_tiling(model, "v-tile", False)
    with torch.no_grad():
        assert distance(got, model._decode_clip(z)) <= LIMIT
        rope = type(model.decoder.rope)
        monkeypatch.setattr(rope, "right", rope.forward, raising=False)
        monkeypatch.setattr(rope, "forward", wrong_axes)
        assert distance(got, model._decode_clip(z)) > 1e-3


def test_dropped_blend_shows(h3_build, checkpoints, tmp_path, monkeypatch):
    z, _ = tile_case()
    got = run_h3(h3_build, folder_of("v-tile", "official", checkpoints), tmp_path, clip=z)["decoded_clip"]
    model = model_of("v-tile")
    monkeypatch.setattr(model, "_blend", lambda a, b, extent, dim: b)
    with torch.no_grad():
        assert distance(got, model._decode_clip(z)) > 1e-3


def test_horizontal_before_vertical_shows(h3_build, checkpoints, tmp_path, monkeypatch):
    z, _ = tile_case()
    got = run_h3(h3_build, folder_of("v-tile", "official", checkpoints), tmp_path, clip=z)["decoded_clip"]
    model = model_of("v-tile")

    def other_order(tiles, heights, widths):
        turned = [[t.transpose(-1, -2) for t in column] for column in zip(*tiles)]
        return type(model)._stitch_tiles(model, turned, widths, heights).transpose(-1, -2)

    monkeypatch.setattr(model, "_stitch_tiles", other_order)
    with torch.no_grad():
        assert distance(got, model._decode_clip(z)) > 10 * LIMIT


def test_dropped_temporal_blend_shows(h3_build, checkpoints, tmp_path, monkeypatch):
    z = noise(1, 24, 12, 8, 8)
    got = run_h3(h3_build, folder_of("v-min", "official", checkpoints), tmp_path, latents=z)["raw"]
    model = model_of("v-min")
    tiny.set_tiling(model, "v-min", True)
    blend = model._blend
    monkeypatch.setattr(model, "_blend", lambda a, b, e, dim: b if dim == -3 else blend(a, b, e, dim))
    with torch.no_grad():
        assert distance(got, model.decode(denormalised("v-min", z)).sample) > 1e-3


@pytest.mark.parametrize("fault", ["halves", "heads"])
def test_wrong_weights_show(h3_build, checkpoints, tmp_path, fault):
    """Official files that are read as if they had another layout."""
    model = model_of("v-tile")
    state = tiny.official_tensors(model.state_dict(), 2, 64)
    for key, t in state.items():
        if fault == "halves" and ".ff.w1." in key:
            state[key] = torch.cat(t.chunk(2)[::-1]).contiguous()
        if fault == "heads" and ".to_qkv." in key:
            state[key] = t.view(2, 3, 64, -1).transpose(0, 1).reshape(t.shape).contiguous()
    folder = tmp_path / "wrong"
    tiny.save_official(model, "v-tile", folder)
    save_file(state, folder / "video_vae" / "source" / "model.safetensors")
    z, want = tile_case()
    assert distance(run_h3(h3_build, folder, tmp_path, clip=z)["decoded_clip"], want) > 0.01


# The released decode is autocast: which values are rounded to half, and when. Written out from that contract.
def half_decode(model, z, rotary_type):
    d, half = model.decoder, torch.float16
    functional = torch.nn.functional

    def linear(module, x):
        return functional.linear(x.half(), module.weight.half(), module.bias.half())

    y = functional.conv3d(z.half(), model.post_quant_conv.weight.half(), model.post_quant_conv.bias.half())
    batch, _, *sizes = y.shape
    tokens = y.permute(0, 2, 3, 4, 1).flatten(1, 3)
    x = functional.linear(tokens.float(), d.proj_in.weight, d.proj_in.bias).half().float()
    x = torch.cat([x, d.register_tokens.expand(batch, -1, -1), torch.zeros(batch, 1, x.shape[2])], 1)
    grids = [2 * (torch.arange(0.5, n, dtype=rotary_type) / n) - 1 for n in sizes]
    ids = torch.stack(torch.meshgrid(*grids, indexing="ij"), -1).flatten(0, 2)
    ids = torch.cat([ids, ids.new_zeros(d.num_register_tokens + 1, 3)])
    angles = ((2 * torch.pi * ids).float()[:, :, None] * d.rope.inv_freq).flatten(1).tile(2)[None, :, None]
    cos, sin = angles.cos().half(), angles.sin().half()
    width = cos.shape[-1]

    def rotated(t):
        t = functional.rms_norm(t.float(), t.shape[-1:], eps=1e-5).half()
        turned, rest = t[..., :width], t[..., width:]
        first, second = turned.chunk(2, -1)
        return torch.cat([turned * cos + torch.cat([-second, first], -1) * sin, rest], -1)

    for block in d.transformer_blocks:
        attn = block.attn
        a = functional.rms_norm(x, x.shape[-1:], block.norm1.weight, 1e-5)
        q, k, v = (linear(m, a).unflatten(2, (attn.heads, -1)) for m in (attn.to_q, attn.to_k, attn.to_v))
        out = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (rotated(q), rotated(k), v)))
        x = x + linear(attn.to_out[0], out.transpose(1, 2).flatten(2)) * block.scale1
        b = functional.rms_norm(x, x.shape[-1:], block.norm2.weight, 1e-5)
        value, gate = linear(block.ff.net[0].proj, b).chunk(2, -1)
        x = x + linear(block.ff.net[2], functional.silu(gate) * value) * block.scale2
    x = functional.layer_norm(x, x.shape[-1:], d.norm_out.weight, d.norm_out.bias, 1e-5)
    x = functional.linear(x, d.proj_out.weight, d.proj_out.bias)[:, : tokens.shape[1]]
    p, pt = d.patch_size, d.patch_size_t
    x = x.view(batch, *sizes, 3, pt, p, p).permute(0, 4, 1, 5, 2, 6, 3, 7)
    return x.reshape(batch, 3, sizes[0] * pt, sizes[1] * p, sizes[2] * p)


def test_half_decode_rounds_as_released(h3_build, checkpoints, tmp_path):
    model = model_of("v-patch")
    tiny.set_tiling(model, "v-patch", False)
    z = noise(2, 24, 7, 3, 4)
    folder = folder_of("v-patch", "official", checkpoints)
    with torch.no_grad():
        exact = model._decode_clip(z)
        released, precise = half_decode(model, z, torch.float16), half_decode(model, z, torch.float32)
    got = run_h3(h3_build, folder, tmp_path, half=z)["decoded_half"]
    other = run_h3(h3_build, folder, tmp_path, "f32-rotary", half=z)["decoded_half"]
    errors = {"from f32": distance(released, exact), "released": distance(got, released), "f32 rotary": distance(other, precise),
              "rule": distance(released, precise)}
    print(errors)
    assert 1e-5 < errors["from f32"] < 1e-2
    assert errors["released"] <= 1e-5 and errors["f32 rotary"] <= 1e-5
    assert distance(got, precise) > 1e-4, "the two rotary rules differ where 7 frames are no power of two"
