// Package natstest starts servers of NATS, as an operator's, within a test.
package natstest

import (
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/baton-ipc/baton/internal/testkit"
)

// Start starts a server that a test alone has, waits until it takes connections, and ends it with the test. The test
// may end it before.
func Start(t testing.TB, opts *server.Options) *server.Server {
	t.Helper()
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("make a NATS server: %v", err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(testkit.Patience) {
		t.Fatal("the NATS server takes no connections")
	}
	return s
}

// JetStream are the options of a server with JetStream, at a port that is the test's own.
func JetStream(t testing.TB) *server.Options {
	t.Helper()
	return &server.Options{Host: "127.0.0.1", Port: testkit.HeldPort(t), NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()}
}
