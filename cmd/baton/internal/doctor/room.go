package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/baton-ipc/baton/broker"
	"github.com/baton-ipc/baton/broker/memory"
	"github.com/baton-ipc/baton/internal/sys"
)

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
	if !m.Full() {
		return ok("%s", text)
	}
	if used := m.Granted + m.Lanes; used > m.Limit {
		text = fmt.Sprintf("%s more than --memory are granted, of %s: new grants are refused", bytes(used-m.Limit), bytes(m.Limit))
	}
	var largest []string
	for i := range m.Largest {
		largest = append(largest, m.Largest[i].Text(bytes))
	}
	if len(largest) > 0 {
		text += "; largest: " + strings.Join(largest, "; ")
	}
	bound, remedy := boundOf(m)
	free := "baton collect gives back what programs keep and do not use; "
	if advice := strings.TrimSuffix(memory.Advice(m.Largest, m.Granted+m.Lanes, 0), ", "); advice != "" {
		free += advice + "; "
	}
	if slices.ContainsFunc(m.Largest, func(h memory.HolderUse) bool { return h.Held+h.Lanes > h.For.Sum() }) {
		free += "baton why SESSION shows what ends the rest; queues and topics that are not used are to be closed; "
	}
	return warn(free+remedy, "%s%s", text, bound)
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
