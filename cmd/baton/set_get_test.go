package main_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/npy"
)

// array writes a .npy file and returns its path.
func (p *place) array(name, dtype string, shape []int64, data []byte) string {
	p.t.Helper()
	var b bytes.Buffer
	require.NoError(p.t, npy.Write(&b, dtype, shape, data))
	return p.write(name, b.String())
}

func TestSetAndGetKeepEveryByteOfNumPysFiles(t *testing.T) {
	p := newPlace(t)
	p.serve()
	files, err := filepath.Glob("../../internal/npy/testdata/accept-*.npy")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	digits, err := filepath.Abs("../../internal/digits/data/digits-images.npy")
	require.NoError(t, err)
	for _, file := range append(files, digits) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			p := p.in(t)
			source, err := filepath.Abs(file)
			require.NoError(t, err)
			p.must("set", "x", source)
			p.must("get", "x", "-o", "out.npy")
			want, err := os.ReadFile(source)
			require.NoError(t, err)
			got, err := os.ReadFile(p.file("out.npy"))
			require.NoError(t, err)
			if strings.Contains(file, "version-") || strings.Contains(file, "full-header") {
				// Other versions of the format, and longer headers, are read; version
				// 1.0 is written.
				want, got = payload(t, want), payload(t, got)
			}
			assert.Equal(t, want, got)
		})
	}
}

func payload(t *testing.T, file []byte) []byte {
	t.Helper()
	h, err := npy.ReadHeader(bytes.NewReader(file))
	require.NoError(t, err)
	return file[h.DataOffset:]
}

func TestSetAndGetThroughPipes(t *testing.T) {
	p := newPlace(t)
	p.serve()
	data, err := os.ReadFile(p.array("a.npy", "int16", []int64{3}, []byte{1, 0, 2, 0, 3, 0}))
	require.NoError(t, err)
	r := p.batonWith(bytes.NewReader(data), "set", "x", "-")
	require.Zero(t, r.code, r.err)
	assert.Equal(t, string(data), p.must("get", "x", "-o", "-"))
	assert.True(t, strings.HasPrefix(p.must("get", "x", "-o", "/dev/stdout"), string(data)), "what is no regular file is written as it is")
}

func TestSetCountsRevisionsAndTellsWhatItDid(t *testing.T) {
	p := newPlace(t)
	p.serve()
	file := p.array("a.npy", "float32", []int64{2, 3}, make([]byte, 24))
	assert.Equal(t, "weights/a: revision 1, float32[2,3], 24 B\n", p.must("set", "weights/a", file))
	var set struct {
		Name     string
		Revision uint64
		DType    string
		Shape    []int64
		Bytes    int64
		Live     bool
	}
	p.json(&set, "set", "weights/a", file)
	assert.Equal(t, uint64(2), set.Revision)
	assert.Equal(t, []int64{2, 3}, set.Shape)
	assert.Equal(t, int64(24), set.Bytes)
	assert.False(t, set.Live)
	p.json(&set, "set", "hot", file, "--live")
	assert.True(t, set.Live)

	var got struct {
		Revision uint64
		DType    string
		Bytes    int64
		Live     bool
		File     string
	}
	p.json(&got, "get", "weights/a", "-o", "o.npy")
	assert.Equal(t, uint64(2), got.Revision)
	assert.Equal(t, "float32", got.DType)
	assert.Equal(t, "o.npy", got.File)
	p.json(&got, "get", "hot", "-o", "o.npy")
	assert.True(t, got.Live)
}

// What a program took stays whole as long as a name holds some of it.
func TestSetTakesNoMoreMemoryThanItsArray(t *testing.T) {
	p := newPlace(t)
	p.serve()
	file := p.array("a.npy", "float32", []int64{1500}, make([]byte, 6000))
	for _, name := range []string{"a", "b", "c"} {
		p.must("set", name, file)
	}
	var status struct{ Memory struct{ Granted uint64 } }
	p.json(&status, "status")
	assert.EqualValues(t, 3*8192, status.Memory.Granted)
}

func TestSetStartsTheUsersBrokerAndGetUsesIt(t *testing.T) {
	p := newPlace(t)
	p.setenv("BATON_NO_NATS", "true")
	file := p.array("a.npy", "uint8", []int64{1}, []byte{7})
	p.must("set", "x", file)
	var s struct{ PID int }
	p.json(&s, "status")
	require.NotZero(t, s.PID)
	broker, err := os.FindProcess(s.PID)
	require.NoError(t, err)
	t.Cleanup(func() {
		broker.Signal(syscall.SIGINT)
		p.until("the broker has ended", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID))
			return err != nil || strings.Contains(string(stat), ") Z ") // its parent may not reap it here
		})
	})
	p.must("get", "x", "-o", "o.npy")
	want, _ := os.ReadFile(file)
	got, _ := os.ReadFile(p.file("o.npy"))
	assert.Equal(t, want, got)
}

