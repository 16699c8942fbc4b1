package pod

import "testing"

func TestUIDOfCgroup(t *testing.T) {
	const uid, hash = "2f5a8d1e-0b3c-4d6e-8f9a-123456789abc", "0123456789abcdef0123456789abcdef"
	const slice = "pod2f5a8d1e_0b3c_4d6e_8f9a_123456789abc.slice"
	for at, want := range map[string]string{
		"/kubepods/pod" + uid: uid, "/kubepods/burstable/pod" + uid: uid, "/kubelet/kubepods/besteffort/pod" + uid: uid,
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-" + slice:                                       uid,
		"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-" + slice:                                     uid,
		"/kubepods.slice/kubepods-" + slice:                                                                          uid,
		"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-" + slice: uid,
		"/kubepods/burstable/pod" + hash:                                                                             hash,
		"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + hash + ".slice":                          hash,
		"": "", "/": "", "/kubepods": "", "/kubepods/pod": "", "/kubepods/" + uid: "", "/kubepods/tripod" + uid: "", "/kubepods/pod" + uid + "0": "",
		"/kubepods/pod" + uid + ".scope": "", "/kubepods/my-pod" + uid: "", "/kubepods/pod2F5A8D1E-0B3C-4D6E-8F9A-123456789ABC": "",
		"/user.slice/user-1000.slice/user@1000.service/pod" + uid: "", "/docker/abc/pod" + uid: "", "/kubepods/burstable/pod" + uid + "/x/pod" + uid: "",
	} {
		if got := UIDOfCgroup(at); got != want {
			t.Errorf("%q: %q, want %q", at, got, want)
		}
	}
}
