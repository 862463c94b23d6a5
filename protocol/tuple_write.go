package protocol

// MarshalJSON writes the tuple; what Check refuses is refused. A nil Value is written out, so that
// a reader needs no rule for absent trees. The refusal has CodeHandle,
// or CodeInvalid for names of tensors that are none.
func (t Tuple) MarshalJSON() ([]byte, error) {
	e, err := NewTupleEncoder(t.Topic, t.Sender, t.Host, t.Origin)
	if err != nil {
		return nil, err
	}
	if err := t.checkMessage(t.Host); err != nil {
		return nil, err
	}
	dst := e.appendBegin(nil, t.Sequence, t.Stamp, t.Lost, t.Meta)
	dst, _, err = e.appendForm(dst, &t, nil)
	return dst, err
}

// appendBegin writes a tuple as far as its meta.
func (e *TupleEncoder) appendBegin(dst []byte, sequence, stamp, lost uint64, meta []byte) []byte {
	dst = appendUint(append(dst, e.begin...), sequence)
	dst = appendUint(append(dst, e.position...), stamp)
	dst = appendNumber(dst, `,"lost":`, lost)
	dst = append(dst, `,"meta":`...)
	if meta == nil {
		return append(dst, "null"...)
	}
	return append(dst, meta...)
}

// cut is the place of a handle's storage in a text.
type cut struct{ from, to int }

// appendForm writes the rest of a checked tuple and tells where its tensors'
// storages stand, counted from the start of dst.
func (e *TupleEncoder) appendForm(dst []byte, t *Tuple, cuts []cut) ([]byte, []cut, error) {
	dst, err := t.appendValue(append(dst, `,"value":`...))
	if err != nil {
		return nil, nil, err
	}
	dst = append(dst, `,"tensors":[`...)
	for i := range t.Tensors {
		if i > 0 {
			dst = append(dst, ',')
		}
		x := &t.Tensors[i]
		dst = appendText(append(dst, `{"name":`...), x.Name)
		dst = append(dst, e.handle...)
		from := len(dst)
		dst = x.Handle.storage().append(dst)
		cuts = append(cuts, cut{from, len(dst)})
		dst = append(x.Handle.appendView(dst), '}')
	}
	return append(dst, ']', '}'), cuts, nil
}

func (t *Tuple) appendValue(dst []byte) ([]byte, error) {
	if t.Value != nil {
		return append(dst, t.Value...), nil
	}
	names := make([]string, len(t.Tensors))
	for i := range t.Tensors {
		names[i] = t.Tensors[i].Name
	}
	tree, err := TreeOf(names)
	return append(dst, tree...), err
}
