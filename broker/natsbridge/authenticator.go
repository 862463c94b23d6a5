package natsbridge

import (
	"context"
	"encoding/base64"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// authenticator admits clients to the embedded server. The server calls Check for each CONNECT,
// in the goroutine that reads from that client and without a lock: while Check waits, the
// client's requests wait in its socket, and no other client does.
type authenticator struct {
	outside string        // the public key of the seed file
	own     string        // the public key of the bridge's own connection
	key     nkeys.KeyPair // of own; it exists in this process only
	ended   context.Context
	end     context.CancelFunc
	// ready returns when a client that comes now may look: at the latest when ended ends.
	ready func(ended context.Context)
}

func newAuthenticator(outside string, ready func(context.Context)) (*authenticator, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, fmt.Errorf("make a NATS key: %w", err)
	}
	own, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("use the NATS key: %w", err)
	}
	d := &authenticator{outside: outside, own: own, key: key, ready: ready}
	d.ended, d.end = context.WithCancel(context.Background())
	return d, nil
}

// Check admits a client that has signed the server's nonce with one of the two keys.
func (d *authenticator) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	if o.Nkey != d.own && o.Nkey != d.outside || !signed(o.Nkey, o.Sig, c.GetNonce()) {
		return false
	}
	if o.Nkey == d.outside {
		// One that is still here when the server ends is admitted: a refusal would have
		// it give up the address, where the next broker may listen.
		d.ready(d.ended)
	}
	return true
}

// signed tells whether the holder of a public key's seed has signed a nonce. The encodings
// are those that nats-server takes.
func signed(public, signature string, nonce []byte) bool {
	if len(nonce) == 0 {
		return false
	}
	sig, err := base64.RawURLEncoding.DecodeString(signature)
	if err != nil {
		if sig, err = base64.StdEncoding.DecodeString(signature); err != nil {
			return false
		}
	}
	key, err := nkeys.FromPublicKey(public)
	return err == nil && key.Verify(nonce, sig) == nil
}
