package settings

import (
	"crypto/tls"
	"errors"
	"os"
	"strings"
	"unicode"

	"github.com/baton-ipc/baton/internal/namedfile"
	"github.com/baton-ipc/baton/protocol"
)

// Files is what files hold that settings name, as Load has read them: nothing reads them afterwards, so that what is done
// with settings waits for no file system.
type Files struct {
	HTTPToken string           // "": none
	HTTPCert  *tls.Certificate // nil: none
}

// checkFiles reads the files that settings name. A broker that takes over finds out before that
// what it could not use: afterwards there is no other one that goes on.
func (s *Settings) checkFiles() error {
	for _, f := range []struct {
		key, path string
		read      func() error
	}{
		{"http-token-file", s.HTTPToken, s.readToken},
		{"http-key", s.HTTPKey, readable(s.HTTPKey)},
		{"http-cert", s.HTTPCert, func() (err error) {
			s.Files.HTTPCert, err = namedfile.Pair(s.HTTPCert, s.HTTPKey)
			return err
		}},
		{"nats-ca", s.NATSCA, func() error {
			_, err := namedfile.Authorities(s.NATSCA)
			return err
		}},
		{"nats-key", s.NATSKey, readable(s.NATSKey)},
		{"nats-cert", s.NATSCert, func() error {
			_, err := namedfile.Pair(s.NATSCert, s.NATSKey)
			return err
		}},
		{"nats-creds", s.NATSCreds, func() error { return namedfile.CheckCredentials(s.NATSCreds) }},
		{"nats-nkey", s.NATSNkey, func() error {
			_, err := namedfile.Seed(s.NATSNkey)
			return err
		}},
	} {
		if f.path == "" {
			continue
		}
		s.reads(f.key, f.path)
		if err := f.read(); err != nil {
			return s.wrong(f.key, err)
		}
	}
	return nil
}

// reads says which file is read next.
func (s *Settings) reads(key, path string) {
	if s.reading != nil {
		s.reading(key, path)
	}
}

// readToken reads the only word of a file.
func (s *Settings) readToken() error {
	data, err := namedfile.Read(s.HTTPToken)
	if err != nil {
		return err
	}
	token := strings.TrimSpace(string(data))
	wrong := ""
	switch {
	case token == "":
		wrong = "is empty"
	case strings.ContainsFunc(token, unicode.IsSpace):
		wrong = "has several words"
	case strings.ContainsFunc(token, unicode.IsControl): // no client could send it in a header
		wrong = "has control characters"
	}
	if wrong != "" {
		return protocol.Errorf(protocol.CodeInvalid, "write one word into it", "%s %s, and a token is one word", s.HTTPToken, wrong)
	}
	s.Files.HTTPToken = token
	return nil
}

func readable(path string) func() error {
	return func() error {
		_, err := namedfile.Read(path)
		return err
	}
}

// readConfig reads the configuration file. The null device is one without settings.
func (s *Settings) readConfig(path string) ([]byte, error) {
	if path == os.DevNull {
		return nil, nil
	}
	s.reads(keyConfig, path)
	data, err := namedfile.Read(path)
	var e *protocol.Error
	if s.Config == "" && errors.As(err, &e) {
		e.Remedy = "put a regular file there that can be read, give another one (--config), or set HOME or XDG_CONFIG_HOME to a directory of the user that runs this"
	}
	return data, err
}
