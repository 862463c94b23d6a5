package takeover_test

import (
	"slices"
	"testing"

	"github.com/baton-ipc/baton/broker/takeover"
	"github.com/stretchr/testify/require"
)

// without drops the repairs of a kind.
func without[R takeover.Repair](f takeover.Facts) []takeover.Repair {
	return slices.DeleteFunc(takeover.Plan(f), func(r takeover.Repair) bool {
		_, is := r.(R)
		return is
	})
}

// instead puts others in the place of a kind of repair.
func instead[R takeover.Repair](by func(R) []takeover.Repair) func(takeover.Facts) []takeover.Repair {
	return func(f takeover.Facts) (all []takeover.Repair) {
		for _, r := range takeover.Plan(f) {
			if is, ok := r.(R); ok {
				all = append(all, by(is)...)
			} else {
				all = append(all, r)
			}
		}
		return all
	}
}

// with plans from other facts.
func with(change func(f *takeover.Facts)) func(takeover.Facts) []takeover.Repair {
	return func(f takeover.Facts) []takeover.Repair {
		change(&f)
		return takeover.Plan(f)
	}
}

// TestWorldsFindWrongPlans shows that the worlds would tell: each plan is wrong in one
// way, most of them in a way in which a broker once was.
func TestWorldsFindWrongPlans(t *testing.T) {
	bySession := func(change func(s *takeover.Session)) func(takeover.Facts) []takeover.Repair {
		return with(func(f *takeover.Facts) {
			for i := range f.Sessions {
				change(&f.Sessions[i])
			}
		})
	}
	byMessage := func(change func(m *takeover.Message)) func(takeover.Facts) []takeover.Repair {
		return with(func(f *takeover.Facts) {
			for i := range f.Lanes {
				f.Lanes[i].Messages = slices.Clone(f.Lanes[i].Messages)
				for k := range f.Lanes[i].Messages {
					change(&f.Lanes[i].Messages[k])
				}
			}
		})
	}
	for name, p := range map[string]planner{
		"what cannot be looked at is dead": {plan: bySession(func(s *takeover.Session) {
			if s.Process == takeover.Unknown {
				s.Process = takeover.Dead
			}
		})},
		"what is absent is dead": {plan: bySession(func(s *takeover.Session) {
			if !s.Back {
				s.Process = takeover.Dead
			}
		})},
		"one list is all that there is": {plan: bySession(func(s *takeover.Session) { s.Back = true })},
		"the dead are ended at once": {plan: instead(func(r takeover.MarkDead) []takeover.Repair {
			return []takeover.Repair{takeover.EndSession{Slot: r.Slot}}
		})},
		"memory is freed without a look at the refcounts": {plan: takeover.Plan, trusting: true},
		"a chunk that was tested is free": {plan: func(f takeover.Facts) (all []takeover.Repair) {
			for _, r := range takeover.Plan(f) {
				k, is := r.(takeover.KeepChunk)
				if !is {
					all = append(all, r)
					continue
				}
				for _, c := range f.Chunks {
					if c.Index == k.Chunk {
						all = append(all, takeover.FreeChunk{Chunk: c.Index})
						for _, slot := range c.Attached {
							all = append(all, takeover.Detach{Chunk: c.Index, Slot: slot})
						}
					}
				}
			}
			return all
		}},
		"a chunk that was tested is not named again": {plan: without[takeover.KeepChunk]},
		"what cannot be read names nothing": {plan: byMessage(func(m *takeover.Message) {
			if m.Awaited {
				m.Awaited, m.Refs = false, nil
			}
		})},
		"messages whose memory is late go": {plan: byMessage(func(m *takeover.Message) {
			if m.Awaited {
				m.Awaited, m.Bad = false, true
			}
		})},
		"leases are not counted":               {plan: with(func(f *takeover.Facts) { f.Leases = nil })},
		"the refcounts are lowered to nothing": {plan: instead(func(r takeover.Lower) []takeover.Repair { return []takeover.Repair{takeover.Lower{Index: r.Index}} })},
		"the refcounts are not lowered":        {plan: without[takeover.Lower]},
		"the dead stay":                        {plan: without[takeover.EndSession]},
		"segments of the dead stay":            {plan: without[takeover.Reclaim]},
		"segments of the dead have an owner":   {plan: without[takeover.OrphanSegment]},
		"bits of free slots stay":              {plan: without[takeover.Detach]},
		"remains stay":                         {plan: without[takeover.FreeRemains]},
		"joins stay":                           {plan: without[takeover.FreeJoin]},
		"an unfinished publish stays":          {plan: without[takeover.Unname]},
		"it frees what it does not know":       {plan: with(func(f *takeover.Facts) { f.Remains = nil })},
		"another time, another plan": {plan: func() func(takeover.Facts) []takeover.Repair {
			n := 0
			return func(f takeover.Facts) []takeover.Repair {
				if n++; n%2 == 0 {
					return nil
				}
				return takeover.Plan(f)
			}
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5000) {
				if len(p.run(seed)) > 0 {
					return
				}
			}
			require.Fail(t, "no world tells")
		})
	}
}
