package doctor_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/machines"
	"github.com/baton-ipc/baton/broker/machines/names"
	"github.com/baton-ipc/baton/cmd/baton/internal/doctor"
	"github.com/baton-ipc/baton/internal/testkit"
	"github.com/baton-ipc/baton/protocol"
)

// hostFindings are those about other hosts.
func hostFindings(p doctor.Place) (found []doctor.Finding) {
	for _, f := range doctor.Run(context.Background(), p.Checks(), nil) {
		if f.Check == "other hosts" {
			found = append(found, f)
		}
	}
	return found
}

func TestFindingsAboutOtherHosts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	closed := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: testkit.HeldPort(t)}).String()
	open := l.Addr().String()
	spanning := machines.Status{State: machines.StateSpanning, Data: machines.DataAuto, MaxPayload: 1 << 20}
	own := broker.HostRow{Host: "own", Own: true, State: machines.StateOwn, Lowest: 1, Highest: 1, Data: []string{closed}}
	other := func(change func(*broker.HostRow)) broker.HostRow {
		r := broker.HostRow{Host: "far", HostName: "a01", State: machines.StateReachable, Lowest: 1, Highest: 1, Data: []string{closed, open}}
		if change != nil {
			change(&r)
		}
		return r
	}
	for name, c := range map[string]struct {
		status func(*machines.Status)
		names  []names.Status
		rows   []broker.HostRow
		err    error
		state  doctor.State
		kinds  []string
		text   string
		remedy string
	}{
		"well":     {rows: []broker.HostRow{other(nil)}, state: doctor.OK, kinds: []string{""}, text: "1 other hosts answer"},
		"alone":    {state: doctor.OK, kinds: []string{""}, text: "0 other hosts"},
		"instance": {status: func(s *machines.Status) { s.State = machines.StateRefused }, state: doctor.Fail, kinds: []string{doctor.KindTwin}, text: "this one's instance", remedy: "of its own"},
		"link": {status: func(s *machines.Status) { s.State, s.Error = machines.StateJoining, "no servers" }, state: doctor.Warn,
			kinds: []string{doctor.KindJoining}, text: "no servers", remedy: "check of NATS"},
		"rights": {status: func(s *machines.Status) {
			s.NATSRefuses, s.Error = []string{"needs the right to x", "needs the right to y"}, "a deadline"
		}, state: doctor.Warn, kinds: []string{doctor.KindRight, doctor.KindRight}, text: "needs the right to x", remedy: "baton nats permissions"},
		"directory": {status: func(s *machines.Status) { s.Error = "no responders" }, state: doctor.Warn, kinds: []string{doctor.KindDirectory}, text: "no responders", remedy: "JetStream"},
		"messages":  {status: func(s *machines.Status) { s.MaxPayload = 64 << 10 }, state: doctor.Warn, kinds: []string{doctor.KindMessages}, text: "64 KiB", remedy: "max_payload"},
		"no bytes over NATS": {status: func(s *machines.Status) { s.MaxPayload, s.Data = 64<<10, machines.DataTCP }, state: doctor.OK,
			kinds: []string{""}},
		"version": {rows: []broker.HostRow{other(func(r *broker.HostRow) { r.Lowest, r.Highest, r.State = 2, 3, machines.StateUnreachable })}, state: doctor.Warn,
			kinds: []string{doctor.KindVersion}, text: "host far (a01) speaks other versions of the protocol between hosts (2 to 3)", remedy: "update the older"},
		"encryption": {rows: []broker.HostRow{other(func(r *broker.HostRow) { r.Certificate, r.Reason = "aa", "one encrypts" })}, state: doctor.Warn,
			kinds: []string{doctor.KindEncryption}, text: "one encrypts", remedy: "--data-tls"},
		"silent": {rows: []broker.HostRow{other(func(r *broker.HostRow) { r.State, r.Reason = machines.StateUnreachable, machines.ReasonSilent })},
			state: doctor.Warn, kinds: []string{doctor.KindSilent}, text: "does not answer", remedy: "suspended"},
		"ended": {rows: []broker.HostRow{other(func(r *broker.HostRow) {
			r.State, r.Reason, r.Data, r.Certificate = machines.StateUnreachable, machines.ReasonGone, []string{closed}, "aa"
		})}, state: doctor.OK, kinds: []string{""}, text: "0 other hosts"},
		"address": {rows: []broker.HostRow{other(nil), other(func(r *broker.HostRow) { r.Data = []string{closed} })}, state: doctor.Warn,
			kinds: []string{doctor.KindAddress}, text: "come over NATS", remedy: "--data-listen"},
		"address alone": {status: func(s *machines.Status) { s.Data = machines.DataTCP }, rows: []broker.HostRow{other(func(r *broker.HostRow) { r.Data = []string{closed} })},
			state: doctor.Warn, kinds: []string{doctor.KindAddress}, text: "do not come at all"},
		"address of a stranger": {rows: []broker.HostRow{other(func(r *broker.HostRow) { r.Data = []string{"example.org:80"} })}, state: doctor.Warn,
			kinds: []string{doctor.KindAddress}, text: "is no address"},
		"not used": {status: func(s *machines.Status) { s.Data = machines.DataNATS }, rows: []broker.HostRow{other(func(r *broker.HostRow) { r.Data = []string{closed} })},
			state: doctor.OK, kinds: []string{""}},
		"several": {status: func(s *machines.Status) { s.MaxPayload = 64 << 10 }, rows: []broker.HostRow{other(func(r *broker.HostRow) { r.Data = []string{closed} }),
			other(func(r *broker.HostRow) { r.Lowest, r.Highest = 7, 9 })}, state: doctor.Warn, kinds: []string{doctor.KindMessages, doctor.KindVersion, doctor.KindAddress}},
		"names": {names: []names.Status{{Namespace: "team", Agreed: true, StaleFor: 59, Stalest: "x", Stale: 1}}, state: doctor.OK, kinds: []string{""}},
		"bucket": {names: []names.Status{{Namespace: "team", Error: "its storage is not file", ErrorCode: protocol.CodeUnsupported, Remedy: "delete it"}}, state: doctor.Fail,
			kinds: []string{doctor.KindBucket}, text: "namespace team are not set on several hosts: its storage is not file", remedy: "delete it"},
		"replicas": {names: []names.Status{{Namespace: "team", Agreed: true, Replicas: 2, Lacks: "it has 2 of 3 replicas"}}, state: doctor.Warn,
			kinds: []string{doctor.KindBucket}, text: "it has 2 of 3 replicas", remedy: "--replicas 3"},
		"no leader": {names: []names.Status{{Namespace: "team", Error: "a deadline", ErrorCode: protocol.CodeInternal, Waits: 90}}, state: doctor.Warn,
			kinds: []string{doctor.KindAgreement}, text: "for 1m 30s the names of namespace team", remedy: "nats stream info KV_baton-span-team"},
		"stale": {names: []names.Status{{Namespace: "a", Agreed: true}, {Namespace: "team", Agreed: true, StaleFor: 61, Stalest: "x", Stale: 2, StaleWhy: "host far is silent"}},
			state: doctor.Warn, kinds: []string{doctor.KindStale}, text: "name x of namespace team has not come (2 names are stale): host far is silent", remedy: "baton ls names"},
		"no list": {err: errors.New("it hangs"), state: doctor.Warn, kinds: []string{doctor.KindDirectory}, text: "it hangs"},
	} {
		t.Run(name, func(t *testing.T) {
			s := spanning
			if c.status != nil {
				c.status(&s)
			}
			p := place(t, doctor.Answer{Version: "2", Hosts: &s, Names: c.names}, nil)
			p.Hosts = func(context.Context) ([]broker.HostRow, error) {
				return append([]broker.HostRow{own}, c.rows...), c.err
			}
			found := hostFindings(p)
			var kinds []string
			for _, f := range found {
				kinds = append(kinds, f.Kind)
				assert.Equal(t, f.State != doctor.OK, f.Remedy != "", "%v", f)
			}
			require.Equal(t, c.kinds, kinds, "%v", found)
			assert.Equal(t, c.state, doctor.Worst(found))
			assert.Contains(t, found[0].Text, c.text)
			assert.Contains(t, found[0].Remedy, c.remedy)
		})
	}
	found := hostFindings(place(t, doctor.Answer{Version: "2"}, nil))
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Text, "does not span")
}
