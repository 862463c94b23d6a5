// Package namedfile reads the files that people name in settings: tokens, certificates, keys, credentials, and the
// settings themselves. It is the one door to them.
//
// What it trusts: nothing of what stands at a path. A pipe or a device is refused and not waited for, and no more than
// Most bytes are read; a regular file on a file system that does not answer is waited for. Every error is a
// *protocol.Error that names the file and says what to do. Concurrency: it keeps no state. Death: nothing is left.
package namedfile

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"

	"github.com/nats-io/nkeys"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// Most is how many bytes such a file may have.
const Most = 1 << 20

// Read reads a file.
func Read(path string) ([]byte, error) {
	data, err := sys.ReadAtMost(path, Most)
	switch {
	case err == nil:
		return data, nil
	case errors.Is(err, sys.ErrInTheWay):
		return nil, protocol.Errorf(protocol.CodeInvalid, "name a regular file, or put one there", "%s is %s: %w", path, kind(path), sys.ErrInTheWay)
	case errors.Is(err, sys.ErrTooLong):
		return nil, protocol.Errorf(protocol.CodeInvalid, "name the right file", "%s has more than %d bytes: %w", path, Most, sys.ErrTooLong)
	case errors.Is(err, fs.ErrNotExist):
		return nil, protocol.Errorf(protocol.CodeNotFound, "check the path, or put the file there", "%w", err)
	case errors.Is(err, fs.ErrPermission):
		return nil, protocol.Errorf(protocol.CodePermission, "make it readable for the user that runs this (chown, chmod)", "%w", err)
	}
	return nil, protocol.Errorf(protocol.CodeInvalid, "check the path, and the file system that the file lies on", "%w", err)
}

// kind says what stands at a path.
func kind(path string) string {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "something else"
	case info.IsDir():
		return "a directory"
	case info.Mode()&fs.ModeNamedPipe != 0:
		return "a pipe"
	case info.Mode()&fs.ModeSocket != 0:
		return "a socket"
	}
	return "a device"
}

// Pair reads a certificate and its key.
func Pair(cert, key string) (*tls.Certificate, error) {
	certificate, err := Read(cert)
	if err != nil {
		return nil, err
	}
	secret, err := Read(key)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, secret)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give a certificate in PEM, and the key that belongs to it", "%s and %s cannot be used: %w", cert, key, err)
	}
	return &pair, nil
}

// Authorities reads the certificates of those that sign others.
func Authorities(path string) (*x509.CertPool, error) {
	data, err := Read(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, protocol.Errorf(protocol.CodeInvalid, "give the authorities' certificates in PEM", "%s has no certificate in PEM", path)
	}
	return pool, nil
}

// CheckCredentials reads the credentials of a user of NATS: a JWT and the seed of a key.
func CheckCredentials(path string) error {
	data, err := Read(path)
	if err != nil {
		return err
	}
	_, err = nkeys.ParseDecoratedJWT(data)
	key, wrong := nkeys.ParseDecoratedUserNKey(data)
	if err != nil || wrong != nil {
		return protocol.Errorf(protocol.CodeInvalid, "give the .creds file of a NATS user", "%s does not hold a JWT and a seed of a NATS user", path)
	}
	key.Wipe()
	return nil
}

// Seed reads the seed of a user of NATS, and returns the public key that belongs to it.
func Seed(path string) (public string, err error) {
	data, err := Read(path)
	if err != nil {
		return "", err
	}
	key, err := nkeys.ParseDecoratedNKey(data)
	if err == nil {
		defer key.Wipe()
		public, err = key.PublicKey()
	}
	if err != nil || !nkeys.IsValidPublicUserKey(public) {
		return "", protocol.Errorf(protocol.CodeInvalid, "give a file that holds one user seed (SU…)", "%s holds no seed of a NATS user", path)
	}
	return public, nil
}
