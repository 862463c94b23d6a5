package machines

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"sync"
	"time"

	"github.com/baton-ipc/baton/protocol"
)

const (
	// certificateTime is how long the directory may take to tell the certificate of a host: a question is answered within askTime.
	certificateTime = 400 * time.Millisecond
	// mostCertificates bounds those that are remembered.
	mostCertificates = 1024
)

// fingerprint is the SHA-256 of a certificate.
type fingerprint [sha256.Size]byte

func (f fingerprint) String() string { return hex.EncodeToString(f[:]) }

// readFingerprint reads what another host says.
func readFingerprint(s string) (f fingerprint, ok bool) {
	b, err := hex.DecodeString(s)
	copy(f[:], b)
	return f, err == nil && len(b) == len(f)
}

// identity is the key pair of this process for direct connections. It is in no file: a process that goes on with the instance
// makes another, and writes its fingerprint to the directory before it answers other hosts.
type identity struct {
	certificate tls.Certificate
	print       fingerprint
}

func newIdentity(host string) (*identity, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	// Its dates are not looked at: clocks of hosts may differ.
	own := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, NotBefore: time.Unix(0, 0),
		NotAfter: time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, own, own, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &identity{tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, sha256.Sum256(der)}, nil
}

// security is how direct connections are encrypted: by TLS 1.3, in which both ends show the certificate that the directory
// has of them.
type security struct {
	own    *identity
	wanted func() bool // connections that begin now are encrypted
	// expects tells whether a receiver with such a certificate may come.
	expects func(fingerprint) bool
	refused func(error)
}

// config is that of a connection whose other end shows a certificate that is right.
func (s *security) config(right func(fingerprint) bool) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.own.certificate}, ClientAuth: tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // no authority has signed it: VerifyConnection compares the whole certificate
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) == 0 || !right(sha256.Sum256(c.PeerCertificates[0].Raw)) {
				return errCertificate
			}
			return nil
		},
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true}
}

var errCertificate = protocol.Errorf(protocol.CodePermission, "look at baton ls hosts: two brokers may have one data address",
	"a direct connection with a certificate that the directory of hosts does not have for its other end")

// encrypted is a connection with TLS, and the certificate of its other end.
type encrypted struct {
	*tls.Conn
	peer  fingerprint
	first []byte // of what is sent
}

// serve has a receiver show its certificate.
func (s *security) serve(ctx context.Context, c net.Conn) (*encrypted, error) {
	return handshake(ctx, tls.Server(c, s.config(s.expects)))
}

// open has a source show the certificate that the directory has of it.
func (s *security) open(ctx context.Context, c net.Conn, want fingerprint) (*encrypted, error) {
	return handshake(ctx, tls.Client(c, s.config(func(is fingerprint) bool { return is == want })))
}

func handshake(ctx context.Context, c *tls.Conn) (*encrypted, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return &encrypted{Conn: c, peer: sha256.Sum256(c.ConnectionState().PeerCertificates[0].Raw)}, nil
}

// atFault tells whether a handshake failed by what the other end said, and not by its end or its silence.
func atFault(err error) bool {
	if op := new(net.OpError); errors.As(err, &op) {
		return op.Op == "local error" // what crypto/tls tells the other end
	}
	for _, ends := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, ends) {
			return false
		}
	}
	return true
}

// recordBytes is the longest record of TLS.
const recordBytes = 16 << 10

// send writes the head of a frame and its body. The head has no record of its own.
func (e *encrypted) send(head, body []byte) error {
	n := min(len(body), recordBytes-len(head))
	e.first = append(append(e.first[:0], head...), body[:n]...)
	_, err := e.Write(e.first)
	if err == nil && n < len(body) {
		_, err = e.Write(body[n:])
	}
	return err
}

// errUnencrypted is why two hosts have no direct connection, of which one encrypts: this one, or the other.
func errUnencrypted(host string, this bool) error {
	text := "the direct connections of host %s are not encrypted, and those of this host are"
	if !this {
		text = "the direct connections of host %s are encrypted, and those of this host are not"
	}
	return protocol.Errorf(protocol.CodeUnsupported, "have both reach NATS by TLS, or give both the same --data-tls", text, host)
}

// certificates are those that the directory has told.
type certificates struct {
	mu sync.Mutex
	of map[string]told
}

type told struct {
	print fingerprint
	at    time.Time
}

// certificate tells the certificate of a host: what it says itself, if the directory says the same. What the directory has told
// is not asked for again for a while, nor after that while it cannot be read.
func (d *directory) certificate(ctx context.Context, host, said string) (fingerprint, error) {
	want, ok := readFingerprint(said)
	if !ok {
		return want, malformed("host %s names a certificate by %d characters", shortened(host), len(said))
	}
	d.certificates.mu.Lock()
	known, was := d.certificates.of[host]
	d.certificates.mu.Unlock()
	same := was && known.print == want
	if same && time.Since(known.at) < entryAge {
		return want, nil
	}
	ctx, cancel := context.WithTimeout(ctx, certificateTime)
	defer cancel()
	for {
		h, found, err := d.find(ctx, host)
		is, has := readFingerprint(h.Certificate)
		switch {
		case found && has && is == want:
			d.remember(host, want)
			return want, nil
		case err != nil && same:
			d.remember(host, want)
			return want, nil
		case err != nil:
			return want, protocol.Errorf(protocol.CodeBusy, "see that JetStream answers: the directory of hosts is there", "the directory of hosts does not tell the certificate of host %s: %w", host, err)
		}
		select { // a server of JetStream may be behind
		case <-time.After(2 * againTime):
		case <-ctx.Done():
			why := "the directory of hosts has another certificate for host %s than the one that it names"
			if !found || !has {
				why = "the directory of hosts has no certificate of host %s"
			}
			return want, protocol.Errorf(protocol.CodeBusy, "look at baton ls hosts: another process may write that host's entry", why, host)
		}
	}
}

func (d *directory) remember(host string, print fingerprint) {
	d.certificates.mu.Lock()
	defer d.certificates.mu.Unlock()
	if d.certificates.of == nil || len(d.certificates.of) >= mostCertificates {
		d.certificates.of = map[string]told{}
	}
	d.certificates.of[host] = told{print, time.Now()}
}
