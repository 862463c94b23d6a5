"""Functions as methods of sessions."""

import threading

import baton
import pytest
from conftest import PATIENCE
from function_kit import nothing_is_defined, provider  # noqa: F401 - a fixture


@pytest.fixture
def elsewhere(name):
    """A session whose names are not those of the default one."""
    with baton.connect(namespace="functions-" + name.replace("/", "-")) as s:
        yield s


def test_a_session_provides_and_calls_what_other_namespaces_do_not_see(name, elsewhere):
    @baton.function(name, version="2")
    def where(self: str = "") -> str:
        return elsewhere.namespace + self

    with elsewhere.start_functions(where) as provided:
        assert provided.names == [name + "@2"]
        assert elsewhere.call(name) == elsewhere.namespace
        assert elsewhere.call(name, self="!") == elsewhere.namespace + "!"  # all keywords are the function's
        f = elsewhere.get_function(name, version="2", wait=PATIENCE)
        assert f() == f.submit().result() == elsewhere.namespace
        assert [i.name for i in elsewhere.functions(name + "*")] == [name + "@2"]
        assert baton.functions(name + "*") == []
        with pytest.raises(baton.NotFound):
            baton.call(name)
        with pytest.raises(baton.NotFound):
            baton.get_function(name)
    with pytest.raises((baton.NotFound, baton.NoProvider)):
        elsewhere.call(name)


def test_the_functions_under_a_name_are_those_of_the_session(name, elsewhere):
    @baton.function(name + "/where")
    def where() -> str:
        return "there"

    with elsewhere.start_functions(where):
        there = elsewhere.bind(name)
        assert there.where() == "there" and "where" in dir(there)
        assert dir(baton.bind(name)) == []
        with pytest.raises(AttributeError):
            baton.bind(name).where()


def test_each_session_provides_what_it_does_not_provide_yet(name, elsewhere):
    baton.function(name)(lambda: 1)
    with baton.start_functions() as here, elsewhere.start_functions() as there:
        assert here.names == there.names == [name]
        assert baton.start_functions().names == elsewhere.start_functions().names == []
        assert baton.call(name) == elsewhere.call(name) == 1


def test_a_session_removes_what_it_provides_itself(name, elsewhere):
    baton.function(name)(lambda: 1)
    with (
        baton.connect() as beside,
        baton.start_functions(name),
        beside.start_functions(name),
        elsewhere.start_functions(name) as there,
    ):
        assert baton.remove_function(name) == 1
        assert there.names == [name] and elsewhere.call(name) == 1
        assert len(beside.functions(name)[0].providers) == 1 and beside.call(name) == 1
        with pytest.raises(baton.NotFound, match="not provided by this session"):
            baton.remove_function(name)
        assert beside.remove_function(name) == 1 and beside.functions(name)[0].providers == []
        assert elsewhere.remove_function(name) == 1 and there.names == []
        with pytest.raises(baton.NotFound, match="not provided by this session"):
            elsewhere.remove_function(name)


def test_a_session_removes_what_other_processes_provide_in_its_namespace(child, name, elsewhere):
    c = child(
        f"""
s = baton.connect(namespace={elsewhere.namespace!r})
@baton.function({name!r}, version="1")
def f(): return 1
s.serve_functions()
print("ended", flush=True)
"""
    )
    assert elsewhere.get_function(name, wait=PATIENCE)() == 1
    with pytest.raises(baton.NotFound):
        baton.remove_function(name, version="1", everywhere=True)  # of its own namespace
    assert elsewhere.remove_function(name, version="1", everywhere=True) == 1
    assert c.hear() == "ended"


def test_serving_ends_with_the_functions_of_its_session(name, elsewhere):
    baton.function(name)(lambda: 1)
    serving = threading.Thread(target=elsewhere.serve_functions, args=[name])
    serving.start()
    with baton.start_functions(name):
        assert elsewhere.get_function(name, wait=PATIENCE)() == 1
        assert elsewhere.remove_function(name) == 1
        serving.join(PATIENCE)
        assert not serving.is_alive() and baton.call(name) == 1


def test_a_closed_session_ends_what_it_provides(name):
    baton.function(name)(lambda: 1)
    s = baton.connect()
    provided = s.start_functions(name)
    s.close()
    provided.join()
    assert provided.names == []
    for call in (
        lambda: s.call(name),
        lambda: s.functions(),
        lambda: s.start_functions(name),
        lambda: s.get_function(name),
    ):
        with pytest.raises(baton.Closed):
            call()


def test_a_class_of_errors_has_a_kind():
    class Mute(Exception): ...

    with pytest.raises(baton.InvalidArgument, match="empty"):
        baton.register_error("", Mute)
