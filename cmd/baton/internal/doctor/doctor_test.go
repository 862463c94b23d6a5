package doctor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/cmd/baton/internal/doctor"
	"github.com/baton-ipc/baton/cmd/baton/internal/logqueue"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// machine is one with these files and this memory.
func machine(files map[string]string, mem sys.Memory) doctor.Machine {
	root := fstest.MapFS{}
	for name, content := range files {
		root[name] = &fstest.MapFile{Data: []byte(content)}
	}
	return doctor.Machine{Root: root, ReadMemory: func() (sys.Memory, error) { return mem, nil }}
}

// look runs one check.
func look(t *testing.T, checks []doctor.Check, name string) doctor.Finding {
	t.Helper()
	for _, f := range doctor.Run(context.Background(), checks, nil) {
		if f.Check == name {
			return f
		}
	}
	t.Fatalf("no check %q", name)
	return doctor.Finding{}
}

const gib = 1 << 30

func TestMachineFindings(t *testing.T) {
	plenty := sys.Memory{Total: 16 * gib, Available: 8 * gib}
	for _, c := range []struct {
		name, check string
		files       map[string]string
		memory      sys.Memory
		state       doctor.State
		text        string
	}{
		{"new kernel", "kernel", map[string]string{"proc/sys/kernel/osrelease": "6.8.0-45-generic\n"}, plenty, doctor.OK, "Linux 6.8.0"},
		{"oldest kernel supported", "kernel", map[string]string{"proc/sys/kernel/osrelease": "5.14.21+"}, plenty, doctor.OK, "5.14"},
		{"old kernel", "kernel", map[string]string{"proc/sys/kernel/osrelease": "5.10.0-rc1"}, plenty, doctor.Warn, "older"},
		{"too old a kernel", "kernel", map[string]string{"proc/sys/kernel/osrelease": "4.18.0"}, plenty, doctor.Fail, "too old"},
		{"odd kernel", "kernel", map[string]string{"proc/sys/kernel/osrelease": "next"}, plenty, doctor.Warn, "not known"},
		{"no proc", "kernel", nil, plenty, doctor.Warn, "cannot be read"},
		{"memory", "memory", nil, plenty, doctor.OK, "hands out at most 8.0 GiB"},
		{"little memory", "memory", nil, sys.Memory{Total: 16 * gib, Available: 200 << 20}, doctor.Warn, "200 MiB"},
		{"no memory", "memory", nil, sys.Memory{Total: 16 * gib, Available: 8 * gib, Limit: gib, Used: gib}, doctor.Fail, ""},
		{"small container", "memory", nil, sys.Memory{Total: 24 * gib, Available: 20 * gib, Limit: 200 << 20, Used: 8 << 20}, doctor.OK, "192 MiB within the container's limit; a broker hands out at most 100 MiB"},
		{"full small container", "memory", nil, sys.Memory{Total: 24 * gib, Available: 20 * gib, Limit: 200 << 20, Used: 120 << 20}, doctor.Warn, "80 MiB within the container's limit; a broker hands out at most 100 MiB"},
		{"no container", "container limit", nil, plenty, doctor.OK, "no memory limit"},
		{"container", "container limit", map[string]string{".dockerenv": ""}, sys.Memory{Total: 16 * gib, Available: 8 * gib, Limit: 4 * gib, Used: gib},
			doctor.OK, "in a container, memory limit 4.0 GiB, 3.0 GiB of it free"},
		{"full container", "container limit", map[string]string{"run/.containerenv": ""}, sys.Memory{Limit: gib, Used: 2 * gib}, doctor.Warn, "0 B of it free"},
		{"many files", "open files", map[string]string{"proc/self/limits": "Max open files            1024                 524288               files"}, plenty, doctor.OK, "524288"},
		{"some files", "open files", map[string]string{"proc/self/limits": "Max open files            1024                 4096               files"}, plenty, doctor.Warn, "at most 4096 open files: enough for some 24"},
		{"few files", "open files", map[string]string{"proc/self/limits": "Max open files            256                 256               files"}, plenty, doctor.Warn, "enough for some"},
		{"too few files", "open files", map[string]string{"proc/self/limits": "Max open files            100                 100               files"}, plenty, doctor.Fail, "too few for a broker, which needs 1"},
		{"any number of files", "open files", map[string]string{"proc/self/limits": "Max open files unlimited unlimited files"}, plenty, doctor.OK, "no limit"},
		{"files unknown", "open files", map[string]string{"proc/self/limits": "Max open files ? ?"}, plenty, doctor.Warn, "cannot be read"},
		{"mappings", "mappings", map[string]string{"proc/sys/vm/max_map_count": "65530\n"}, plenty, doctor.OK, "65530"},
		{"few mappings", "mappings", map[string]string{"proc/sys/vm/max_map_count": "1000"}, plenty, doctor.Warn, "1000"},
		{"mappings unknown", "mappings", map[string]string{"proc/sys/vm/max_map_count": "many"}, plenty, doctor.Warn, "cannot be read"},
		{"no huge pages", "huge pages", map[string]string{"proc/meminfo": "HugePages_Total:       0\n"}, plenty, doctor.OK, "none reserved"},
		{"huge pages", "huge pages", map[string]string{"proc/meminfo": "HugePages_Total:      64\nHugePages_Free:       60\nHugepagesize:       2048 kB\n",
			"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never deny force"}, plenty, doctor.OK, "60 of 64 reserved ones free, 2.0 MiB each; transparent ones for shared memory: advise"},
		{"no GPU", "GPU", map[string]string{"dev/null": ""}, plenty, doctor.OK, "no NVIDIA device"},
		{"GPUs", "GPU", map[string]string{"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
			"sys/module/nvidia/version": "580.1\n"}, plenty, doctor.OK, "2 NVIDIA devices, driver 580.1"},
		{"old driver of a GPU", "GPU", map[string]string{"dev/nvidia0": "", "sys/module/nvidia/version": "470.82.01\n"}, plenty, doctor.Warn, "the processor waits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := look(t, machine(c.files, c.memory).Checks(), c.check)
			assert.Equal(t, c.state, f.State, f.Text)
			assert.Contains(t, f.Text, c.text)
			if f.State == doctor.Fail {
				assert.NotEmpty(t, f.Remedy)
			}
		})
	}
}

