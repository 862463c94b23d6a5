package broker_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/baton-ipc/baton/protocol"
)

func init() {
	// lender leases a storage for its life, once, and for an hour, and stays.
	parts["lender"] = func(c *played) {
		p := connect(c, c.socket, "lender")
		s := p.alloc(4096)
		var ids []uint64
		for _, r := range []protocol.LeaseRequest{{}, {Once: true}, {Seconds: ptr(3600.0)}} {
			r.Refs = []protocol.StorageRef{s.ref()}
			var reply protocol.LeaseReply
			p.must(protocol.OpLease, r, &reply)
			ids = append(ids, reply.Lease)
		}
		p.refcounts.Drop(s.Index)
		c.tell(struct {
			Ref    protocol.StorageRef
			Leases []uint64
		}{s.ref(), ids})
		c.hear()
	}
}

func TestLeaseHoldsUntilItExpires(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	s := p.alloc(4096)
	s2 := p.second(s, 1, 0, 4096)
	var r protocol.LeaseReply
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref(), s2.ref(), s.ref()}, Seconds: ptr(0.02)}, &r)
	require.NotZero(t, r.Lease)
	require.Less(t, r.Lease, uint64(1)<<53)
	require.InDelta(t, 0.02, r.ExpiresIn, 0.001)
	eventually(t, "it expires", func() bool { return b.Status().Counts.Leases == 0 })
	require.Zero(t, p.count(s.ref()))
	require.Zero(t, p.count(s2.ref()))
	p.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: r.Lease})
}

func TestLeaseClaimedOnceIsOver(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	s := p.alloc(4096)
	var r protocol.LeaseReply
	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Once: true}, &r)
	require.Zero(t, r.ExpiresIn)
	require.EqualValues(t, 1, p.count(s.ref()))
	q.must(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: r.Lease}, nil)
	require.Zero(t, p.count(s.ref()))
	q.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: r.Lease})

	p.must(protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(60.0)}, &r)
	q.must(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: r.Lease}, nil)
	require.EqualValues(t, 1, p.count(s.ref()), "a timed lease may be claimed again")
	q.refused(protocol.CodePermission, protocol.OpLeaseRelease, protocol.LeaseRef{Lease: r.Lease})
	p.must(protocol.OpLeaseRelease, protocol.LeaseRef{Lease: r.Lease}, nil)
	require.Zero(t, p.count(s.ref()))
	require.Zero(t, b.Status().Counts.Leases)
}

// Its maker is told nothing before the handle goes, which may be the faster.
func TestLeaseThatIsClaimedBeforeItIsMadeIsOver(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	s := p.alloc(4096)
	q.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: 77})
	request := protocol.LeaseRequest{Lease: 77, Refs: []protocol.StorageRef{s.ref()}, Once: true}
	var r protocol.LeaseReply
	p.must(protocol.OpLease, request, &r)
	require.EqualValues(t, 77, r.Lease)
	require.Zero(t, p.count(s.ref()))
	require.Zero(t, b.Status().Counts.Leases)
	request.Lease = 78
	p.must(protocol.OpLease, request, nil)
	require.EqualValues(t, 1, p.count(s.ref()), "another one stays")
}

func TestTimedLeaseOutlivesItsSessionAndOthersEndWithIt(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "observer")
	c := start(t, b.socket, "lender")
	var lent struct {
		Ref    protocol.StorageRef
		Leases []uint64
	}
	c.hear(&lent)
	require.EqualValues(t, 3, p.count(lent.Ref))
	c.kill()
	eventually(t, "the session has ended", func() bool { return b.Status().Counts.Sessions == 1 })
	require.EqualValues(t, 2, p.count(lent.Ref))
	p.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: lent.Leases[0]})
	rows := list[struct {
		Lease     uint64
		Once      bool
		ExpiresIn *float64 `json:"expires_in"`
	}](p, "leases", "")
	require.Len(t, rows, 2)
	for _, r := range rows {
		require.NotNil(t, r.ExpiresIn, "a pickled handle has 30 s to arrive")
		if r.Once {
			require.LessOrEqual(t, *r.ExpiresIn, 30.0)
			require.Equal(t, lent.Leases[1], r.Lease)
		}
	}
	p.must(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: lent.Leases[1]}, nil)
	require.EqualValues(t, 1, p.count(lent.Ref))
}

// A client makes a request again where a broker has ended before it had answered.
// Where the answer was lost with a broker or a connection, and the handle was faster, its maker
// asks again for a lease that is over.
func TestLeaseThatIsAskedForAgainWhenItWasClaimedIsOver(t *testing.T) {
	b := serve(t, nil)
	p, q := connect(t, b.socket, "a"), connect(t, b.socket, "b")
	s := p.alloc(4096)
	request := protocol.LeaseRequest{Lease: 77, Refs: []protocol.StorageRef{s.ref()}, Once: true}
	p.must(protocol.OpLease, request, nil)
	q.must(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: 77}, nil)
	p.must(protocol.OpLease, request, nil)
	require.Zero(t, p.count(s.ref()))
	require.Zero(t, b.Status().Counts.Leases)
}

