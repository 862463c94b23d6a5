package machines

import (
	"maps"
	"slices"
)

// States of this host.
const (
	StateJoining  = "joining"  // it is not connected to NATS, or was not yet
	StateSpanning = "spanning" // other hosts reach it
	StateRefused  = "refused"  // another process lives with the same instance
)

// Status is what this host does with others.
type Status struct {
	State      string   `json:"state"`
	Error      string   `json:"error,omitempty"`
	Namespaces []string `json:"namespaces"`
	// Data is the way that the settings give, Listens the addresses of the data port, DataError why there is none.
	Data      string   `json:"data"`
	TLS       bool     `json:"tls,omitempty"` // direct connections are encrypted
	Listens   []string `json:"listens,omitempty"`
	DataError string   `json:"data_error,omitempty"`
	// NATSRefuses are the rights that NATS does not grant, and what that means. MaxPayload is its largest message in bytes; 0: not known.
	NATSRefuses []string `json:"nats_refuses,omitempty"`
	MaxPayload  int64    `json:"max_payload,omitempty"`
	// OverNATS are hosts to which bytes go over NATS though direct connections are allowed.
	OverNATS []string `json:"over_nats,omitempty"`

	Fetching     int    `json:"fetching"`
	Serving      int    `json:"serving"`
	Referenced   int    `json:"referenced"` // storages that are held for other hosts
	UnderWay     int64  `json:"in_flight_bytes"`
	Fetched      uint64 `json:"fetched"`
	FetchedBytes uint64 `json:"fetched_bytes"`
	Served       uint64 `json:"served"`
	ServedBytes  uint64 `json:"served_bytes"`
	Failed       uint64 `json:"failed"`
	BadPieces    uint64 `json:"bad_pieces"`
	Refused      uint64 `json:"refused"`

	Kept KeptStatus `json:"kept"`
}

// Status tells how things are. It does not wait for the network.
func (m *Machines) Status() Status {
	s := Status{State: StateJoining, Namespaces: m.cfg.Namespaces, Data: m.cfg.Data, Kept: m.kept.status(), Referenced: m.source.holding(), UnderWay: m.gate.underWay()}
	if m.tcp != nil {
		s.Listens, s.TLS = m.tcp.listens(), m.encrypts()
	}
	m.dir.mu.Lock()
	s.Error = m.dir.err
	m.dir.mu.Unlock()
	s.NATSRefuses = m.conn.Refused()
	if nc := m.current(); nc == nil {
		s.Error = m.conn.LastError()
	} else {
		s.MaxPayload = nc.MaxPayload()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.twin:
		s.State = StateRefused
	case m.subscribed != nil && m.current() != nil:
		s.State = StateSpanning
	}
	if m.listenErr != "" {
		s.DataError = m.listenErr
	}
	s.OverNATS = slices.Sorted(maps.Keys(m.overNATS))
	c := m.counts
	s.Fetching, s.Serving, s.Fetched, s.FetchedBytes, s.Served, s.ServedBytes = c.fetching, c.serving, c.fetched, c.fetchedBytes, c.served, c.servedBytes
	s.Failed, s.BadPieces, s.Refused = c.failed, c.bad, c.refused
	return s
}
