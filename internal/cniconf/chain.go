package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/tcpilot/tcpilot/internal/cnispec"
)

// Type is the name of the plugin's program, and the type of its entry.
const Type = cnispec.Plugin

// chain is the text of a network configuration list (CNI 1.1, section 1), and where its plugins are in it.
type chain struct {
	text    []byte
	plugins []entry
}

// entry is one plugin of a chain: text[start:end].
type entry struct {
	start, end int
	kind       string
	makes      bool // it makes the pod's interface: it has the key ipam
}

// parse finds the plugins. The text is valid JSON if there is no error.
func parse(text []byte) (c chain, err error) {
	c.text = text
	if !json.Valid(text) {
		var v any
		return c, fmt.Errorf("is not JSON: %w", json.Unmarshal(text, &v))
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return c, errors.New("is not a JSON object")
	}
	found := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return c, err
		}
		if key != "plugins" { // libcni compares the case as well
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return c, err
			}
			continue
		}
		if found {
			return c, errors.New("has the key plugins twice")
		}
		found = true
		if err := c.list(d); err != nil {
			return c, err
		}
	}
	if len(c.plugins) == 0 {
		return c, errors.New("has no plugins")
	}
	return c, nil
}

// list reads the elements of the array plugins.
func (c *chain) list(d *json.Decoder) error {
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return errors.New("has a key plugins that is not an array")
	}
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return err
		}
		var p struct {
			Type string          `json:"type"`
			IPAM json.RawMessage `json:"ipam"`
		}
		if err := json.Unmarshal(raw, &p); err != nil || p.Type == "" {
			return fmt.Errorf("has a plugin without a type: %.60s", raw)
		}
		end := int(d.InputOffset())
		c.plugins = append(c.plugins, entry{end - len(raw), end, p.Type, p.IPAM != nil && string(p.IPAM) != "null"})
	}
	_, err := d.Token() // ]
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ours is the index of tcpilot-cni's entry; -1 if there is none.
func (c *chain) ours() int {
	for i := range c.plugins {
		if c.plugins[i].kind == Type {
			return i
		}
	}
	return -1
}

// with returns the text with an entry after the last plugin: on a line of its own if that plugin
// begins a line.
func (c *chain) with(entry string) []byte {
	last := c.plugins[len(c.plugins)-1]
	line := c.text[bytes.LastIndexByte(c.text[:last.start], '\n')+1 : last.start]
	between := ", "
	if indent := string(line); strings.TrimLeft(indent, " \t") == "" && len(line) < last.start {
		between = ",\n" + indent
	}
	return splice(c.text, last.end, last.end, between+entry)
}

// without returns the text without the entry at i. It reverses with.
func (c *chain) without(i int) []byte {
	if i == 0 {
		return splice(c.text, c.plugins[0].start, c.plugins[1].start, "")
	}
	return splice(c.text, c.plugins[i-1].end, c.plugins[i].end, "")
}

func splice(text []byte, from, to int, by string) []byte {
	out := make([]byte, 0, len(text)+len(by))
	out = append(out, text[:from]...)
	out = append(out, by...)
	return append(out, text[to:]...)
}
