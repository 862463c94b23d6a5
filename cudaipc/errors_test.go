package cudaipc

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

// status is a line of testdata/statuses.json, by which Go and Rust say the same. Call is of
// those that mean something else where what another process gave is at fault.
type status struct {
	Call   string        `json:"call,omitempty"`
	Status Result        `json:"status"`
	Name   string        `json:"name"`
	Text   string        `json:"text"`
	Code   protocol.Code `json:"code"`
	Remedy string        `json:"remedy"`
}

func TestStatusesMeanTheSameInAllLanguages(t *testing.T) {
	data, err := os.ReadFile("testdata/statuses.json")
	require.NoError(t, err)
	var all []status
	require.NoError(t, json.Unmarshal(data, &all))
	general, particular := 0, 0
	for _, s := range all {
		call := s.Call
		if call == "" {
			call, general = "cuTest", general+1
		} else {
			particular++
		}
		var e *protocol.Error
		require.ErrorAs(t, failed(call, s.Status), &e)
		require.ErrorIs(t, e, s.Status)
		assert.Equal(t, s.Code, e.Code, "%v", s)
		assert.Equal(t, s.Remedy, e.Remedy, "%v", s)
		assert.Equal(t, call+": "+s.Text+" ("+s.Name+")", e.Message)
	}
	assert.Equal(t, len(meanings), general)
	for _, b := range blamed {
		particular -= len(b.statuses)
	}
	assert.Zero(t, particular)
}