func TestSetRefusesFilesThatAreNoArrays(t *testing.T) {
	p := newPlace(t)
	p.serve()
	whole, err := os.ReadFile(p.array("a.npy", "float64", []int64{100}, make([]byte, 800)))
	require.NoError(t, err)
	huge := bytes.Replace(whole, []byte("(100,), }      "), []byte("(99999999999,),"), 1)
	for _, c := range []struct {
		name    string
		file    string
		code    int
		message string
	}{
		{"missing", p.file("nowhere.npy"), 3, "nowhere.npy"},
		{"text", p.write("t.npy", "hello, this is no array"), 1, "not a .npy file"},
		{"cut short", p.write("c.npy", string(whole[:len(whole)-1])), 1, "cut short"},
		{"claims more than there is", p.write("h.npy", string(huge)), 1, ""},
		{"pickled", filepath.Join(testdata(t), "refuse-objects.npy"), 1, "pickled"},
		{"a directory", p.dir, 1, "directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.in(t).baton("set", "x", c.file).fails(t, c.code, c.message, "")
		})
	}
	p.baton("get", "x", "-o", "o.npy").fails(t, 3, "name x is not set", "set it first")
	assert.NoFileExists(t, p.file("o.npy"))
}

func testdata(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../internal/npy/testdata")
	require.NoError(t, err)
	return dir
}

func TestSetRefusesMoreThanTheBrokerHas(t *testing.T) {
	p := newPlace(t)
	p.serve("--memory", "8MiB")
	f, err := os.Create(p.file("big.npy"))
	require.NoError(t, err)
	require.NoError(t, npy.Write(f, "uint8", []int64{64 << 20}, make([]byte, 64<<20)))
	require.NoError(t, f.Close())
	r := p.baton("set", "x", p.file("big.npy"))
	r.fails(t, 1, "", "")
	assert.Contains(t, r.err, "what to do")
}

// bundle publishes two tensors under a name.
func bundle(p *place, c *client.Client, name string) {
	p.t.Helper()
	w, err := c.Zeros(p.ctx(), dlpack.Float32, []int64{4, 2})
	require.NoError(p.t, err)
	b, err := c.Alloc(p.ctx(), dlpack.Int64, []int64{3})
	require.NoError(p.t, err)
	values, err := client.Slice[int64](b)
	require.NoError(p.t, err)
	copy(values, []int64{1, 2, 3})
	_, err = c.Set(p.ctx(), name, map[string]*client.Tensor{"w": w, "layer/b": b})
	require.NoError(p.t, err)
	w.Release()
	b.Release()
}

func TestGetPicksOneTensorOfABundle(t *testing.T) {
	p := newPlace(t)
	p.serve()
	bundle(p, p.client(), "model")
	p.baton("get", "model", "-o", "o.npy").fails(t, 1, "model is a bundle of 2 tensors", "choose one with --tensor: layer/b, w")
	p.baton("get", "model", "-o", "o.npy", "--tensor", "v").fails(t, 3, "model has no tensor v", "choose one of")
	assert.NoFileExists(t, p.file("o.npy"))
	assert.Equal(t, "model: revision 1, int64[3], 24 B, written to o.npy\n", p.must("get", "model", "-o", "o.npy", "--tensor", "layer/b"))
	f, err := os.ReadFile(p.file("o.npy"))
	require.NoError(t, err)
	var want bytes.Buffer
	require.NoError(t, npy.Write(&want, "int64", []int64{3}, []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}))
	assert.Equal(t, want.Bytes(), f)
}

func TestGetTellsWhichFileAndWhichTensorThereIsNot(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.must("set", "x", p.array("x.npy", "float32", []int64{2}, make([]byte, 8)))
	r := p.baton("get", "x", "-o", p.file("none/x.npy"))
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "cannot write "+p.file("none/x.npy")+": no such file or directory\n  what to do: ")
	r = p.baton("get", "x", "-o", p.dir)
	assert.Contains(t, r.err, "cannot write "+p.dir+": is a directory\n  what to do: ")
	r = p.baton("get", "x", "-o", "-", "--tensor", "w")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, "leave --tensor out")
	p.setenv("BATON_NAMESPACE", "a/b")
	assert.Equal(t, 2, p.baton("get", "x", "-o", "-").code, "a wrong setting, wherever it stands")
}

func TestGetWritesAViewWithGaps(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x, err := c.Alloc(p.ctx(), dlpack.Uint8, []int64{2, 3})
	require.NoError(t, err)
	data, err := x.Bytes()
	require.NoError(t, err)
	copy(data, []byte{1, 2, 3, 4, 5, 6})
	column, err := x.Slice(1, 1, 2)
	require.NoError(t, err)
	_, err = c.Set(p.ctx(), "column", column)
	require.NoError(t, err)
	x.Release()
	var want bytes.Buffer
	require.NoError(t, npy.Write(&want, "uint8", []int64{2, 1}, []byte{2, 5}))
	assert.Equal(t, want.String(), p.must("get", "column", "-o", "-"))
}

