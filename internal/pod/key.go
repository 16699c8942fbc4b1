package pod

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key identifies an attachment (CNI 1.1, section 3). It is written in JSON as in
// cni.dev/valid-attachments.
type Key struct {
	Container string `json:"containerID"`
	Interface string `json:"ifname"`
}

const (
	// maxContainer keeps file names, also temporary ones, within NAME_MAX (255 bytes). Runtimes
	// use 64 characters.
	maxContainer = 200
	maxInterface = 15 // bytes: IFNAMSIZ - 1
)

// CheckContainer returns what is wrong with a container id (CNI 1.1, section 2: CNI_CONTAINERID).
func CheckContainer(id string) error {
	switch {
	case id == "":
		return errors.New("the container id is empty")
	case len(id) > maxContainer:
		return fmt.Errorf("the container id has %d bytes, at most %d are possible", len(id), maxContainer)
	}
	if !IsIdentifier(id) {
		return fmt.Errorf("%.32q is not a container id: a letter or digit, then letters, digits, _ . and -", id)
	}
	return nil
}

// IsIdentifier reports whether s can be the name of a network or the id of a container (CNI 1.1,
// section 1: name, section 2: CNI_CONTAINERID).
func IsIdentifier(s string) bool {
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && (i == 0 || !strings.Contains("_.-", s[i:i+1])) {
			return false
		}
	}
	return s != ""
}

// CheckInterface returns what is wrong with an interface's name. Beside what the kernel refuses
// (dev_valid_name), control characters and invalid UTF-8 are refused, because JSON does not keep them.
func CheckInterface(name string) error {
	switch {
	case name == "":
		return errors.New("the interface name is empty")
	case len(name) > maxInterface:
		return fmt.Errorf("the interface name has %d bytes, at most %d are possible", len(name), maxInterface)
	case name == "." || name == ".." || !utf8.ValidString(name) || strings.ContainsFunc(name, notInInterface):
		return fmt.Errorf("%q is not an interface name", name)
	}
	return nil
}

func notInInterface(r rune) bool {
	return r == '/' || r == ':' || unicode.IsSpace(r) || unicode.IsControl(r)
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// Check returns what is wrong with the attachment's names.
func (k Key) Check() error {
	if err := CheckContainer(k.Container); err != nil {
		return err
	}
	return CheckInterface(k.Interface)
}
