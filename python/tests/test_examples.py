"""The examples do what they say, and so do those of the docstrings."""

import asyncio
import doctest
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import baton
import baton._functions
import baton._provided
import numpy as np
import pytest
from conftest import BATON, need

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"


def run(name: str, *args: str, broker: list[str] | None = None) -> str:
    """Its output. broker: the command that gives it one; default: the run's."""
    command = [*(broker or []), sys.executable, str(EXAMPLES / name), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
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


def test_hogwild_of_torch_multiprocessing_is_one_line_away(tmp_path):
    need("torch")
    ours, theirs = "import baton.torch.multiprocessing as mp", "import torch.multiprocessing as mp"
    text = (EXAMPLES / "hogwild_dropin.py").read_text()
    stock = tmp_path / "stock.py"
    stock.write_text(f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n" + text.replace(ours, theirs))
    for program in (EXAMPLES / "hogwild_dropin.py", stock):
        out = run(str(program), "--save", str(tmp_path / "model.pt"))
        (accuracy,) = re.findall(r"accuracy (\d\.\d+)", out)
        assert float(accuracy) >= 0.85, out
        load = f"import torch; print(len(torch.load({str(tmp_path / 'model.pt')!r})))"
        assert subprocess.check_output([sys.executable, "-c", load], text=True) == "8\n"


def test_a_handle_is_carried_over_http_and_nats():
    need("nats")
    assert run("carry_the_handle.py", broker=[BATON, "run", "--"]).splitlines() == [
        "over HTTP: [1.0, 1.0, 1.0, 1.0]",
        "over NATS: [2.0, 2.0, 2.0, 2.0]",
        "of a topic: {'step': 7} [9.0, 2.0, 2.0, 2.0]",
    ]


def test_sixteen_processes_search_one_memory():
    out = run("embeddings.py")
    figures = [float(n) for n in re.findall(r"\d+\.?\d*", out)]
    searchers, accuracy, table, seen, cost = figures
    assert (searchers, table) == (16, 49) and accuracy >= 0.95, out
    assert seen > 16 * table and table <= cost < 1.5 * table, out


def test_three_languages_meet_on_one_topic():
    out = run("mixed.py").splitlines()
    parties = [line.split(":")[0] for line in out if "messages" in line]
    assert "Python" in parties and len(parties) == 3 - sum("not on PATH" in line for line in out), out
    assert len({line.split(": ")[1] for line in out if "messages" in line}) == 1, out
    assert f"{10 * len(parties)} messages" in out[0]


def test_functions_of_four_languages_train_while_one_is_killed(tmp_path, monkeypatch):
    need("tvm_ffi")
    if missing := [tool for tool in ("go", "cargo", "c++", "ninja") if shutil.which(tool) is None]:
        pytest.skip(f"not on PATH: {missing}")
    monkeypatch.setenv("TVM_FFI_CACHE_DIR", str(tmp_path))
    out = run(str(EXAMPLES.parent / "functions" / "train.py"))
    assert "step 100: one of two kernels is killed" in out
    (accuracy,) = re.findall(r"300 steps, loss .*, accuracy (\d\.\d+)", out)
    assert float(accuracy) >= 0.93, out
    assert "/prepare(pictures: tensor) -> tensor" in out and "-> float" in out


def test_weights_are_on_three_machines_while_one_is_cut_off():
    out = run(str(EXAMPLES.parent / "machines" / "train.py"))
    cut, refused, back, last = out.splitlines()
    assert "which is stale" in cut and "a set on C is refused" in refused and "C is back" in back
    (b, c, accuracy) = re.fullmatch(
        r"30 revisions; B read (\d+), C (\d+), none torn, accuracy (\d\.\d+)", last
    ).groups()
    assert int(b) == 30 and int(c) == 22 and float(accuracy) >= 0.93, out


def test_the_demo_has_workers_in_python():
    figures = json.loads(
        subprocess.run(
            [BATON, "demo", "--json", "--batches", "3000", "--python", sys.executable],
            check=True,
            capture_output=True,
            timeout=300,
        ).stdout
    )
    assert figures["python_workers"] == 2 and figures["accuracy"] >= 0.95
    assert (figures["bytes_copied"], figures["storages_left"], figures["killed"]) == (0, 0, 1)


def test_the_tour_hands_batches_over():
    assert run("tour.py", broker=[BATON, "run", "--"]).splitlines() == [
        "batch 1: (2, 3), first 0, last 5",
        "batch 2: (2, 3), first 10, last 15",
        "batch 3: (2, 3), first 20, last 25",
    ]


def test_a_stock_loader_takes_both_roads():
    need("torch")
    lines = run("loader_torch.py", "4").splitlines()
    assert [line.split(",")[0] for line in lines] == ["torch 4 batches", "Baton 4 batches"]


@pytest.mark.parametrize("name", ["verl_engine.py", "vllm_engine.py"])
def test_engines_carry_weights(name):
    need("torch")
    first, second = run(name).splitlines()
    for line, changed in ((first, "['bias', 'weight']"), (second, "['bias']")):
        assert "equal True" in line and f"changed {changed}" in line


def test_an_engine_receives_in_another_process(child, monkeypatch, name):
    torch = need("torch")
    monkeypatch.syspath_prepend(EXAMPLES)
    vllm_engine = importlib.import_module("vllm_engine")
    c = child(
        """
import torch
sys.path.insert(0, sys.argv[1])
import vllm_engine
model = vllm_engine.Model(4, 2)
worker = vllm_engine.BatonWeightTransferEngine(None, None, torch.device("cpu"), model)
worker.init_transfer_engine(vllm_engine.BatonInitInfo(sys.argv[2]))
say("ready")
for line in sys.stdin:
    worker.start_weight_update()
    worker.update_weights({"number": int(line)})
    worker.finish_weight_update()
    say(model.bias.tolist(), worker.receiver.version)
""",
        str(EXAMPLES),
        name,
    )
    assert c.hear() == "ready"

    class Far:
        """The worker in the other process."""

        def init_weight_transfer_engine(self, init_info):
            assert init_info["name"] == name

        def update_weights(self, update_info):
            c.tell(str(update_info["number"]))

        def start_weight_update(self):
            pass

        def finish_weight_update(self, weight_version=None):
            pass

    weight = {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}
    info = vllm_engine.BatonTrainerInitInfo(rank=0, name=name)
    trainer = vllm_engine.BatonTrainerWeightTransferEngine.trainer_init(info, client=Far(), source=weight.items())
    for step in (1, 2):
        weight["bias"].fill_(step)
        trainer.send_weights()
        assert c.hear() == f"[{step}.0, {step}.0] {step}"
    baton.delete(name)  # as where a broker has ended: versions begin anew
    weight["bias"].fill_(3)
    trainer.send_weights()
    assert c.hear().startswith("[3.0, 3.0] ")
    c.end()
    baton.delete(name)


def test_actors_of_ray_hand_tensors_over():
    need("ray")
    came, *times = run("ray_actors.py").splitlines()
    assert came == "came: 4.0" and [line.split(":")[0] for line in times] == ["16 MiB by store", "16 MiB by Baton"]


def test_docstrings():
    need("torch")
    need("jax")
    known = {m.__name__: m for m in (asyncio, baton, os, tempfile, threading, time)} | {"np": np}
    for module in (
        baton,
        baton._errors,
        baton._functions,
        baton._provided,
        baton.torch._install,
        baton.torch._modules,
        baton.torch.weights,
    ):
        failed, tried = doctest.testmod(module, extraglobs=known, optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
        assert tried > 0 and failed == 0, module


def test_docstrings_of_gymnasium():
    gymnasium = need("gymnasium")
    importlib.import_module("baton.gymnasium")
    known = {"gymnasium": gymnasium, "np": np, "baton": baton}
    failed, tried = doctest.testmod(baton.gymnasium, extraglobs=known)
    assert tried > 0 and failed == 0


def test_docstrings_of_tvm_ffi(monkeypatch):
    tvm_ffi = need("tvm_ffi")
    importlib.import_module("baton.tvm_ffi")
    monkeypatch.setattr(baton._functions, "_defined", {})
    known = {"tvm_ffi": tvm_ffi, "np": np, "baton": baton}
    failed, tried = doctest.testmod(baton.tvm_ffi, extraglobs=known)
    assert tried > 0 and failed == 0
    assert [n for n in baton.tvm_ffi.__all__ if not examples(getattr(baton.tvm_ffi, n))] == []


def examples(*things) -> str:
    """What the docstrings of things run."""
    parse = doctest.DocTestParser().get_examples
    return "".join(example.source for thing in things for example in parse(thing.__doc__ or ""))


@pytest.mark.parametrize("name", [n for n in baton.__all__ if not n.startswith("_")])
def test_what_is_public_has_an_example(name):
    """Each function its own; a class names each of its members in an example, unless a function of the same name does."""
    thing = getattr(baton, name)
    if not inspect.isclass(thing):
        assert examples(thing)
    elif not issubclass(thing, Exception):
        members = [m for m in vars(thing) if not m.startswith("_")]
        shown = examples(thing, *(getattr(thing, m) for m in members))
        assert [m for m in members if not re.search(rf"\.{m}\b", shown + examples(getattr(baton, m, None)))] == []


def test_what_is_public_for_torch_has_an_example():
    need("torch")
    assert [n for n in baton.torch.__all__ if not examples(getattr(baton.torch, n))] == []
