package daemon

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tcpilot/tcpilot/internal/api"
	"github.com/tcpilot/tcpilot/internal/congestion"
	"github.com/tcpilot/tcpilot/internal/testenv"
)

// withControls is a place on a kernel that supports congestion controls in BPF.
func withControls(t *testing.T) *place {
	t.Helper()
	p := newPlace(t)
	rows, err := tryControls()
	if err != nil {
		t.Fatal(err)
	}
	if err := whyAbsent(rows, named("tcpilot_bbr3")); err != nil {
		if !strings.Contains(err.Error(), "cannot register a congestion control by a link") {
			t.Fatal(err)
		}
		testenv.Missing(t, err.Error())
	}
	for range 100 { // its removal may still be under way
		if !slices.Contains(p.ccs, "tcpilot_bbr3") {
			break
		}
		time.Sleep(100 * time.Millisecond)
		p.ccs = kernelCCs(t)
	}
	if slices.Contains(p.ccs, "tcpilot_bbr3") {
		testenv.Missing(t, "another process has tcpilot's congestion controls loaded")
	}
	return p
}

const bbr3Only = `congestion_controls: [tcpilot_bbr3]
rules: [{name: all, set: {cc: tcpilot_bbr3}}]`

func (r *running) control(t *testing.T, name string) api.CongestionControl {
	t.Helper()
	l, err := r.Controls(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range l.Controls {
		if c.Name == name {
			return c
		}
	}
	return api.CongestionControl{}
}

// awaitCC makes connections until one has the congestion control.
func awaitCC(t *testing.T, name string) (client, server net.Conn) {
	t.Helper()
	await(t, "a connection with "+name, func() bool {
		client, server = pair(t)
		return ccOf(t, client) == name
	})
	return client, server
}

func TestRootControlByConfiguration(t *testing.T) {
	p := withControls(t)
	p.rules(t, bbr3Only)
	d := p.start(t)
	client, server := awaitCC(t, "tcpilot_bbr3")
	transfer(t, client, server)
	row := d.control(t, "tcpilot_bbr3")
	if row.State != "loaded" || !row.Wanted || !slices.Equal(row.Rules, []string{"all"}) || row.Connections == 0 || len(row.Programs) == 0 {
		t.Errorf("%+v", row)
	}
	for _, c := range congestion.Own() { // both tables agree
		row := d.control(t, c.CC.String())
		if row.NeedsECN != c.NeedsECN || row.Auto == c.ByName || row.User || (row.State == "loaded") != (row.Name == "tcpilot_bbr3") {
			t.Errorf("%+v, want %+v", row, c)
		}
	}
	s := d.status(t)
	if !hasFeature(s, "struct_ops/tcpilot_bbr3") {
		t.Errorf("features %+v", s.Features)
	}
	if s.Counters.Controls["tcpilot_bbr3"] == 0 {
		t.Errorf("counted %+v", s.Counters.Controls)
	}

	// A reload drops it: new connections do not get it, old ones keep it.
	p.rules(t, "congestion_controls: none\nrules: [{name: all, set: {cc: cubic}}]")
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	if row := d.control(t, "tcpilot_bbr3"); row.State != "available" || row.Wanted || slices.Contains(kernelCCs(t), "tcpilot_bbr3") {
		t.Errorf("after the reload: %+v", row)
	}
	awaitCC(t, "cubic")
	if got := ccOf(t, client); got != "tcpilot_bbr3" {
		t.Errorf("the connection has %s now", got)
	}
	transfer(t, client, server)
	client.Close()
	server.Close()

	// And another one brings it back.
	p.rules(t, bbr3Only)
	if r, err := d.Reload(ctx); err != nil || len(r.Warnings) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	awaitCC(t, "tcpilot_bbr3")
	d.stop(t)
	p.nothing(t)
}

// userObject is an object file that the catalogue's tests use.
func userObject(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs("../cc/plain_bpfel_test.o")
	if err == nil {
		_, err = os.Stat(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRootUsersControl(t *testing.T) {
	p := withControls(t)
	keep := func(o *Options) { o.KeepAttached = true }
	p.rules(t, "congestion_controls: none\nrules: [{name: all, set: {cc: "+usersName+"}}]")
	d := p.start(t, keep)
	file := userObject(t)
	c, err := d.LoadControl(ctx, api.LoadControlRequest{Name: usersName, File: file})
	if err != nil || c.State != "loaded" || !c.User || c.Auto || c.Source != file {
		t.Fatalf("%+v, %v", c, err)
	}
	client, server := awaitCC(t, usersName)

	var refused *api.Error
	if _, err := d.UnloadControl(ctx, usersName); !errors.As(err, &refused) || refused.Code != 409 || refused.Hint == "" {
		t.Errorf("unloaded although a rule names it: %v", err)
	}
	for name, want := range map[string]string{"tcpilot_mine": "reserved for tcpilot", "cubic": "the kernel's own", "x": "no such file"} {
		if _, err := d.LoadControl(ctx, api.LoadControlRequest{Name: name, File: "/no/such/file"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}

	// A restart adopts it.
	d.stop(t)
	if !slices.Contains(kernelCCs(t), usersName) {
		t.Fatal("it is gone after a stop with KeepAttached")
	}
	d = p.start(t, keep)
	if row := d.control(t, usersName); row.State != "loaded" || !row.User || row.Source != file {
		t.Errorf("adopted: %+v", row)
	}
	awaitCC(t, usersName)
	transfer(t, client, server)

	// It is unloaded once no rule names it; a reload leaves it alone.
	p.rules(t, "congestion_controls: none\nrules: [{name: all, set: {cc: cubic}}]")
	if _, err := d.Reload(ctx); err != nil {
		t.Fatal(err)
	}
	if row := d.control(t, usersName); row.State != "loaded" {
		t.Errorf("after a reload: %+v", row)
	}
	if u, err := d.UnloadControl(ctx, usersName); err != nil || u.Connections == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if slices.Contains(kernelCCs(t), usersName) {
		t.Error("it is still registered")
	}
	if _, err := d.UnloadControl(ctx, usersName); !errors.As(err, &refused) || refused.Code != 404 {
		t.Errorf("unloaded twice: %v", err)
	}
	transfer(t, client, server)
	client.Close()
	server.Close()
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	_ = d.wait(t)
	p.nothing(t)
}

// With auto a user's control is an arm of rules that name none, and detach unloads all
// controls, also after a crash.
func TestRootDetachUnloadsControls(t *testing.T) {
	p := withControls(t)
	p.rules(t, "congestion_controls: [tcpilot_bbr3]\nrules: [{name: all, learn: {hold_out: 0%}}]")
	d := p.start(t, func(o *Options) { o.KeepAttached = true })
	if _, err := d.LoadControl(ctx, api.LoadControlRequest{Name: usersName, File: userObject(t), Auto: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.LoadControl(ctx, api.LoadControlRequest{Name: "tcpilot_ledbat"}); err != nil {
		t.Fatal(err)
	}
	l, err := d.Rules(ctx)
	if err != nil {
		t.Fatal(err)
	}
	arms := l.Rules[0].Arms
	for name, want := range map[string]bool{usersName: true, "tcpilot_bbr3": true, "tcpilot_ledbat": false, "tcpilot_dctcp": false, "cubic": true} {
		if slices.Contains(arms, named(name)) != want {
			t.Errorf("%s is an arm: %v, want %v; %v", name, !want, want, arms)
		}
	}
	if err := d.Detach(ctx); err != nil {
		t.Fatal(err)
	}
	_ = d.wait(t)
	p.nothing(t)

	killed := p.spawn(t, nil)
	killed.kill()
	if !slices.Contains(kernelCCs(t), "tcpilot_bbr3") {
		t.Error("a kill unloaded it")
	}
	if undone, err := Detach(p.config); err != nil || len(undone) == 0 {
		t.Errorf("%q, %v", undone, err)
	}
	p.nothing(t)
}
