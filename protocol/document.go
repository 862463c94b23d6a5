package protocol

import "slices"

// document is a kind of JSON object that passes through hands outside, where it
// may be damaged.
type document struct {
	kind    string // with its article
	remedy  string
	version uint64
	most    int      // bytes
	fields  []string // that stand in it, "v" for the version among them
	// optional is how many of the last fields may be absent.
	optional int
}

// parse gives every key but the version to field. Every key that is not
// optional must stand in the object once, null ones too, so that a damaged one is not
// taken for its default. Every refusal has CodeHandle.
func (d *document) parse(data []byte, field func(r *jsonReader, key string) error) error {
	if len(data) > d.most {
		return d.errorf("of %d bytes is longer than %d", len(data), d.most)
	}
	r := &jsonReader{data: data}
	version := d.version
	fields := fieldSet{names: d.fields}
	err := r.object(func(key string) error {
		if err := fields.add(r, key); err != nil {
			return err
		}
		if key == "v" {
			n, err := r.natural()
			if err == nil {
				version = n
			}
			return err
		}
		return field(r, key)
	})
	if err == nil {
		err = r.end()
	}
	if version != d.version {
		return Errorf(CodeHandle, "use a client of the version that made it",
			"%s is of version %d; this client reads %d", d.kind, version, d.version)
	}
	if err != nil {
		return d.errorf("is malformed: %s", Plain(err))
	}
	if missing := fields.missing(len(d.fields) - d.optional); missing != "" {
		return d.errorf("has no %q", missing)
	}
	return nil
}

func (d *document) errorf(format string, args ...any) *Error {
	return Errorf(CodeHandle, d.remedy, d.kind+" "+format, args...)
}

// fieldSet notes which of up to 32 keys an object had.
type fieldSet struct {
	names []string
	seen  uint32
}

// add refuses a second key of the same name; unknown ones pass.
func (f *fieldSet) add(r *jsonReader, key string) error {
	i := slices.Index(f.names, key)
	if i < 0 {
		return nil
	}
	if f.seen&(1<<i) != 0 {
		return r.fail("%q stands twice", key)
	}
	f.seen |= 1 << i
	return nil
}

// missing returns one of the first n names that was not seen, or "".
func (f *fieldSet) missing(n int) string {
	for i, name := range f.names[:n] {
		if f.seen&(1<<i) == 0 {
			return name
		}
	}
	return ""
}
