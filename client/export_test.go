package client

import (
	"github.com/baton-ipc/baton/client/internal/signature"
	"github.com/baton-ipc/baton/protocol"
)

// TakesArgs has a function of Args take parameters, as a provider in another language may.
func TakesArgs(parameters ...signature.Parameter) HandleOption {
	return handleOption(func(_ *protocol.FunctionRegister, s *signature.Signature) { s.Parameters = &parameters })
}

// Parameter is one by position or name (""), by position alone ("position") or by name alone ("name").
func Parameter(name, types, by, otherwise string) signature.Parameter {
	return signature.Parameter{Name: name, Type: types, By: by, Default: []byte(otherwise)}
}
