"""The table of meanings of docs/torch.md: each row has tests, and those that no other module has stand here."""

import ast
import gc
import multiprocessing.queues
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import baton
import pytest
from conftest import BATON, PATIENCE, eventually
from torch_kit import Echo, module, storage_of, torch

mp: Any = None  # the drop-in, by the fixture `module`

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "torch.md"

# The tests of each row, by what the row begins with.
MEANINGS = {
    "after `put`, sender and receivers see each other's writes": [
        "test_torch_multiprocessing.test_what_one_process_writes_others_see_through_every_view",
        "test_torch_multiprocessing.test_a_receiver_writes_what_the_sender_has",
    ],
    "one storage in each process: views, tied weights, a tensor that comes back": [
        "test_torch_meaning.test_tied_weights_are_one_storage_in_each_process",
        "test_torch_multiprocessing.test_what_one_process_writes_others_see_through_every_view",
    ],
    "leaves, `Parameter`, gradients asked for; a non-leaf": [
        "test_torch_multiprocessing.test_values_keep_what_they_have",
        "test_torch_queues.test_errors_are_puts_and_lose_nothing",
    ],
    "sparse, jagged, meta, float8, bfloat16, zero elements": [
        "test_torch_multiprocessing.test_values_keep_what_they_have",
        "test_torch_install.test_every_type_of_torchs_arrives_as_it_is",
    ],
    "a view that is to be conjugated or negated": ["test_torch_multiprocessing.test_values_keep_what_they_have"],
    "an array of NumPy's, or what took a tensor by `__dlpack__`, and the tensor moves": [
        "test_torch_install.test_arrays_that_look_at_a_tensor_stay_valid_when_it_moves"
    ],
    "NumPy's arrays": ["test_torch_multiprocessing.test_arrays_are_the_receivers_own"],
    "when `put` pickles": [
        "test_torch_queues.test_errors_are_puts_and_lose_nothing",
        "test_torch_meaning.test_what_is_no_tensor_goes_as_it_was_at_put",
    ],
    "a `Queue` without `maxsize`": [
        "test_torch_meaning.test_a_sender_of_short_items_ends_before_they_are_taken",
        "test_torch_queues.test_a_queue_without_maxsize_takes_all_there_is",
        "test_torch_meaning.test_a_senders_end_waits_for_what_is_not_under_way_yet",
    ],
    "a `SimpleQueue`, and the tasks of a `Pool`": [
        "test_torch_queues.test_a_simple_queues_sender_waits_for_its_takers"
    ],
    "`maxsize`": [
        "test_torch_queues.test_maxsize_counts_the_items_of_all_senders",
        "test_torch_queues.test_a_killed_process_takes_no_place_along",
        "test_torch_queues.test_errors_are_puts_and_lose_nothing",
    ],
    "the sender ends before the item is taken": [
        "test_torch_meaning.test_a_senders_end_waits_for_what_is_not_under_way_yet",
    ],
    "the sender is killed before the item is taken": [
        "test_torch_queues.test_what_was_put_outlives_its_sender",
        "test_torch_queues.test_what_waits_in_a_sender_is_killed_with_it",
    ],
    "a queue sent through a queue": [
        "test_torch_queues.test_readers_are_waited_for",
        "test_torch_meaning.test_a_joinable_queue_goes_through_no_queue",
    ],
    "when a queue ends": [
        "test_torch_queues.test_a_queue_that_was_passed_on_ends_by_itself",
        "test_torch_multiprocessing.test_queues_of_loaders_that_were_left_early_end_with_their_workers",
        "test_torch_multiprocessing.test_a_queue_that_a_process_did_not_open_ends_with_it",
        "test_torch_meaning.test_a_queue_ends_with_its_last_process_and_with_what_is_in_it",
    ],
    "`isinstance(q, multiprocessing.queues.Queue)`": [
        "test_torch_meaning.test_queues_are_classes_of_their_own"
    ],
    "a child of a fork puts on what its parent shared": [
        "test_torch_multiprocessing.test_a_forked_child_hands_on_what_its_parent_shared"
    ],
    "how many queues": ["test_torch_meaning.test_more_queues_than_a_broker_has_are_too_many"],
    "`qsize`, `empty`, `full`, `_reader` for `connection.wait`": [
        "test_torch_queues.test_readers_are_waited_for",
        "test_torch_queues.test_maxsize_counts_the_items_of_all_senders",
        "test_torch_queues.test_what_a_process_put_before_its_end_is_there_at_its_end",
    ],
    "descriptors": ["test_torch_install.test_no_descriptor_is_needed_for_each_tensor"],
    "`set_sharing_strategy`": ["test_torch_processes.test_a_sharing_strategy_is_accepted_and_changes_nothing"],
    "`resize_` of a storage that was shared": [
        "test_torch_install.test_what_was_put_keeps_its_size",
        "test_torch_install.test_a_storage_that_is_made_empty_lets_its_memory_go",
    ],
    "tensors on a GPU": [
        "test_torch_bad.test_a_storage_of_another_device_goes_by_torchs_road",
        "test_torch_bad.test_a_tensor_of_batons_on_a_gpu_goes_by_batons_road",
        "test_gpu.test_torchs_tensors_go_through_the_drop_in_by_torchs_road",
    ],
}  # fmt: skip


