"""The processes in Python of `baton-bench`: a quick run says nothing of speed; it says that everything is measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import BATON, need

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "python" / "bench"
MEASURE = [str(ROOT / "bin" / "baton-bench"), "--binary", BATON]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="measurements need two CPUs")
def test_everything_in_python_is_measured():
    need("torch")
    groups = ["python-busy", "python-asleep", "python-local", "python-loaders", "python-models"]
    program = f"{sys.executable},{BENCH}"
    done = subprocess.run(
        [*MEASURE, "--quick", "--json", "--only", ",".join(groups), "--python", program], stdout=subprocess.PIPE
    )
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert report["machine"]["python"].startswith("Python ")
    figures = report["figures"]
    assert {f["group"] for f in figures} == set(groups)
    for f in figures:
        assert f["p50"] > 0 and (f["ratio"] > 0 if "floor" in f else True), f
        assert ("met" in f) == ("bar" in f), f


def test_what_goes_wrong_in_python_is_told():
    program = f"{sys.executable},-c,raise SystemExit('no torch here')"
    done = subprocess.run([*MEASURE, "-q", "--only", "python-local", "--python", program], capture_output=True)
    assert done.returncode == 1 and b"no torch here" in done.stderr
