"""The media readers against Pillow: pixels, orientation, colour models, and the Lanczos filter bit for bit."""
import subprocess

import numpy as np
import pytest
from PIL import Image, ImageOps


@pytest.fixture
def probe(h3_build, tmp_path):
    def run(path, *size):
        out = tmp_path / "out.rgb"
        command = [h3_build / "h3" / "media" / "h3_media_probe", "image", path, out, *map(str, size)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        width, height = map(int, done.stdout.split())
        return np.fromfile(out, np.uint8).reshape(height, width, 3)
    return run


def picture(width=61, height=37, seed=20261130, noise=20):
    print("seed", seed)
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    smooth = np.stack([230 * x + 10, 230 * y + 10, 120 + 100 * np.sin(6 * x + 3 * y)], -1)
    grain = np.random.default_rng(seed).integers(0, noise + 1, smooth.shape)
    return Image.fromarray(np.clip(smooth + grain, 0, 255).astype(np.uint8))


def expected(path):
    return np.asarray(ImageOps.exif_transpose(Image.open(path)).convert("RGB"))


def worst(a, b):
    assert a.shape == b.shape
    return int(np.abs(a.astype(int) - b).max())


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind, tolerance", [("jpg", 4), ("png", 0), ("webp", 0)])
def test_exif_orientation(probe, tmp_path, kind, tolerance, orientation):
    path = tmp_path / f"a.{kind}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = dict(quality=95, subsampling=0) if kind == "jpg" else dict(lossless=True) if kind == "webp" else {}
    picture(noise=0).save(path, exif=exif, **options)
    assert worst(probe(path), expected(path)) <= tolerance


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16"])
def test_png_modes(probe, tmp_path, mode):
    path = tmp_path / "a.png"
    image = picture()
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif mode in ("RGBA", "LA"):  # transparency is dropped, not blended
        image = image.convert(mode)
        image.putalpha(Image.fromarray(np.linspace(0, 255, image.size[0] * image.size[1]).reshape(image.size[::-1]).astype(np.uint8)))
    elif mode != "RGB":
        image = image.convert(mode)
    image.save(path)
    want = expected(path) if mode != "I;16" else np.stack([np.asarray(image) // 257] * 3, -1)
    assert worst(probe(path), want) <= (1 if mode == "I;16" else 0)


@pytest.mark.parametrize("mode, tolerance", [("RGB", 6), ("L", 2), ("CMYK", 6)])
@pytest.mark.parametrize("size", [(64, 48), (61, 37), (61, 48), (64, 37)])
def test_jpeg_modes(probe, tmp_path, mode, tolerance, size):
    path = tmp_path / "a.jpg"
    picture(*size, noise=0).convert(mode).save(path, quality=95)
    difference = np.abs(probe(path).astype(int) - expected(path))
    print(mode, "mean and largest difference", difference.mean(), difference.max())
    assert difference.mean() <= 1.2 and difference.max() <= tolerance


@pytest.mark.parametrize("kind", ["bmp", "tiff", "gif", "webp", "ppm"])
def test_other_kinds(probe, tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    picture().save(path, **(dict(lossless=True) if kind == "webp" else {}))
    assert worst(probe(path), expected(path)) == 0


@pytest.mark.parametrize("size", [(64, 64), (32, 96), (200, 37), (61, 12), (7, 5), (183, 111), (60, 38)])
def test_lanczos_equals_pillow_bit_for_bit(probe, tmp_path, size):
    path = tmp_path / "a.png"
    image = picture(noise=200)
    image.save(path)
    want = np.asarray(image.resize(size, Image.Resampling.LANCZOS))
    assert np.array_equal(probe(path, *size), want)
    nearest = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    assert not np.array_equal(nearest, want), "another filter must show"


@pytest.mark.parametrize("size", [(64, 64), (32, 96), (20, 4), (61, 36)])
def test_cover_crop_follows_its_rule(probe, tmp_path, size):
    path = tmp_path / "a.png"
    image = picture(noise=200)
    image.save(path)
    scale = max(size[0] / image.width, size[1] / image.height)
    wide = (max(size[0], round(image.width * scale)), max(size[1], round(image.height * scale)))
    left, top = (wide[0] - size[0]) // 2, (wide[1] - size[1]) // 2
    want = image.resize(wide, Image.Resampling.LANCZOS).crop((left, top, left + size[0], top + size[1]))
    assert np.array_equal(probe(path, *size, "cover"), np.asarray(want))
