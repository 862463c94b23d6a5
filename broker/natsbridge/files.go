package natsbridge

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/baton-ipc/baton/internal/namedfile"
	"github.com/baton-ipc/baton/protocol"
)

// The options of nats.go that take the names of files read them with each connection, and wait for whatever stands there.
// These read as they do, so that files may be exchanged, and by the door that all named files have.

// unusable is the error of a file; what the file's own error says is to be done counts.
func unusable(what, remedy string, err error) error {
	var e *protocol.Error
	if errors.As(err, &e) {
		remedy = e.Remedy
	}
	return configError(remedy, what+" (%s)", protocol.Plain(err))
}

// creds is nats.UserCredentials of a file that is looked into at once.
func creds(path string) (nats.Option, error) {
	if err := namedfile.CheckCredentials(path); err != nil {
		return nil, unusable("NATS credentials cannot be used", "give the .creds file of a NATS user", err)
	}
	return nats.UserJWT(func() (string, error) {
		data, err := namedfile.Read(path)
		if err != nil {
			return "", err
		}
		return nkeys.ParseDecoratedJWT(data)
	}, signature(path)), nil
}

// seed is nats.NkeyOptionFromSeed.
func seed(path string) (nats.Option, error) {
	public, err := namedfile.Seed(path)
	if err != nil {
		return nil, unusable("the NATS seed cannot be used", "give a file that holds one user seed (SU…)", err)
	}
	return nats.Nkey(public, signature(path)), nil
}

// signature signs with the key that a file has by then.
func signature(path string) nats.SignatureHandler {
	return func(nonce []byte) ([]byte, error) {
		data, err := namedfile.Read(path)
		if err != nil {
			return nil, err
		}
		key, err := nkeys.ParseDecoratedNKey(data)
		if err != nil {
			return nil, err
		}
		defer key.Wipe()
		return key.Sign(nonce)
	}
}

// authorities is nats.RootCAs.
func authorities(path string) nats.Option {
	return func(o *nats.Options) error {
		read := func() (*x509.CertPool, error) { return namedfile.Authorities(path) }
		o.RootCAsCB = read
		return secure(o, second(read()))
	}
}

// certificate is nats.ClientCert.
func certificate(cert, key string) nats.Option {
	return func(o *nats.Options) error {
		read := func() (tls.Certificate, error) {
			pair, err := namedfile.Pair(cert, key)
			if err != nil {
				return tls.Certificate{}, err
			}
			return *pair, nil
		}
		o.TLSCertCB = read
		return secure(o, second(read()))
	}
}

func second[T any](_ T, err error) error { return err }

// secure has a connection be by TLS, unless its files cannot be used.
func secure(o *nats.Options, err error) error {
	if err != nil {
		return err
	}
	if o.TLSConfig == nil {
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	o.Secure = true
	return nil
}
