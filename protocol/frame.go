package protocol

import "encoding/binary"

// Where the parts of a control frame's head are; the JSON follows it.
const (
	FrameLength = 0 // u32: bytes of JSON
	FrameFDs    = 4 // u16: descriptors that came with the first byte
	FrameZero   = 6 // u16
)

const remedyFrame = "connect with a Baton client; the connection is closed"

// AppendFrameHead appends the head of a frame of length bytes of JSON and fds
// descriptors. CodeInvalid where they are more than MaxFrame or MaxFrameFDs.
func AppendFrameHead(dst []byte, length, fds int) ([]byte, error) {
	if length < 2 || length > MaxFrame {
		return dst, Errorf(CodeInvalid, "send less at once", "a control message of %d bytes: 2 to %d fit", length, MaxFrame)
	}
	if fds < 0 || fds > MaxFrameFDs {
		return dst, Errorf(CodeInvalid, "send fewer at once", "a control message with %d descriptors: at most %d fit", fds, MaxFrameFDs)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(length))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(fds))
	return append(dst, 0, 0), nil
}

// ParseFrameHead reads the first FrameHead bytes of a frame. CodeProtocol where
// src is shorter, more is announced than a frame may have, less than an empty
// object, or the reserved field is not zero; the connection is at its end then.
func ParseFrameHead(src []byte) (length, fds int, err error) {
	if len(src) < FrameHead {
		return 0, 0, Errorf(CodeProtocol, remedyFrame, "a control frame ends after %d bytes of its head", len(src))
	}
	n := binary.LittleEndian.Uint32(src[FrameLength:])
	fds = int(binary.LittleEndian.Uint16(src[FrameFDs:]))
	if n < 2 || n > MaxFrame {
		return 0, 0, Errorf(CodeProtocol, remedyFrame, "a control frame announces %d bytes, outside 2 to %d", n, MaxFrame)
	}
	if fds > MaxFrameFDs {
		return 0, 0, Errorf(CodeProtocol, remedyFrame, "a control frame announces %d descriptors, more than %d", fds, MaxFrameFDs)
	}
	if zero := binary.LittleEndian.Uint16(src[FrameZero:]); zero != 0 {
		return 0, 0, Errorf(CodeProtocol, remedyFrame, "a control frame has %#x in its reserved field", zero)
	}
	return int(n), fds, nil
}
