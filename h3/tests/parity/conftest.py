"""Parity of the engine with the public implementations. Run with the build folder of the `h3` preset:

    H3_BUILD=build/h3 build/venv/bin/python -m pytest h3/tests/parity
"""
import os
import pathlib

# Before torch is imported, for both sides: the models are too small for threads, which would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def h3_build():
    build = pathlib.Path(os.environ.get("H3_BUILD", ROOT / "build" / "h3")).resolve()
    assert (build / "h3").is_dir(), f"{build} is no build folder of the h3 preset; set H3_BUILD"
    return build
