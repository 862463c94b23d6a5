package topics

import "github.com/baton-ipc/baton/protocol"

// What became of a provider, for the callers of the calls that it had.

// mostEnded bounds how many providers that have left a function remembers.
const mostEnded = 64

// endedProvider is what a function remembers of a provider that has left.
type endedProvider struct {
	fate protocol.FateReply
	// ran are the seconds for which calls had run that it had begun.
	ran map[callOf]float64
}

// fateOf tells what became of the provider for the caller of a call that it had.
func (e *endedProvider) fateOf(call callOf) protocol.FateReply {
	fate := e.fate
	if ran, ok := e.ran[call]; ok {
		fate.Seconds = &ran
	}
	return fate
}

// fate tells what becomes of a provider that leaves.
func (s *Party) fate() protocol.FateReply {
	fate := protocol.FateReply{PID: s.PID, Name: s.Name, Reason: "its process has ended"}
	if fate.Evicted = s.Process.Evicted(); fate.Evicted && s.LivesOn {
		fate.Reason = "its session was evicted"
		return fate
	}
	if !s.leaving() {
		fate.Reason = "its session provides the function no more"
		return fate
	}
	if s.LivesOn {
		fate.Reason = "its session was closed"
		return fate
	}
	if exit := s.Process.Exit(); exit.Known {
		fate.Reason = "its process " + exit.String()
		if fate.Signal = exit.Signal; exit.Signal == 0 {
			fate.Status = &exit.Status
		}
	}
	return fate
}

// Fate tells what became of the provider that had a claim.
func (ts *Topics) Fate(s *Party, r *protocol.FunctionFate) (reply protocol.FateReply, err error) {
	t, _, err := ts.findTopic(s, r.TopicRef)
	if err != nil {
		return reply, err
	}
	if t.function == nil {
		return reply, protocol.Errorf(protocol.CodeInvalid, "ask of a function", "%s has no providers", t)
	}
	call := callOf{r.Lane, r.Message}
	if r.Member == 0 { // of one that waits again: the last that had begun it
		reply.Reason = "its process has ended, or its session"
		if e := t.function.ended[t.function.lastOf(call)]; e != nil {
			reply = e.fateOf(call)
		}
		return reply, nil
	}
	if e, ok := t.function.ended[r.Member]; ok {
		return e.fateOf(call), nil
	}
	for _, g := range t.groups {
		if g == nil {
			continue
		}
		if p := g.owners[r.Member]; p != nil {
			reply = protocol.FateReply{PID: p.PID, Name: p.Name, Lives: true}
			if reader := g.members[r.Member]; reader != nil {
				reply.NoReply = p.Begun(reader.number, call.lane, call.message) == protocol.NoReplyWord(call.lane, call.message)
			}
			return reply, nil
		}
	}
	return protocol.FateReply{Reason: "its process has ended, or its session"}, nil
}

// noteRan notes for how long a call has run whose provider has left, if that one noted when it began.
func (f *function) noteRan(g *group, call callOf, member uint16, now uint64) {
	e, r, s := f.ended[member], g.members[member], g.owners[member]
	if e == nil || r == nil || s == nil {
		return
	}
	if ran, ok := protocol.RanFor(s.Begun(r.number, call.lane, call.message), call.lane, call.message, now); ok {
		if e.ran == nil {
			e.ran = map[callOf]float64{}
		}
		e.ran[call] = seconds(ran)
	}
}
