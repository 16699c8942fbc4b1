package lint

import (
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// elsewhere matches paths that exist on one machine only. It is written in two halves so
// that this file does not match itself.
var elsewhere = regexp.MustCompile(strings.Join([]string{
	`/wo` + `rk/`, `/ro` + `ot/go`, `/ho` + `me/[a-z]`,
	`proxy\.gol` + `ang\.org`, `sum\.gol` + `ang\.org`, `goproxy\.` + `io`,
	`deb\.deb` + `ian\.org`, `security\.deb` + `ian\.org`, `archive\.ubun` + `tu\.com`, `snapshot\.deb` + `ian\.org`,
}, "|"))

func TestNoMachinePaths(t *testing.T) {
	for _, file := range files(t) {
		if path.Base(file) == "go.sum" || strings.HasPrefix(file, "LICENSE") {
			continue
		}
		text := read(t, file)
		if !utf8.ValidString(text) {
			continue
		}
		n := 0
		for line := range strings.Lines(text) {
			n++
			if found := elsewhere.FindString(line); found != "" {
				t.Errorf("%s:%d: %s is of one machine or network", file, n, found)
			}
		}
	}
}

// The compiled objects are committed; their debug information may contain paths of the
// machine that compiled them.
func TestNoMachinePathsInObjects(t *testing.T) {
	for _, file := range files(t) {
		if path.Ext(file) != ".o" {
			continue
		}
		if found := elsewhere.FindString(read(t, file)); found != "" {
			t.Errorf("%s holds a path of one machine: %s", file, found)
		}
	}
}

const licence = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause"

// All C code is BPF, with the licence header.
func TestLicenceOfBPF(t *testing.T) {
	found := false
	for _, file := range files(t) {
		if ext := path.Ext(file); ext != ".c" && ext != ".h" {
			continue
		}
		found = true
		text := read(t, file)
		first, _, _ := strings.Cut(text, "\n")
		if !strings.Contains(first, licence) {
			t.Errorf("%s: its first line is not the licence header %q", file, licence)
		}
		if strings.Contains(text, `SEC("license")`) && !strings.Contains(text, `"Dual BSD/GPL"`) {
			t.Errorf(`%s: its license string is not "Dual BSD/GPL"`, file)
		}
	}
	if !found {
		t.Error("there is no C")
	}
}

// A map is in the object that owns it, or in maps.bpf.h of a folder whose objects share it.
func TestPlaceOfMaps(t *testing.T) {
	found := false
	for _, file := range files(t) {
		if ext := path.Ext(file); ext != ".c" && ext != ".h" || !strings.Contains(read(t, file), `SEC(".maps")`) {
			continue
		}
		found = true
		if !strings.HasSuffix(file, ".bpf.c") && path.Base(file) != "maps.bpf.h" {
			t.Errorf("%s defines a map: that belongs in the .bpf.c that owns it, or in maps.bpf.h", file)
		}
	}
	if !found {
		t.Error("there is no map")
	}
}

// The version of the compiler is named in one place.
func TestClangIsPinnedOnce(t *testing.T) {
	pin := regexp.MustCompile(`clang-[0-9]+`)
	for _, file := range files(t) {
		switch {
		case file == "Makefile", strings.HasPrefix(file, "docs/"), path.Ext(file) == ".o", path.Ext(file) == ".md":
			continue
		}
		if found := pin.FindString(read(t, file)); found != "" {
			t.Errorf("%s names %s: the Makefile's CLANG is the place", file, found)
		}
	}
}

// Features of a kernel are probed, never derived from its version.
func TestNoVersionsOfKernels(t *testing.T) {
	compare := regexp.MustCompile(`LINUX_VERSION_CODE|KERNEL_VERSION\(|LINUX_KERNEL_VERSION`)
	for _, file := range files(t) {
		if ext := path.Ext(file); ext != ".go" && ext != ".c" && ext != ".h" || strings.HasPrefix(file, "internal/lint/") {
			continue
		}
		if found := compare.FindString(read(t, file)); found != "" {
			t.Errorf("%s: %s: try, then probe; never compare kernel versions", file, found)
		}
	}
}
