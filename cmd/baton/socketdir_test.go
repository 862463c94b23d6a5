package main_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// The directory of a socket that lies apart from the runtime directory is looked at as well: others
// could put a socket of theirs in the broker's place.
func TestOthersThatMayReplaceTheSocketAreNamed(t *testing.T) {
	const warning = "other users may put a socket in the broker's place"
	for _, c := range []struct {
		name     string
		mode     os.FileMode
		uid, gid int // 0: those of the test
		flags    []string
		says     string // "": all is well
		asRoot   bool
	}{
		{"every user's", 0o777, 0, 0, nil, "can be written by every user (mode 0777)", false},
		{"with the sticky bit", 0o777 | os.ModeSticky, 0, 0, nil, "", false},
		{"own", 0o755, 0, 0, nil, "", false},
		{"of another user", 0o755, otherUID, 0, nil, fmt.Sprintf("belongs to user %d", otherUID), true},
		{"of another user, with the sticky bit", 0o777 | os.ModeSticky, otherUID, 0, nil, fmt.Sprintf("belongs to user %d", otherUID), true},
		{"of a user that may connect", 0o755, otherUID, 0, []string{"--allow-uid", fmt.Sprint(otherUID)}, "", true},
		{"of a group", 0o775, 0, nogroup, nil, fmt.Sprintf("can be written by group %d (mode 0775)", nogroup), true},
		{"of a group that may connect", 0o775, 0, nogroup, []string{"--allow-group", fmt.Sprint(nogroup)}, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.asRoot {
				testkit.Need(t, "root")
			}
			p := newPlace(t)
			at := p.file("b")
			require.NoError(t, os.Mkdir(at, 0o755))
			if c.uid != 0 || c.gid != 0 {
				require.NoError(t, os.Chown(at, c.uid, c.gid))
			}
			require.NoError(t, os.Chmod(at, c.mode))
			flags := append([]string{"--socket-mode", "0666"}, c.flags...)
			for key, value := range map[string]string{"BATON_ADDRESS": "unix:" + at + "/b.sock", "BATON_RUNTIME_DIR": p.file("a")} {
				p.setenv(key, value)
			}
			if len(c.flags) == 2 { // for doctor, which has no such flags
				key := map[string]string{"--allow-uid": "BATON_ALLOW_UID", "--allow-group": "BATON_ALLOW_GROUP"}[c.flags[0]]
				p.setenv(key, c.flags[1])
			}
			broker := p.serve(flags...)
			r := p.baton(append([]string{"serve", "--check-config"}, flags...)...)
			f := p.findings()["socket directory"]
			require.Zero(t, r.code, r.err)
			if c.says == "" {
				assert.NotContains(t, r.err, warning)
				assert.NotContains(t, broker.err.String(), warning)
				assert.Equal(t, "ok", f.State, f)
				return
			}
			assert.Contains(t, r.err, fmt.Sprintf("warning: %s: the directory %s %s; name a socket in another one", warning, at, c.says))
			assert.Contains(t, r.err, "chmod +t")
			broker.logs(warning)
			assert.Equal(t, "warn", f.State, f)
			assert.Equal(t, fmt.Sprintf("%s: %s %s", warning, at, c.says), f.Text)
			assert.Contains(t, f.Remedy, "--address")
		})
	}
}

// Where the directory is the broker's runtime directory as well there is one check of it.
func TestDoctorLooksOnceAtADirectoryOfBoth(t *testing.T) {
	p := newPlace(t)
	assert.NotContains(t, p.findings(), "socket directory")
	p.setenv("BATON_RUNTIME_DIR", p.file("baton")+"/")
	assert.NotContains(t, p.findings(), "socket directory")
}

func TestDoctorFailsWhereTheDirectoryOfTheSocketIsMissing(t *testing.T) {
	p := newPlace(t)
	p.setenv("BATON_ADDRESS", "unix:"+p.file("none/b.sock"))
	p.setenv("BATON_RUNTIME_DIR", p.file("a"))
	f := p.findings()["socket directory"]
	assert.Equal(t, "fail", f.State)
	assert.Contains(t, f.Text, "no socket can be made in "+p.file("none")+": no such file or directory")
	assert.Contains(t, f.Remedy, "mkdir")
}

// An HTTP endpoint is not bound where another user may put a socket in its place, which would get the token.
func TestHTTPSocketWhereOthersMayReplaceItIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		mode   os.FileMode
		uid    int    // 0: that of the test
		says   string // "": all is well
		asRoot bool
	}{
		{"every user's", 0o777, 0, "can be written by every user (mode 0777)", false},
		{"with the sticky bit", 0o777 | os.ModeSticky, 0, "", false},
		{"own", 0o755, 0, "", false},
		{"of another user", 0o755, otherUID, fmt.Sprintf("belongs to user %d", otherUID), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.asRoot {
				testkit.Need(t, "root")
			}
			p := newPlace(t)
			at := p.file("h")
			require.NoError(t, os.Mkdir(at, 0o755))
			if c.uid != 0 {
				require.NoError(t, os.Chown(at, c.uid, -1))
			}
			require.NoError(t, os.Chmod(at, c.mode))
			if c.says == "" {
				p.serve("--http", at+"/h.sock")
				code, _ := get(t, at+"/h.sock", "/healthz")
				assert.Equal(t, 200, code)
				assert.NotContains(t, p.baton("serve", "--check-config", "--http", at+"/h2.sock").err, "warning")
				return
			}
			p.launch("--http", at+"/h.sock").wait().fails(t, 1, fmt.Sprintf("other users may put a socket in this one's place: the directory %s %s", at, c.says), "--http")
			assert.NoFileExists(t, at+"/h.sock")
			r := p.baton("serve", "--check-config", "--http", at+"/h.sock")
			assert.Contains(t, r.err, fmt.Sprintf("warning: serve does not begin with this HTTP endpoint: other users may put a socket in its place: the directory %s %s; name a path in another one (--http)", at, c.says))
		})
	}
}
