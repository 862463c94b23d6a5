"""What a program holds of a session that was closed stays as it is; exec ends a session."""

import os
import threading
from pathlib import Path

import baton
import pytest
from conftest import eventually, listing, need

ROUNDS = int(os.environ.get("BATON_ROUNDS", "5000"))


def count() -> tuple[int, int, int]:
    """Descriptors, mappings and sessions of this process."""
    maps = Path("/proc/self/maps").read_text().count("\n")
    ours = [s for s in listing("sessions") if s["pid"] == os.getpid()]
    return len(os.listdir("/proc/self/fd")), maps, len(ours)


def test_arrays_stay_when_their_session_is_closed():
    torch = need("torch")
    s = baton.connect(namespace="closes")
    x, y, z = s.full(1000, 3.0), s.full(1000, 4.0), s.full(1000, 5.0)
    a, t, m = x.numpy(), y.torch(), memoryview(z.numpy())
    u = torch.from_dlpack(s.full(1000, 6.0))
    del x, y, z
    closer = threading.Thread(target=s.close)
    closer.start()
    closer.join()
    other = baton.connect(namespace="others")
    for i in range(300):
        other.full(1000, float(i))
    assert s.closed
    with pytest.raises(baton.Closed):
        s.zeros(1)
    assert (a == 3).all() and bool((t == 4).all()) and set(m) == {5.0} and bool((u == 6).all())
    a[:] = 7
    assert a.sum() == 7000
    other.close()
    del a, t, m, u, other
    eventually(lambda: not [r for r in listing("sessions") if r["namespace"] in ("closes", "others")], "their end")


def test_sessions_closed_one_after_the_other_use_up_nothing():
    kept, before = [], (0, 0, 0)
    for i in range(ROUNDS):
        with baton.connect(namespace="often") as s:
            kept.append(s.full(100, i, "int64").numpy())
        if i == 100:
            before = count()
    if ROUNDS > 100:
        after = count()
        assert after[0] < before[0] + 5 and after[1] < before[1] + 20 and after[2] == before[2]
    assert all((a == i).all() for i, a in enumerate(kept))
    del kept
    eventually(lambda: not [r for r in listing("sessions") if r["namespace"] == "often"], "its end")


def test_a_program_that_starts_itself_anew_leaves_nothing(child):
    script = """
import os
left = int(sys.argv[1])
s = baton.connect(namespace="anew")
x = s.zeros(1 << 20)
if left:
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:-1], str(left - 1)])
say("ready")
sys.stdin.readline()
"""
    c = child(script, "30")
    assert c.hear() == "ready"
    eventually(lambda: len([r for r in listing("sessions") if r["namespace"] == "anew"]) == 1, "one session")
    c.end()


def test_an_item_stays_its_takers_while_that_holds_it_although_the_session_is_closed():
    putter, other = baton.connect(namespace="taken"), baton.connect(namespace="taken")
    queue = putter.queue("jobs", redeliver=True)
    queue.put(putter.full(1000, 1.0))
    s = baton.connect(namespace="taken")
    item = s.queue("jobs", redeliver=True).get().numpy()
    assert (item == 1).all()
    s.close()
    queue.put(putter.full(1000, 2.0))
    takes = other.queue("jobs", redeliver=True)
    # The first one would come first if it were there.
    second = takes.get(timeout=20)
    assert (second.numpy() == 2).all()
    with pytest.raises(baton.Empty):
        takes.get(timeout=0)
    item[:] = 3
    assert (item == 3).all()
    del item
    again = takes.get(timeout=20)  # it was not finished with: another one gets it, as its taker left it
    assert (again.numpy() == 3).all()
    del second, again
    other.close()
    putter.close()
