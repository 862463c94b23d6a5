package npy

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
)

// member finds one member at the beginning of what is left of a header's dictionary: key, value
// and the comma behind it. Of values it knows those that writers of .npy files make: a text
// without escapes, a truth value, a tuple of numbers. Types with fields are lists or tuples,
// and end the header's reading.
var member = regexp.MustCompile(`^\s*(?:'(\w+)'|"(\w+)")\s*:\s*(?:'([^'"\\\n]*)'|"([^'"\\\n]*)"|(True|False)|(\((?:\s*-?\d+L?\s*,)*(?:\s*-?\d+L?)?\s*\))|([[(]))\s*(?:,|$)?`)

// parseHeader reads the dictionary of a header; DataOffset is left to the caller. at is where
// the text starts in the file.
func parseHeader(text []byte, at int64) (Header, error) {
	inner, opened := bytes.CutPrefix(bytes.TrimSpace(text), []byte("{"))
	inner, closed := bytes.CutSuffix(inner, []byte("}"))
	if !opened || !closed {
		return Header{}, malformed(at, "a dictionary is expected")
	}
	at += int64(bytes.IndexByte(text, '{')) + 1
	var h Header
	var d dtype
	var shape string
	seen := map[string]bool{}
	for rest := inner; len(bytes.TrimSpace(rest)) > 0; {
		here := at + int64(len(inner)-len(rest))
		m := member.FindSubmatch(rest)
		if m == nil {
			return Header{}, malformed(here, "a member with a plain value is expected, not %.40q", rest)
		}
		key, descr, truth, tuple := string(m[1])+string(m[2]), string(m[3])+string(m[4]), string(m[5]), string(m[6])
		isPlain := m[7] == nil
		if rest = rest[len(m[0]):]; isPlain && len(rest) > 0 && !bytes.HasSuffix(m[0], []byte(",")) {
			return Header{}, malformed(at+int64(len(inner)-len(rest)), "a comma is expected")
		}
		isText := m[3] != nil || m[4] != nil
		if seen[key] {
			return Header{}, malformed(here, "%s is given twice", key)
		}
		seen[key] = true
		switch {
		case key == "descr" && isText:
			var err error
			if d, err = byDescr(descr); err != nil {
				return Header{}, err
			}
		case key == "descr" && (!isPlain || tuple != ""):
			return Header{}, unsupported(ErrDType, "a structured type", "its elements have several fields, or are arrays",
				"save each field as an array of its own: numpy.save(file, a['field'])")
		case key == "fortran_order" && truth != "":
			h.FortranOrder = truth == "True"
		case key == "shape" && (tuple == "()" || strings.Contains(tuple, ",")): // (3) is a number in Python
			shape = strings.Trim(tuple, "()")
		default:
			return Header{}, malformed(here, "%s has no such value", key)
		}
	}
	if len(seen) < 3 {
		return Header{}, malformed(at, "descr, fortran_order and shape are expected")
	}
	h.DType, h.Shape = d.name, []int64{}
	for dim := range strings.SplitSeq(shape, ",") {
		dim = strings.TrimSuffix(strings.TrimSpace(dim), "L") // as Python 2 wrote long integers
		if dim == "" {
			continue
		}
		n, err := strconv.ParseInt(dim, 10, 64)
		if err != nil {
			return Header{}, wrongSize(d.name, h.Shape, "dimension %.40s of the file does not fit 64 bits", dim)
		}
		h.Shape = append(h.Shape, n)
	}
	_, err := d.bytes(h.Shape)
	return h, err
}
