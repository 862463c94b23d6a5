package main

import (
	"context"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/natsbridge"
)

func main() {
	dir := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "baton")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b, err := broker.New(broker.Config{Dir: dir, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		log.Fatal(err)
	}
	n, err := natsbridge.Start(ctx, natsbridge.Config{RuntimeDir: dir, Owner: b.ID()})
	if err != nil {
		log.Fatal(err)
	}
	go b.Mirror(ctx, n)
	if err := b.Serve(ctx); err != nil {
		log.Fatal(err)
	}
	n.Close(context.Background())
}