// A claim that a broker has answered is not made again.
func TestLeaseThatIsAskedForOfTheNextBrokerWhenItWasClaimedIsOver(t *testing.T) {
	old, socket, _ := first(t, "")
	p, q := connect(t, socket, "p"), connect(t, socket, "q")
	s := p.alloc(4096)
	request := func(lease uint64) protocol.LeaseRequest {
		return protocol.LeaseRequest{Lease: lease, Refs: []protocol.StorageRef{s.ref()}, Once: true}
	}
	p.must(protocol.OpLease, request(1), nil)
	q.must(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: 1}, nil)
	for lease := uint64(2); lease <= 3; lease++ {
		q.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: lease})
	}
	p.must(protocol.OpLease, request(3), nil)
	p.must(protocol.OpLease, request(4), nil)
	require.EqualValues(t, 1, p.count(s.ref()))

	old.kill()
	made := next(t, socket, nil)
	p, q = p.returns(socket), q.returns(socket)
	p.resumed()
	q.resumed()
	made()
	for range 2 {
		for lease := uint64(1); lease <= 4; lease++ {
			var r protocol.LeaseReply
			p.must(protocol.OpLease, request(lease), &r)
			require.Equal(t, lease, r.Lease)
			require.EqualValues(t, 1, p.count(s.ref()), "only what was not claimed is held: %d", lease)
		}
	}
	q.must(protocol.OpLeaseClaim, protocol.LeaseRef{Lease: 4}, nil)
	require.Zero(t, p.count(s.ref()))
}

func TestLeaseThatIsAskedForAgainIsOne(t *testing.T) {
	old, socket, _ := first(t, "")
	p, q := connect(t, socket, "p"), connect(t, socket, "q")
	s := p.alloc(4096)
	for number, seconds := range map[uint64]*float64{7: nil, 1<<53 - 1: ptr(60.0)} {
		request := protocol.LeaseRequest{Lease: number, Refs: []protocol.StorageRef{s.ref()}, Seconds: seconds}
		for range 2 {
			var r protocol.LeaseReply
			p.must(protocol.OpLease, request, &r)
			require.Equal(t, number, r.Lease)
			require.Equal(t, seconds != nil, r.ExpiresIn > 59)
		}
		q.refused(protocol.CodeConflict, protocol.OpLease, request)
	}
	require.EqualValues(t, 2, p.count(s.ref()))
	p.refused(protocol.CodeInvalid, protocol.OpLease, protocol.LeaseRequest{Lease: 1 << 53, Refs: []protocol.StorageRef{s.ref()}})

	old.kill()
	made := next(t, socket, nil)
	p2, q2 := p.returns(socket), q.returns(socket)
	p2.resumed()
	q2.resumed()
	made()
	var r protocol.LeaseReply
	p2.must(protocol.OpLease, protocol.LeaseRequest{Lease: 7, Refs: []protocol.StorageRef{s.ref()}}, &r)
	require.EqualValues(t, 7, r.Lease)
	q2.refused(protocol.CodeConflict, protocol.OpLease, protocol.LeaseRequest{Lease: 7, Refs: []protocol.StorageRef{s.ref()}})
	p2.must(protocol.OpLeaseRelease, protocol.LeaseRef{Lease: 7}, nil)
	p2.refused(protocol.CodeExpired, protocol.OpLeaseRelease, protocol.LeaseRef{Lease: 7})
}

func TestBadLeasesAreRefused(t *testing.T) {
	b := serve(t, nil)
	p := connect(t, b.socket, "a")
	s := p.alloc(4096)
	p.refused(protocol.CodeInvalid, protocol.OpLease, protocol.LeaseRequest{})
	p.refused(protocol.CodeInvalid, protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(0.0)})
	p.refused(protocol.CodeInvalid, protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref()}, Seconds: ptr(-3.0)})
	old := s.ref()
	old.Generation++
	p.refused(protocol.CodeExpired, protocol.OpLease, protocol.LeaseRequest{Refs: []protocol.StorageRef{s.ref(), old}})
	require.Zero(t, p.count(s.ref()))
	p.refused(protocol.CodeExpired, protocol.OpLeaseClaim, protocol.LeaseRef{Lease: 77})
	require.Zero(t, b.Status().Counts.Leases)

	many := slices.Repeat([]protocol.StorageRef{s.ref()}, protocol.MaxLeases/8)
	for range 7 {
		p.must(protocol.OpLease, protocol.LeaseRequest{Refs: many}, nil)
	}
	p.refused(protocol.CodeTooMany, protocol.OpLease, protocol.LeaseRequest{Refs: many})
	require.EqualValues(t, 7*len(many), p.count(s.ref()), "one that is refused counts nothing")
}
