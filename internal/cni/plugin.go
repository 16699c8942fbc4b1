package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tcpilot/tcpilot/internal/pod"
)

// Process is what the runtime gives to the plugin's process.
type Process struct {
	Getenv         func(string) string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run executes one command and returns the exit code. It returns in time also if Stdin, the file
// system or the daemon block.
func (p Process) Run() (exit int) {
	// If the file was removed or replaced meanwhile, it is the path of before. Without /proc, the path is not known.
	program, _ := os.Executable()
	return (&plugin{p, linux{}, delegates(p.Getenv, p.Stderr), program, maxTimeout}).run()
}

type plugin struct {
	Process
	kernel
	delegate delegate
	program  string // its own path; empty: not known
	// patience is how long the plugin waits for its input. The timeout of the command is in the input.
	patience time.Duration
}

// answer is the outcome of a command.
type answer struct {
	output   json.RawMessage // for standard output; nil: nothing
	changed  bool            // the daemon should read the records again, also after an error
	pod      string          // for messages
	settings []string        // settings of the host that were changed, also if there is an error
	warning  error           // why the pod's interface could not be found
	// What was removed of the plugin because this was the last pod for which 'tcpilot cni uninstall' waited, and what failed of that.
	removed    []string
	unfinished error
}

// request is a command with everything that the runtime passed.
type request struct {
	environment
	config
	kernel
	delegate delegate
	program  string // its own path; empty: not known
	input    []byte // the network configuration as it came, for delegates
	bound    *bound
}

func (p *plugin) run() (exit int) {
	start := time.Now()
	e, err := parseEnvironment(p.Getenv)
	if err != nil {
		return p.fail(err, "")
	}
	if e.command == "VERSION" {
		p.patience = min(p.patience, defaultTimeout) // a person who runs the program may give no input
		data, _ := p.input()
		return p.print(versionInfo(data))
	}
	data, err := p.input()
	if err != nil {
		return p.fail(err, "")
	}
	c, err := parseConfig(data)
	if c.Version != "" && !knows(c.Version, e.command) {
		// First, because another version may have other types of keys.
		f := fail(codeVersion, "%s of CNI version %.16q is not supported", e.command, c.Version)
		return p.fail(f.because("supported versions: %s", strings.Join(versions[max(0, slices.Index(versions, since[e.command])):], ", ")), c.Version)
	}
	if err == nil && c.Version == "" {
		err = fail(codeConfig, "the network configuration has no cniVersion")
	}
	if err != nil {
		return p.fail(err, c.Version)
	}
	if e.command == "STATUS" || e.command == "ADD" {
		for _, what := range mistypedKeys(data) {
			fmt.Fprintf(p.Stderr, "tcpilot-cni: %s: %s\n", e.command, what)
		}
	}
	ctx := newBound(start.Add(c.timeout))
	defer ctx.close()
	r := &request{environment: e, config: c, kernel: p.kernel, delegate: p.delegate, program: p.program, input: data, bound: ctx}
	a, err := within(ctx, r.do)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fail(codeTryAgain, "%s did not finish within %v", e.command, c.timeout).because("timeout of the network configuration")
	}
	for _, what := range a.settings {
		fmt.Fprintf(p.Stderr, "tcpilot-cni: %s %s: set %s, so that the host forwards packets of pods\n", e.command, a.pod, what)
	}
	if a.warning != nil {
		fmt.Fprintf(p.Stderr, "tcpilot-cni: %s %s: %v; the pod is recorded without its interface: rules hold for it, limits of bandwidth only for TCP that it sends, and its packets are not routed past the host's stack\n",
			e.command, a.pod, a.warning)
	}
	for _, what := range a.removed {
		fmt.Fprintf(p.Stderr, "tcpilot-cni: %s %s: %s, because the plugin is uninstalled, and no pod needs it any more\n", e.command, a.pod, what)
	}
	if a.unfinished != nil {
		fmt.Fprintf(p.Stderr, "tcpilot-cni: %s %s: %v; 'tcpilot cni uninstall' repeats the removal\n", e.command, a.pod, a.unfinished)
	}
	if a.changed {
		wait, cancel := context.WithTimeout(ctx, c.wait)
		defer cancel()
		_, err := within(wait, func() (struct{}, error) { return struct{}{}, syncPods(wait, c.Socket) })
		if err != nil {
			// Not an error: the daemon reads the records when it starts, and every 5 s.
			fmt.Fprintf(p.Stderr, "tcpilot-cni: %s %s: %v\n", e.command, a.pod, explainSync(e.command, c.Socket, err))
		}
	}
	if err != nil {
		return p.fail(err, c.Version)
	}
	if a.output == nil {
		return 0
	}
	return p.print(a.output)
}

// within calls f on a goroutine of its own, and does not wait longer than ctx: a system call
// cannot be cancelled. The goroutine ends with the process.
func within[T any](ctx context.Context, f func() (T, error)) (v T, err error) {
	type outcome struct {
		v   T
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := f()
		done <- outcome{v, err}
	}()
	select {
	case o := <-done:
		return o.v, o.err
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// input reads the network configuration.
func (p *plugin) input() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	data, err := within(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(p.Stdin, maxConfig+1)) })
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fail(codeIO, "the network configuration did not arrive on standard input within %v", p.patience)
	case err != nil:
		return nil, fail(codeIO, "read network configuration from standard input: %v", err)
	case len(data) > maxConfig:
		return nil, fail(codeIO, "the network configuration has more than %d bytes", maxConfig)
	}
	return data, nil
}

func (p *plugin) print(document any) (exit int) {
	b, err := json.Marshal(document)
	if raw, ok := document.(json.RawMessage); ok {
		b = raw // unchanged: Marshal would compact it
	}
	if err == nil {
		_, err = p.Stdout.Write(append(b[:len(b):len(b)], '\n'))
	}
	if err != nil {
		fmt.Fprintf(p.Stderr, "tcpilot-cni: print answer: %v\n", err)
		return 1
	}
	return 0
}

// fail prints an error in the version of the configuration, if that is known.
func (p *plugin) fail(err error, version string) (exit int) {
	f := asFailure(err)
	f.Version = versions[len(versions)-1]
	if knows(version, "") {
		f.Version = version
	}
	p.print(f)
	return 1
}

// versionDocument is section 5: VERSION Success.
type versionDocument struct {
	Version   string   `json:"cniVersion"`
	Supported []string `json:"supportedVersions"`
}

// versionInfo answers in the version of the request; in the newest one if the request has none, because
// a person runs the program.
func versionInfo(data []byte) versionDocument {
	var asked struct {
		Version string `json:"cniVersion"`
	}
	if json.Unmarshal(data, &asked) != nil || asked.Version == "" {
		asked.Version = versions[len(versions)-1]
	}
	return versionDocument{asked.Version, versions}
}

// name is the name of the attachment's pod in messages.
func name(namespace, name string, key pod.Key) string {
	if name == "" {
		return "container " + key.Container
	}
	return "pod " + namespace + "/" + name
}
