package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/baton-ipc/baton/broker/events"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// A living broker hands over to another one in this order; replace.go has the other
// side:
//
//	new: replace         old: checks, freezes; lock, listener
//	new: replace.files … old: every file
//	new: maps, checks; replace.ready
//	                     old: the mark in the broker file (the commit), {}, ends
//	new: applies, serves
//
// Until the mark is set the old broker serves, whatever happens to the new one. After that it
// changes nothing.

// handOverTime bounds how long requests wait for a replacement.
const handOverTime = 10 * time.Second

// filesAtOnce is how many files a frame of a replacement carries.
const filesAtOnce = 32

// handOver carries out the op replace, which needs no session. All else waits while it
// runs.
func (c *conn) handOver(id uint64, data []byte) {
	b := c.b
	b.mu.Lock()
	handed, err := c.handOverFrozen(&id, data)
	if handed {
		b.cfg.Events.End()
		b.log.Info("ending: another broker has taken over", events.Of(events.Takeover), "pid", c.cred.PID)
		b.closing = true
		b.clock.Stop()
		b.forgetConn(c) // end does not wait for it
	}
	b.mu.Unlock()
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, protocol.ErrBusy) {
			level = slog.LevelDebug // the new broker asks again until that is over
		}
		b.log.Log(context.Background(), level, "a broker could not take over; this one goes on", events.Of(events.Takeover), "pid", c.cred.PID, "error", err)
		if errors.Is(err, protocol.ErrPermissionDenied) { // all else is between brokers
			c.refusedEarly(protocol.OpReplace, err)
		}
		c.reply(id, nil, nil, err)
		return
	}
	b.stop(endHanded, nil)
	<-b.over
}

// HandedOver tells whether another broker has taken over from this one. Call it when Serve
// has returned.
func (b *Broker) HandedOver() bool {
	select {
	case <-b.quit:
		return b.quitHow == endHanded
	default:
		return false
	}
}

// handOverFrozen is handOver with the mutex held. It tells whether the other broker
// serves now; if not, the error is the answer to the request with the id that is returned.
func (c *conn) handOverFrozen(id *uint64, data []byte) (bool, error) {
	b := c.b
	var r protocol.Replace
	if err := decode(data, &r); err != nil {
		return false, err
	}
	files, err := b.mayHandOver(c, &r)
	if err != nil {
		return false, err
	}
	b.store.Record.NotHanded()
	crashpoint.At("handover-frozen")
	c.w.SetDeadline(time.Now().Add(handOverTime))
	defer c.w.SetDeadline(time.Time{})
	lock, err := b.lock.Dup()
	if err != nil {
		return false, err
	}
	defer lock.Close()
	listener, err := sys.DupSocket(b.listener)
	if err != nil {
		return false, err
	}
	defer listener.Close()
	if err := c.sayHanded(*id, protocol.ReplaceReply{Instance: b.id, Files: len(files)}, lock, listener); err != nil {
		return false, err
	}
	for {
		data, fds, err := c.w.Read()
		wire.CloseAll(fds)
		if err != nil {
			return false, fmt.Errorf("the broker that was to take over has gone: %w", err)
		}
		var h head
		var from protocol.ReplaceFiles
		if err := json.Unmarshal(data, &h); err != nil {
			return false, err
		}
		*id = h.ID
		switch {
		case h.Op == protocol.OpReplaceFiles && json.Unmarshal(data, &from) == nil && from.From >= 0 && from.From < len(files):
			part := files[from.From:min(from.From+filesAtOnce, len(files))]
			if err := c.handFiles(h.ID, part); err != nil {
				return false, err
			}
			crashpoint.At("handover-sent")
		case h.Op == protocol.OpReplaceReady:
			if !b.store.Record.HandOver() {
				return false, fmt.Errorf("the broker that was to take over has given up")
			}
			crashpoint.At("handover-marked")
			if err := c.sayHanded(h.ID, protocol.ReplaceReadyReply{Events: b.cfg.Events.Since(0, 0)}); err != nil {
				b.log.Warn("the broker that takes over was not notified", events.Of(events.Takeover), "error", err) // it looks at the mark
			}
			return true, nil
		default:
			return false, protocol.Errorf(protocol.CodeProtocol, "see docs/protocol.md", "the op %q within a replacement", h.Op)
		}
	}
}

// mayHandOver lists what this broker would hand over, or says why it goes on.
func (b *Broker) mayHandOver(c *conn, r *protocol.Replace) ([]sharedFile, error) {
	if err := c.owns(protocol.OpReplace); err != nil {
		return nil, err
	}
	switch {
	case b.closing || !b.begun:
		// One that handed over before it has written its state file would write that over its
		// successor's.
		return nil, protocol.Errorf(protocol.CodeBusy, "try again", "this broker is starting or ending")
	case b.cfg.Supervised && !r.Force:
		return nil, protocol.Errorf(protocol.CodeConflict, "give --replace if you run it as well", "an operator runs this broker")
	case b.activated:
		// The manager would look at the socket again once this process has ended, and start a broker
		// at each connection, which finds the other one's lock.
		return nil, protocol.Errorf(protocol.CodeConflict, "restart its unit (systemctl restart, with --user for one of yours): programs go on, and connections wait meanwhile",
			"a service manager has bound the socket of this broker (pid %d) and starts the brokers there", processID)
	case r.MemoryDir != b.cfg.MemoryDir:
		return nil, protocol.Errorf(protocol.CodeConflict, "start the new one with the same --memory-dir, or stop the old one before",
			"the memory of this broker is in %s, and that of the new one would be in %s", placeOf(b.cfg.MemoryDir), placeOf(r.MemoryDir))
	}
	err := protocol.This(protocol.SpeakerBroker, b.cfg.Version).CheckPeer(
		protocol.Speaker{Role: protocol.SpeakerNewBroker, Build: sessionfiles.Printable(r.Version, maxClientVersion), Speaks: r.Protocol, Layout: r.Layout})
	if err != nil {
		return nil, err
	}
	files := b.allFiles()
	if need := uint64(len(files) + filesEach*b.liveSessions() + filesBeside); need > r.Files {
		return nil, protocol.Errorf(protocol.CodeTooMany,
			fmt.Sprintf("raise the new broker's limit of open files by %d or more (ulimit -n, LimitNOFILE= of a unit)", need-r.Files+filesSpare),
			"what this broker has needs %d open files, and %d more are allowed to the new one", need, r.Files)
	}
	return files, nil
}

func placeOf(dir string) string {
	if dir == "" {
		return "memfds"
	}
	return dir
}

func (c *conn) handFiles(id uint64, part []sharedFile) error {
	var r protocol.ReplaceFilesReply
	var fds []*sys.FD
	for _, f := range part {
		r.Items = append(r.Items, itemOf(f.key))
		fds = append(fds, f.fd)
	}
	return c.sayHanded(id, r, fds...)
}

// sayHanded answers a request of a replacement. The descriptors stay the broker's. It
// takes no lock: nothing else writes on a connection without a session.
func (c *conn) sayHanded(id uint64, ok any, fds ...*sys.FD) error {
	frame, err := encodeReply(id, ok, len(fds), nil)
	if err != nil {
		return err
	}
	return c.w.WriteFrame(frame, fds)
}
