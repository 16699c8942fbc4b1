package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// unpack reads a tar archive: contents, or the target of a link, by name.
func unpack(t *testing.T, data []byte) map[string]string {
	t.Helper()
	all := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch) || h.Uid != 0 || h.Uname != "" || h.Mode&0o022 != 0 && h.Typeflag != tar.TypeSymlink {
			t.Errorf("%s: %v", h.Name, h)
		}
		all[h.Name] = string(text) + h.Linkname
	}
}

// blob finds what a descriptor describes, by its digest and size.
func blob(t *testing.T, layout map[string]string, d descriptor, v any) string {
	t.Helper()
	text, ok := layout["blobs/sha256/"+d.Digest[len("sha256:"):]]
	if !ok || len(text) != d.Size || digest([]byte(text)) != d.Digest {
		t.Fatalf("blob of %+v: %d bytes, digest %s", d, len(text), digest([]byte(text)))
	}
	if v != nil {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			t.Fatal(err)
		}
	}
	return text
}

func TestImageHasTheFilesAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "image.tar")
	for name, mode := range map[string]os.FileMode{"tcpilot": 0o755, "tcpilot-cni": 0o755, "LICENSE": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("contents of "+name), mode); err != nil {
			t.Fatal(err)
		}
	}
	i := image{name: "localhost/x:1", version: "1.2.3", arch: "arm64"}
	files := []string{dir + "/tcpilot", dir + "/tcpilot-cni", dir + "/LICENSE"}
	if err := run(i, out, files); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	layout := unpack(t, archive)
	if layout["oci-layout"] != `{"imageLayoutVersion":"1.0.0"}` || len(layout) != 7 { // two directories, three blobs
		t.Fatalf("%d entries", len(layout))
	}
	var top index
	if err := json.Unmarshal([]byte(layout["index.json"]), &top); err != nil {
		t.Fatal(err)
	}
	d := top.Manifests[0]
	if *d.Platform != (platform{"arm64", "linux"}) || d.Annotations[keyContainerd] != "localhost/x:1" {
		t.Errorf("%+v", d)
	}
	var m manifest
	var c config
	blob(t, layout, d, &m)
	blob(t, layout, m.Config, &c)
	if !reflect.DeepEqual(c.Config, runConfig{[]string{"/tcpilot"}, []string{"run"}, map[string]string{keyVersion: "1.2.3"}}) || c.Architecture != "arm64" {
		t.Errorf("%+v", c)
	}
	z, err := gzip.NewReader(bytes.NewReader([]byte(blob(t, layout, m.Layers[0], nil))))
	if err != nil {
		t.Fatal(err)
	}
	root, err := io.ReadAll(z)
	if err != nil || digest(root) != c.RootFS.DiffIDs[0] {
		t.Errorf("%v, %s", err, c.RootFS.DiffIDs)
	}
	want := map[string]string{"run/": "", "var/": "", "var/run": "/run", "tcpilot": "contents of tcpilot", "tcpilot-cni": "contents of tcpilot-cni", "LICENSE": "contents of LICENSE"}
	if got := unpack(t, root); !reflect.DeepEqual(got, want) {
		t.Errorf("%v", got)
	}
	if err := run(i, out, files); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(out); err != nil || !bytes.Equal(again, archive) {
		t.Errorf("the same files make another image: %v", err)
	}
	if err := run(i, out, nil); err == nil {
		t.Error("an image of nothing")
	}
}
