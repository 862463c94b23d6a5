package bench

import (
	"context"
	"fmt"
	"io"
	"net"

	"github.com/baton-ipc/baton/internal/sys"
)

func init() { roles["copy"] = copyBytes }

// copyBytes is what people do without shared memory: the bytes themselves go
// through a Unix socket, into memory that the receiver has ready.
func copyBytes(ctx context.Context, s *seat) error {
	depart, arrive, back := s.series(seriesDepart), s.series(seriesArrive), s.series(seriesBack)
	conn, err := s.socket(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	data, token := make([]byte, s.Bytes), make([]byte, 1)
	for i := range uint64(s.N) {
		v := byte(i)
		if s.Side == left {
			data[0], data[len(data)-1] = v, v
			depart[i] = sys.Monotonic()
			if _, err := conn.Write(data); err != nil {
				return err
			}
			if _, err := io.ReadFull(conn, token); err != nil {
				return err
			}
			back[i] = sys.Monotonic()
			continue
		}
		if _, err := io.ReadFull(conn, data); err != nil {
			return err
		}
		arrive[i] = sys.Monotonic()
		if data[0] != v || data[len(data)-1] != v {
			return fmt.Errorf("round %d carries %d and %d", i, data[0], data[len(data)-1])
		}
		if _, err := conn.Write(token); err != nil {
			return err
		}
	}
	return nil
}

// socket joins the two sides by a Unix socket at the job's path.
func (s *seat) socket(ctx context.Context) (net.Conn, error) {
	if s.Side == right {
		s.meet()
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.Path)
	}
	l, err := net.Listen("unix", s.Path)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	s.meet()
	return l.Accept()
}
