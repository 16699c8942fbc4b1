package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"
)

// container is what a container runtime makes of a container in a manifest: a root with mounts, capabilities,
// and a command. The network and the processes are those of the host, unless it is of a pod.
type container struct {
	Root         string
	Mounts       []mount
	Capabilities []string
	Command      []string
	Env          []string
	Pod          bool     // has its own processes and nothing of the host's /proc, /sys and /dev
	Attack       *attacks // instead of Command
}

type mount struct {
	From, To string
	ReadOnly bool
	Type     string // of a file system of its own; empty: From is bound to To
}

const containerEnv = "TCPILOT_E2E_CONTAINER"

// runIfContainer becomes the command of a container if this process was started as one.
func runIfContainer() {
	text := os.Getenv(containerEnv)
	if text == "" {
		return
	}
	var c container
	err := errors.Join(json.Unmarshal([]byte(text), &c), unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""))
	if err == nil && c.Root != "" {
		err = c.enter()
	}
	switch {
	case err == nil && c.Attack != nil:
		if err = c.attack(); err == nil {
			os.Exit(0)
		}
	case err == nil:
		err = c.exec()
	}
	fmt.Fprintln(os.Stderr, "start container:", err)
	os.Exit(1)
}

// enter changes the root of the process, which has mounts and a cgroup namespace of its own, and what it may regain of
// capabilities.
func (c *container) enter() error {
	bind := func(m mount) error {
		to := filepath.Join(c.Root, m.To)
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		flags := uintptr(unix.MS_BIND | unix.MS_REC)
		if m.Type != "" {
			flags = 0
		}
		if err := unix.Mount(m.From, to, m.Type, flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.To, err)
		}
		if !m.ReadOnly {
			return nil
		}
		return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	system := []mount{
		{From: "/proc", To: "/proc"}, {From: "/proc/sys", To: "/proc/sys", ReadOnly: true},
		{From: "/dev", To: "/dev"}, {From: "/sys", To: "/sys", ReadOnly: true},
	}
	if c.Pod {
		system = []mount{{From: "proc", To: "/proc", Type: "proc"}, {From: "sysfs", To: "/sys", Type: "sysfs", ReadOnly: true}}
	}
	for _, m := range slices.Concat([]mount{{From: c.Root}}, system, c.Mounts) {
		if err := bind(m); err != nil {
			return err
		}
	}
	if err := unix.Mount("", c.Root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	// A process may leave a root that was made by chroot, but not one that is the only one of its mounts.
	change := func() error { return errors.Join(unix.Chroot(c.Root), unix.Chdir("/")) }
	if c.Pod {
		change = func() error {
			return errors.Join(unix.Chdir(c.Root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH), unix.Chdir("/"))
		}
	}
	if err := change(); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	// Root gets at exec what the bounding set of its thread allows (capabilities(7)).
	runtime.LockOSThread()
	for bit, name := range capabilities {
		if !slices.Contains(c.Capabilities, name) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	return nil
}

// exec does not return if it succeeds.
func (c *container) exec() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return syscall.Exec(c.Command[0], c.Command, append([]string{"PATH=/"}, c.Env...))
}

// capabilities are the names by number (linux/capability.h).
var capabilities = []string{"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE",
	"SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE",
	"AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"}

// command is the process that becomes the container.
func (c *container) command(t *testing.T) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(c)
	must(t, err)
	self, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), containerEnv+"="+string(text))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP}
	if c.Pod {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
	}
	return cmd
}

// podSpec is the part of a pod's template that a container is made of.
type podSpec struct {
	InitContainers []containerSpec `yaml:"initContainers"`
	Containers     []containerSpec `yaml:"containers"`
	Volumes        []struct {
		Name     string
		HostPath struct{ Path string } `yaml:"hostPath"`
	}
}

type containerSpec struct {
	Name            string
	Args            []string
	SecurityContext struct {
		Capabilities struct{ Drop, Add []string }
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

// daemonSet reads the pods of a manifest's DaemonSet.
func daemonSet(t *testing.T, file string) podSpec {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object struct {
			Kind string
			Spec struct {
				Template struct{ Spec podSpec }
			}
		}
		must(t, d.Decode(&object))
		if object.Kind == "DaemonSet" {
			return object.Spec.Template.Spec
		}
	}
}

// container makes a container of the spec. places are the node's directories by their paths on a node, and those in
// place of other volumes by the volumes' names.
func (s *podSpec) container(t *testing.T, name, root string, places map[string]string) *container {
	t.Helper()
	all := append(slices.Clone(s.InitContainers), s.Containers...)
	at := slices.IndexFunc(all, func(c containerSpec) bool { return c.Name == name })
	if at < 0 {
		t.Fatalf("there is no container %s", name)
	}
	spec := all[at]
	if drop := spec.SecurityContext.Capabilities.Drop; !slices.Equal(drop, []string{"ALL"}) {
		t.Errorf("%s drops the capabilities %v", name, drop)
	}
	c := &container{Root: root, Capabilities: spec.SecurityContext.Capabilities.Add, Command: append([]string{"/tcpilot"}, spec.Args...)}
	for _, m := range spec.VolumeMounts {
		from := places[m.Name]
		for _, v := range s.Volumes {
			if v.Name == m.Name && v.HostPath.Path != "" {
				if from = places[v.HostPath.Path]; from == "" {
					from = v.HostPath.Path
				}
			}
		}
		c.Mounts = append(c.Mounts, mount{From: from, To: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return c
}

// imageRoot makes the container image of the built programs, and unpacks its layer.
func imageRoot(t *testing.T, bin string) string {
	t.Helper()
	archive, root := filepath.Join(t.TempDir(), "image.tar"), t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "run", "github.com/tcpilot/tcpilot/internal/ociimage", "-o", archive,
		bin, filepath.Join(filepath.Dir(bin), "tcpilot-cni")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	for outer := tar.NewReader(f); ; {
		_, err := outer.Next()
		if err != nil {
			t.Fatal("no layer in the image: ", err)
		}
		blob, err := io.ReadAll(outer)
		must(t, err)
		if z, err := gzip.NewReader(bytes.NewReader(blob)); err == nil {
			unpackInto(t, root, tar.NewReader(z))
			return root
		}
	}
}

func unpackInto(t *testing.T, root string, r *tar.Reader) {
	t.Helper()
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		must(t, err)
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			must(t, os.MkdirAll(path, 0o755))
		case tar.TypeSymlink:
			must(t, os.Symlink(h.Linkname, path))
		default:
			data, err := io.ReadAll(r)
			must(t, err)
			// A process that another test starts meanwhile would have the file open for writing until it executes its
			// program, and the kernel executes no such file (ETXTBSY).
			syscall.ForkLock.RLock()
			err = os.WriteFile(path, data, h.FileInfo().Mode())
			syscall.ForkLock.RUnlock()
			must(t, err)
		}
	}
}

// refusals are the lines of a log about missing privileges.
func refusals(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "not permitted") || strings.Contains(line, "ermission denied") || strings.Contains(line, "read-only file system") {
			lines = append(lines, line)
		}
	}
	return lines
}