func TestThisMachineCanDoWhatTheTestsNeed(t *testing.T) {
	checks := doctor.ThisMachine().Checks()
	for _, name := range []string{"memfd", "pidfd", "loopback"} {
		f := look(t, checks, name)
		assert.Equal(t, doctor.OK, f.State, f.Text)
	}
}

func TestWorstOfFindings(t *testing.T) {
	of := func(states ...doctor.State) doctor.State {
		var fs []doctor.Finding
		for _, s := range states {
			fs = append(fs, doctor.Finding{State: s})
		}
		return doctor.Worst(fs)
	}
	assert.Equal(t, doctor.OK, of())
	assert.Equal(t, doctor.OK, of(doctor.OK))
	assert.Equal(t, doctor.Warn, of(doctor.OK, doctor.Warn, doctor.OK))
	assert.Equal(t, doctor.Fail, of(doctor.Fail, doctor.Warn, doctor.OK))
}

// place has a broker that answers so.
func place(t *testing.T, a doctor.Answer, err error) doctor.Place {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o700))
	return doctor.Place{Socket: filepath.Join(dir, "broker.sock"), Dir: dir, Version: "2",
		Ask: func(context.Context) (doctor.Answer, error) { return a, err }}
}

func TestBrokerFindings(t *testing.T) {
	none := protocol.Errorf(protocol.CodeNoBroker, "", "no broker answers")
	for _, c := range []struct {
		name   string
		answer doctor.Answer
		err    error
		state  doctor.State
		text   string
	}{
		{"same version", doctor.Answer{PID: 7, Version: "2"}, nil, doctor.OK, "process 7 serves"},
		{"another version", doctor.Answer{PID: 7, Version: "1"}, nil, doctor.Warn, "version 1; this program is 2"},
		{"none", doctor.Answer{}, none, doctor.OK, "none runs"},
		{"another protocol", doctor.Answer{}, protocol.Errorf(protocol.CodeVersion, "x", "protocol 9"), doctor.Fail, "protocol 9"},
		{"broken", doctor.Answer{}, errors.New("it hangs"), doctor.Fail, "it hangs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := look(t, place(t, c.answer, c.err).Checks(), "broker")
			assert.Equal(t, c.state, f.State, f.Text)
			assert.Contains(t, f.Text, c.text)
		})
	}
}

