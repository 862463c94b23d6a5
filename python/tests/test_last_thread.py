"""A child that a thread has forked ends where that thread ends in it, as it does where nothing is held."""

import pytest
from conftest import eventually, listing

SCRIPT = """
import os, threading
how = sys.argv[1]
x, more = baton.share(np.arange(4)), []
def forks():
    if pid := os.fork():
        ended.append(os.waitpid(pid, 0)[1])
    elif how == "exception":
        sys.stderr.close()
        raise RuntimeError
    elif how == "SystemExit":
        raise SystemExit(3)  # it ends a thread as its return does, of any status
    elif how == "use":
        assert x.numpy().sum() == 6
        more.append(baton.share(np.arange(5)))
    elif how == "another thread":
        threading.Thread(target=lambda: more.append(baton.share(x.numpy() + 1))).start()
ended = []
t = threading.Thread(target=forks)
t.start()
t.join()
say(ended[0])
sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["return", "exception", "SystemExit", "use", "another thread"])
def test_a_child_ends_with_the_thread_that_forked_it(how, own, child):
    c = child(SCRIPT, how)
    assert c.hear() == "0"
    eventually(lambda: [s["pid"] for s in listing("sessions")] == [c.pid], "the child's session to be over")
    assert len(listing("storages")) == 1, "what the child made is let go of, and the parent's is there"
    c.tell()
    c.end()
