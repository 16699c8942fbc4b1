package pod

import "testing"

func TestUIDOfCgroup(t *testing.T) {
	const uid, hash = "2f5a8d1e-0b3c-4d6e-8f9a-123456789abc", "0123456789abcdef0123456789abcdef"
	for name, want := range map[string]string{
		"pod" + uid: uid,
		"kubepods-burstable-pod2f5a8d1e_0b3c_4d6e_8f9a_123456789abc.slice":  uid,
		"kubepods-besteffort-pod2f5a8d1e_0b3c_4d6e_8f9a_123456789abc.slice": uid,
		"kubepods-pod2f5a8d1e_0b3c_4d6e_8f9a_123456789abc.slice":            uid,
		"pod" + hash: hash, "kubepods-burstable-pod" + hash + ".slice": hash,
		"": "", "pod": "", "kubepods": "", "kubepods-burstable.slice": "", uid: "", "tripod" + uid: "", "pod" + uid + "0": "", "pod" + uid + ".scope": "",
		"my-pod" + uid: "", "cri-containerd-" + hash + ".scope": "", "pod2F5A8D1E-0B3C-4D6E-8F9A-123456789ABC": "",
	} {
		if got := UIDOfCgroup(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
