package integration

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/dlpack"
	"github.com/baton-ipc/baton/internal/testkit"
)

// A session has files open of the sessions that it exchanges something with: a reader of
// the writers, and a writer of the readers. So what a topic costs grows as its members do,
// and not as their square.
func TestReadersMapNoReadersAndWritersNoWriters(t *testing.T) {
	const step = 12
	for _, many := range []string{"readers", "writers"} {
		t.Run(many, func(t *testing.T) {
			b := testkit.StartBroker(t)
			ctx := testkit.Context(t)
			topicOf := func() (*client.Client, *client.Topic) {
				c := b.Connect()
				topic, err := c.Topic(ctx, "t")
				require.NoError(t, err)
				return c, topic
			}
			send := func(c *client.Client, topic *client.Topic) {
				x, err := c.Alloc(ctx, dlpack.Uint8, []int64{8})
				require.NoError(t, err)
				require.NoError(t, topic.Send(ctx, x))
				x.Release()
			}
			reader := func(topic *client.Topic) *client.Reader {
				r, err := topic.Reader(ctx)
				require.NoError(t, err)
				return r
			}
			receive := func(r *client.Reader) {
				m, err := r.Receive(ctx)
				require.NoError(t, err)
				m.Release()
			}
			_, first := topicOf()
			all := []*client.Reader{reader(first)}
			oneC, one := topicOf()
			join := func() {
				c, topic := topicOf()
				if many == "readers" {
					all = append(all, reader(topic))
					send(oneC, one)
				} else {
					send(c, topic)
				}
				for _, r := range all {
					receive(r)
				}
			}
			files := func() int {
				all, err := os.ReadDir("/proc/self/fd")
				require.NoError(t, err)
				return len(all)
			}
			var counts [3]int
			for k := range counts {
				for range step {
					join()
				}
				counts[k] = files()
			}
			testkit.Until(t, "descriptors grow evenly", func() (bool, string) {
				counts[2] = files()
				return counts[2]-counts[1] <= counts[1]-counts[0]+step/2, fmt.Sprint(counts)
			})
		})
	}
}
