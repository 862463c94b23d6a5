"""Memory of the GPU that another library allocated: copied, lent as it lies, or allocated in slabs; on the
stand-in for the driver.

The driver is found when a process starts, so all of it happens in children.
"""

from pathlib import Path

from conftest import command, eventually, listing, run

FOREIGN = (Path(__file__).parent / "foreign_gpu.py").read_text()


def test_foreign_array_on_a_gpu_is_copied_once(gpu, child):
    run(
        child,
        FOREIGN
        + """
f = Foreign(50_000, 9)
x = baton.share(f)
assert f.asked == [1] and x.device == "cuda:0"
assert (x.cpu().numpy() == 9).all()
class Wrapped:  # what lies in memory of Baton's is referenced
    def __dlpack_device__(self): return x.__dlpack_device__()
    def __dlpack__(self, **kw): return x.__dlpack__(**kw)
y = baton.share(Wrapped(), copy=False)
z = baton.share(Wrapped(), copy=True)
x.copy_from(np.zeros(50_000, "uint8"))
assert not y.cpu().numpy().any() and (z.cpu().numpy() == 9).all()
""",
    )


def test_memory_of_a_framework_is_lent_as_it_lies_until_nobody_holds_it(gpu, child, name):
    taker = child(
        """
q, back = baton.queue(sys.argv[1]), baton.queue(sys.argv[1] + "/back")
say("ready")
for value in (9, 7):
    x, y = q.get(120)
    assert (x.device, x.shape, y.shape) == ("cuda:0", (50_000,), (100,))
    assert (x.cpu().numpy() == value).all() and (y.cpu().numpy() == value).all()
    x.copy_from(np.full(50_000, 8, "uint8"))
    x.cpu()  # when that is done
    back.put("written")
    assert sys.stdin.readline() == "let go\\n"
    del x, y
    back.put("let go")
say("done")
""",
        name,
    )
    assert taker.hear() == "ready"
    giver = child(
        FOREIGN
        + """
from baton import _default
q, back = baton.queue(sys.argv[1]), baton.queue(sys.argv[1] + "/back")
f = Foreign(50_000, 9)
for _ in range(2):
    x = baton.share(f, copy=False)
    assert f.asked.pop() == 1 and not f.asked
    q.put([x, x[300:400]])
    assert back.get(120) == "written"
    assert (x.cpu().numpy() == 8).all()  # the same memory
    del x
    _default.session().collect()
    assert not f.let_go.is_set()  # the other one holds it
    say("look")
    assert sys.stdin.readline() == "go on\\n"
    assert back.get(120) == "let go"
    assert f.let_go.wait(120)
    f.let_go.clear()
    fill(f.at.value, 7, 50_000)
f.free()
say("done")
""",
        name,
    )
    for _ in range(2):
        assert giver.hear() == "look"
        assert [s["device"][:9] for s in listing("segments") if s["kind"] == "borrowed"] == ["cuda:GPU-"]
        taker.tell("let go")
        giver.tell("go on")
    assert giver.hear() == "done" and taker.hear() == "done"
    giver.end()
    taker.end()
    eventually(lambda: not [s for s in listing("segments") if s["kind"] == "borrowed"], "the memory to be given back")


def test_sessions_of_one_process_lend_to_each_other(gpu, child, name):
    run(
        child,
        FOREIGN
        + """
lender, taker = baton.Session(), baton.Session()
f, g = Foreign(50_000, 9), Foreign(4000, 5)
q = taker.queue(sys.argv[1])
cuda.standin_calls.restype = ctypes.c_uint64
lender.queue(sys.argv[1]).put(lender.share(f, copy=False))
x = q.get(30)
assert (x.cpu().numpy() == 9).all()  # the driver would refuse to open it
assert cuda.standin_calls(b"cuIpcOpenMemHandle_v2") == 0
x.copy_from(np.full(50_000, 8, "uint8"))
assert (x.cpu().numpy() == 8).all() and not f.let_go.is_set()
del x
assert f.let_go.wait(30)
f.free()
lender.queue(sys.argv[1]).put(lender.share(g, copy=False))
y = q.get(30)
assert (y.cpu().numpy() == 5).all()
lender.close()
try:
    y.cpu()
    say("used")
except baton.Expired:
    pass
assert not g.let_go.is_set()  # a holder may use it to the end of the process
""",
        name,
    )


