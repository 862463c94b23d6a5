"""Functions that are defined again in the same module, as by a cell of a notebook that runs again."""

import threading

import baton
import pytest
from conftest import PATIENCE, eventually
from function_kit import nothing_is_defined, provider  # noqa: F401 - a fixture


def cell(source, **known):
    """What a cell has defined as f."""
    space = {"baton": baton, "__name__": __name__, **known}
    exec(source, space)  # noqa: S102 - as a notebook does
    return space["f"]


def define(name, result, settings="", parameters="", doc="one"):
    source = f"@baton.function({name!r}, {settings})\ndef f({parameters}):\n    {doc!r}\n    return {result!r}"
    return cell(source)


def serials(name):
    (info,) = baton.functions(name)
    return [p.session for p in info.providers]


def test_a_function_that_is_defined_again_runs_by_its_new_code(name):
    with baton.start_functions(define(name, "old")) as old:
        g = baton.get_function(name)
        before = serials(name)
        define(name, "new")
        assert g() == "old"  # until it is started
        with baton.start_functions() as new:
            assert repr(new) == f"<baton.Functions {name}>" and new.names == [name] and old.names == []
            assert g() == "new" and serials(name) == before
            assert baton.start_functions().names == []
            f = define(name, "newest")
            with baton.start_functions(f) as newest:
                assert g() == "newest" and newest.names == [name]
                old.close()
                new.close()  # they have it no more
                assert g() == "newest"
        with pytest.raises(baton.NoProvider):
            g()


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_what_runs_ends_by_the_old_code_and_what_waits_runs_by_the_new(name, kind):
    runs, go = threading.Event(), threading.Event()
    source = f"""
import asyncio
@baton.function({name!r})
{kind} f():
    runs.set()
    while not go.is_set():
        {"time.sleep(0.001)" if kind == "def" else "await asyncio.sleep(0.001)"}
    return "old"
"""
    import time

    baton.start_functions(cell(source, runs=runs, go=go, time=time))
    g = baton.get_function(name)
    running = g.submit()
    assert runs.wait(PATIENCE)
    waiting = g.submit()
    f = cell(f"@baton.function({name!r})\n{kind} f(): return 'new'")
    with baton.start_functions(f):
        go.set()
        assert (running.result(PATIENCE), waiting.result(PATIENCE), g()) == ("old", "new", "new")


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [("", "x: int = 1"), ("concurrency=4", ""), ("exclusive=True", ""), ("idempotent=True, linger=1", "*, y=2")],
)
def test_another_signature_and_other_settings_wait_for_nothing_that_runs(name, settings, parameters):
    runs, go = threading.Event(), threading.Event()
    source = f"""
@baton.function({name!r})
def f():
    runs.set()
    go.wait()
    return "old"
"""
    baton.start_functions(cell(source, runs=runs, go=go))
    g = baton.get_function(name)
    running = g.submit()
    assert runs.wait(PATIENCE)
    waiting = g.submit()
    with baton.start_functions(define(name, "new", settings, parameters, "two")) as new:
        assert (waiting.result(PATIENCE), g(), new.names) == ("new", "new", [name])
        (info,) = baton.functions(name)
        assert info.doc == "two" and (info.exclusive, info.idempotent) == (
            "exclusive" in settings,
            "idempotent" in settings,
        )
        assert info.providers[0].concurrency == (4 if "concurrency" in settings else 1)
        assert ("x: int = 1" in info.signature) == ("x" in parameters)
        assert not running.done()
        go.set()
        assert running.result(PATIENCE) == "old"
        with baton.start_functions(define(name, "newest", settings, "*, z=3", "three")):
            assert g() == "newest"
    with pytest.raises(baton.NoProvider):
        g()


def test_no_call_finds_the_function_without_a_provider(name):
    stop, errors, results = threading.Event(), [], set()

    def calls(g):
        while not stop.is_set():
            try:
                results.add(g())
            except Exception as e:  # noqa: BLE001 - it is looked at below
                errors.append(e)

    last = baton.start_functions(define(name, 0))
    callers = [threading.Thread(target=calls, args=[baton.get_function(name)]) for _ in range(4)]
    for c in callers:
        c.start()
    for i in range(1, 20):
        last = baton.start_functions(define(name, i, f"concurrency={1 + i % 3}", f"x: int = {i}"))
        eventually(lambda i=i: i in results, "a call to run by the new code")
    stop.set()
    for c in callers:
        c.join(PATIENCE)
    assert errors == []
    last.close()


def test_a_definition_that_other_processes_do_not_share_conflicts(child, name):
    script = f"""
@baton.function({name!r})
def f():
    "one"
    return "theirs"
"""
    with baton.start_functions(define(name, "old")):
        c = provider(child, script)
        with pytest.raises(baton.Conflict, match="override it"):
            baton.start_functions(define(name, "new", parameters="x: int = 1"))
        assert len(serials(name)) == 2 and baton.functions(name)[0].signature == "()"
        with baton.start_functions(define(name, "new")):  # the same signature: beside the other
            assert len(serials(name)) == 2
            c.tell("started.close(); say('closed')")
            assert c.hear() == "closed"
            assert baton.call(name) == "new"
    provider(child, script)
    with baton.start_functions(define(name, "alone", "override=True")) as alone:
        assert serials(name) == [baton._default.session().serial] and baton.call(name) == "alone"
        provider(child, script.replace('"one"', '"one"'))
        assert len(serials(name)) == 2
        with baton.start_functions(define(name, "again", "override=True")):
            assert len(serials(name)) == 1 and baton.call(name) == "again"
        assert alone.names == []


def test_what_is_refused_leaves_all_that_is_provided(child, name):
    provider(child, f"@baton.function({name + '/b'!r})\ndef f(x): ...")
    with baton.start_functions(define(name + "/a", "old")) as old:
        a, b = define(name + "/a", "new", "concurrency=2"), define(name + "/b", "other")
        with pytest.raises(baton.Conflict):
            baton.start_functions(a, b)
        assert old.names == [name + "/a"] and baton.call(name + "/a") == "old"
    assert serials(name + "/b") != []


def test_what_is_provided_already_names_the_way_out(name):
    f = define(name, "one")
    with baton.start_functions(f):
        with pytest.raises(baton.Conflict, match="provided by this session already .*define the function anew"):
            baton.start_functions(f)
        assert baton.call(name) == "one"

    @baton.function(name + "/itself")
    def again():
        return baton.start_functions(again).names

    with baton.start_functions(again), pytest.raises(baton.RemoteError) as e:
        baton.call(name + "/itself")
    assert e.value.type == "baton.Conflict"
    assert "runs in this thread" in str(e.value) and "start it in another thread" in str(e.value)


def test_serving_ends_when_what_it_serves_is_started_anew(name):
    define(name, "old")
    serves = threading.Thread(target=baton.serve_functions)
    serves.start()
    g = baton.get_function(name, wait=PATIENCE)
    assert g() == "old"
    with baton.start_functions(define(name, "new")):
        serves.join(PATIENCE)
        assert not serves.is_alive() and g() == "new"


def test_errors_say_how_names_are_written_and_providers_waited_for(name):
    for call in (baton.get_function, baton.call, baton.bind, baton.queue):
        with pytest.raises(baton.InvalidArgument, match=r'name "u.v.add" has the token .* joined by /: u/v/add\)$'):
            call("u.v.add")
    with baton.start_functions(define(name, 1)):
        f = baton.get_function(name)
    with pytest.raises(baton.NoProvider, match=r"get_function\(name, wait=5\), or f\.options\(wait=5\)"):
        f()
