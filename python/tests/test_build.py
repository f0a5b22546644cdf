"""What one build folder remembers from one build to the next."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]


def test_cuda_is_built_only_when_this_build_asks_for_it():
    reader = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings").SettingsReader

    def define(config):
        settings = reader.from_file(REPOSITORY / "pyproject.toml", config).settings
        return str(settings.cmake.define["TESSERA_CUDA"])

    assert define({}) == "OFF", "without a word, the cache of the last build would decide"
    assert define({"cmake.define.TESSERA_CUDA": "ON"}) == "ON"


@pytest.mark.skipif(not (shutil.which("cmake") and shutil.which("ninja")), reason="no CMake, Ninja")
def test_torch_is_looked_for_in_every_build(tmp_path):
    for name in ("first", "second"):
        torch = tmp_path / name / "torch"
        (torch / "include/ATen").mkdir(parents=True)
        (torch / "include/ATen/ATen.h").touch()
        (torch / "__init__.py").touch()
        (torch / "version.py").write_text("__version__ = '2.11.0'\n")
        environment = os.environ | {"PYTHONPATH": str(tmp_path / name)}
        arguments = ["-G", "Ninja", f"-DPython_EXECUTABLE={sys.executable}"]
        subprocess.run(
            ["cmake", "-S", REPOSITORY / "python", "-B", tmp_path / "build", *arguments],
            env=environment,
            check=True,
            capture_output=True,
        )
        rules = (tmp_path / "build/build.ninja").read_text()
        used = {other for other in ("first", "second") if str(tmp_path / other) in rules}
        assert used == {name}
