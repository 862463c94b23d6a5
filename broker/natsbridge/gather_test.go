package natsbridge

import (
	"bytes"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGatheredWritesArriveWholeInOrderAndFew(t *testing.T) {
	near, far := net.Pipe()
	c := gather(near)
	var want bytes.Buffer
	// Nobody reads: a pipe alone would hold the first of these up.
	for i := range 1000 {
		text := bytes.Repeat([]byte{byte(i)}, 1+i%200)
		want.Write(text)
		n, err := c.Write(text)
		require.NoError(t, err)
		require.Equal(t, len(text), n)
	}
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	reads, got := 0, []byte{}
	for buffer := make([]byte, gatherBytes); ; reads++ {
		n, err := far.Read(buffer)
		got = append(got, buffer[:n]...)
		if err != nil {
			require.Equal(t, io.EOF, err)
			break
		}
	}
	require.NoError(t, <-closed, "what was written before it is handed over")
	assert.Equal(t, want.Bytes(), got)
	assert.LessOrEqual(t, reads, 2)
	_, err := c.Write([]byte("late"))
	require.Error(t, err)
}

func TestGatheredWriterWaitsForAReaderThatFallsBehind(t *testing.T) {
	near, far := net.Pipe()
	c := gather(near)
	piece := make([]byte, 64<<10)
	const pieces = 40 // many times what may wait
	written := make(chan error, 1)
	go func() {
		for range pieces {
			if _, err := c.Write(piece); err != nil {
				written <- err
				return
			}
		}
		written <- c.Close()
	}()
	n, err := io.Copy(io.Discard, far)
	require.NoError(t, err)
	require.EqualValues(t, pieces*len(piece), n)
	require.NoError(t, <-written)
	assert.Less(t, cap(c.waiting), pieces*len(piece)/2, "it did wait")
}

func TestGatheredWriterLearnsThatTheReaderHasGone(t *testing.T) {
	near, far := net.Pipe()
	c := gather(near)
	require.NoError(t, far.Close())
	var err error
	for range 1 + gatherBytes/1024 + 1 {
		if _, err = c.Write(make([]byte, 1024)); err != nil {
			break
		}
	}
	require.Error(t, err)
	c.Close()
}
