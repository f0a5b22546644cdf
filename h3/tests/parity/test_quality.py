"""`h3 compare-runs` against the measures written out with numpy."""
import json
import subprocess
import zlib

import numpy as np
import pytest
from safetensors.numpy import save_file

SEED = 20261130


@pytest.fixture(scope="session")
def compare(h3_build):
    binary = h3_build / "h3" / "cli" / "h3"
    assert binary.is_file(), f"no {binary}; build it"

    def run(*args):
        done = subprocess.run([binary, "compare-runs", *map(str, args), "--json"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def ssim(a, b, peak, sigma=1.5, side=11):
    """Every window as a view, weighted by a two-dimensional Gaussian: no shared steps with a separable filter."""
    side = min(side, *a.shape)
    side -= side % 2 == 0
    at = np.arange(side) - side // 2
    window = np.exp(-(at[:, None]**2 + at[None, :]**2) / (2 * sigma**2))
    window /= window.sum()
    a, b = (np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (side, side)) for x in (a, b))
    mean = lambda x: np.einsum("hwij,ij->hw", x, window)
    ma, mb = mean(a), mean(b)
    da, db = a - ma[..., None, None], b - mb[..., None, None]
    va, vb, ab = mean(da * da), mean(db * db), mean(da * db)
    c1, c2 = (0.01 * peak)**2, (0.03 * peak)**2
    return ((2 * ma * mb + c1) * (2 * ab + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))).mean()


def psnr(a, b, peak):
    return 10 * np.log10(peak**2 / np.mean((a.astype(np.float64) - b.astype(np.float64))**2))


def cosine(a, b):
    a, b = (x.astype(np.float64).ravel() for x in (a, b))
    return a @ b / np.sqrt((a @ a) * (b @ b))


def smooth(generator, shape):
    """Latents look smooth: noise summed along both sides."""
    noise = generator.standard_normal(shape)
    return (noise + np.roll(noise, 1, -1) + np.roll(noise, 1, -2) + 0.3).astype(np.float32)


@pytest.mark.parametrize("shape", [(3, 4, 24, 42), (2, 3, 6, 8), (2, 2, 10, 31), (2, 2, 11, 11), (4, 2, 1, 5), (2, 3, 2, 2)])
@pytest.mark.parametrize("data_range", [None, 8.0])
def test_latents(compare, tmp_path, shape, data_range):
    print("seed", SEED)
    generator = np.random.default_rng(SEED)
    a, sound = smooth(generator, shape), smooth(generator, (2, 4, 9))
    b = a + np.float32(0.2) * smooth(generator, shape)
    other = sound + np.float32(0.1) * smooth(generator, sound.shape)
    save_file({"video": a[None], "audio": sound}, tmp_path / "a.safetensors")
    save_file({"video": b[None], "audio": other}, tmp_path / "b.safetensors")
    more = [] if data_range is None else ["--data-range", data_range]
    got = compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors", *more)
    peak = data_range or float(a.max()) - float(a.min())
    for name, x, y in (("video", a, b), ("audio", sound, other)):
        x, y = x.astype(np.float64), y.astype(np.float64)
        assert got[name]["cosine"] == pytest.approx(cosine(x, y), abs=1e-12)
        assert got[name]["relative_l2"] == pytest.approx(np.linalg.norm(x - y) / np.linalg.norm(x), rel=1e-10)
        assert got[name]["max_abs"] == np.abs(x - y).max()
    frames = got["video"]["frames"]
    assert len(frames) == shape[1]
    expected = [np.mean([ssim(a[c, t], b[c, t], peak) for c in range(shape[0])]) for t in range(shape[1])]
    decibels = [psnr(a[:, t], b[:, t], peak) for t in range(shape[1])]
    for t, frame in enumerate(frames):
        assert frame["ssim"] == pytest.approx(expected[t], abs=1e-6)
        assert frame["psnr_db"] == pytest.approx(decibels[t], abs=1e-9)
    assert got["video"]["ssim"]["mean"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert got["video"]["ssim"]["worst_frame"] == int(np.argmin(expected))
    assert got["video"]["psnr_db"]["worst_frame"] == int(np.argmin(decibels))
    assert got["video"]["psnr_db"]["mean"] == pytest.approx(np.mean(decibels), abs=1e-9)
    assert got["video"]["psnr_db"]["pooled"] == pytest.approx(psnr(a, b, peak), abs=1e-9)


@pytest.mark.parametrize("wrong", [dict(sigma=1.45), dict(side=9)])
def test_the_comparison_can_fail(compare, tmp_path, wrong):
    generator = np.random.default_rng(SEED)
    a = smooth(generator, (1, 1, 24, 42))
    b = a + np.float32(0.2) * smooth(generator, a.shape)
    for name, x in (("a", a), ("b", b)):
        save_file({"video": x[None], "audio": np.ones((2, 1, 1), np.float32)}, tmp_path / f"{name}.safetensors")
    got = compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--data-range", 8)["video"]["frames"][0]["ssim"]
    assert got == pytest.approx(ssim(a[0, 0], b[0, 0], 8), abs=1e-6)
    assert abs(got - ssim(a[0, 0], b[0, 0], 8, **wrong)) > 1e-5


def write_png(path, pixels):
    """8-bit gray [H, W], RGB or RGBA [H, W, C]."""
    height, width = pixels.shape[:2]
    colour = {2: 0, 3: {3: 2, 4: 6}.get(pixels.shape[-1])}[pixels.ndim]

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, colour, 0, 0, 0])
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@pytest.mark.parametrize("shape", [(40, 56, 3), (7, 30, 3), (40, 56), (30, 41, 4)])
def test_frames(compare, tmp_path, shape):
    print("seed", SEED)
    generator = np.random.default_rng(SEED)
    runs = {"a": [], "b": []}
    for t in range(3):
        base = generator.integers(0, 256, shape)
        for name in runs:
            pixels = np.clip(base + generator.integers(-9, 10 + 9 * t, shape), 0, 255).astype(np.uint8)
            if shape[-1] == 4:
                pixels[..., 3] = 255
            (tmp_path / name).mkdir(exist_ok=True)
            write_png(tmp_path / name / f"{t:03}.png", pixels)
            runs[name].append(pixels.reshape(*shape[:2], -1)[..., :3])
    got = compare(tmp_path / "a", tmp_path / "b")
    weights = np.array([0.299, 0.587, 0.114])
    for t, (a, b) in enumerate(zip(runs["a"], runs["b"])):
        la, lb = (x @ weights if x.shape[-1] == 3 else x[..., 0] for x in (a, b))
        luma = got["luma"]["frames"][t]
        assert luma["psnr_db"] == pytest.approx(psnr(la, lb, 255), abs=1e-9)
        assert luma["ssim"] == pytest.approx(ssim(la, lb, 255), abs=1e-6)
        if a.shape[-1] == 1:
            assert got["rgb"] is None
            continue
        rgb = got["rgb"]["frames"][t]
        assert rgb["psnr_db"] == pytest.approx(psnr(a, b, 255), abs=1e-9)
        assert rgb["ssim"] == pytest.approx(np.mean([ssim(a[..., c], b[..., c], 255) for c in range(3)]), abs=1e-6)
