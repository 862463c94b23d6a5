package signature

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/baton-ipc/baton/protocol"
)

// Types are kinds of values that a parameter takes.
type Types uint16

// The kinds. Int is an integer of any size, Int64 one of 64 bits.
const (
	None Types = 1 << iota
	Bool
	Int
	Int64
	Float
	Str
	Bytes
	Tensor
	DType
	Device
	List
	Tuple
	Dict
	Function

	Any = ^Types(0)
)

var names = map[string]Types{"none": None, "bool": Bool, "int": Int, "int64": Int64, "float": Float, "str": Str, "bytes": Bytes,
	"tensor": Tensor, "dtype": DType, "device": Device, "list": List, "tuple": Tuple, "dict": Dict, "function": Function}

// parseTypes reads names that | joins. One that is not known, such as that of a dataclass, may be anything.
func parseTypes(text string) (all Types) {
	for _, name := range strings.Split(text, "|") {
		t, known := names[strings.TrimSpace(name)]
		if !known {
			return Any
		}
		all |= t
	}
	return all
}

// Has tells whether the kinds have one of others.
func (t Types) Has(any Types) bool { return t&any != 0 }

// How a parameter may be given.
const (
	ByEither   = ""
	ByPosition = "position"
	ByName     = "name"
)

// Parameter is one of a function's.
type Parameter struct {
	Name string `json:"name"`
	// Type is kinds as they are written.
	Type string `json:"type"`
	By   string `json:"by,omitempty"`
	// Default is the value tree of what it is where it is not given.
	Default  json.RawMessage `json:"default,omitempty"`
	Optional bool            `json:"optional,omitempty"`
	// Many: it takes all that is left.
	Many bool `json:"many,omitempty"`

	Types Types `json:"-"`
}

// Signature is what a function takes and gives.
type Signature struct {
	// Parameters in their order; nil where the description does not say: then nothing is looked at.
	Parameters *[]Parameter `json:"parameters,omitempty"`
	Result     string       `json:"result,omitempty"`
	// Parts: it gives any number of results, one after the other.
	Parts bool   `json:"parts,omitempty"`
	Doc   string `json:"doc,omitempty"`
	// NATS: it may be called over NATS.
	NATS bool `json:"nats,omitempty"`
}

// Parse reads a description. Members that are not known are passed over.
func Parse(text string) (*Signature, error) {
	s := &Signature{}
	if err := json.Unmarshal([]byte(text), s); err != nil || !bytes.HasPrefix(bytes.TrimSpace([]byte(text)), []byte("{")) {
		return nil, protocol.Errorf(protocol.CodeProtocol, "update or restart its provider", "the description of a function is not a JSON object: %v", err)
	}
	if s.Parameters == nil {
		return s, nil
	}
	for i := range *s.Parameters {
		p := &(*s.Parameters)[i]
		if p.Name == "" {
			return nil, protocol.Errorf(protocol.CodeProtocol, "update or restart its provider", "the description of a function has a parameter without a name")
		}
		if p.Type == "" {
			p.Type = "any"
		}
		p.Types = parseTypes(p.Type)
		p.Optional = p.Optional || p.Default != nil
	}
	return s, nil
}

// Check refuses what the grammar of a description does not have (docs/protocol.md, Description of a function): for
// providers, before they register. Callers read whatever providers of other versions say.
func (s *Signature) Check() error {
	var all []Parameter
	if s.Parameters != nil {
		all = *s.Parameters
	}
	for i := range all {
		p := &all[i]
		switch {
		case p.Name == "":
			return protocol.Errorf(protocol.CodeInvalid, "name it", "parameter %d has no name", i+1)
		case !utf8.ValidString(p.Name) || strings.ContainsFunc(p.Name, isNoText):
			return protocol.Errorf(protocol.CodeInvalid, "use letters, digits and _", "the name of parameter %d has white space or a control character", i+1)
		case slices.ContainsFunc(all[:i], func(other Parameter) bool { return other.Name == p.Name }):
			return protocol.Errorf(protocol.CodeInvalid, "give one of them another name", "two parameters have the name %s", p.Name)
		}
		if err := checkTypes("the parameter "+p.Name, p.Type); err != nil {
			return err
		}
	}
	if s.Result == "" {
		return nil
	}
	return checkTypes("the result", s.Result)
}

