package main_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/natsbridge"
	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/internal/testkit/natstest"
)

type permissions struct {
	Instance    string
	Namespaces  []string
	Span        []string
	Functions   bool
	Permissions natsbridge.UserPermissions
}

// serverOf starts a NATS server of an operator by its configuration file.
func (p *place) serverOf(port int, users string) *natsserver.Server {
	p.t.Helper()
	file := p.write("nats-server.conf", fmt.Sprintf("listen: 127.0.0.1:%d\njetstream { store_dir: %q }\nauthorization { users = [\n%s\n] }\n", port, p.file("store"), users))
	opts, err := natsserver.ProcessConfigFile(file)
	require.NoError(p.t, err)
	opts.NoSigs = true
	return natstest.Start(p.t, opts)
}

// status is that of the broker, of which a test reads some.
type hostsStatus struct {
	Instance string
	Extra    struct {
		NATS  natsbridge.Status
		Hosts machines.Status
	}
}

// What is printed is all that brokers need of a server, and none may be another host.
func TestPermissionsThatArePrintedAreEnough(t *testing.T) {
	for _, span := range []string{"--span", "--span=default,team"} {
		t.Run(span, func(t *testing.T) {
			operator := newPlace(t)
			port := testkit.HeldPort(t)
			url := fmt.Sprintf("nats://127.0.0.1:%d", port)
			hosts := []*place{newPlace(t), newPlace(t)}
			var users []string
			for i, p := range hosts {
				p.setenv("BATON_NATS_PASSWORD", "p")
				p.serveNATS("--nats", url, "--nats-user", fmt.Sprint("baton", i), span, "--nats-functions") // no server is there yet
				block := operator.write(fmt.Sprintf("permissions-%d.conf", i), p.must("nats", "permissions"))
				users = append(users, fmt.Sprintf("{ user: baton%d, password: p, include %q }", i, block[strings.LastIndex(block, "/")+1:]))
			}
			s := operator.serverOf(port, strings.Join(append(users, "{ user: admin, password: p }"), "\n"))
			admin, err := nats.Connect(url, nats.UserInfo("admin", "p"), nats.Timeout(patience))
			require.NoError(t, err)
			defer admin.Close()

			var statuses []hostsStatus
			for _, p := range hosts {
				p.until("other hosts reach it", func() bool {
					var st hostsStatus
					p.json(&st, "status")
					return st.Extra.Hosts.State == machines.StateSpanning && st.Extra.Hosts.Error == ""
				})
			}
			for i, p := range hosts {
				c := p.client()
				x := p.tensor(c, 1<<20)
				_, err := c.Set(t.Context(), fmt.Sprint("name-", i), x)
				require.NoError(t, err)
				provides(p, c, fmt.Sprint("f", i), func(_ context.Context, x any) (any, error) { return x, nil }, client.OverNATS())
				assert.Equal(t, `7`, string(p.overNATS(admin, fmt.Sprint("f", i), "[7]", nil).Data))
				far, err := x.Handle(t.Context())
				require.NoError(t, err)
				y, err := hosts[1-i].client().Open(t.Context(), far)
				require.NoError(t, err)
				y.Release()
				p.until("the name is mirrored", func() bool {
					var st hostsStatus
					p.json(&st, "status")
					return st.Extra.NATS.Names.State == natsbridge.NamesMirrored
				})
			}
			for _, p := range hosts {
				var st hostsStatus
				p.json(&st, "status")
				assert.Empty(t, st.Extra.NATS.Refused)
				assert.Empty(t, st.Extra.NATS.Service)
				assert.Empty(t, st.Extra.Hosts.NATSRefuses)
				statuses = append(statuses, st)
				assert.Equal(t, 2, strings.Count(p.must("ls", "hosts"), "\n")-1)
			}

			conns, err := s.Connz(&natsserver.ConnzOptions{Username: true, Subscriptions: true})
			require.NoError(t, err)
			seen := map[string]int{}
			for _, c := range conns.Conns {
				for _, subject := range c.Subs {
					if _, of, is := strings.Cut(subject, ".host."); is && c.AuthorizedUser != "admin" {
						own := statuses[c.AuthorizedUser[len("baton")]-'0'].Instance
						assert.True(t, strings.HasPrefix(of, own+"."), "%s subscribes to %s", c.AuthorizedUser, subject)
						seen[c.AuthorizedUser]++
					}
				}
			}
			assert.Len(t, seen, 2)

			refused := make(chan error, 100)
			first, err := nats.Connect(url, nats.UserInfo("baton0", "p"), nats.Timeout(patience), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { refused <- err }))
			require.NoError(t, err)
			defer first.Close()
			for _, subject := range []string{"baton.default.host." + statuses[1].Instance + ".fetch", "baton.*.host.>", "baton.default.topic.>", "$KV.>"} {
				_, err := first.SubscribeSync(subject)
				require.NoError(t, err)
				require.ErrorIs(t, <-refused, nats.ErrPermissionViolation, subject)
			}
			if span != "--span" { // else its names are in any bucket
				require.NoError(t, first.Publish("$KV.baton-hosts."+statuses[1].Instance, nil))
				require.ErrorIs(t, <-refused, nats.ErrPermissionViolation)
			}
		})
	}
}

