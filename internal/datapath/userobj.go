package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/tcpilot/tcpilot/internal/progstats"
	"github.com/tcpilot/tcpilot/internal/regular"
)

// userPins is the directory of users' pinned objects, beside those of the ABI versions.
const userPins = "user"

// userObject is a sock_ops object that a user brought.
type userObject struct {
	info UserObject
	coll *ebpf.Collection // nil for one that an earlier process loaded
	link link.Link
	pin  string
}

// UserObject describes a loaded object of a user.
type UserObject struct {
	Name    string
	Object  string // file that it came from
	Cgroup  string
	Program string
	ID      uint32
	Since   time.Time
}

func (u *userObject) close() error {
	err := u.link.Close()
	if u.coll != nil {
		u.coll.Close()
	}
	return err
}

// adoptUser takes over objects that users loaded through an earlier process. An object that
// cannot be read is left as it is.
func (d *Datapath) adoptUser() {
	dir := filepath.Join(filepath.Dir(d.dir), userPins)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		u := &userObject{pin: filepath.Join(dir, e.Name()), info: UserObject{Name: e.Name(), Since: time.Now()}}
		if u.link, err = link.LoadPinnedLink(u.pin, nil); err != nil {
			d.log.Warn("user's program not adopted", "name", e.Name(), "error", err)
			continue
		}
		u.describe()
		d.user[e.Name()] = u
	}
}

// describe fills in what the kernel still knows of an adopted program.
func (u *userObject) describe() {
	info, err := u.link.Info()
	if err != nil {
		return
	}
	u.info.ID = uint32(info.Program)
	u.info.Program = progstats.Of(u.info.ID).Name
}

// maxObject limits the size of a user's object, in bytes. tcpilot's own have less than 300 KB.
const maxObject = 16 << 20

// LoadUser loads the sock_ops program of an object file and attaches it to cgroup, beside
// tcpilot's own. Other kinds of objects are refused with the reason.
//
// Reading a file, verifying and attaching can take long: d.mu is not locked meanwhile,
// because renewing the lease needs it.
func (d *Datapath) LoadUser(name, object, cgroup string) (UserObject, error) {
	d.loading.Lock()
	defer d.loading.Unlock()
	if err := validName(name); err != nil {
		return UserObject{}, err
	}
	if d.hasUser(name) {
		return UserObject{}, fmt.Errorf("load %s: %q is loaded already, unload it first or give another name", object, name)
	}
	spec, err := readUserSpec(object)
	if err != nil {
		return UserObject{}, err
	}
	prog, err := onlySockops(spec)
	if err != nil {
		return UserObject{}, fmt.Errorf("load %s: %w", object, err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		return UserObject{}, explainLoad(object, err)
	}
	u := &userObject{coll: coll, pin: filepath.Join(filepath.Dir(d.dir), userPins, name)}
	if err := u.attach(prog, cgroup); err != nil {
		coll.Close()
		return UserObject{}, err
	}
	u.info = UserObject{Name: name, Object: object, Cgroup: cgroup, Program: prog, Since: time.Now()}
	if info, err := coll.Programs[prog].Info(); err == nil {
		id, _ := info.ID()
		u.info.ID = uint32(id)
	}
	if err := d.keepUser(u); err != nil {
		return UserObject{}, errors.Join(err, u.close())
	}
	return u.info, nil
}

func (d *Datapath) hasUser(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.user[name] != nil
}

// keepUser pins the object's link, unless the datapath was closed meanwhile.
func (d *Datapath) keepUser(u *userObject) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("load %s: tcpilot is stopping", u.info.Object)
	}
	if err := os.MkdirAll(filepath.Dir(u.pin), 0o700); err != nil {
		return fmt.Errorf("create pin directory: %w", err)
	}
	if err := repin(u.link, u.pin); err != nil {
		return err
	}
	d.user[u.info.Name] = u
	return nil
}

func (u *userObject) attach(prog, cgroup string) error {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: u.coll.Programs[prog]})
	if err != nil {
		return fmt.Errorf("attach %s to cgroup %s: %w", prog, cgroup, explainAttach(err))
	}
	u.link = l
	return nil
}

// UnloadUser detaches what LoadUser attached under name.
func (d *Datapath) UnloadUser(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	u, ok := d.user[name]
	if !ok {
		return fmt.Errorf("unload %q: no object of that name is loaded ('tcpilot prog list' shows them): %w", name, fs.ErrNotExist)
	}
	delete(d.user, name)
	if err := os.Remove(u.pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return errors.Join(fmt.Errorf("remove pin of %s: %w", name, err), u.close())
	}
	return u.close()
}

// UserObjects lists the loaded objects of users, by name.
func (d *Datapath) UserObjects() []UserObject {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]UserObject, 0, len(d.user))
	for _, u := range d.user {
		out = append(out, u.info)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func readUserSpec(object string) (*ebpf.CollectionSpec, error) {
	elf, err := regular.Read(object, maxObject)
	if err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(elf))
	if err != nil {
		return nil, fmt.Errorf("read object %s: not an eBPF ELF object: %w", object, err)
	}
	return spec, nil
}

// onlySockops returns the name of the object's one program.
func onlySockops(spec *ebpf.CollectionSpec) (string, error) {
	if len(spec.Programs) != 1 {
		return "", fmt.Errorf("it has %d programs: want exactly one, in section \"sockops\"", len(spec.Programs))
	}
	for name, p := range spec.Programs {
		if p.Type != ebpf.SockOps {
			return "", fmt.Errorf("program %s (section %q) is of type %s: want sock_ops, section \"sockops\"", name, p.SectionName, p.Type)
		}
		return name, nil
	}
	panic("unreachable")
}

// validName checks a name that becomes the name of a pin: it must not lead out of the directory.
func validName(name string) error {
	if name == "" || name[0] == '.' || strings.ContainsAny(name, "/. ") || len(name) > 64 {
		return fmt.Errorf("name %q: want 1 to 64 characters without dot, slash or space", name)
	}
	return nil
}
