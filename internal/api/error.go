package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
)

// Error is the answer to a request that failed. Hint, if any, says what to do about it.
type Error struct {
	Code    int    `json:"-"` // HTTP status
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"`
}

func (e *Error) Error() string { return e.Message }

// WithHint returns e with a hint.
func (e *Error) WithHint(format string, a ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, a...)
	return &c
}

// Invalid is a request, or a file that it names, which is not valid.
func Invalid(format string, a ...any) *Error {
	return &Error{Code: http.StatusUnprocessableEntity, Message: fmt.Sprintf(format, a...)}
}

// NotFound is a request for something that does not exist.
func NotFound(format string, a ...any) *Error {
	return &Error{Code: http.StatusNotFound, Message: fmt.Sprintf(format, a...)}
}

// Conflicts is a request that conflicts with something that exists.
func Conflicts(format string, a ...any) *Error {
	return &Error{Code: http.StatusConflict, Message: fmt.Sprintf(format, a...)}
}

// Unavailable is a request that cannot be answered now, or on this kernel.
func Unavailable(format string, a ...any) *Error {
	return &Error{Code: http.StatusServiceUnavailable, Message: fmt.Sprintf(format, a...)}
}

func malformed(format string, a ...any) *Error {
	return &Error{Code: http.StatusBadRequest, Message: fmt.Sprintf(format, a...)}
}

// asError adds a code to every error.
func asError(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		// The text of the wrapping errors is kept.
		return &Error{Code: e.Code, Message: err.Error(), Hint: e.Hint}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: http.StatusGatewayTimeout, Message: "timed out: " + err.Error()}
	case errors.Is(err, context.Canceled):
		return &Error{Code: http.StatusServiceUnavailable, Message: "stopped: " + err.Error()}
	}
	return &Error{Code: http.StatusInternalServerError, Message: err.Error()}
}
