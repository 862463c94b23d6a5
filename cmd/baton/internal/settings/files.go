package settings

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"
)

// checkFiles reads the files that settings name. A broker that takes over finds out before that
// what it could not use: afterwards there is no other one that goes on.
func (s *Settings) checkFiles() error {
	for _, f := range []struct {
		key string
		err error
	}{
		{"http-token-file", second(ReadToken(s.HTTPToken))},
		{"http-cert", pair(s.HTTPCert, s.HTTPKey)},
		{"nats-ca", authorities(s.NATSCA)},
		{"nats-cert", pair(s.NATSCert, s.NATSKey)},
		{"nats-creds", readable(s.NATSCreds)},
		{"nats-nkey", readable(s.NATSNkey)},
	} {
		if f.err != nil {
			return s.wrong(f.key, f.err)
		}
	}
	return nil
}

func second(_ string, err error) error { return err }

// ReadToken reads the only word of a file; "" names none.
func ReadToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, unicode.IsSpace) {
		return "", fmt.Errorf("%s has no token: write one word into it", file)
	}
	return token, nil
}

func pair(cert, key string) error {
	if cert == "" {
		return nil
	}
	_, err := tls.LoadX509KeyPair(cert, key)
	return err
}

func authorities(file string) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err == nil && !x509.NewCertPool().AppendCertsFromPEM(data) {
		err = errors.New(file + " has no certificate in PEM")
	}
	return err
}

func readable(file string) error {
	if file == "" {
		return nil
	}
	_, err := os.ReadFile(file)
	return err
}
