"""The examples do what they say, and so do those of the docstrings."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import baton
import numpy as np
import pytest
from conftest import need

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


def run(name: str, *args: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name, *args], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["hogwild_numpy.py", "weights.py", "pipeline.py"])
def test_digits_are_learnt(name):
    out = run(name)
    *_, last = re.findall(r"accuracy (\d\.\d+)", out)
    assert float(last) >= 0.93, out
    assert name != "weights.py" or "30 revisions, 2 readers, none torn" in out


def test_hogwild_with_torch_learns_and_draws(tmp_path):
    need("torch")
    out = run("hogwild_torch.py", str(tmp_path / "curve.png"))
    (accuracy,) = re.findall(r"accuracy (\d\.\d+)", out)
    assert float(accuracy) >= 0.95 and "shared for torch too: True" in out
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_handle_is_carried_over_http():
    assert run("carry_the_handle.py").splitlines() == ["over HTTP: [1.0, 1.0, 1.0, 1.0]", "float64"]


def test_docstrings():
    failed, tried = doctest.testmod(baton, extraglobs={"baton": baton, "np": np})
    assert tried >= 8 and failed == 0
