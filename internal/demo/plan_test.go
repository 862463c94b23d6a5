package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPlanFitsEveryLengthOfRun(t *testing.T) {
	for _, o := range []Options{
		{}, {Batches: 1}, {Batches: 99}, {Batches: 10_000_000, Workers: 64},
		{Limit: time.Millisecond}, {Limit: time.Hour}, {Limit: time.Minute, Batches: 500},
	} {
		o.Binary = "baton"
		o, err := o.withDefaults()
		require.NoError(t, err)
		p := o.plan(1)
		assert.Greater(t, p.rate(), float32(0), "%+v", o)
		assert.LessOrEqual(t, p.rate(), float32(0.2), "%+v", o)
		assert.Positive(t, p.progressEvery(), "%+v", o)
		assert.Positive(t, p.snapshotEvery(), "%+v", o)
	}
}

func TestPlanIsDoneAtItsFirstLimit(t *testing.T) {
	now := time.Now()
	assert.Equal(t, 0.25, plan{Batches: 400}.share(100, now))
	assert.Equal(t, 1.0, plan{Batches: 400}.share(500, now))
	assert.Equal(t, 1.0, plan{Seconds: 1}.share(1, now.Add(-time.Hour)))
	assert.Equal(t, 1.0, plan{Batches: 400, Seconds: 1}.share(1, now.Add(-time.Hour)))
}

func TestPrivateBrokerSeesNoSettingsOfTheUser(t *testing.T) {
	t.Setenv("BATON_NATS", "nats://production:4222")
	t.Setenv("BATON_ADDRESS", "unix:/theirs")
	env := environment("/ours")
	assert.Contains(t, env, "BATON_ADDRESS=unix:/ours")
	assert.NotContains(t, env, "BATON_ADDRESS=unix:/theirs")
	assert.NotContains(t, env, "BATON_NATS=nats://production:4222")
}
