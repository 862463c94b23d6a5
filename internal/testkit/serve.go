package testkit

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/baton-ipc/baton/broker"
)

// roleBroker makes the test binary itself a broker where the program baton
// cannot serve yet.
const roleBroker = "testkit.broker"

func (b *Broker) command() *exec.Cmd {
	if os.Getenv("TESTKIT_BINARY") != "" {
		cmd := exec.Command(Binary(b.t), b.config.args(b.Socket)...)
		cmd.Env = b.env()
		return cmd
	}
	self, err := os.Executable()
	if err != nil {
		b.t.Fatal(err)
	}
	data, _ := json.Marshal(struct {
		BrokerConfig
		Socket string
	}{b.config, b.Socket})
	cmd := exec.Command(self)
	cmd.Env = b.env(envRole+"="+roleBroker, envConfig+"="+string(data))
	return cmd
}

func serve(c *Child) error {
	var cfg struct {
		BrokerConfig
		Socket string
	}
	if err := c.Config(&cfg); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	b, err := broker.New(broker.Config{Dir: filepath.Dir(cfg.Socket), Socket: cfg.Socket, Memory: cfg.Memory,
		SessionMemory: cfg.SessionMemory, MemoryDir: cfg.MemoryDir, IdleExit: cfg.IdleExit, Version: "test",
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		return err
	}
	return b.Serve(ctx)
}
