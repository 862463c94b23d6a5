"""What the tests of torch's modules on Baton share: the drop-in, contexts, and a process that answers."""

import importlib

import baton
import pytest
from conftest import PATIENCE, need

torch = need("torch")
if not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
    pytest.skip("this torch does not move storages", allow_module_level=True)

from torch.utils.data import Dataset


@pytest.fixture(scope="module", autouse=True)
def module(broker, request):
    """The drop-in, `mp` of the tests that have this; its import opens the session, after the broker of the run."""
    drop_in = request.module.mp = importlib.import_module("baton.torch.multiprocessing")
    baton.torch.install()  # again, where another module of tests has ended it
    yield drop_in
    baton.torch.uninstall()


@pytest.fixture(params=["fork", "spawn", "forkserver"])
def ctx(request, module):
    return module.get_context(request.param)


@pytest.fixture
def uninstalled():
    """Stock torch, which knows what lies in Baton's memory and moves nothing there."""
    baton.torch.uninstall()
    yield
    baton.torch.install()


def echo(inbox, out):
    """Sends back what it gets, until that is None."""
    while (v := inbox.get()) is not None:
        out.put(v)


class Echo:
    """A process that sends back what it gets."""

    def __init__(self, ctx):
        self.out, self.back = ctx.Queue(), ctx.Queue()
        self.process = ctx.Process(target=echo, args=(self.out, self.back))
        self.process.start()

    def __enter__(self):
        return self

    def __call__(self, value):
        self.out.put(value)
        return self.back.get(timeout=PATIENCE)

    def __exit__(self, *exception):
        self.out.put(None)
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0


def storage_of(t):
    return t.untyped_storage()._cdata


class Images(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full((3, 8, 8), float(i)), i


def lies_in_baton(t):
    return baton.share(t, copy=False).nbytes == t.nbytes


def fill(inbox, done):
    inbox.get().fill_(4)
    done.set()
