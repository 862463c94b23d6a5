package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/baton-ipc/baton/broker/record"
	"github.com/baton-ipc/baton/broker/sessionfiles"
	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/baton-ipc/baton/internal/crashpoint"
	"github.com/baton-ipc/baton/internal/reach"
	"github.com/baton-ipc/baton/internal/statefile"
	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/internal/wire"
	"github.com/baton-ipc/baton/protocol"
)

// succession is what a living broker hands over to this one.
type succession struct {
	conn     *wire.Conn
	next     uint64 // request
	instance string
	lock     *sys.FD
	listener *sys.FD
	files    map[sessionfiles.Key]*sys.FD
	record   record.File
	ended    chan struct{} // closed when the old broker's process has ended
	forget   func()
}

// answerTime is how long the broker that is to hand over may take to listen and to
// answer: it may have to write for as long as a replacement takes.
const answerTime = 2 * handOverTime

// errOldEnded: the broker that was to hand over has ended. Another try finds what it left, or
// nothing.
var errOldEnded = errors.New("the old broker has ended")

// errOldBusy: that broker is starting or ending. It hands over a while later, or is gone.
var errOldBusy = errors.New("the old broker is starting or ending")

// take occupies the runtime directory, or has the broker that runs there hand it over.
func (b *Broker) take(ctx context.Context) error {
	var cutOff time.Time // since when no process listens at the socket of the one that runs
	began := time.Now()
	for {
		occupied := b.occupy()
		if !errors.Is(occupied, protocol.ErrConflict) {
			return occupied
		}
		may, err := b.mayReplace()
		if errors.Is(err, fs.ErrNotExist) && b.cfg.Replace && time.Since(began) < 2*lookAtPlace {
			// It begins, or the file was removed and it writes it again.
			select {
			case <-time.After(takeoverTick):
				continue
			case <-ctx.Done():
			}
		}
		if !may {
			return occupied
		}
		s, err := b.succeed(ctx)
		if err == nil {
			b.succession = s
			return nil
		}
		switch {
		case errors.Is(err, errOldBusy):
			cutOff = time.Time{}
		case !errors.Is(err, errOldEnded):
			return err
		case cutOff.IsZero():
			cutOff = time.Now()
		case time.Since(cutOff) >= answerTime:
			return occupied
		}
		select {
		case <-time.After(takeoverTick):
		case <-ctx.Done():
			return occupied
		}
	}
}

// mayReplace tells whether this broker takes over from the one that runs: on request, or when
// an operator runs this one and a client has started that one. An error means that the other
// one's state file cannot be read.
func (b *Broker) mayReplace() (bool, error) {
	st, err := statefile.Read(b.cfg.Dir)
	if err != nil {
		return false, err
	}
	return st.Socket == b.cfg.Socket && (b.cfg.Replace || b.cfg.Supervised && !st.Supervised), nil
}

