package demo

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/baton-ipc/baton/client"
	"github.com/baton-ipc/baton/protocol"
)

// placesKey is where a value that is handed over tells where its tensors' bytes lie.
const placesKey = "places"

// places tells which bytes of which memory file a slice of this process is. It
// keeps what it has read of the kernel's list. One goroutine at a time.
type places struct {
	mapped []mapping // by address
}

// mapping is one line of /proc/self/maps that has a file behind it.
type mapping struct {
	from, to uint64
	offset   uint64
	file     string // device:inode
}

// of returns the place of a slice's first byte. Slices over the same memory have
// the same place in every process. A slice in memory without a file is an error.
func (p *places) of(b []byte) (string, error) {
	if len(b) == 0 {
		return "", nil
	}
	at := uint64(reflect.ValueOf(b).Pointer())
	for range 2 {
		i := sort.Search(len(p.mapped), func(i int) bool { return p.mapped[i].to > at })
		if i < len(p.mapped) && p.mapped[i].from <= at {
			m := p.mapped[i]
			return m.file + "+" + strconv.FormatUint(m.offset+at-m.from, 10), nil
		}
		if err := p.read(); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("memory at %#x is of no file", at)
}

// read reads the list anew.
func (p *places) read() error {
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read the list of mappings: %w", err)
	}
	p.mapped = p.mapped[:0]
	for line := range bytes.Lines(data) {
		// from-to rwxp offset device inode path
		f := strings.Fields(string(line))
		if len(f) < 5 || f[4] == "0" {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		m := mapping{file: f[3] + ":" + f[4]}
		for _, x := range []struct {
			to   *uint64
			text string
		}{{&m.from, from}, {&m.to, to}, {&m.offset, f[2]}} {
			if *x.to, err = strconv.ParseUint(x.text, 16, 64); err != nil {
				return fmt.Errorf("read the list of mappings: %w", err)
			}
		}
		p.mapped = append(p.mapped, m)
	}
	return nil
}

// value makes of a bundle what is handed over: its tensors by name, and where
// their bytes lie.
func (p *places) value(b *client.Bundle) (map[string]any, error) {
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
		here, err := p.of(data)
		if err == nil && here != at[name] {
			// A mapping may have taken the place of another since it was read.
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
