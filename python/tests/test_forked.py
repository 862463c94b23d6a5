"""A child that is forked while no broker serves it: its arrays stay as they were, its tensors say why they are
not had, and what it inherited is let go of when it is gone."""

import signal

import pytest
from conftest import eventually, listing

SCRIPT = """
import os
def overwrite():
    for i in range(20):
        y = baton.empty(50_000, "uint64")
        y.numpy()[:] = i
        y.release()
def child():
    for use in (x.numpy, x.tolist, lambda: np.asarray(x), lambda: np.from_dlpack(x), lambda: memoryview(x)):
        try:
            use()
            return
        except baton.BrokerLost:
            pass
    while os.read(there[0], 1) == b"l":
        os.write(back[1], b"y" if (a == 4711).all() else b"n")
x = baton.empty(50_000, "uint64")
a = x.numpy()
a[:] = 4711
say("ready")
sys.stdin.readline()
there, back = os.pipe(), os.pipe()
if not (pid := os.fork()):
    try:
        child()
    finally:
        os._exit(0)
os.close(back[1])
del a
x.release()
def looks():
    overwrite()
    os.write(there[1], b"l")
    return os.read(back[0], 1).decode()
say(looks())
sys.stdin.readline()
baton.queue("q")  # the broker is there again
say(looks())
os.write(there[1], b"e")
os.waitpid(pid, 0)
say("ended")
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_arrays_of_a_child_that_could_not_count_them_stay_as_they_were(how, own, child):
    c = child(SCRIPT)
    assert c.hear() == "ready"
    if how == "kill":
        own.end(signal.SIGKILL)
    else:
        own.suspend()
    c.tell()
    assert c.hear() == "y", "while there is no broker"
    if how == "kill":
        own.start()
    else:
        own.resume()
    c.tell()
    assert c.hear() == "y", "once there is one again"
    assert c.hear() == "ended"
    eventually(lambda: not listing("storages"), "the storage to be let go of")
    c.tell()
    c.end()
