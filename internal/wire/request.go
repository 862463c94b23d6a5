package wire

import (
	"encoding/json"

	"github.com/baton-ipc/baton/internal/sys"
	"github.com/baton-ipc/baton/protocol"
)

// EncodeRequest makes the frame of a request: the fields of body beside its id and op.
func EncodeRequest(id uint64, op string, body any, fds int) ([]byte, error) {
	fields := map[string]json.RawMessage{}
	if body != nil {
		data, err := json.Marshal(body)
		if err == nil {
			err = json.Unmarshal(data, &fields)
		}
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeInvalid, "use values that JSON can hold", "encode %s: %w", op, err)
		}
	}
	fields["id"], _ = json.Marshal(id)
	fields["op"], _ = json.Marshal(op)
	return Encode(fields, fds)
}

// Request sends a request with descriptors, which stay the caller's.
func (c *Conn) Request(id uint64, op string, body any, fds ...*sys.FD) error {
	frame, err := EncodeRequest(id, op, body, len(fds))
	if err != nil {
		return err
	}
	return c.WriteFrame(frame, fds)
}