func TestABrokerWithoutRoomIsFound(t *testing.T) {
	largest := []memory.HolderUse{{Session: "loader", PID: 7, Granted: 900 << 20, Held: 3 << 20}, {Session: "sender", PID: 8, Lanes: 50 << 20}}
	for _, c := range []struct {
		memory broker.MemoryStatus
		state  doctor.State
		text   string
	}{
		{broker.MemoryStatus{Limit: gib, Granted: 100 << 20, Left: 900 << 20}, doctor.OK, "900 MiB of 1.0 GiB"},
		{broker.MemoryStatus{Limit: gib, Granted: 972 << 20, Lanes: 50 << 20, Left: 2 << 20}, doctor.Warn, "2.0 MiB of 1.0 GiB can still be granted; largest: loader (pid 7): holds 3.0 MiB, was granted 900 MiB, has 0 B in lanes; sender (pid 8)"},
		{broker.MemoryStatus{Limit: gib, Granted: 2 * gib}, doctor.Warn, "1.0 GiB more than --memory are granted"},
		{broker.MemoryStatus{}, doctor.OK, "none"},
	} {
		c.memory.Largest = largest
		f := look(t, place(t, doctor.Answer{PID: 7, Version: "2", Memory: c.memory}, nil).Checks(), "broker's memory")
		assert.Equal(t, c.state, f.State, f.Text)
		assert.Contains(t, f.Text, c.text)
		assert.Equal(t, c.state == doctor.Warn, f.Remedy != "", f.Remedy)
	}
}

func TestALackOfRoomThatIsNotOfTheLimitIsNamed(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		memory       broker.MemoryStatus
		text, remedy string
	}{
		{broker.MemoryStatus{Limit: gib, Granted: 100 << 20, Left: 1 << 20, Free: 1 << 60, Dir: dir}, "; the file system of --memory-dir " + dir + " has ", "make room in that file system"},
		{broker.MemoryStatus{Limit: gib, Granted: 100 << 20, Left: 1 << 20, Free: 17 << 20}, "; the machine, or the broker's container, has 17 MiB free", "end other programs that hold memory"},
	} {
		f := look(t, place(t, doctor.Answer{PID: 7, Version: "2", Memory: c.memory}, nil).Checks(), "broker's memory")
		assert.Equal(t, doctor.Warn, f.State, f.Text)
		assert.Contains(t, f.Text, c.text)
		assert.Contains(t, f.Remedy, c.remedy)
		assert.NotContains(t, f.Remedy, "baton limit")
	}
}

func TestDirectoryFindingsChangeNothing(t *testing.T) {
	p := place(t, doctor.Answer{}, protocol.ErrNoBroker)
	assert.Equal(t, doctor.OK, look(t, p.Checks(), "runtime directory").State)

	require.NoError(t, os.Chmod(p.Dir, 0o770))
	f := look(t, p.Checks(), "runtime directory")
	assert.Equal(t, doctor.Fail, f.State)
	assert.Contains(t, f.Remedy, "chmod 700")

	require.NoError(t, os.Chmod(p.Dir, 0o500))
	f = look(t, p.Checks(), "runtime directory")
	assert.Equal(t, doctor.Fail, f.State)
	assert.Contains(t, f.Text, "cannot be written")
	assert.Contains(t, f.Remedy, "chmod 700")
	require.NoError(t, os.Chmod(p.Dir, 0o700))

	p.Dir = filepath.Join(p.Dir, "later")
	f = look(t, p.Checks(), "runtime directory")
	assert.Equal(t, doctor.OK, f.State)
	assert.Contains(t, f.Text, "will be made")
	assert.NoDirExists(t, p.Dir)

	there := filepath.Dir(p.Dir)
	p.Dir = filepath.Join(p.Dir, "deeper")
	assert.Equal(t, doctor.OK, look(t, p.Checks(), "runtime directory").State)
	require.NoError(t, os.Chmod(there, 0o500))
	f = look(t, p.Checks(), "runtime directory")
	assert.Equal(t, doctor.Fail, f.State, "a directory above cannot be written")
	assert.Contains(t, f.Text, there)
	require.NoError(t, os.Chmod(there, 0o700))
	p.Dir = "/proc/version/baton"
	assert.Equal(t, doctor.Fail, look(t, p.Checks(), "runtime directory").State, "a file is above")
}

// A broker that answers and reports nothing about its log may lose lines.
func TestLogFindings(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer doctor.Answer
		err    error
		state  doctor.State
		text   string
	}{
		{"none", doctor.Answer{}, protocol.ErrNoBroker, doctor.OK, "no broker answers"},
		{"another build", doctor.Answer{PID: 7, Version: "2"}, nil, doctor.Warn, "process 7 does not tell whether lines of its log are lost"},
		{"whole", doctor.Answer{PID: 7, Version: "2", Log: &logqueue.Status{}}, nil, doctor.OK, "no line of it is lost"},
		{"lost", doctor.Answer{PID: 7, Version: "2", Log: &logqueue.Status{Lost: 3}}, nil, doctor.Warn, "3 lines lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := look(t, place(t, c.answer, c.err).Checks(), "broker's log")
			assert.Equal(t, c.state, f.State, f.Text)
			assert.Contains(t, f.Text, c.text)
			assert.Equal(t, c.state == doctor.Warn, f.Remedy != "", f.Remedy)
		})
	}
}