def test_lent_memory_ends_with_its_owner(gpu, child, name):
    owner = child(
        FOREIGN
        + """
q = baton.queue(sys.argv[1])
x = baton.share({"x": Foreign(50_000, 9), "n": 3}, copy=False)["x"]
baton.set(sys.argv[1] + "/name", {"x": x})
h = x.handle(lease=None).to_json()
for _ in range(2):
    q.put(x)
say(h)
sys.stdin.readline()
""",
        name,
    )
    handle = owner.hear()
    holder = child(
        """
q = baton.queue(sys.argv[1])
x, named = q.get(120), baton.get(sys.argv[1] + "/name")["x"]
assert (x.cpu().numpy() == 9).all() and (named.cpu().numpy() == 9).all()
say("held")
assert sys.stdin.readline() == "dead\\n"
for use in (x.cpu, x.written, lambda: x.to("cpu"), lambda: x.__dlpack__(stream=1, max_version=(1, 3)),
            lambda: x.copy_from(np.zeros(50_000, "uint8")), named.cpu, lambda: q.get(120).cpu(),
            lambda: baton.open(baton.Handle.from_json(sys.argv[2])).cpu(), x[5:].cpu):
    try:
        use()
        say("used")
    except baton.Expired as e:
        pass
say("done")
""",
        name,
        handle,
    )
    assert holder.hear() == "held"
    owner.kill()
    eventually(lambda: not [s for s in listing("sessions") if s["pid"] == owner.pid], "the broker has noticed")
    holder.tell("dead")
    assert holder.hear() == "done"
    late = child(
        """
for late in (lambda: baton.get(sys.argv[1])["x"].cpu(), lambda: baton.open(baton.Handle.from_json(sys.argv[2]))):
    try:
        late()
        say("used")
    except (baton.Expired, baton.NotFound) as e:
        pass
say("done")
""",
        name + "/name",
        handle,
    )
    assert late.hear() == "done"
    for c in (holder, late):
        c.end()
    command("delete", name + "/name")


def test_what_the_driver_cannot_lend_is_refused_with_the_remedy_or_copied(gpu, child):
    run(
        child,
        FOREIGN
        + """
f = Foreign(1000, 5, "cuMemAllocAsync")
try:
    baton.share(f, copy=False)
    say("lent")
except baton.Unsupported as e:
    assert "expandable_segments:False" in str(e) and "copy=True" in str(e), e
assert f.let_go.is_set()
for copy in (True, None):
    assert (baton.share(f, copy).cpu().numpy() == 5).all()
try:
    baton.share([np.zeros(4)], copy=False)
    say("took memory of the machine")
except baton.InvalidArgument:
    pass
""",
    )


def test_torch_may_allocate_in_slabs_and_hands_over_without_a_copy(gpu, child, name):
    taker = child(
        """
q, back = baton.queue(sys.argv[1]), baton.queue(sys.argv[1] + "/back")
say("ready")
x = q.get(120)["x"]
assert (x.cpu().numpy() == 9).all()
back.put("seen")
assert q.get(120) == "let go"
del x
back.put("let go")
say("done")
""",
        name,
    )
    assert taker.hear() == "ready"
    giver = child(
        FOREIGN
        + """
from baton import _default, _native
_native.allocate_on_gpus_in(_default.session())
torch = ctypes.CDLL(_native.__file__)  # as torch loads it
alloc, free = torch.baton_cuda_alloc, torch.baton_cuda_free
alloc.restype, alloc.argtypes = ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
f = Foreign(50_000, 9)
block = alloc(2 << 20, 0, None)
f.managed.tensor.data = block + 1024  # a tensor of torch's in its block
fill(block, 9, 2 << 20)
q, back = baton.queue(sys.argv[1]), baton.queue(sys.argv[1] + "/back")
cuda.standin_calls.restype = ctypes.c_uint64
for warm in (True, False):
    before = cuda.standin_calls(b"cuMemcpyDtoDAsync_v2") + cuda.standin_calls(b"cuMemCreate")
    q.put({"x": f}) if not warm else baton.share(f)
    assert cuda.standin_calls(b"cuMemcpyDtoDAsync_v2") + cuda.standin_calls(b"cuMemCreate") == before
    if warm:
        assert f.let_go.wait(120)
        f.let_go.clear()
assert back.get(120) == "seen" and not f.let_go.is_set()
q.put("let go")
assert back.get(120) == "let go" and f.let_go.wait(120)  # torch uses the bytes anew
late = ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(late), 1) == 0
free(block, 2 << 20, 0, late)
assert alloc(1 << 50, 0, None) is None and alloc(4096, 7, None) is None  # torch says out of memory
for _ in range(3):  # freed memory is used anew when its stream has come so far
    block = alloc(2 << 20, 0, None)
    free(block, 2 << 20, 0, late)
free(12345, 1, 0, None)  # not ours
say("done")
""",
        name,
    )
    assert giver.hear() == "done" and taker.hear() == "done"
    giver.end()
    taker.end()


def test_pool_of_torch_stays_with_its_allocator(gpu, child):
    run(
        child,
        """
import ctypes, gc, weakref
import baton.torch, torch

class Custom:  # as torch with CUDA has it, which the one here lacks
    def __init__(self, alloc, free):
        self.alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(alloc)
        self.free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)(free)

class Pool:  # many versions of torch do not keep the allocator
    def __init__(self, allocator):
        self.allocator = weakref.ref(allocator)

device = 0
torch._C._cuda_customAllocator, torch.cuda.MemPool, torch.cuda.current_device = Custom, Pool, lambda: device
known = weakref.ref(baton.torch.cuda_pool())
gc.collect()
assert known() is baton.torch.cuda_pool()
a = known().allocator()
block = a.alloc(2 << 20, 0, None)
assert block
a.free(block, 2 << 20, 0, None)
device = 1
assert baton.torch.cuda_pool() is not known()
""",
    )
