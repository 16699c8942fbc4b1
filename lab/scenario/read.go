package scenario

import "github.com/tcpilot/tcpilot/internal/yamlfile"

// maxFile bounds a scenario file, in bytes.
const maxFile = 64 << 10

// Read reads a scenario; errors refer to it by name. It returns the mistakes of all
// variants as yamlfile.Errors.
func Read(name string, data []byte, o Options) (*Scenario, error) {
	r := &reader{yamlfile.Decoder{File: name}}
	root := r.root(data)
	if err := r.Err(); err != nil {
		return nil, err
	}
	var asked *Scenario
	for _, v := range []Options{{}, {Quick: true}, {Emulated: true}, {Quick: true, Emulated: true}} {
		if s := r.scenario(root, v); v == o {
			asked = s
		}
	}
	if err := r.Err(); err != nil {
		return nil, err
	}
	return asked, nil
}

// reader reads one file.
type reader struct{ yamlfile.Decoder }

func (r *reader) root(data []byte) *node {
	const begin = "begin with name: and title:"
	n := r.Decoder.Read(data, maxFile)
	switch {
	case n == nil && r.Failed == 0:
		r.Fail(yamlfile.Place{}, "the file is empty", begin)
	case n != nil && n.Kind != yamlfile.Mapping && n.Kind != yamlfile.Invalid:
		r.Fail(n.Place, "want key: value entries, found "+n.Kind.String(), begin)
	}
	return n
}

// field is a key that a mapping may have, and the function that reads its value.
type field struct {
	key  string
	read func(*node)
}

// fields reads the entries of a mapping.
func (r *reader) fields(n *node, fields ...field) {
	r.Fields(n, keysOf(fields), nil, func(i int, value *node) { fields[i].read(value) })
}

func keysOf(fields []field) (keys []string) {
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return keys
}