def rows_of(page: str) -> list[str]:
    """What the rows of the table of meanings begin with."""
    section = re.split(r"^## ", page.split("\n## What it means\n", 1)[1], flags=re.MULTILINE)[0]
    rows = [line.strip("| ").split(" | ")[0].strip() for line in section.splitlines() if line.startswith("|")]
    return rows[2:]  # behind the head and the line below it


def functions_of(name: str) -> set[str]:
    """The functions of a module of tests."""
    tree = ast.parse((HERE / f"{name}.py").read_text())
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def test_each_row_of_the_table_has_a_test():
    rows = rows_of(PAGE.read_text())
    assert len(rows) > 20 and sorted(rows) == sorted(MEANINGS)
    for row, tests in MEANINGS.items():
        assert tests, row
        for test in tests:
            name, function = test.split(".")
            assert function in functions_of(name), f"{test}, a test of the row {row!r}, does not exist"


def test_tied_weights_are_one_storage_in_each_process():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    with Echo(mp.get_context("fork")) as e:
        back = e({"model": model, "state": model.state_dict()})
        assert storage_of(back["model"][0].weight) == storage_of(model[0].weight)
        assert back["model"][0].weight is back["model"][1].weight
        assert len({storage_of(back["state"][f"{i}.weight"]) for i in (0, 1)}) == 1


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue", "JoinableQueue"])
def test_what_is_no_tensor_goes_as_it_was_at_put(kind):
    q: Any = getattr(mp, kind)()
    x, words = torch.zeros(2), ["before"]
    q.put((words, x))
    words[0] = "after"
    x.fill_(5)
    got, t = q.get()
    assert got == ["before"] and t.tolist() == [5, 5]


def put_many(q, n, put):
    for i in range(n):
        q.put(torch.tensor(i))
    put.set()


def put_numbers(q, n):
    for i in range(n):
        q.put(i)


def test_a_sender_of_short_items_ends_before_they_are_taken():
    q = mp.get_context("fork").Queue()
    p = mp.get_context("fork").Process(target=put_numbers, args=(q, 2047))
    p.start()
    p.join(PATIENCE)
    assert p.exitcode == 0
    assert [q.get(timeout=PATIENCE) for _ in range(2047)] == list(range(2047))


def test_a_senders_end_waits_for_what_is_not_under_way_yet():
    ctx = mp.get_context("fork")
    q, put = ctx.Queue(), ctx.Event()
    p = ctx.Process(target=put_many, args=(q, 600, put))
    p.start()
    assert put.wait(PATIENCE)
    eventually(lambda: q._carrier.qsize() == 256, "as many as may be under way")
    assert p.is_alive()
    assert [q.get(timeout=PATIENCE).item() for _ in range(600)] == list(range(600))
    p.join(PATIENCE)
    assert p.exitcode == 0


def test_a_joinable_queue_goes_through_no_queue():
    q = mp.Queue()
    with pytest.raises(RuntimeError, match="inheritance"):
        q.put(mp.JoinableQueue())
    q.put(inner := mp.Queue())
    inner.put(torch.ones(2))
    assert q.get().get().tolist() == [1, 1]


def live():
    gc.collect()
    baton._default.session().collect()
    return baton.stats()["live"]


def test_a_queue_ends_with_its_last_process_and_with_what_is_in_it():
    before, q = live(), mp.Queue()
    for _ in range(100):
        q.put(torch.ones(1000))
    assert live() > before + 50
    del q
    eventually(lambda: live() <= before, "what was in the queue to be free")


def test_queues_are_classes_of_their_own():
    for made in (mp.Queue(), mp.JoinableQueue()):
        assert not isinstance(made, multiprocessing.queues.Queue)
    assert not isinstance(mp.SimpleQueue(), multiprocessing.queues.SimpleQueue)
    assert isinstance(mp.JoinableQueue(), mp.queue.Queue)


def test_more_queues_than_a_broker_has_are_too_many(tmp_path, child, monkeypatch):
    """Of a broker that may open few files, so that few do; those that ended do not count."""
    if shutil.which("prlimit") is None:
        pytest.skip("prlimit is not installed (Debian: apt-get install util-linux)")
    tmp_path.chmod(0o700)
    monkeypatch.setenv("BATON_ADDRESS", address := f"{tmp_path}/few.sock")
    args = ["prlimit", "--nofile=1500", BATON, "serve", "--address", address, "--no-nats", "--log-level", "error"]
    broker = subprocess.Popen(args)
    try:
        eventually(lambda: os.path.exists(address), "the broker's socket")
        c = child("""
import baton.torch.multiprocessing as mp
held = []
try:
    while len(held) < 1500:
        held.append(mp.SimpleQueue())
except baton.TooMany as e:
    say(len(held) > 900)
held.clear()
for _ in range(1500):
    q = mp.Queue(2)
    q.put(1)
    assert q.get() == 1
say("again")
""")
        assert (c.hear(), c.hear()) == ("True", "again")
        c.end()
    finally:
        broker.kill()
        broker.wait(PATIENCE)
