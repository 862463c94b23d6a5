package natsbridge_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
)

func TestInterestFollowsSubscriptions(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	nc := client(t, dir)
	const subject = "baton.default.topic.batches"
	require.False(t, b.Interest(subject))
	v := b.InterestVersion()
	require.Equal(t, v, b.InterestVersion())

	for _, pattern := range []string{subject, "baton.*.topic.*", "baton.default.>", ">"} {
		sub := subscribe(t, nc, pattern)
		require.True(t, b.Interest(subject), pattern)
		require.NotEqual(t, v, b.InterestVersion(), pattern)
		v = b.InterestVersion()
		require.NoError(t, sub.Unsubscribe())
		require.NoError(t, nc.Flush())
		require.False(t, b.Interest(subject), pattern)
		require.NotEqual(t, v, b.InterestVersion(), pattern)
		v = b.InterestVersion()
	}
}

func TestInterestEndsWithTheSubscriber(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	nc := client(t, dir)
	_, err := nc.QueueSubscribeSync("a.b", "workers")
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	require.True(t, b.Interest("a.b"))
	nc.Close()
	require.Eventually(t, func() bool { return !b.Interest("a.b") }, patience, patience/1000) // the server sees the end by itself
}

// A subscription replaced by another leaves the number of them as it was.
func TestInterestVersionSeesReplacedSubscription(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	nc := client(t, dir)
	sub := subscribe(t, nc, "a")
	v := b.InterestVersion()
	require.NoError(t, sub.Unsubscribe())
	subscribe(t, nc, "b")
	require.NotEqual(t, v, b.InterestVersion())
	require.False(t, b.Interest("a"))
	require.True(t, b.Interest("b"))
}

// A stream that stores a topic is a subscriber as well.
func TestInterestOfAStream(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	js, err := jetstream.New(client(t, dir))
	require.NoError(t, err)
	_, err = js.CreateStream(deadline(t), jetstream.StreamConfig{Name: "keep", Subjects: []string{"baton.default.topic.>"}})
	require.NoError(t, err)
	require.True(t, b.Interest("baton.default.topic.a"))
	require.NoError(t, js.DeleteStream(context.Background(), "keep"))
	require.False(t, b.Interest("baton.default.topic.a"))
}

// The bridge's own connection subscribes for the names; that counts as no interest.
func TestOwnConnectionIsNoInterest(t *testing.T) {
	dir := runtimeDir(t)
	b := start(t, natsbridge.Config{RuntimeDir: dir})
	require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
	client(t, dir)
	wait(t, b, mirrored)
	require.False(t, b.Interest("baton.default.topic.a"))
}

func TestJoinedInterestIsAlwaysTrue(t *testing.T) {
	o := startOperator(t, nil)
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}}})
	require.True(t, b.Interest("a"))
	require.Zero(t, b.InterestVersion())
}
