package cni

import (
	"errors"
	"fmt"
)

// failure is the error that a command prints (section 5: Error).
type failure struct {
	Version string `json:"cniVersion"`
	Code    code   `json:"code"`
	Message string `json:"msg"`
	Details string `json:"details,omitempty"`
}

func (f *failure) Error() string { return f.Message }

type code int

// The codes of section 5, those of STATUS (section 2), and from 100 on the plugin's own.
const (
	codeVersion     code = 1
	codeEnvironment code = 4
	codeIO          code = 5
	codeDecode      code = 6
	codeConfig      code = 7
	codeTryAgain    code = 11
	codeUnavailable code = 50
	codeLimited     code = 51
	codeNoRecord    code = 100
	codeOtherNetNS  code = 101
	codeExists      code = 102
	codeNoDevice    code = 103
	codeChanged     code = 104
)

func fail(c code, format string, a ...any) *failure {
	return &failure{Code: c, Message: fmt.Sprintf(format, a...)}
}

// because adds what to do about it, or why it happened.
func (f *failure) because(format string, a ...any) *failure {
	f.Details = fmt.Sprintf(format, a...)
	return f
}

// asFailure converts any error to one that a command can print.
func asFailure(err error) *failure {
	if known := (*failure)(nil); errors.As(err, &known) {
		f := *known
		f.Message = err.Error() // with what was joined to it
		return &f
	}
	return &failure{Code: codeIO, Message: err.Error()}
}