// succeed makes a living broker hand over. Unless it has, nothing is changed.
func (b *Broker) succeed(ctx context.Context) (_ *succession, err error) {
	bounded, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	u, err := reach.Dial(bounded, b.cfg.Socket)
	switch {
	case reach.Absent(err):
		return nil, errOldEnded // or it begins, or is about to end
	case err != nil:
		return nil, notHandedOver(b.cfg.Socket, err)
	}
	s := &succession{conn: wire.New(u), files: map[sessionfiles.Key]*sys.FD{}, ended: make(chan struct{}), forget: func() {}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.conn.SetDeadline(time.Now().Add(answerTime))
	defer context.AfterFunc(ctx, func() { s.conn.Close() })()
	if err := s.watch(); err != nil {
		return nil, err
	}
	if err := b.lookAtFiles(); err != nil {
		return nil, err
	}
	var r protocol.ReplaceReply
	fds, err := s.call(protocol.OpReplace, protocol.Replace{Protocol: protocol.Version, Layout: protocol.Layout, Version: b.cfg.Version,
		MemoryDir: b.cfg.MemoryDir, Files: b.files.limit - min(b.files.own, b.files.limit), Force: b.cfg.Replace}, &r)
	if err != nil {
		return nil, s.why(err)
	}
	if len(fds) != 2 {
		wire.CloseAll(fds)
		return nil, protocol.Errorf(protocol.CodeProtocol, "use one version", "a broker handed over %d descriptors, not lock and socket", len(fds))
	}
	s.instance, s.lock, s.listener = r.Instance, fds[0], fds[1]
	if err := s.receiveFiles(r.Files); err != nil {
		return nil, err
	}
	crashpoint.At("replace-received")
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() {
		if err != nil {
			b.closing = true
			b.clock.Stop()
			b.tearDown(endFailed)
		}
	}()
	plan, err := b.planSuccession(s)
	if err != nil {
		return nil, err
	}
	crashpoint.At("replace-checked")
	var last protocol.ReplaceReadyReply
	if _, err := s.call(protocol.OpReplaceReady, nil, &last); err != nil && !s.isOurs() {
		return nil, fmt.Errorf("the broker that runs does not hand over: %w", err)
	}
	b.cfg.Events.Continue(last.Events)
	crashpoint.At("replace-committed")
	return s, b.takeOver(s, plan)
}

// receiveFiles asks for the n files that the old broker has.
func (s *succession) receiveFiles(n int) error {
	for got := 0; got < n; {
		var part protocol.ReplaceFilesReply
		fds, err := s.call(protocol.OpReplaceFiles, protocol.ReplaceFiles{From: got}, &part)
		if err != nil {
			return s.why(err)
		}
		if len(fds) != len(part.Items) || len(fds) == 0 {
			wire.CloseAll(fds)
			return protocol.Errorf(protocol.CodeProtocol, "use one version", "a broker handed over %d descriptors for %d files", len(fds), len(part.Items))
		}
		for i, item := range part.Items {
			s.files[sessionfiles.Key{Role: item.Role, Serial: item.Serial}] = fds[i]
		}
		got += len(fds)
	}
	return nil
}

// isOurs tells, after an answer that did not come, whether this broker serves from now
// on: it was marked before, or no broker is left to mark it and everything is here.
func (s *succession) isOurs() bool { return !s.record.GiveUp() || s.oldEnded() }

// fetch gives a file that the old broker handed over.
func (s *succession) fetch(k sessionfiles.Key) *sys.FD {
	fd := s.files[k]
	delete(s.files, k)
	return fd
}

// planSuccession finds out whether this broker can serve with what it was handed, and
// which repairs are due. It maps everything that it will need and changes nothing.
func (b *Broker) planSuccession(s *succession) ([]takeover.Repair, error) {
	if err := b.setInstance(s.instance); err != nil {
		return nil, err
	}
	b.store.Files = b.placeOfFiles()
	fd := s.fetch(sessionfiles.Key{Role: protocol.RestoreBroker})
	if fd == nil {
		return nil, protocol.Errorf(protocol.CodeProtocol, "use one version", "a broker did not hand over its file")
	}
	m, err := sessionfiles.MapFile(fd, protocol.BrokerBytes)
	if err != nil {
		return nil, err
	}
	if err := b.store.CheckHead(m, protocol.RoleBroker, 0); err != nil {
		m.Close()
		return nil, err
	}
	b.inodes = m.Device
	b.useBrokerFile(m)
	s.record = b.store.Record
	if err := b.store.ReserveHead(); err != nil {
		return nil, err
	}
	b.store.Missing = b.wanted()
	if err := s.tryGroups(); err != nil {
		return nil, err
	}
	return b.planRebuild(true, s.fetch)
}

// tryGroups maps the files of all groups at once, so that mapping them later cannot fail.
func (s *succession) tryGroups() error {
	var mapped [][]byte
	defer func() {
		for _, m := range mapped {
			sys.Unmap(m)
		}
	}()
	for k, fd := range s.files {
		if k.Role != protocol.RestoreGroup {
			continue
		}
		bytes, _, err := fd.Stat()
		if err != nil {
			return err
		}
		m, err := sys.Map(fd, int(bytes), true)
		if err != nil {
			return err
		}
		mapped = append(mapped, m)
	}
	return nil
}

// takeOver goes on where the old broker has ended.
func (b *Broker) takeOver(s *succession, plan []takeover.Repair) error {
	defer s.conn.Close()
	b.lock = s.lock
	if err := b.carryOut(plan, true, s.fetch); err != nil {
		return err
	}
	crashpoint.At("replace-applied")
	b.store.Record.NotHanded()
	for _, fd := range s.files {
		fd.Close()
	}
	listener, err := sys.ListenerOf(s.listener)
	if err != nil {
		return err
	}
	if err := b.useListener(listener); err != nil {
		return err
	}
	if err := sys.ListenAgain(listener); err != nil {
		return fmt.Errorf("listen at the socket that was handed over: %w", err)
	}
	return b.signLock()
}

// Previous is closed when the process of the broker that this one has replaced has
// ended; nil when it has replaced none.
func (b *Broker) Previous() <-chan struct{} {
	if b.succession == nil {
		return nil
	}
	return b.succession.ended
}

// call makes a request of the old broker.
func (s *succession) call(op string, body, ok any) ([]*sys.FD, error) {
	s.next++
	sent := s.conn.Request(s.next, op, body)
	data, fds, err := s.conn.Read() // a broker that refuses the connection says so, and reads nothing
	if err != nil && sent != nil {
		err = sent
	}
	if err != nil {
		return nil, err
	}
	var e protocol.Envelope
	if err := json.Unmarshal(data, &e); err != nil {
		wire.CloseAll(fds)
		return nil, err
	}
	if e.Error != nil {
		wire.CloseAll(fds)
		return nil, e.Error
	}
	if ok != nil {
		if err := json.Unmarshal(e.OK, ok); err != nil {
			wire.CloseAll(fds)
			return nil, err
		}
	}
	return fds, nil
}

// watch waits for the end of the old broker's process.
func (s *succession) watch() error {
	pidfd, err := sys.PeerPidfd(s.conn.UnixConn)
	if err != nil {
		cred, e := sys.PeerCredentials(s.conn.UnixConn)
		if e != nil {
			return e
		}
		if pidfd, err = sys.OpenPidfd(cred.PID); err != nil {
			return fmt.Errorf("watch the broker that is to hand over: %w", err)
		}
	}
	wait, stop := sys.WaitPidfd(pidfd)
	s.forget = stop
	go func() {
		if wait() {
			close(s.ended)
		}
	}()
	return nil
}

// oldEnded tells whether the old broker's process has ended, or ends just now.
func (s *succession) oldEnded() bool {
	select {
	case <-s.ended:
		return true
	case <-time.After(time.Second): // its descriptors are closed a moment earlier
		return false
	}
}

// why turns the error of a request into errOldEnded if another try may succeed.
func (s *succession) why(err error) error {
	var refused *protocol.Error
	if !errors.As(err, &refused) && s.oldEnded() {
		return errOldEnded
	}
	if refused != nil && refused.Code == protocol.CodeBusy {
		return errOldBusy
	}
	return notHandedOver(s.conn.RemoteAddr().String(), err)
}

// notHandedOver is the error when the broker at a socket goes on, as far as is known.
func notHandedOver(socket string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, protocol.ErrTimeout) {
		return protocol.Errorf(protocol.CodeTimeout, "look whether its process is suspended; where it is ended by force, this one takes over all that clients have mapped",
			"%w, and does not hand over", reach.Silent(socket))
	}
	return fmt.Errorf("the broker that runs does not hand over: %w", err)
}

func (s *succession) close() {
	s.conn.Close()
	s.forget()
	for _, fd := range s.files {
		fd.Close()
	}
	for _, fd := range []*sys.FD{s.lock, s.listener} {
		fd.Close()
	}
}