func TestPermissionsFollowTheBrokerTheSettingsAndFlags(t *testing.T) {
	p := newPlace(t)
	got := func(args ...string) (a permissions) {
		t.Helper()
		p.json(&a, append([]string{"nats", "permissions"}, args...)...)
		return a
	}
	a := got()
	assert.Equal(t, "*", a.Instance)
	assert.Equal(t, []string{"default"}, a.Namespaces)
	assert.Empty(t, a.Span)
	assert.NotContains(t, fmt.Sprint(a.Permissions), "baton-hosts")
	assert.Contains(t, a.Permissions.Subscribe.Allow, "baton.default.host.*.>")
	assert.NotContains(t, a.Permissions.Subscribe.Allow, "baton.default.call.>")

	require.NoError(t, os.Mkdir(p.file("baton"), 0o700))
	require.NoError(t, os.WriteFile(p.file("baton/baton.toml"), []byte("nats = \"nats://127.0.0.1:1\"\nspan = [\"team-a\", \"team-b\"]\nnats-functions = true\n"), 0o600))
	a = got("--namespace", "team-c")
	assert.Equal(t, []string{"team-a", "team-b", "team-c"}, a.Namespaces)
	assert.Equal(t, []string{"team-a", "team-b"}, a.Span)
	assert.True(t, a.Functions)
	assert.Contains(t, a.Permissions.Subscribe.Allow, "baton.team-c.call.>")
	assert.Contains(t, a.Permissions.Publish.Allow, "$KV.baton-hosts.*")
	assert.NotContains(t, a.Permissions.Publish.Allow, "baton.team-c.host.>")

	instance := strings.Repeat("0a", 16)
	a = got("--span", "--nats-functions=false", "--instance", instance)
	assert.Equal(t, []string{"*"}, a.Namespaces)
	assert.Equal(t, []string{"baton.*.>", "$KV.*.>", "$JS.API.>", "_INBOX.>", "baton.*.host.>", "$KV.baton-hosts." + instance, "$JS.FC.KV_baton-hosts.>"}, a.Permissions.Publish.Allow)
	a = got("--span=", "--names=x,y", "--instance=*")
	assert.Empty(t, a.Span)
	assert.Equal(t, []string{"x", "y"}, a.Namespaces)

	p.baton("nats", "permissions", "--names", "a b").fails(t, 2, "", "")
	for _, none := range []string{"", " , "} { // to nats-server nothing is everything
		p.baton("nats", "permissions", "--names", none).fails(t, 2, "--names has no namespace", "leave --names out")
	}
	for _, none := range []string{"a.>", "zz", instance + "0", instance[1:]} {
		p.baton("nats", "permissions", "--instance", none).fails(t, 2, "is no instance", "baton status")
	}
	a = got("--span=", "--names=hosts,span-x,x")
	assert.Equal(t, []string{"baton.hosts.>", "baton.span-x.>", "baton.x.>", "$KV.baton-x.>", "$JS.API.>", "_INBOX.>"}, a.Permissions.Publish.Allow,
		"the buckets of the others are for hosts")

	p.serve("--memory", "64M", "--config", p.write("none.toml", ""))
	a = got()
	assert.Regexp(t, `^[0-9a-f]+$`, a.Instance)
	assert.Contains(t, a.Permissions.Subscribe.Allow, "baton.default.host."+a.Instance+".>")
	assert.Empty(t, a.Span, "the broker counts, and not the file")
}
