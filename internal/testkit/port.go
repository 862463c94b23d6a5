package testkit

import (
	"net"
	"testing"
)

// HeldPort returns a port of 127.0.0.1 that is the test's own until its end. A
// connection is refused until a server of the test's listens there; no other
// process is given the port meanwhile, as could happen to one that was tried out
// and closed again. What holds it is the accepted end of a connection.
func HeldPort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	t.Cleanup(func() { out.Close() })
	in, err := l.Accept()
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	t.Cleanup(func() { in.Close() })
	return l.Addr().(*net.TCPAddr).Port
}
