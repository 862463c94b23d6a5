"""A broker that goes and comes back, and one that ends for good: what each kind of call does, and what the
default session does then."""

import signal
from concurrent.futures import ThreadPoolExecutor

import baton
import numpy as np
import pytest
from conftest import PATIENCE

# Each kind of call in a loop; `say` reports the first success and each error's class.
KINDS = {
    "send": "t = baton.topic('x')\ncall = lambda: (t.send(x), time.sleep(0.01))",
    "read": "r = baton.topic('x').reader()\ncall = lambda: next(iter(r))",
    "receive": "r = baton.topic('x').reader()\ncall = lambda: r.receive(timeout=60)",
    "get": "q = baton.queue('q')\ncall = lambda: q.get()",
    "put": "q = baton.queue('full', depth=1)\nq.put(x)\ncall = lambda: q.put(x)",
    "watch": "w = iter(baton.watch('n'))\ncall = lambda: next(w)",
    "set": "call = lambda: (baton.set('n', x), time.sleep(0.05))",
    "name": "call = lambda: (baton.get('held'), time.sleep(0.05))",
    "room": "baton.topic('x')\ncall = lambda: baton.empty(1 << 40, timeout=None)",
    "task": "q = baton.queue('q')\ncall = lambda: asyncio.run(q.get_async())",
}
SCRIPT = """
import asyncio, time
x = baton.share(np.arange(4.))
held = baton.get('held').value
view = held.numpy()
{setup}
say('ready')
try:
    while True:
        call()
except baton.SessionLost as e:
    say('lost', e.code)
assert x.numpy().sum() == 6 and view.sum() == 45
baton.set('of/{kind}', x.numpy() + 1)  # in a new session
say('went on', float(baton.get('of/{kind}').value.numpy().sum()))
try:
    call()
    say('an object of the lost session did something')
except baton.SessionLost:
    say('still lost')
except baton.Error as e:
    say(type(e).__name__)
assert view.sum() == 45
say('done')
"""


def test_all_kinds_of_calls_go_on_over_a_restart_and_end_with_a_stop(own, child):
    s = baton.connect(own.socket)
    s.set("held", np.arange(10.0))
    held = s.get("held")
    children = {kind: child(SCRIPT.format(kind=kind, setup=setup)) for kind, setup in KINDS.items()}
    for c in children.values():
        assert c.hear() == "ready"

    own.end(signal.SIGTERM)
    own.start()
    s.set("n", np.zeros(3))  # by the session of before
    assert s.get("held").value.numpy().sum() == 45
    assert all(c.process.poll() is None for c in children.values())

    own.end(signal.SIGINT)  # some may not be back yet
    for kind, c in children.items():
        assert c.hear() == "lost SessionLost", kind
    own.start()
    # Calls of the module go on with a new session; what was made in the old one fails for good.
    by_module = {"set", "name", "room"}
    for kind, c in children.items():
        assert c.hear() == "went on 10.0", kind
        if kind not in by_module:
            assert c.hear() == "still lost", kind
            assert c.hear() == "done"
            c.end()
        else:
            c.kill()
    assert held.value.numpy().sum() == 45
    with pytest.raises(baton.SessionLost):
        s.names()
    assert s.closed
    with s.reopen() as new:
        assert (new.address, new.namespace) == (s.address, s.namespace)
        assert sorted(n for n in new.names() if n.startswith("of/")) == sorted(f"of/{kind}" for kind in KINDS)


def test_a_get_that_does_not_wait_for_a_revision_waits_for_the_broker(own):
    s = baton.connect(own.socket)
    s.set("n", np.arange(4.0))
    own.end(signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        plain = pool.submit(s.get, "n")
        with pytest.raises(baton.BrokerLost):
            s.get("n", timeout=2)  # longer than a running broker is given to answer
        assert not plain.done()
        own.start()
        assert plain.result(PATIENCE).value.numpy().sum() == 6
    with pytest.raises(baton.NotFound):
        s.get("none")
    s.close()


def test_the_first_call_of_the_module_after_a_loss_raises(own, child):
    c = child(
        """
x = baton.share(np.arange(4.))
say('ready')
sys.stdin.readline()
try:
    baton.names()
except (baton.SessionLost, ConnectionError) as e:
    say(type(e).__name__, 'session' in e.detail)
say(baton.names(), float(x.numpy().sum()))
"""
    )
    assert c.hear() == "ready"
    own.end(signal.SIGINT)
    own.start()
    c.tell()
    assert c.hear() == "SessionLost True"
    assert c.hear() == "[] 6.0"
    c.end()


def test_the_loss_of_another_session_does_not_keep_the_module_from_a_new_one(own, child):
    c = child(
        """
s = baton.connect()
q = s.queue('q')
baton.names()
say('ready')
sys.stdin.readline()
def lost(call):
    try:
        call()
    except baton.SessionLost:
        return True
    return False
say(lost(lambda: q.put(1, timeout=5)), lost(q.qsize))
say(lost(baton.names), lost(lambda: q.put(1, timeout=5)), lost(baton.names))
"""
    )
    assert c.hear() == "ready"
    own.end(signal.SIGINT)
    own.start()
    c.tell()
    assert c.hear() == "True True"
    assert c.hear() == "True True False"
    c.end()