func isNoText(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }

// checkTypes refuses a text that is no types joined by |, of what a description says it.
func checkTypes(of, text string) error {
	invalid := func(fault string) error {
		const remedy = "use none, bool, int, int64, float, str, bytes, tensor, dtype, device, list, tuple, dict, function, any, or a class as module:Class, joined by |"
		return protocol.Errorf(protocol.CodeInvalid, remedy, "%s %s", of, fault)
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return invalid("has a control character in its type")
	}
	all := strings.Split(text, "|")
	for i, name := range all {
		if all[i] = strings.TrimSpace(name); all[i] == "" {
			return invalid("has an empty type")
		}
	}
	for _, name := range all {
		if _, known := names[name]; !known && name != "any" && (!protocol.IsTypeName(name) || strings.ContainsFunc(name, isNoText)) {
			return invalid("has the type " + name + ", which is none")
		}
	}
	return nil
}

// JSON is the description.
func (s *Signature) JSON() (string, error) {
	written := *s
	if s.Parameters != nil {
		all := append([]Parameter{}, *s.Parameters...)
		for i := range all {
			all[i].Optional = all[i].Optional && all[i].Default == nil
		}
		written.Parameters = &all
	}
	b, err := json.Marshal(&written)
	return string(b), err
}

// String is for people: (image: tensor, *, mean: float = 0.5) -> tensor.
func (s *Signature) String() string {
	if s.Parameters == nil {
		return "(…)" + s.result()
	}
	var parts []string
	names, positions := false, false
	for i := range *s.Parameters {
		p := &(*s.Parameters)[i]
		if positions && !p.isPositional() {
			parts = append(parts, "/")
		}
		positions = p.isPositional()
		if p.By == ByName && !names && !p.Many {
			names = true
			parts = append(parts, "*")
		}
		part := p.Name + ": " + p.Type
		switch {
		case p.Many && p.By == ByName:
			part = "**" + part
		case p.Many:
			part = "*" + part
		}
		if p.Default != nil {
			part += " = " + string(p.Default)
		} else if p.Optional {
			part += " = …"
		}
		parts = append(parts, part)
	}
	if positions {
		parts = append(parts, "/")
	}
	return "(" + strings.Join(parts, ", ") + ")" + s.result()
}

func (s *Signature) result() string {
	switch {
	case s.Parts && s.Result == "":
		return " -> parts"
	case s.Parts:
		return " -> parts of " + s.Result
	case s.Result == "":
		return ""
	}
	return " -> " + s.Result
}

// Positional returns the parameter that the argument at a position is for: its index, -1 for none.
func (s *Signature) Positional(at int) int {
	for i := range *s.Parameters {
		p := &(*s.Parameters)[i]
		switch {
		case p.By == ByName:
			continue
		case p.Many || at == 0:
			return i
		}
		at--
	}
	return -1
}

// IsPositional tells whether a parameter of a name is given by position alone.
func (s *Signature) IsPositional(name string) bool {
	return slices.ContainsFunc(*s.Parameters, func(p Parameter) bool { return p.isPositional() && p.Name == name })
}

func (p *Parameter) isPositional() bool { return p.By == ByPosition && !p.Many }

// Named returns the parameter that an argument of a name is for: its index, -1 for none.
func (s *Signature) Named(name string) int {
	rest := -1
	for i := range *s.Parameters {
		p := &(*s.Parameters)[i]
		switch {
		case p.By == ByPosition:
		case !p.Many && p.Name == name:
			return i
		case p.Many && p.By == ByName:
			rest = i
		}
	}
	return rest
}
