package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/internal/testkit"
)

// natsServerConfig is what the role nats-server is told: it serves NATS for
// clients that authenticate, says its port, and stays until it is killed.
type natsServerConfig struct {
	Port           int
	Store          string // of JetStream; "": none
	Cert, Key      string // files: TLS is wanted
	User, Password string
	Operator       string // claims of one whose accounts' users may come, as JWT
	Account        string // and of such an account
	Name           string // among the servers of a cluster
	Cluster        int    // port for the others; 0: it is alone
	Routes         []int  // their ports
	Advertise      int    // the port that it tells the others, if it is another one
}

func init() {
	roles["nats-server"] = func(p *testkit.Child) error {
		var cfg natsServerConfig
		if err := p.Config(&cfg); err != nil {
			return err
		}
		opts := &server.Options{Host: "127.0.0.1", Port: cfg.Port, NoSigs: true, JetStream: cfg.Store != "",
			StoreDir: cfg.Store, JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 64 << 20,
			Username: cfg.User, Password: cfg.Password}
		if cfg.Cluster != 0 {
			opts.ServerName, opts.Cluster = cfg.Name, server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: cfg.Cluster}
			if cfg.Advertise != 0 {
				opts.Cluster.Advertise = fmt.Sprintf("127.0.0.1:%d", cfg.Advertise)
			}
			for _, port := range cfg.Routes {
				opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", port)})
			}
		}
		if cfg.Cert != "" {
			pair, err := tls.LoadX509KeyPair(cfg.Cert, cfg.Key)
			if err != nil {
				return err
			}
			opts.TLSConfig, opts.TLSTimeout = &tls.Config{Certificates: []tls.Certificate{pair}}, testkit.Patience.Seconds()
		}
		if cfg.Operator != "" {
			operator, err := jwt.DecodeOperatorClaims(cfg.Operator)
			if err != nil {
				return err
			}
			account, err := jwt.DecodeAccountClaims(cfg.Account)
			if err != nil {
				return err
			}
			accounts := &server.MemAccResolver{}
			opts.TrustedOperators, opts.AccountResolver = []*jwt.OperatorClaims{operator}, accounts
			if err := accounts.Store(account.Subject, cfg.Account); err != nil {
				return err
			}
		}
		s, err := server.NewServer(opts)
		if err != nil {
			return err
		}
		s.Start()
		defer s.Shutdown()
		if !s.ReadyForConnections(testkit.Patience) {
			return errors.New("the NATS server does not become ready")
		}
		if err := p.Say(s.Addr().(*net.TCPAddr).Port); err != nil {
			return err
		}
		var line string
		if err := p.Hear(&line); err != io.EOF {
			return err
		}
		return nil
	}
}

// operatorsNATS is a NATS server of an operator, in a process of its own, with a
// user and TLS.
type operatorsNATS struct {
	t      *testing.T
	dir    string
	config natsServerConfig
}

func newOperatorsNATS(t *testing.T) *operatorsNATS {
	o := &operatorsNATS{t: t, dir: t.TempDir()}
	o.config = natsServerConfig{Port: testkit.HeldPort(t), Store: filepath.Join(o.dir, "store"), Cert: filepath.Join(o.dir, "server.pem"),
		Key: filepath.Join(o.dir, "server.key"), User: "joe", Password: "hunter2"}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	own := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nats"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, own, own, &key.PublicKey, key)
	require.NoError(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(o.config.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(o.config.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600))
	return o
}

func (o *operatorsNATS) url() string { return fmt.Sprintf("tls://127.0.0.1:%d", o.config.Port) }

// flags make a broker join it.
func (o *operatorsNATS) flags() []string {
	return []string{"--nats", o.url(), "--nats-user", o.config.User, "--nats-password", o.config.Password, "--nats-ca", o.config.Cert}
}

func (o *operatorsNATS) start(b *testkit.Broker) *testkit.Process {
	p := b.Start("nats-server", o.config)
	p.Next(&o.config.Port)
	return p
}

// connect comes as any user of it does, and stays while it is away.
func (o *operatorsNATS) connect() *nats.Conn {
	nc, err := nats.Connect(o.url(), nats.Timeout(testkit.Patience), nats.UserInfo(o.config.User, o.config.Password), nats.RootCAs(o.config.Cert),
		nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
	require.NoError(o.t, err)
	o.t.Cleanup(nc.Close)
	return nc
}

// operatorWithAccount makes the claims of an operator and an account, and writes
// the credentials of a user of it.
func operatorWithAccount(t *testing.T) (config natsServerConfig, creds string) {
	pair := func(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string) {
		k, err := create()
		require.NoError(t, err)
		public, err := k.PublicKey()
		require.NoError(t, err)
		return k, public
	}
	operator, operatorID := pair(nkeys.CreateOperator)
	account, accountID := pair(nkeys.CreateAccount)
	user, userID := pair(nkeys.CreateUser)
	var err error
	config.Port = -1
	config.Operator, err = jwt.NewOperatorClaims(operatorID).Encode(operator)
	require.NoError(t, err)
	config.Account, err = jwt.NewAccountClaims(accountID).Encode(operator)
	require.NoError(t, err)
	claims, err := jwt.NewUserClaims(userID).Encode(account)
	require.NoError(t, err)
	seed, err := user.Seed()
	require.NoError(t, err)
	text, err := jwt.FormatUserConfig(claims, seed)
	require.NoError(t, err)
	creds = filepath.Join(t.TempDir(), "user.creds")
	require.NoError(t, os.WriteFile(creds, text, 0o600))
	return config, creds
}
