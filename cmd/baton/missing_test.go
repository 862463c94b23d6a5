package main_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
)

// The error for what is not there names the command that lists such things, and what is called alike.
func TestWhatIsMissingIsAnsweredWithWhatThereIs(t *testing.T) {
	p := newPlace(t)
	p.serve()
	c := p.client(client.WithName("train_policy.py"))
	for _, name := range []string{"weights/actor", "weights/critic"} {
		_, err := c.Set(p.ctx(), name, p.tensor(c, 1))
		require.NoError(t, err)
	}
	other := p.client(client.WithNamespace("production"))
	_, err := other.Set(p.ctx(), "weights/final", p.tensor(other, 1))
	require.NoError(t, err)
	_, err = c.Topic(p.ctx(), "batches")
	require.NoError(t, err)
	_, err = c.Queue(p.ctx(), "rollouts")
	require.NoError(t, err)
	provides(p, c, "vision/scale@1.2", scales)

	const names, topics = "baton ls names lists what there is in namespace default (--namespace chooses another)", "baton ls topics lists what there is in namespace default (--namespace chooses another)"
	for _, of := range []struct {
		args   []string
		remedy string
	}{
		{[]string{"compact", "weights/actr"}, names + "; similar: weights/actor\n"},
		{[]string{"compact", "batches"}, names + "; similar: topic batches\n"},
		{[]string{"purge", "batchs", "--yes"}, topics + "; similar: batches\n"},
		{[]string{"purge", "rollout"}, topics + "; similar: rollouts\n"},
		{[]string{"delete", "Weights/Critc"}, "baton ls names (or topics, functions) lists what there is in namespace default (--namespace chooses another); similar: weights/critic\n"},
		{[]string{"delete", "vision/scal", "--kind", "function", "--yes"}, "baton ls functions lists what there is in namespace default (--namespace chooses another); similar: vision/scale@1.2\n"},
		{[]string{"delete", "not_of_the_kind", "--kind", "name"}, names + "\n"},
		{[]string{"revoke", "99", "--yes"}, "baton ls leases lists what there is\n"},
		{[]string{"evict", "99"}, "baton ls sessions lists what there is\n"},
		{[]string{"evict", "99", "--yes"}, "baton ls sessions lists what there is\n"},
		{[]string{"why", "weights/finale"}, "baton ls names (or topics, functions, sessions) lists what there is in namespace default (--namespace chooses another); similar: weights/final in namespace production\n"},
		{[]string{"why", "queue", "rolouts"}, topics + "; similar: rollouts\n"},
		{[]string{"why", "storage", "4242"}, "baton ls storages lists what there is\n"},
		{[]string{"show", "session", "trainpolicy.py"}, "baton ls sessions lists what there is; similar: train_policy.py\n"},
		{[]string{"show", "name", "batches"}, names + "; similar: topic batches\n"},
		{[]string{"show", "4000000000"}, "baton ls names (or topics, functions, sessions, segments, storages, leases) lists what there is in namespace default (--namespace chooses another)\n"},
		{[]string{"get", "weights/finl", "-o", "x.npy", "--namespace", "production"}, "set it first, or wait longer (--timeout); baton ls --namespace=production names lists what there is in namespace production (--namespace chooses another); similar: weights/final\n"},
		{[]string{"tail", "batch"}, "make it first, or wait for it (--timeout); " + topics + "; similar: batches\n"},
		{[]string{"call", "vision/scala"}, "register it first, or wait for it (--timeout); baton ls functions lists what there is in namespace default (--namespace chooses another)\n"}, // the message names the similar ones
	} {
		r := p.baton(of.args...)
		assert.Equal(t, 3, r.code, "%v: %s", of.args, r.err)
		assert.Contains(t, r.err, "  what to do: "+of.remedy, of.args)
	}
	r := p.baton("compact", "weights/actr", "weights/crtic")
	assert.Equal(t, 3, r.code)
	assert.Contains(t, r.err, names+"; weights/actr is like weights/actor; weights/crtic is like weights/critic\n")
	// What is there and lacks something else has the remedy of that.
	p.baton("get", "weights/actor", "--tensor", "bias", "-o", "x.npy").fails(t, 3, "has no tensor bias", "leave --tensor out")
}
