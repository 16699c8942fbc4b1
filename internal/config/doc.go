// Package config reads the configuration file into a Config, once.
//
// A key, its range and its description are defined in one place, the tags of the structs
// here; the decoder, the error texts and docs/config.md are made from them.
//
// It refuses to guess: anything that it does not understand is an error with line and column,
// and so is anything that could never have an effect. It looks nothing up on the host.
package config

//go:generate go run ./gen ../../docs/config.md ../../docs/config.schema.json
