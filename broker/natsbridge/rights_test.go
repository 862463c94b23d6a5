package natsbridge_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/broker/natsbridge"
)

// rights are the subjects of a row of the table in docs/operations.md.
func rights(t *testing.T, row string) (subjects []string) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	cells := regexp.MustCompile(`(?m)^\| ` + row + ` \| (.*) \|$`).FindSubmatch(page)
	require.NotNil(t, cells, "the page has no row for the right to %s", row)
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(cells[1], -1) {
		if s := strings.NewReplacer("<namespace>", "default", "<instance>", "owner-a").Replace(string(m[1])); strings.Contains(s, ".") {
			subjects = append(subjects, s)
		}
	}
	require.NotEmpty(t, subjects)
	return subjects
}

// The pages list what the program grants.
func TestPagesListThePermissions(t *testing.T) {
	for _, page := range []struct {
		file  string
		parts []string
	}{{"operations.md", []string{natsbridge.PartBroker, natsbridge.PartFunctions}}, {"machines.md", []string{natsbridge.PartHosts}}} {
		text, err := os.ReadFile("../../docs/" + page.file)
		require.NoError(t, err)
		for row, publish := range map[string]bool{"publish": true, "subscribe": false} {
			cells := regexp.MustCompile(`(?m)^\| ` + row + ` \| (.*) \|$`).FindSubmatch(text)
			require.NotNil(t, cells, "%s has no row for the right to %s", page.file, row)
			var listed, granted []string
			for _, m := range regexp.MustCompile("`([^`]+\\.[^`]+)`").FindAllSubmatch(cells[1], -1) {
				listed = append(listed, string(m[1]))
			}
			for _, p := range natsbridge.Permissions {
				if p.Publish == publish && slices.Contains(page.parts, p.Part) {
					granted = append(granted, p.Subject)
				}
			}
			require.ElementsMatch(t, granted, listed, "%s, %s", page.file, row)
		}
	}
}

// permitted is a server at which a broker has these rights alone.
func permitted(t *testing.T, publish, subscribe []string) *operator {
	return startOperator(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "admin", Password: "p"}, {Username: "baton", Password: "p",
			Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: subscribe}}}}
	})
}

// A watch of a bucket with much in it asks for more now and then, on subjects of their own.
func TestRightsAreEnoughToListManyHosts(t *testing.T) {
	n := natsbridge.Needs{Names: []string{"default"}, Span: []string{"default"}, Instance: "a"}
	granted, _ := n.Grant()
	o := permitted(t, granted.Publish.Allow, granted.Subscribe.Allow)
	bucketOf := func(nc *nats.Conn) jetstream.KeyValue {
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		kv, err := js.CreateOrUpdateKeyValue(deadline(t), jetstream.KeyValueConfig{Bucket: "baton-hosts", Storage: jetstream.MemoryStorage})
		require.NoError(t, err)
		return kv
	}
	admin := bucketOf(o.client(nats.UserInfo("admin", "p")))
	const many = 1000
	for i := range many {
		_, err := admin.Put(deadline(t), fmt.Sprint("host-", i), make([]byte, 8<<10))
		require.NoError(t, err)
	}
	w, err := bucketOf(o.client(nats.UserInfo("baton", "p"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Errorf("refused: %v", err) }))).WatchAll(deadline(t))
	require.NoError(t, err)
	for seen := 0; ; seen++ {
		select {
		case e := <-w.Updates():
			if e == nil {
				require.Equal(t, many, seen)
				return
			}
		case <-deadline(t).Done():
			t.Fatalf("the list ends after %d of %d", seen, many)
		}
	}
}

func TestRightsOfTheManualAreEnough(t *testing.T) {
	o := permitted(t, rights(t, "publish"), rights(t, "subscribe"))
	b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, User: "baton", Password: "p"}})
	require.NoError(t, setName(b, "default", "a/b", 1, []byte("1")))
	s := wait(t, b, mirrored)
	require.Empty(t, s.LastError)
	require.Empty(t, s.Service)
	require.Equal(t, map[string]string{"a.b": "1"}, bucket(t, o.client(nats.UserInfo("admin", "p")), "default"))
}

// A right that lacks is the reason that people are told, and not that an answer did not come.
func TestRightThatLacksIsTheReasonThatNamesAreNotMirrored(t *testing.T) {
	without := func(list []string, lacks string) (out []string) {
		for _, s := range list {
			if s != lacks {
				out = append(out, s)
			}
		}
		require.Len(t, out, len(list)-1)
		return out
	}
	for lacks, reason := range map[string]string{
		"$KV.baton-default.>": "publish to $KV.baton-default.a, which needs the right to publish $KV.baton-default.>",
		"$JS.API.>":           "which needs the right to publish $JS.API.>",
	} {
		t.Run(lacks, func(t *testing.T) {
			o := permitted(t, without(rights(t, "publish"), lacks), rights(t, "subscribe"))
			b := start(t, natsbridge.Config{Join: &natsbridge.JoinConfig{URLs: []string{o.ClientURL()}, User: "baton", Password: "p"}})
			require.NoError(t, setName(b, "default", "a", 1, []byte("1")))
			s := wait(t, b, func(s natsbridge.Status) bool { return s.Names.Error != "" })
			require.Contains(t, s.Names.Error, reason)
			require.Contains(t, b.NameState("default", "a"), reason)
			// So it is when the bridge closes: a server that refuses answers.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := b.Close(ctx)
			if lacks == "$JS.API.>" { // else the bucket is seen to have nothing that is to be removed
				require.ErrorContains(t, err, reason)
			} else {
				require.NoError(t, err)
			}
		})
	}
}
