package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/internal/sys"
)

// leastToGrant is less than a program asks for at first.
const leastToGrant = 4 << 20

// Full tells whether a broker has no room for more: next to nothing is left within --memory, or of the machine.
func Full(m *broker.MemoryStatus) bool {
	return m.Limit > 0 && (m.Granted+m.Lanes > m.Limit/10*9 || m.Left < leastToGrant)
}

// memory looks how much the broker can still grant.
func (p Place) memory(ctx context.Context) Finding {
	a, err := p.Ask(ctx)
	switch {
	case err != nil:
		return ok("none: no broker answers")
	case a.Memory.Limit == 0:
		return ok("none: the broker reports none")
	}
	m := &a.Memory
	text := fmt.Sprintf("%s of %s can still be granted", bytes(m.Left), bytes(m.Limit))
	if !Full(m) {
		return ok("%s", text)
	}
	if used := m.Granted + m.Lanes; used > m.Limit {
		text = fmt.Sprintf("%s more than --memory are granted, of %s: new grants are refused", bytes(used-m.Limit), bytes(m.Limit))
	}
	var largest []string
	for _, r := range a.Largest {
		largest = append(largest, fmt.Sprintf("%s (pid %d) with %s granted, %s held and %s in lanes", r.Name, r.PID, bytes(r.Granted), bytes(r.Held), bytes(r.Lanes)))
	}
	if len(largest) > 0 {
		text += "; largest: " + strings.Join(largest, "; ")
	}
	bound, remedy := boundOf(m)
	return warn("baton collect gives back what programs keep and do not use, baton why SESSION shows what ends the rest; queues and topics that are not used are to be closed; "+remedy, "%s%s", text, bound)
}

// boundOf says what leaves no room, where that is not --memory, and what makes some.
func boundOf(m *broker.MemoryStatus) (text, remedy string) {
	if used := m.Granted + m.Lanes; used > m.Limit/10*9 {
		return "", "baton limit --memory raises the limit"
	}
	if free, err := sys.FreeSpace(m.Dir); m.Dir != "" && err == nil && free < m.Free {
		return fmt.Sprintf("; the file system of --memory-dir %s has %s free", m.Dir, bytes(free)), "make room in that file system (df), or choose another --memory-dir"
	}
	return fmt.Sprintf("; the machine, or the broker's container, has %s free", bytes(m.Free)), "end other programs that hold memory, or raise the container's limit"
}
