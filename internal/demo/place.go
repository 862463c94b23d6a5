package demo

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// placesKey is where a value that is handed over tells where its tensors' bytes lie.
const placesKey = "places"

// places tells which bytes of which memory file a slice of this process is. It
// keeps what it has read of the kernel's list. One goroutine at a time.
type places struct {
	text   []byte
	mapped []mapping // by address
}

// mapping is one line of /proc/self/maps that has a file behind it.
type mapping struct {
	from, to uint64
	offset   uint64
	file     string // device:inode
}

// of returns the place of a slice's first byte, as of the last read. Slices over
// the same memory have the same place in every process. A slice in memory without
// a file is an error.
func (p *places) of(b []byte) (string, error) {
	if len(b) == 0 {
		return "", nil
	}
	at := uint64(reflect.ValueOf(b).Pointer())
	i := sort.Search(len(p.mapped), func(i int) bool { return p.mapped[i].to > at })
	if i == len(p.mapped) || p.mapped[i].from > at {
		return "", fmt.Errorf("memory at %#x is of no file", at)
	}
	m := p.mapped[i]
	return m.file + "+" + strconv.FormatUint(m.offset+at-m.from, 10), nil
}

// read reads the list anew.
func (p *places) read() error {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read the list of mappings: %w", err)
	}
	defer f.Close()
	text := bytes.NewBuffer(p.text[:0])
	if _, err := text.ReadFrom(f); err != nil {
		return fmt.Errorf("read the list of mappings: %w", err)
	}
	p.text, p.mapped = text.Bytes(), p.mapped[:0]
	for line := range bytes.Lines(p.text) {
		m, ok, err := parseMapping(line)
		if err != nil {
			return fmt.Errorf("read the list of mappings: %w", err)
		}
		if ok {
			p.mapped = append(p.mapped, m)
		}
	}
	return nil
}

// parseMapping reads one line: from-to permissions offset device inode path. ok is
// false for memory without a file.
func parseMapping(line []byte) (m mapping, ok bool, err error) {
	span, rest, _ := bytes.Cut(line, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))
	offset, rest, _ := bytes.Cut(rest, []byte(" "))
	device, rest, _ := bytes.Cut(rest, []byte(" "))
	inode, _, _ := bytes.Cut(bytes.TrimSuffix(rest, []byte("\n")), []byte(" "))
	if len(inode) == 0 || string(inode) == "0" {
		return m, false, nil
	}
	from, to, _ := bytes.Cut(span, []byte("-"))
	if m.from, err = strconv.ParseUint(string(from), 16, 64); err != nil {
		return m, false, err
	}
	if m.to, err = strconv.ParseUint(string(to), 16, 64); err != nil {
		return m, false, err
	}
	if m.offset, err = strconv.ParseUint(string(offset), 16, 64); err != nil {
		return m, false, err
	}
	m.file = string(device) + ":" + string(inode)
	return m, true, nil
}

// value makes of a bundle what is handed over: its tensors by name, and where
// their bytes lie. It reads the list anew each time: memory that was given back
// may have left its addresses to other memory.
func (p *places) value(b *client.Bundle) (map[string]any, error) {
	if err := p.read(); err != nil {
		return nil, err
	}
	v, at := map[string]any{}, map[string]any{}
	for i, name := range b.Names() {
		data, err := b.Tensors()[i].Bytes()
		if err != nil {
			return nil, err
		}
		if at[name], err = p.of(data); err != nil {
			return nil, err
		}
		v[name] = b.Tensors()[i]
	}
	v[placesKey] = at
	return v, nil
}

// copied compares a bundle received with the places that its sender told. It
// returns how many bytes lie elsewhere, and so were copied on the way.
func (p *places) copied(b *client.Bundle) (uint64, error) {
	v, err := b.Value()
	if err != nil {
		return 0, err
	}
	dict, _ := v.(map[string]any)
	at, ok := dict[placesKey].(map[string]any)
	if !ok {
		return 0, protocol.Errorf(protocol.CodeProtocol, "run all roles of one version", "a message does not tell where its bytes lie")
	}
	n := uint64(0)
	for i, name := range b.Names() {
		data, err := b.Tensors()[i].Bytes()
		if err != nil {
			return 0, err
		}
		// What was read before may be out of date, but never agrees by mistake.
		here, err := p.of(data)
		if err != nil || here != at[name] {
			if err = p.read(); err == nil {
				here, err = p.of(data)
			}
		}
		if err != nil {
			return 0, err
		}
		if here != at[name] {
			n += uint64(len(data))
		}
	}
	return n, nil
}