func TestGetRefusesWhatNpyCannotName(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	x, err := c.Zeros(p.ctx(), dlpack.Bfloat16, []int64{2})
	require.NoError(t, err)
	_, err = c.Set(p.ctx(), "x", x)
	require.NoError(t, err)
	p.baton("get", "x", "-o", "o.npy").fails(t, 1, "bfloat16", "")
	entries, err := filepath.Glob(p.file(".*"))
	require.NoError(t, err)
	assert.Empty(t, entries, "no temporary file is left")
	assert.NoFileExists(t, p.file("o.npy"))
}

func TestGetWaitsForTheNameAsLongAsTold(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.baton("get", "later", "-o", "o.npy", "--timeout", "1ms").fails(t, 5, "later", "")

	waiting := p.start(p.command("get", "later", "-o", "o.npy", "--timeout", "1m"))
	p.until("get is connected", func() bool { return p.hasSession("baton get") })
	p.must("set", "later", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	r := waiting.wait()
	assert.Zero(t, r.code, r.err)
	assert.FileExists(t, p.file("o.npy"))
}

func TestDeleteRemovesNamesAndTellsWhichWereNot(t *testing.T) {
	p := newPlace(t)
	p.serve()
	file := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	p.must("set", "a", file)
	p.must("set", "b", file)
	r := p.baton("delete", "a", "nothing", "b")
	assert.Equal(t, 3, r.code, r.err)
	assert.Equal(t, "deleted a\ndeleted b\n", r.out)
	assert.Contains(t, r.err, "nothing")
	var names []any
	p.json(&names, "ls", "names")
	assert.Empty(t, names)
	var storages []any
	p.json(&storages, "ls", "storages")
	assert.Empty(t, storages, "nothing is held any more")
}

func TestGetWritesThroughALink(t *testing.T) {
	p := newPlace(t)
	p.serve()
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	p.must("set", "x", array)
	want, err := os.ReadFile(array)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(p.file("far"), 0o700))
	require.NoError(t, os.Symlink("far", p.file("dir")))
	require.NoError(t, os.Symlink("../there.npy", p.file("far/link.npy")))
	for range 2 { // the target is missing at first
		p.must("get", "x", "-o", p.file("dir/link.npy"))
		to, err := os.Readlink(p.file("far/link.npy"))
		require.NoError(t, err, "the link stays")
		assert.Equal(t, "../there.npy", to)
		got, err := os.ReadFile(p.file("there.npy"))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	require.NoError(t, os.Symlink("ring.npy", p.file("ring.npy")))
	p.baton("get", "x", "-o", p.file("ring.npy")).fails(t, 1, "too many levels of symbolic links", "name a file")
	_, err = os.Readlink(p.file("ring.npy"))
	require.NoError(t, err, "the link stays")
}

func TestGetKeepsTheModeOfAFile(t *testing.T) {
	p := newPlace(t)
	p.serve()
	p.must("set", "x", p.array("a.npy", "uint8", []int64{1}, []byte{9}))
	private := p.write("private.npy", "before")
	require.NoError(t, os.Chmod(private, 0o600))
	p.must("get", "x", "-o", private)
	info, err := os.Stat(private)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode())
	assert.NotEqual(t, 6, int(info.Size()))
}

// Whatever name standard output goes by, nothing but the data is written there.
func TestGetWritesDataAloneToStandardOutput(t *testing.T) {
	p := newPlace(t)
	p.serve()
	array := p.array("a.npy", "uint8", []int64{1}, []byte{9})
	p.must("set", "x", array)
	want, err := os.ReadFile(array)
	require.NoError(t, err)
	for _, name := range []string{"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"} {
		assert.Equal(t, string(want), p.must("get", "x", "-o", name), name)
	}
	p.baton("get", "x", "-o", "/dev/stdout", "--json").fails(t, 2, "both want standard output", "")
}

func TestMistakesOfACommandLineHaveARemedyOfACommandLine(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client()
	provides(p, c, "scale@1", func(context.Context, struct{ X int }) (int, error) { return 1, nil })
	r := p.baton("call", "scale@9", "1")
	r.fails(t, 3, "similar ones: scale@1", "register it first")
	assert.Equal(t, 1, strings.Count(r.err, "scale@1"), r.err)
	p.baton("call", "scale", "\xff").fails(t, 2, "is text that is not UTF-8", "@FILE.npy")
	p.baton("set", "x", p.dir).fails(t, 1, p.dir+" is a directory", "name a .npy file")
	p.baton("nats", "permissions", "--names", "a", "--span", "x").fails(t, 2, `superfluous argument "x"`, "write --span=x")
}

func TestATokenThatCannotBeSentIsRefused(t *testing.T) {
	p := newPlace(t)
	for content, says := range map[string]string{"": "is empty", "two words": "has several words", "a\x00b": "has control characters"} {
		p.baton("serve", "--check-config", "--http", "127.0.0.1:0", "--http-token-file", p.write("token", content)).
			fails(t, 2, "token "+says, "write one word")
	}
}
